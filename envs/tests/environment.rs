//! The gym-like environment: its promises, its decision points, and that results depend on seed and actions alone.

use std::sync::Arc;

use crate::common::{controls, engine, faithful, node_config};
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{ConfigError, EngineConfig};
use kvtide_envs::env::{
    Batch, EnvConfig, EnvError, EpisodeSource, Node, NodeConfig, NodeStatus, ResetOptions, Reward, RewardWeights,
    ServingEnv, VecEnv, VectorEnv, WorldDraw, check_env, mask, snapshot,
};
use kvtide_envs::memory::MemorySource;
use kvtide_envs::metrics::Collector;
use kvtide_envs::sched::{Phase, Slo};
use kvtide_envs::seed;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_envs::workload::{Replay, Window, Workload, WorkloadError, WorkloadSource};
use kvtide_runtime::Snapshot;
use kvtide_runtime::action::NUM_CHOICES;
use kvtide_runtime::observer::Totals;
use kvtide_runtime::{Action, ActionMask, ActionProfile, Controls, Head, Host, NUM_FEATURES, Preemption, Victim};
use rand::RngExt;
use serde_json::{Value, json};

const SECOND: Micros = Micros(1_000_000);

fn cost(block_size: u32) -> CostModel {
    CostModel::new(&"llama-3-8b@rtx-4090".parse().unwrap(), block_size)
}

/// A small server under more traffic than it can bear.
fn overload(source: &str, profile: ActionProfile) -> EnvConfig {
    let cost = cost(16);
    let engine = EngineConfig {
        max_num_seqs: 64,
        max_model_len: 2048,
        max_wait: SECOND.times(20),
        pricing: cost.pricing(),
        ..engine(16, 256, 64)
    };
    let episodes = EpisodeSource {
        source: WorkloadSource::Synthetic(source.parse().unwrap()),
        range: Window { start: Micros::ZERO, end: SECOND.times(20) },
        length: SECOND.times(20),
        load: (0.8, 1.5),
    };
    let node = NodeConfig { engine, cost, slo: Slo::from_millis(2000, 60, 1500), clients: None, host: Host::KVTIDE };
    let worlds = vec![WorldDraw::new(node, episodes)];
    EnvConfig {
        worlds,
        profile,
        reward: RewardWeights::default(),
        decision_interval: 8,
        allowed: ActionMask::ALL,
        memory: MemorySource::default(),
    }
}

/// The same with a host pool of so many blocks.
fn with_host(mut config: EnvConfig, num_cpu_blocks: u32) -> EnvConfig {
    config.worlds[0].node.engine.num_cpu_blocks = num_cpu_blocks;
    config
}

/// These requests and no others, in an episode that ends long after they are done.
fn fixed(engine: &EngineConfig, requests: Vec<Request>) -> EnvConfig {
    let length = SECOND.times(3600);
    let trace = Workload::new("fixed", requests, length).unwrap();
    let cost = cost(engine.block_size);
    let node = NodeConfig {
        engine: EngineConfig { pricing: cost.pricing(), ..engine.clone() },
        cost,
        slo: Slo::from_millis(1000, 60, 500),
        clients: None,
        host: Host::KVTIDE,
    };
    let episodes = EpisodeSource {
        source: WorkloadSource::Replay { trace, replay: Replay::default() },
        range: Window { start: Micros::ZERO, end: length },
        length,
        load: (1.0, 1.0),
    };
    EnvConfig {
        worlds: vec![WorldDraw::new(node, episodes)],
        profile: ActionProfile::Full,
        reward: RewardWeights::default(),
        decision_interval: 8,
        allowed: ActionMask::ALL,
        memory: MemorySource::default(),
    }
}

fn requests(list: &[(u64, u32, u32)]) -> Vec<Request> {
    list.iter().map(|&(at, prompt, output)| Request::new(Micros::from_millis(at), prompt, output)).collect()
}

#[test]
fn every_profile_keeps_its_promises_under_overload() {
    for source in ["chat:rate=8,duration=20", "reasoning:rate=2,duration=20"] {
        for profile in ActionProfile::ALL {
            let mut env = ServingEnv::new(Arc::new(overload(source, profile))).unwrap();
            check_env(&mut env, 5, 2).unwrap_or_else(|broken| panic!("{source}, {profile:?}: {broken}"));
            let collector = env.node().unwrap().collector();
            assert!(collector.preemptions > 0 && collector.refused_steps > 0, "{source} is no overload");
        }
    }
}

