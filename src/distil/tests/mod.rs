//! Distilling teachers that are known exactly.

mod growth;
mod oracle;
mod whole;

use std::sync::Arc;

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, EngineKind};
use kvtide_envs::env::{EnvConfig, EpisodeSource, NodeConfig, RewardWeights, WorldDraw};
use kvtide_envs::memory::MemorySource;
use kvtide_envs::sched::Slo;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Window, WorkloadSource};
use kvtide_runtime::action::{NUM_CHOICES, NUM_HEADS};
use kvtide_runtime::{Action, ActionMask, ActionProfile, Feature, Head, Host, Observation, Policy};

use super::dataset::{Sample, Visit, first_choice};
use super::{DistilConfig, Teacher};

/// A teacher made of rules: sure of what they say, indifferent between everything else.
pub(crate) struct Rules(pub(crate) fn(&Observation) -> [u8; NUM_HEADS]);

impl Policy for Rules {
    fn decide(&self, observation: &Observation, mask: ActionMask) -> Action {
        mask.repair(Action::new((self.0)(observation)).expect("rules are in range"))
    }
}

impl Teacher for Rules {
    fn logits(&self, observation: &Observation, mask: ActionMask) -> [f32; NUM_CHOICES] {
        let action = self.decide(observation, mask);
        let mut logits = [0.0; NUM_CHOICES];
        for head in Head::ALL {
            logits[first_choice(head) + usize::from(action.get(head))] = 4.0;
        }
        logits
    }
}

/// The watermark follows growth and the queue, preemption the length of sequences, admission the oldest wait.
pub(crate) fn cautious(observation: &Observation) -> [u8; NUM_HEADS] {
    let watermark = match (observation[Feature::Growth32] > 0.02, observation[Feature::Waiting] > 0.02) {
        (true, _) => 7,
        (false, true) => 4,
        (false, false) => 1,
    };
    let preemption = u8::from(observation[Feature::BlocksPerSequence] > 0.12);
    let admission = if observation[Feature::OldestWait] > 0.5 { 1 } else { 2 };
    [watermark, 0, preemption, admission, 8, 0]
}

/// A small pool under load, which swaps and queues.
pub(crate) fn crowded(profile: ActionProfile) -> Arc<EnvConfig> {
    let deployment: Deployment = "llama-3-8b@rtx-4090".parse().unwrap();
    let mut engine = deployment.engine(EngineKind::V0);
    engine.num_gpu_blocks = 900;
    engine.max_model_len = engine.max_model_len.min(900 * engine.block_size);
    engine.max_num_batched_tokens = engine.max_num_batched_tokens.max(engine.max_model_len);
    Arc::new(EnvConfig {
        worlds: vec![WorldDraw::new(
            NodeConfig {
                cost: CostModel::new(&deployment, engine.block_size),
                engine,
                slo: Slo::default(),
                clients: None,
                host: Host::KVTIDE,
            },
            EpisodeSource {
                source: WorkloadSource::Synthetic("chat:rate=2,duration=60".parse().unwrap()),
                range: Window { start: Micros::ZERO, end: Micros::from_millis(60_000) },
                length: Micros::from_millis(60_000),
                load: (0.5, 2.0),
            },
        )],
        profile,
        reward: RewardWeights::default(),
        decision_interval: 8,
        allowed: ActionMask::ALL,
        memory: MemorySource::default(),
    })
}

/// Minutes of simulation, not hours.
pub(crate) fn quick() -> DistilConfig {
    DistilConfig {
        seed: 7,
        dagger_iterations: 2,
        samples_per_iteration: 3000,
        episodes_per_iteration: 8,
        holdout_fraction: 0.3,
        min_leaf_samples: 1,
        ..DistilConfig::default()
    }
}

/// Samples with these values of the first features; the rest are zero.
pub(crate) fn samples(teacher: &dyn Teacher, values: &[Vec<f32>]) -> Vec<Sample> {
    let label = |values: &Vec<f32>| {
        let mut observation = Observation::ZERO;
        observation.values[..values.len()].copy_from_slice(values);
        Sample::label(teacher, &Visit { observation, mask: ActionMask::ALL }).unwrap()
    };
    values.iter().map(label).collect()
}
