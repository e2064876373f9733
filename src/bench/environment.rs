//! Decisions of the environment: scheduler steps, clock, accounts, observation and reward, but no agent.

use std::sync::Arc;

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, EngineKind};
use kvtide_envs::env::{
    Batch, EnvConfig, EnvError, EpisodeSource, NodeConfig, RewardWeights, VecEnv, VectorEnv, WorldDraw,
};
use kvtide_envs::memory::MemorySource;
use kvtide_envs::sched::Slo;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Window, WorkloadSource};
use kvtide_runtime::{ActionMask, ActionProfile, Host};

use super::{Throughput, seconds};

/// Environments stepped together.
const NUM_ENVS: usize = 64;
/// Decisions of each in a repeat.
const DECISIONS: usize = 400;
/// Length of an episode.
const LENGTH: Micros = Micros::from_millis(300_000);

/// Decisions a second on one core and on all, of both engines, on conversations near the limit of a 24 GB card.
///
/// # Errors
/// The environment cannot be set up.
pub fn decisions(repeats: usize, each: &mut dyn FnMut(Throughput)) -> Result<(), EnvError> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for kind in [EngineKind::V0, EngineKind::V1] {
        for source in ["chat:rate=6,duration=5m", "reasoning:rate=1,duration=5m"] {
            for threads in if cores > 1 { vec![1, cores] } else { vec![1] } {
                let mut envs = VecEnv::new(&Arc::new(config(kind, source)), NUM_ENVS)?;
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                let Ok(pool) = pool else { continue };
                let mut batch = Batch::new(NUM_ENVS, envs.observation_size(), envs.head_sizes().iter().sum());
                let action = kind.default_action().indices();
                let actions: Vec<u8> = action.iter().copied().cycle().take(NUM_ENVS * action.len()).collect();
                pool.install(|| envs.reset(0, &mut batch));
                let mut turn = || {
                    for _ in 0..DECISIONS {
                        envs.step(&actions, &mut batch);
                    }
                };
                let seconds: Vec<f64> = (0..repeats).map(|_| seconds(|| pool.install(&mut turn))).collect();
                let profile = source.split(':').next().unwrap_or(source);
                let case = format!("{}, {profile}, {threads} threads", kind.name());
                each(Throughput::rate("env_decisions", case, "decisions/s", (NUM_ENVS * DECISIONS) as u64, &seconds));
            }
        }
    }
    Ok(())
}

/// Environments of an engine on a 24 GB card, serving `source`.
pub(super) fn config(kind: EngineKind, source: &str) -> EnvConfig {
    let deployment: Deployment = "llama-3-8b@rtx-4090".parse().expect("a known deployment");
    let engine = deployment.engine(kind);
    let cost = CostModel::new(&deployment, engine.block_size);
    let episodes = EpisodeSource {
        source: WorkloadSource::Synthetic(source.parse().expect("a known profile")),
        range: Window { start: Micros::ZERO, end: LENGTH },
        length: LENGTH,
        load: (1.0, 1.0),
    };
    EnvConfig {
        worlds: vec![WorldDraw::new(
            NodeConfig { engine, cost, slo: Slo::default(), clients: None, host: Host::KVTIDE },
            episodes,
        )],
        profile: ActionProfile::Full,
        reward: RewardWeights::default(),
        decision_interval: 8,
        allowed: ActionMask::ALL,
        memory: MemorySource::default(),
    }
}