#[test]
fn a_chunked_engine_keeps_them_too() {
    let mut config = overload("mix:rate=4,duration=20", ActionProfile::Full);
    config.worlds[0].node.engine = crate::common::chunked(config.worlds[0].node.engine.clone(), 512);
    config.worlds[0].node.engine.num_cpu_blocks = 0;
    check_env(&mut ServingEnv::new(Arc::new(config)).unwrap(), 6, 2).unwrap();
}

#[test]
fn the_same_seed_is_the_same_episode_and_another_is_another() {
    let mut env = ServingEnv::new(Arc::new(overload("chat:rate=8,duration=20", ActionProfile::Watermark))).unwrap();
    let mut hash = |seed| {
        env.reset(seed, &ResetOptions::default()).unwrap();
        loop {
            let step = env.step(Action::ENGINE_DEFAULT).unwrap();
            if step.terminated || step.truncated {
                return (step.info.hash, step.observation, step.info.load.to_bits());
            }
        }
    };
    let first = hash(1);
    assert_eq!(hash(1), first);
    assert_ne!(hash(2).0, first.0);
}

#[test]
fn reset_options_override_what_would_be_drawn() {
    let mut env = ServingEnv::new(Arc::new(overload("chat:rate=8,duration=20", ActionProfile::Watermark))).unwrap();
    let options = ResetOptions { load: Some(1.25), ..ResetOptions::default() };
    assert_eq!(env.reset(1, &options).unwrap().1.load, 1.25);
    let impossible = ResetOptions { load: Some(f64::NAN), ..ResetOptions::default() };
    assert!(matches!(env.reset(1, &impossible), Err(EnvError::Workload(_))));
}

/// Plays to the end with constant controls; the sum of rewards and what it took.
fn total(config: EnvConfig, action: Action) -> (f64, u64, u64) {
    let mut env = ServingEnv::new(Arc::new(config)).unwrap();
    env.reset(0, &ResetOptions::default()).unwrap();
    let (mut sum, mut decisions) = (0.0, 0);
    loop {
        let step = env.step(action).unwrap();
        sum += f64::from(step.reward);
        decisions += 1;
        if step.terminated || step.truncated {
            assert!(step.terminated);
            return (sum, decisions, step.info.hash);
        }
    }
}

/// 60 requests in 6 s on a pool that holds about 12 of them.
fn crowded() -> EnvConfig {
    let crowd: Vec<(u64, u32, u32)> = (0..60).map(|at| (at * 100, 100 + 7 * at as u32, 20 + at as u32)).collect();
    fixed(&EngineConfig { max_num_seqs: 32, ..engine(16, 150, 40) }, requests(&crowd))
}

#[test]
fn rewards_add_up_however_the_episode_is_cut() {
    for action in [[0, 0, 0, 0, 8, 0], [3, 2, 1, 0, 8, 0], [19, 4, 0, 0, 8, 0]] {
        let action = Action::new(action).unwrap();
        let whole = total(EnvConfig { decision_interval: 1_000_000, ..crowded() }, action);
        for decision_interval in [1, 8, 50] {
            let cut = total(EnvConfig { decision_interval, ..crowded() }, action);
            assert_eq!(cut.2, whole.2, "the run is the same");
            assert!(cut.1 > whole.1);
            // Rewards are fractions of what a nominal interval could deliver.
            let (cut, whole) = (cut.0 * f64::from(decision_interval), whole.0 * 1e6);
            assert!((cut - whole).abs() < 1e-4 * whole.abs().max(1.0), "interval {decision_interval}: {cut}, {whole}");
        }
    }
}

