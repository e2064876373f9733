//! An environment on a device: one node at a time, episode after episode, and what happens when the device is lost.

use std::sync::Arc;

use crate::common::defective::{Copies, Defect, Defective};
use crate::common::engine;
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::EngineConfig;
use kvtide_envs::env::{
    Arena, Batch, EnvConfig, EnvError, EpisodeSource, NodeConfig, RewardWeights, ServingArena, VecEnv, VectorEnv,
    WorldDraw,
};
use kvtide_envs::memory::{Contents, KvShape};
use kvtide_envs::sched::Slo;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Window, WorkloadSource};
use kvtide_runtime::action::{NUM_CHOICES, NUM_HEADS};
use kvtide_runtime::{Action, ActionMask, ActionProfile, Host, NUM_FEATURES};

const SECOND: Micros = Micros(1_000_000);
/// The choices of [`Action::ENGINE_DEFAULT`].
const DEFAULT: [u8; NUM_HEADS] = [1, 0, 1, 0, 8, 0];

/// Twenty seconds of overload on a small pool, its blocks in memory that only one node has at a time.
fn config(defect: Defect) -> Arc<EnvConfig> {
    let engine = EngineConfig { max_num_seqs: 32, max_model_len: 1024, ..engine(16, 128, 64) };
    let memory = Defective::source(KvShape::small(32, 16).unwrap(), &engine, Contents::Computed, defect);
    let cost = CostModel::new(&"llama-3-8b@rtx-4090".parse().unwrap(), 16);
    let episodes = EpisodeSource {
        source: WorkloadSource::Synthetic("chat:rate=2,duration=20,seed=1".parse().unwrap()),
        range: Window { start: Micros::ZERO, end: SECOND.times(20) },
        length: SECOND.times(20),
        load: (0.8, 1.5),
    };
    let node = NodeConfig { engine, cost, slo: Slo::from_millis(2000, 60, 1500), clients: None, host: Host::KVTIDE };
    Arc::new(EnvConfig {
        worlds: vec![WorldDraw::new(node, episodes)],
        profile: ActionProfile::Full,
        reward: RewardWeights::default(),
        decision_interval: 8,
        allowed: ActionMask::ALL,
        memory,
    })
}

fn sound(_: &mut Copies, _: u64) {}

/// Steps of the engine's default, until `steps` are taken or the environment cannot go on; episodes that ended.
fn play(env: &mut VecEnv, batch: &mut Batch, steps: usize) -> usize {
    let mut episodes = 0;
    for _ in 0..steps {
        env.step(&DEFAULT, batch);
        episodes += batch.episodes.len();
        if env.failure().is_some() {
            break;
        }
    }
    episodes
}

#[test]
fn a_device_steps_one_environment_through_its_episodes() {
    let config = config(sound);
    assert!(matches!(VecEnv::new(&config, 2), Err(EnvError::Exclusive(2))));
    let mut env = VecEnv::new(&config, 1).unwrap();
    let mut batch = Batch::new(1, NUM_FEATURES, NUM_CHOICES);
    env.reset(1, &mut batch);
    assert!(play(&mut env, &mut batch, 400) >= 2);
    assert_eq!(env.failure(), None);
    // Time is measured there, so an episode cannot be replayed: it begins again.
    let saved = env.save();
    play(&mut env, &mut batch, 10);
    env.restore(&saved, &mut batch).unwrap();
    assert!(play(&mut env, &mut batch, 200) >= 1);
    // The device is free for others once the environment is gone.
    drop(env);
    let arena = ServingArena::new(&config).unwrap();
    let episode = arena.play(7, &mut |_, _| Action::ENGINE_DEFAULT).unwrap();
    assert!(episode.decisions > 10);
    assert!(arena.play(8, &mut |_, _| Action::ENGINE_DEFAULT).is_ok());
}

#[test]
fn an_environment_whose_blocks_go_wrong_says_so_and_does_not_panic() {
    let mut env = VecEnv::new(
        &config(|copies, step| {
            if step > 60 && copies.tables.len() > 1 {
                let last = copies.tables.len() - 1;
                copies.tables[last] = copies.tables[0];
            }
        }),
        1,
    )
    .unwrap();
    let mut batch = Batch::new(1, NUM_FEATURES, NUM_CHOICES);
    env.reset(1, &mut batch);
    play(&mut env, &mut batch, 400);
    let failure = env.failure().expect("a defect that nobody notices");
    assert!(failure.contains("does not hold the"), "{failure}");
    env.step(&DEFAULT, &mut batch);
    assert_eq!(env.failure(), Some(failure));
}
