//! Episodes drawn from several worlds: which, how large a pool, which targets, how many clients.

use std::sync::Arc;

use crate::common::node_config;
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{ClockFactors, Deployment, EngineConfig, EngineKind};
use kvtide_envs::env::{
    Batch, EnvConfig, EnvError, EpisodeSource, ResetOptions, RewardWeights, ServingEnv, VecEnv, VectorEnv, WorldDraw,
    check_env,
};
use kvtide_envs::memory::MemorySource;
use kvtide_envs::sched::Slo;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Window, WorkloadSource};
use kvtide_runtime::action::NUM_CHOICES;
use kvtide_runtime::{ActionMask, ActionProfile, NUM_FEATURES};

const LENGTH: Micros = Micros::from_millis(20_000);

fn episodes(source: &str, load: (f64, f64)) -> EpisodeSource {
    let range = Window { start: Micros::ZERO, end: LENGTH };
    EpisodeSource { source: WorkloadSource::Synthetic(source.parse().unwrap()), range, length: LENGTH, load }
}

fn world(engine: EngineKind, source: &str) -> WorldDraw {
    let engine = EngineConfig {
        engine,
        num_gpu_blocks: 300,
        max_num_seqs: 64,
        max_num_batched_tokens: 2048,
        max_model_len: 2048,
        enable_chunked_prefill: true,
        async_scheduling: true,
        ..EngineConfig::default()
    };
    WorldDraw::new(node_config(engine, Slo::default()), episodes(source, (0.5, 2.0)))
}

fn env(worlds: Vec<WorldDraw>) -> ServingEnv {
    let reward = RewardWeights::default();
    ServingEnv::new(Arc::new(EnvConfig {
        worlds,
        profile: ActionProfile::Full,
        reward,
        decision_interval: 8,
        allowed: ActionMask::ALL,
        memory: MemorySource::default(),
    }))
    .unwrap()
}

fn v0_and_v1() -> Vec<WorldDraw> {
    let v0 = WorldDraw { weight: 3.0, ..world(EngineKind::V0, "chat:rate=4,duration=20") };
    vec![v0, world(EngineKind::V1, "code:rate=4,duration=20")]
}

#[test]
fn worlds_come_as_often_as_their_weights_say() {
    let mut env = env(v0_and_v1());
    let mut v0 = 0;
    for seed in 0..400 {
        env.reset(seed, &ResetOptions::default()).unwrap();
        v0 += u32::from(env.node().unwrap().scheduler().config().engine == EngineKind::V0);
    }
    // 300 expected; the standard deviation is under 9.
    assert!((265..=335).contains(&v0), "{v0} of 400");
}

#[test]
fn a_world_can_be_asked_for() {
    let mut env = env(v0_and_v1());
    for (world, engine) in [(0, EngineKind::V0), (1, EngineKind::V1), (3, EngineKind::V1)] {
        env.reset(5, &ResetOptions { world: Some(world), ..ResetOptions::default() }).unwrap();
        assert_eq!(env.node().unwrap().scheduler().config().engine, engine);
    }
}

#[test]
fn a_curriculum_keeps_the_environments_promises() {
    check_env(&mut env(v0_and_v1()), 6, 3).unwrap();
}

#[test]
fn pool_and_targets_are_drawn_and_the_longest_sequence_fits() {
    let targets = [Slo::from_millis(500, 50, 900), Slo::from_millis(9000, 200, 9000)];
    let base = world(EngineKind::V1, "chat:rate=4,duration=20");
    let mut env = env(vec![WorldDraw { pool: (0.25, 1.0), slos: targets.to_vec(), ..base }]);
    let (mut least, mut most, mut first) = (u32::MAX, 0, 0);
    for seed in 0..200 {
        env.reset(seed, &ResetOptions::default()).unwrap();
        let node = env.node().unwrap();
        let config = node.scheduler().config();
        least = least.min(config.num_gpu_blocks);
        most = most.max(config.num_gpu_blocks);
        assert!(config.max_model_len <= config.num_usable_blocks() * config.block_size);
        assert!(targets.contains(&node.slo()));
        first += u32::from(node.slo() == targets[0]);
    }
    assert!((75..85).contains(&least) && (280..=300).contains(&most), "{least} to {most} blocks");
    assert!((70..=130).contains(&first), "{first} of 200");
}

/// Clocks of one deployment, each slower than the one before.
fn clocks(block_size: u32) -> Arc<[CostModel]> {
    let deployment: Deployment = "llama-3-8b@rtx-4090".parse().unwrap();
    let slower = |products: f64| {
        let hardware = deployment.hardware.with_clock(&ClockFactors { products, ..ClockFactors::ONE });
        CostModel::new(&Deployment { hardware, ..deployment.clone() }, block_size)
    };
    [1.25, 1.5, 2.0].map(slower).into()
}