#[test]
fn a_reward_is_the_weighted_growth_of_the_counters() {
    let config = crowded();
    let mut node = Node::new(
        &config.worlds[0].node,
        config.worlds[0].episodes.draw(0, &ResetOptions::default(), false).unwrap().requests,
        Collector::default(),
    )
    .unwrap();
    let only = |on_time, violation, waste| {
        let weights = RewardWeights { token: 0.0, on_time, attained: 0.0, violation, waste };
        Reward::new(weights, &config.worlds[0].node.engine, &config.worlds[0].node.cost, 8, 50.0)
    };
    let controls = Controls { preemption: Preemption::Recompute, ..controls() };
    while node.step(&controls).unwrap() == NodeStatus::Stepped {}
    let collector = node.collector();
    // The pool holds two sequences of the nominal 1024 tokens.
    let tokens = f64::from(2 * 8);
    let near = |reward: f32, expected: f64| {
        assert!((f64::from(reward) - expected).abs() < 1e-5 * expected.abs(), "{reward}, expected {expected}");
    };
    assert!(collector.violations > 0 && collector.recomputed_tokens > 0);
    near(only(1.0, 0.0, 0.0).take(collector), collector.on_time_tokens as f64 / tokens);
    near(only(0.0, 1.0, 0.0).take(collector), -(collector.violations as f64 * 50.0) / tokens);
    assert!(only(0.0, 0.0, 1.0).take(collector) < 0.0);
    let none = RewardWeights { token: 0.0, on_time: 0.0, attained: 0.0, violation: 0.0, waste: 0.0 };
    let world = &config.worlds[0].node;
    let take = |weights| Reward::new(weights, &world.engine, &world.cost, 8, 50.0).take(collector);
    near(take(RewardWeights { token: 1.0, ..none }), collector.output_tokens as f64 / tokens);
    let attained = collector.records().filter(|record| record.phase == Phase::Finished && !record.violated).count();
    assert!(attained > 0 && attained < collector.records().len());
    near(take(RewardWeights { attained: 1.0, ..none }), attained as f64 * 50.0 / tokens);
    let mut reward = only(1.0, 1.0, 1.0);
    reward.take(collector);
    assert_eq!(reward.take(collector), 0.0);
}

#[test]
fn an_interval_of_nothing_is_an_interval_of_one() {
    let (sum, decisions, hash) = total(EnvConfig { decision_interval: 0, ..crowded() }, Action::ENGINE_DEFAULT);
    assert!(sum.is_finite());
    assert_eq!((sum, decisions, hash), total(EnvConfig { decision_interval: 1, ..crowded() }, Action::ENGINE_DEFAULT));
}

/// Steps of each decision.
fn decision_steps(engine: EngineConfig, list: &[(u64, u32, u32)], controls: &Controls) -> Vec<u64> {
    let config = node_config(engine, Slo::default());
    let mut node = Node::new(&config, requests(list).into(), Collector::default()).unwrap();
    let mut steps = Vec::new();
    loop {
        let before = node.collector().steps;
        let progress = node.advance(controls, 8).unwrap();
        steps.push(node.collector().steps - before);
        if progress != NodeStatus::Stepped {
            return steps;
        }
    }
}

#[test]
fn a_decision_is_due_every_interval_and_when_something_is_first_refused() {
    // Nothing is refused: 20 steps are 8, 8 and 4.
    assert_eq!(decision_steps(engine(4, 10, 0), &[(0, 4, 20)], &controls()), [8, 8, 4]);
    // Request 1 is refused in steps 1 to 3, which is news once; it runs in steps 4 and 5.
    let waits = [(0, 36, 3), (0, 36, 2)];
    assert_eq!(decision_steps(engine(4, 10, 0), &waits, &controls()), [1, 4]);
    // In the tenth step both need a fourth block and one is left: growth is refused for the first time.
    let grows = [(0, 4, 12), (0, 4, 12)];
    let steps = decision_steps(engine(4, 7, 0), &grows, &controls());
    assert_eq!(steps[..2], [8, 2], "{steps:?}");
}

