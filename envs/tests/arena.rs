//! Whole episodes under one policy: they depend on their seed and the decisions, not on who played before.

use std::sync::Arc;

use crate::common::engine;
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{DeadEnds, EngineConfig};
use kvtide_envs::env::{
    Arena, EnvConfig, EnvError, Episode, EpisodeSource, NodeConfig, ResetOptions, RewardWeights, ServingArena,
    ServingEnv, WorldDraw,
};
use kvtide_envs::memory::MemorySource;
use kvtide_envs::sched::Slo;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Window, WorkloadSource};
use kvtide_runtime::{Action, ActionMask, ActionProfile, Head, Host};

const SECOND: Micros = Micros(1_000_000);

/// A small server under more traffic than it can bear.
fn world(num_cpu_blocks: u32) -> WorldDraw {
    let cost = CostModel::new(&"llama-3-8b@rtx-4090".parse().unwrap(), 16);
    let engine = EngineConfig { max_model_len: 2048, pricing: cost.pricing(), ..engine(16, 256, num_cpu_blocks) };
    let range = Window { start: Micros::ZERO, end: SECOND.times(20) };
    let source = WorkloadSource::Synthetic("chat:rate=4,duration=20".parse().unwrap());
    let episodes = EpisodeSource { source, range, length: SECOND.times(20), load: (0.8, 1.5) };
    WorldDraw::new(
        NodeConfig { engine, cost, slo: Slo::from_millis(2000, 60, 1500), clients: None, host: Host::KVTIDE },
        episodes,
    )
}

fn config(worlds: Vec<WorldDraw>) -> Arc<EnvConfig> {
    let (profile, reward) = (ActionProfile::Full, RewardWeights::default());
    Arc::new(EnvConfig {
        worlds,
        profile,
        reward,
        decision_interval: 8,
        allowed: ActionMask::ALL,
        memory: MemorySource::default(),
    })
}

fn play(arena: &ServingArena, seed: u64, level: u8) -> Episode {
    let action = Action::ENGINE_DEFAULT.with(Head::Watermark, level).unwrap();
    arena.play(seed, &mut |_, mask| mask.repair(action)).unwrap()
}

#[test]
fn an_episode_does_not_depend_on_those_before_it() {
    let config = config(vec![world(0)]);
    let arena = ServingArena::new(&config).unwrap();
    let first: Vec<Episode> = (1..=3).map(|seed| play(&arena, seed, 1)).collect();
    let other = play(&arena, 2, 9);
    for seed in [3, 1, 2] {
        assert_eq!(play(&arena, seed, 1), first[seed as usize - 1]);
    }
    assert!(first[0] != first[1] && first[1] != other);

    // The same as stepping an environment by hand.
    let mut env = ServingEnv::new(config).unwrap();
    let (_, mut info) = env.reset(2, &ResetOptions::default()).unwrap();
    loop {
        let step = env.step(info.mask.repair(Action::ENGINE_DEFAULT)).unwrap();
        info = step.info;
        if step.terminated || step.truncated {
            break;
        }
    }
    assert_eq!(env.episode(0).unwrap(), first[1]);
    let requests = env.node().unwrap().collector().records().len() as u64;
    let violations = env.node().unwrap().collector().violations;
    let served = first[1].served;
    assert_eq!((served.requests, served.on_time), (requests, requests - violations));
    assert!(violations > 0 && violations < requests, "{violations} of {requests}");
}

#[test]
fn a_choice_counts_if_any_world_allows_it() {
    let choices = |worlds| ServingArena::new(&config(worlds)).unwrap().choices();
    let preemption = Head::Preemption as usize;
    assert_eq!(choices(vec![world(0)])[preemption], 0b010);
    assert_eq!(choices(vec![world(0), world(64)])[preemption], 0b111);
    assert_eq!(choices(vec![world(0)])[0], (1 << 20) - 1);
}

#[test]
fn a_faithful_engine_and_a_forbidden_action_are_refused() {
    let mut faithful = world(0);
    faithful.node.engine.dead_ends = DeadEnds::Faithful;
    assert!(matches!(ServingArena::new(&config(vec![faithful])), Err(EnvError::Faithful)));

    let arena = ServingArena::new(&config(vec![world(0)])).unwrap();
    let swap = Action::new([0, 0, 0, 0, 8, 0]).unwrap();
    assert!(matches!(arena.play(1, &mut |_, _| swap), Err(EnvError::Forbidden { .. })));
    assert_eq!(arena.default_action(), Action::ENGINE_DEFAULT);
    // And nothing is the worse for it.
    assert_eq!(play(&arena, 1, 1), play(&arena, 1, 1));
}