#[test]
fn a_clock_is_drawn_for_each_episode_and_nothing_else_with_it() {
    let base = WorldDraw { pool: (0.5, 1.0), ..world(EngineKind::V1, "chat:rate=4,duration=20") };
    let drawn = WorldDraw { clocks: clocks(base.node.engine.block_size), ..base.clone() };
    let mut counts = [0; 3];
    for seed in 0..300 {
        let options = ResetOptions::default();
        let ((node, plain), (drawn_node, requests)) =
            (base.draw(seed, &options).unwrap(), drawn.draw(seed, &options).unwrap());
        assert_eq!((&node.engine, node.slo, plain.load), (&drawn_node.engine, drawn_node.slo, requests.load));
        assert_eq!(plain.requests, requests.requests);
        counts[drawn.clocks.iter().position(|clock| *clock == drawn_node.cost).unwrap()] += 1;
    }
    assert!(counts.iter().all(|count| (70..=130).contains(count)), "{counts:?} of 300");

    // What was saved goes on by the clock it was begun with.
    check_env(&mut env(vec![drawn.clone()]), 6, 3).unwrap();
    let config = |worlds| {
        Arc::new(EnvConfig {
            worlds,
            profile: ActionProfile::Full,
            reward: RewardWeights::default(),
            decision_interval: 8,
            allowed: ActionMask::ALL,
            memory: MemorySource::default(),
        })
    };
    let (mut first, mut second) =
        (VecEnv::new(&config(vec![drawn.clone()]), 3).unwrap(), VecEnv::new(&config(vec![drawn]), 3).unwrap());
    let batch = || Batch::new(3, NUM_FEATURES, NUM_CHOICES);
    let (mut one, mut other) = (batch(), batch());
    first.reset(7, &mut one);
    let actions = [0, 0, 1, 0, 8, 0].repeat(3);
    for _ in 0..40 {
        first.step(&actions, &mut one);
    }
    second.restore(&first.save(), &mut other).unwrap();
    for _ in 0..40 {
        first.step(&actions, &mut one);
        second.step(&actions, &mut other);
        assert_eq!((&one.observations, &one.rewards), (&other.observations, &other.rewards));
    }
    assert!(
        VecEnv::new(&config(vec![base]), 3).unwrap().restore(&first.save(), &mut other).is_err(),
        "by another clock it is another course"
    );
}

#[test]
fn traffic_is_drawn_shorter_and_longer_and_is_otherwise_the_same() {
    let base = world(EngineKind::V1, "uniform:in=100,out=100,rate=2,duration=20");
    let scaled = WorldDraw { lengths: (0.5, 2.0), ..base.clone() };
    let (mut shortest, mut longest) = (u32::MAX, 0);
    for seed in 0..200 {
        let options = ResetOptions::default();
        let ((node, plain), (scaled_node, scaled)) =
            (base.draw(seed, &options).unwrap(), scaled.draw(seed, &options).unwrap());
        assert_eq!((node.engine, plain.load), (scaled_node.engine, scaled.load));
        assert!(
            plain
                .requests
                .iter()
                .map(|request| request.arrival)
                .eq(scaled.requests.iter().map(|request| request.arrival))
        );
        assert!(plain.requests.iter().all(|request| request.prompt_tokens == 100));
        let tokens = scaled.requests[0].prompt_tokens;
        assert!(
            scaled.requests.iter().all(|request| request.prompt_tokens == tokens && request.output_tokens == tokens)
        );
        (shortest, longest) = (shortest.min(tokens), longest.max(tokens));
    }
    assert!((50..55).contains(&shortest) && (190..=200).contains(&longest), "{shortest} to {longest} tokens");
}

#[test]
fn in_a_closed_loop_the_load_multiplies_the_clients() {
    let mut base = world(EngineKind::V1, "uniform:n=500,in=50,out=50");
    base.node.clients = Some(10);
    let mut env = env(vec![base]);
    for (load, clients) in [(0.5, 5), (1.0, 10), (2.0, 20), (0.01, 1)] {
        env.reset(1, &ResetOptions { load: Some(load), ..ResetOptions::default() }).unwrap();
        env.step(kvtide_runtime::Action::V1_DEFAULT).unwrap();
        assert_eq!(env.node().unwrap().scheduler().num_open(), clients, "load {load}");
    }
}

#[test]
fn what_cannot_be_drawn_is_refused() {
    let error = |worlds: Vec<WorldDraw>| {
        let reward = RewardWeights::default();
        let config = EnvConfig {
            worlds,
            profile: ActionProfile::Full,
            reward,
            decision_interval: 8,
            allowed: ActionMask::ALL,
            memory: MemorySource::default(),
        };
        ServingEnv::new(Arc::new(config)).unwrap_err()
    };
    let base = || world(EngineKind::V1, "chat:rate=4,duration=20");
    assert!(matches!(error(Vec::new()), EnvError::NoWorld));
    assert!(matches!(error(vec![WorldDraw { weight: 0.0, ..base() }]), EnvError::Weight(_)));
    assert!(matches!(error(vec![WorldDraw { weight: f64::NAN, ..base() }]), EnvError::Weight(_)));
    for pool in [(0.0, 1.0), (2.0, 1.0), (0.5, f64::INFINITY), (f64::NAN, 1.0)] {
        assert!(matches!(error(vec![base(), WorldDraw { pool, ..base() }]), EnvError::Pool { .. }), "{pool:?}");
    }
    for lengths in [(0.0, 1.0), (2.0, 1.0), (1.0, 101.0), (f64::NAN, 1.0)] {
        assert!(matches!(error(vec![WorldDraw { lengths, ..base() }]), EnvError::Lengths { .. }), "{lengths:?}");
    }
    // A tenth of a pool of 300 blocks is less than nothing for vLLM, but it works; a thousandth holds no token.
    assert!(matches!(error(vec![WorldDraw { pool: (0.001, 1.0), ..base() }]), EnvError::Config(_)));
}