#[test]
fn a_snapshot_counts_what_is_there() {
    let two = EngineConfig { max_num_seqs: 2, ..engine(4, 10, 6) };
    let list = requests(&[(0, 4, 9), (0, 7, 9), (0, 30, 9)]);
    let slo = Slo::from_millis(2000, 100, 1000);
    let mut node = Node::new(&node_config(two, slo), list.into(), Collector::default()).unwrap();
    node.step(&controls()).unwrap();
    let now = node.now().0;
    // Requests 0 and 1 have 5 and 8 tokens in 1 and 2 blocks; 30 tokens wait for 8 blocks, and 7 are free.
    let expected = Snapshot {
        now_us: now,
        block_size: 4,
        num_gpu_blocks: 10,
        free_gpu_blocks: 7,
        evictable_blocks: 0,
        num_cpu_blocks: 6,
        free_cpu_blocks: 6,
        growth_blocks: [1, 4, 16],
        held_blocks: 3,
        running: 2,
        waiting: 1,
        swapped: 0,
        max_num_seqs: 2,
        max_num_batched_tokens: 40,
        head_blocks: 8,
        head_tokens: 30,
        waiting_blocks: 8,
        waiting_tokens: 30,
        oldest_wait_us: now,
        late_waiting: 0,
        on_time_waiting: 1,
        on_time_blocks: 8,
        on_time_slack_us: 2_000_000 - now - node.scheduler().config().pricing.prefill(30).0,
        behind: 0,
        slack_sum_us: 2 * (2_100_000 - now as i64),
        generated_tokens: 2,
        pending_prefill_tokens: 0,
        decodes: 2,
        decode_slack_sum_us: 2 * (2_100_000 - now as i64),
        least_decode_slack_us: 2_100_000 - now as i64,
        ttft_target_us: 2_000_000,
        tpot_target_us: 100_000,
        totals: Totals {
            steps: 1,
            refused_steps: 1,
            arrivals: 3,
            arrived_prompt_tokens: 41,
            tokens: 11,
            ..Totals::default()
        },
    };
    assert_eq!(snapshot(&node), expected);
}

#[test]
fn a_waiting_victim_asks_for_all_its_tokens() {
    // Request 1 has a token beyond its prompt when it is preempted in the second step.
    let list = requests(&[(0, 8, 9), (0, 8, 9)]);
    let config = node_config(engine(4, 4, 0), Slo::default());
    let mut node = Node::new(&config, list.into(), Collector::default()).unwrap();
    node.step(&controls()).unwrap();
    node.step(&controls()).unwrap();
    let shot = snapshot(&node);
    assert_eq!((shot.waiting, shot.head_tokens, shot.head_blocks), (1, 9, 3));
    assert_eq!((shot.waiting_tokens, shot.waiting_blocks), (9, 3));
    // It has its first token, so it waits for none.
    assert_eq!((shot.oldest_wait_us, shot.late_waiting, shot.totals.preemptions), (0, 0, 1));
}

#[test]
fn without_a_host_pool_nothing_can_be_swapped() {
    let config = |host| with_host(crowded(), host);
    for profile in ActionProfile::ALL {
        for host in [0, 1] {
            let mut env = ServingEnv::new(Arc::new(EnvConfig { profile, ..config(host) })).unwrap();
            let (_, info) = env.reset(0, &ResetOptions::default()).unwrap();
            assert_eq!(info.mask, mask(env.node().unwrap(), profile));
            for choice in [Preemption::Swap, Preemption::Recompute, Preemption::Cheaper] {
                let expected = choice == Preemption::Recompute || (host > 0 && profile != ActionProfile::Watermark);
                assert_eq!(info.mask.allows(Head::Preemption, choice as u8), expected, "{profile:?} {host} {choice:?}");
            }
            let victims = info.mask.allows(Head::Victim, Victim::MostSlack as u8);
            assert_eq!(victims, profile != ActionProfile::Watermark);
            assert_eq!(info.mask.allows(Head::Admission, 2), profile.decides(Head::Admission));
            // V0 keeps its budget, and nothing here has classes of cached blocks.
            let budgets = (0..9).filter(|&level| info.mask.allows(Head::Budget, level));
            assert!(budgets.eq([8]) && !info.mask.allows(Head::Eviction, 1));
            let swap = Action::ENGINE_DEFAULT.with(Head::Preemption, Preemption::Swap as u8).unwrap();
            assert_eq!(
                matches!(env.step(swap), Err(EnvError::Forbidden { .. })),
                host == 0 || profile == ActionProfile::Watermark
            );
        }
    }
}

#[test]
fn a_dead_engine_needs_a_reset() {
    let config = fixed(&faithful(2, 4, 0), requests(&[(0, 4, 2), (0, 4, 2)]));
    // The mask forbids swapping without a host pool, so that it takes a small one to die.
    let config = with_host(config, 2);
    let swap = Action::ENGINE_DEFAULT.with(Head::Preemption, Preemption::Swap as u8).unwrap();
    let swap = swap.with(Head::Watermark, 0).unwrap();
    let mut env = ServingEnv::new(Arc::new(config.clone())).unwrap();
    env.reset(0, &ResetOptions::default()).unwrap();
    assert!(matches!(env.step(swap), Err(EnvError::Engine(_))));
    assert!(matches!(env.step(swap), Err(EnvError::NeedsReset)));
    env.reset(0, &ResetOptions::default()).unwrap();
    let refused = VecEnv::new(&Arc::new(config), 2).map(drop).unwrap_err();
    assert!(matches!(refused, EnvError::Faithful));
}

#[test]
fn a_stalled_engine_is_an_episode_cut_short() {
    let stalls = EngineConfig { num_cpu_blocks: 6, ..faithful(2, 6, 0) };
    let mut env = ServingEnv::new(Arc::new(fixed(&stalls, requests(&[(0, 6, 8)])))).unwrap();
    env.reset(0, &ResetOptions::default()).unwrap();
    let swap = Action::new([9, 0, Preemption::Swap as u8, 0, 8, 0]).unwrap();
    let mut steps = std::iter::from_fn(|| Some(env.step(swap).unwrap()));
    let last = steps.find(|step| step.terminated || step.truncated).unwrap();
    assert!(last.truncated && !last.terminated);
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let error = |config: EnvConfig| ServingEnv::new(Arc::new(config)).map(drop).unwrap_err();
    let mut bad = crowded();
    bad.worlds[0].node.engine.max_model_len = 100_000;
    bad.worlds[0].node.engine.max_num_batched_tokens = 100_000;
    assert!(matches!(error(bad), EnvError::Config(ConfigError::Pool { .. })));
    for load in [(0.0, 1.0), (2.0, 1.0), (f64::NAN, 1.0), (1.0, f64::NAN), (-1.0, 1.0)] {
        let mut bad = crowded();
        bad.worlds[0].episodes.load = load;
        assert!(matches!(error(bad), EnvError::Workload(_)), "{load:?}");
    }
    let mut bad = crowded();
    bad.worlds[0].episodes.length = Micros::ZERO;
    assert!(matches!(error(bad), EnvError::Workload(_)));
}

#[test]
fn an_episode_can_be_drawn_from_any_seed_once_the_settings_passed() {
    // In ten seconds half a request arrives on average, and less at the lowest load.
    let mut rare = overload("chat:rate=0.05,duration=10", ActionProfile::Watermark);
    rare.worlds[0].episodes.length = SECOND.times(10);
    let mut env = ServingEnv::new(Arc::new(rare)).unwrap();
    for seed in 0..200 {
        env.reset(seed, &ResetOptions::default()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    // Parts of the range lie beyond the trace: sooner or later an episode would start there.
    for end in 12..80 {
        let mut beyond = crowded();
        let trace =
            Workload::new("short", requests(&[(0, 8, 4), (2000, 8, 4), (5000, 8, 4)]), SECOND.times(10)).unwrap();
        beyond.worlds[0].episodes.source = WorkloadSource::Replay { trace, replay: Replay::default() };
        beyond.worlds[0].episodes.range.end = SECOND.times(end);
        beyond.worlds[0].episodes.length = SECOND.times(2);
        assert!(beyond.worlds[0].episodes.validate(false).is_err(), "a range to {end} s");
        let refused = ServingEnv::new(Arc::new(beyond)).map(drop).unwrap_err();
        assert!(matches!(refused, EnvError::Workload(WorkloadError::WindowBeyondTrace { .. })), "{refused}");
    }
}

/// Random allowed actions for every environment.
fn actions(masks: &[bool], step: u64) -> Vec<u8> {
    let mut stream = seed::stream(9, "environment.actions", step);
    let mut actions = Vec::new();
    for row in masks.chunks_exact(NUM_CHOICES) {
        let mut rest = row;
        for head in Head::ALL {
            let (choices, others) = rest.split_at(head.size());
            rest = others;
            let allowed: Vec<u8> = (0..head.size() as u8).filter(|&choice| choices[usize::from(choice)]).collect();
            actions.push(allowed[stream.random_range(0..allowed.len())]);
        }
    }
    actions
}

/// Everything a batch says; the last observations of episodes that did not end say nothing.
fn bytes(batch: &Batch) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    let ended: Vec<bool> = batch.terminated.iter().zip(&batch.truncated).map(|(end, cut)| *end || *cut).collect();
    let last = batch.final_observations.chunks_exact(NUM_FEATURES).zip(&ended).filter(|row| *row.1);
    let floats = batch.observations.iter().chain(&batch.rewards).chain(last.flat_map(|row| row.0));
    bytes.extend(floats.flat_map(|value| value.to_bits().to_le_bytes()));
    bytes.extend([&batch.masks, &batch.terminated, &batch.truncated].into_iter().flatten().map(|&flag| u8::from(flag)));
    bytes.extend(format!("{:?}", batch.episodes).bytes());
    bytes
}

const NUM_ENVS: usize = 6;

/// Short episodes, so that some end.
fn vector() -> VecEnv {
    let mut config = overload("chat:rate=8,duration=20", ActionProfile::Full);
    config.worlds[0].episodes.length = SECOND.times(5);
    config.worlds[0].episodes.range.end = SECOND.times(5);
    VecEnv::new(&Arc::new(config), NUM_ENVS).unwrap()
}

fn batch() -> Batch {
    Batch::new(NUM_ENVS, NUM_FEATURES, NUM_CHOICES)
}

/// Every byte of `steps` steps.
fn play(env: &mut VecEnv, batch: &mut Batch, from: u64, steps: u64) -> Vec<u8> {
    let mut seen = bytes(batch);
    for step in from..from + steps {
        env.step(&actions(&batch.masks, step), batch);
        seen.extend(bytes(batch));
    }
    seen
}

#[test]
fn results_are_the_same_bytes_at_any_number_of_threads() {
    let run = |threads: usize, seed: u64| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let (mut env, mut batch) = (vector(), batch());
            env.reset(seed, &mut batch);
            let seen = play(&mut env, &mut batch, 0, 80);
            (seen, env.save())
        })
    };
    let one = run(1, 1);
    let hashes: Vec<&Value> = one.1["envs"].as_array().unwrap().iter().map(|env| &env["hash"]).collect();
    let is_new = |(index, hash): (usize, &&Value)| !hashes[..index].contains(hash);
    assert!(hashes.iter().enumerate().all(is_new), "two environments play the same episode");
    assert!(String::from_utf8_lossy(&one.0).contains("on_time"), "no episode ended");
    assert!(run(2, 1) == one, "2 threads");
    assert!(run(8, 1) == one, "8 threads");
    assert!(run(8, 2).0 != one.0, "another seed");
}

#[test]
fn a_restored_state_goes_on_as_if_nothing_had_happened() {
    let (mut env, mut first) = (vector(), batch());
    env.reset(3, &mut first);
    play(&mut env, &mut first, 0, 55);
    let saved = env.save();
    let before = first.clone();
    let expected = play(&mut env, &mut first, 55, 40);

    // Through text, into environments that have done something else meanwhile.
    let saved: Value = serde_json::from_str(&saved.to_string()).unwrap();
    let (mut env, mut second) = (vector(), batch());
    env.reset(99, &mut second);
    play(&mut env, &mut second, 0, 7);
    env.restore(&saved, &mut second).unwrap();
    assert_eq!((&second.observations, &second.masks), (&before.observations, &before.masks));
    assert_eq!(env.save(), saved);
    let restored = second.clone();
    // What the last step before saving paid and ended is not part of the state: compare from the next step on.
    let seen = play(&mut env, &mut second, 55, 40);
    assert!(seen[bytes(&restored).len()..] == expected[bytes(&before).len()..], "another course");
}

#[test]
fn a_tampered_state_is_refused_with_its_reason() {
    let (mut env, mut batch) = (vector(), batch());
    let unused = env.save();
    env.reset(3, &mut batch);
    play(&mut env, &mut batch, 0, 20);
    let saved = env.save();
    let mut refused = |tampered: &Value, expected: &str| {
        let said = env.restore(tampered, &mut batch).unwrap_err();
        assert!(said.contains(expected), "{said:?} has no {expected:?}");
        // It still works.
        let chosen = actions(&batch.masks, 0);
        env.step(&chosen, &mut batch);
    };
    let changed = |pointer: &str, value: Value| {
        let mut saved = saved.clone();
        *saved.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
        saved
    };
    refused(&json!(null), "not a saved environment");
    refused(&json!({"seed": 1}), "missing field `envs`");
    refused(&json!({"seed": 1, "envs": []}), "saved with 0 environments, now 6");
    refused(&changed("/envs/0", json!({"episodes": 1, "hash": 0, "actions": [], "x": 1})), "unknown field `x`");
    refused(&changed("/seed", json!(4)), "took another course");
    refused(&changed("/envs/2/hash", json!(1)), "environment 2 took another course");
    refused(&changed("/envs/1/episodes", json!(7)), "environment 1 took another course");
    refused(&changed("/envs/1/episodes", json!(0)), "before the first reset");
    refused(&changed("/envs/1/episodes", json!(-1)), "not a saved environment");
    refused(&changed("/envs/0/actions/3", json!([0, 0, 0, 3, 8, 0])), "out of range");
    refused(&changed("/envs/0/actions/3", json!([0, 0, 0])), "not a saved environment");
    let forever = json!(vec![Action::ENGINE_DEFAULT.indices(); 5000]);
    refused(&changed("/envs/0/actions", forever), "ended its episode earlier");
    refused(&unused, "before the first reset");
}

#[test]
fn a_saved_action_the_mask_forbids_is_refused() {
    let config = |profile| {
        let mut config = overload("chat:rate=8,duration=20", profile);
        config.worlds[0].node.engine.num_cpu_blocks = 0;
        config
    };
    let mut env = VecEnv::new(&Arc::new(config(ActionProfile::Watermark)), 1).unwrap();
    let mut batch = Batch::new(1, NUM_FEATURES, NUM_CHOICES);
    env.reset(1, &mut batch);
    env.step(&Action::ENGINE_DEFAULT.indices(), &mut batch);
    let mut saved = env.save();
    saved["envs"][0]["actions"][0] = json!([1, 3, 1, 0, 8, 0]);
    let said = env.restore(&saved, &mut batch).unwrap_err();
    assert!(said.contains("forbid"), "{said:?}");
    // A state of another profile is the same mistake.
    let mut full = VecEnv::new(&Arc::new(config(ActionProfile::Full)), 1).unwrap();
    full.reset(1, &mut batch);
    full.step(&[2, 4, 1, 2, 8, 0], &mut batch);
    let said = env.restore(&full.save(), &mut batch).unwrap_err();
    assert!(said.contains("forbid"), "{said:?}");
}

#[test]
fn an_episode_says_what_it_came_to() {
    let (mut env, mut batch) = (vector(), batch());
    env.reset(1, &mut batch);
    let mut returns = [0.0; NUM_ENVS];
    let mut decisions = [0; NUM_ENVS];
    let mut ended = 0;
    for step in 0..120 {
        env.step(&actions(&batch.masks, step), &mut batch);
        for (index, reward) in batch.rewards.iter().enumerate() {
            returns[index] += f64::from(*reward);
            decisions[index] += 1;
        }
        for episode in &batch.episodes {
            assert!(batch.terminated[episode.env] || batch.truncated[episode.env]);
            assert_eq!(episode.episode_return.to_bits(), returns[episode.env].to_bits());
            assert_eq!(episode.decisions, decisions[episode.env]);
            let served = episode.served;
            assert!(served.requests > 0 && (0.0..=1.0).contains(&served.slo_attainment().unwrap()), "{served:?}");
            assert!(served.output_tok_s > 0.0 && served.load > 0.0 && served.world == 0, "{served:?}");
            (returns[episode.env], decisions[episode.env]) = (0.0, 0);
            ended += 1;
        }
        let flags = batch.terminated.iter().zip(&batch.truncated).filter(|(end, cut)| **end || **cut).count();
        assert_eq!(flags, batch.episodes.len());
    }
    assert!(ended >= 3, "{ended} episodes ended");
    assert_eq!(env.head_sizes().iter().sum::<usize>(), NUM_CHOICES);
}
