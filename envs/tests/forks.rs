//! Forked environments: a copy and its origin go on byte for byte alike, and apart as soon as something differs.

use std::sync::Arc;

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{EngineConfig, EngineKind};
use kvtide_envs::env::{
    Batch, EnvConfig, EpisodeSource, NodeConfig, ResetOptions, RewardWeights, ServingEnv, VecEnv, VectorEnv, WorldDraw,
};
use kvtide_envs::memory::MemorySource;
use kvtide_envs::sched::Slo;
use kvtide_envs::seed;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Window, WorkloadSource};
use kvtide_runtime::action::{NUM_CHOICES, NUM_HEADS, SIZES};
use kvtide_runtime::{Action, ActionMask, ActionProfile, Head, Host, NUM_FEATURES};
use rand::RngExt;

use crate::common::engine;

const SECOND: Micros = Micros(1_000_000);

/// Small nodes under more traffic than they can bear: V0 with a host tier, V1 plain, with a prefix cache, and planning ahead,
/// in open and closed loops.
fn nodes() -> Vec<(&'static str, &'static str, EngineConfig, Option<u32>)> {
    let v0 = EngineConfig { max_num_seqs: 64, max_model_len: 2048, max_wait: SECOND.times(20), ..engine(16, 256, 64) };
    let v1 = EngineConfig {
        engine: EngineKind::V1,
        enable_chunked_prefill: true,
        max_num_batched_tokens: 512,
        num_cpu_blocks: 0,
        ..v0.clone()
    };
    let cached = EngineConfig { enable_prefix_caching: true, ..v1.clone() };
    let ahead = EngineConfig { async_scheduling: true, ..v1.clone() };
    vec![
        ("v0", "chat:rate=8,duration=20", v0, None),
        ("v1", "chat:rate=8,duration=20", v1.clone(), None),
        ("closed", "uniform:n=400,in=200,out=200,spread=0.5", v1, Some(24)),
        ("cached", "agentic:rate=1,duration=20", cached, None),
        ("ahead", "mix:rate=6,duration=20", ahead, None),
    ]
}

fn config((_, source, engine, clients): &(&str, &str, EngineConfig, Option<u32>)) -> Arc<EnvConfig> {
    let cost = CostModel::new(&"llama-3-8b@rtx-4090".parse().unwrap(), engine.block_size);
    let engine = EngineConfig { pricing: cost.pricing(), ..engine.clone() };
    let episodes = EpisodeSource {
        source: WorkloadSource::Synthetic(source.parse().unwrap()),
        range: Window { start: Micros::ZERO, end: SECOND.times(20) },
        length: SECOND.times(20),
        load: (0.8, 1.5),
    };
    let slo = Slo::from_millis(2000, 60, 1500);
    let node = NodeConfig { engine, cost, slo, clients: *clients, host: Host::KVTIDE };
    let drawn = WorldDraw { lengths: (0.8, 1.25), ..WorldDraw::new(node, episodes) };
    Arc::new(EnvConfig {
        worlds: vec![drawn],
        profile: ActionProfile::Full,
        reward: RewardWeights::default(),
        decision_interval: 8,
        allowed: ActionMask::ALL,
        memory: MemorySource::default(),
    })
}

/// One of the choices that `mask` allows of each head.
fn action(mask: ActionMask, seed: u64, step: u64) -> Action {
    let mut stream = seed::stream(seed, "forks", step);
    let choices: [u8; NUM_HEADS] = Head::ALL.map(|head| {
        let allowed: Vec<u8> = (0..head.size() as u8).filter(|&choice| mask.allows(head, choice)).collect();
        allowed[stream.random_range(0..allowed.len())]
    });
    Action::new(choices).unwrap()
}

/// Everything that can be seen of `steps` decisions, or until the episode ends.
fn play(env: &mut ServingEnv, seed: u64, from: u64, steps: u64) -> Vec<String> {
    let mut seen = Vec::new();
    for step in from..from + steps {
        let (_, mask) = env.seen().unwrap();
        let step = env.step(action(mask, seed, step)).unwrap();
        let bits: Vec<u32> =
            step.observation.values.iter().chain([&step.reward]).map(|value| value.to_bits()).collect();
        seen.push(format!("{bits:?} {:?} {} {}", step.info, step.terminated, step.truncated));
        if step.terminated || step.truncated {
            break;
        }
    }
    seen.push(format!("{:?} {:x}", env.episode(0), env.fingerprint()));
    seen
}

fn at(config: &Arc<EnvConfig>, steps: u64) -> ServingEnv {
    let mut env = ServingEnv::new(Arc::clone(config)).unwrap();
    env.reset(5, &ResetOptions::default()).unwrap();
    play(&mut env, 1, 0, steps);
    env
}

#[test]
fn a_fork_and_its_origin_go_on_alike() {
    for node in nodes() {
        let config = config(&node);
        for steps in [0, 1, 17, 60] {
            let mut origin = at(&config, steps);
            let (mut fork, mut second) = (origin.fork().unwrap(), origin.fork().unwrap());
            let expected = play(&mut at(&config, steps), 2, steps, u64::MAX >> 1);
            assert!(expected.len() > 8, "{} ends at once", node.0);
            // The fork goes first, so that nothing it does can be what the origin relies on.
            assert_eq!(play(&mut fork, 2, steps, u64::MAX >> 1), expected, "{} at {steps}: the fork", node.0);
            assert_eq!(play(&mut origin, 2, steps, u64::MAX >> 1), expected, "{} at {steps}: its origin", node.0);
            assert_ne!(play(&mut second, 3, steps, u64::MAX >> 1), expected, "{} at {steps}: other actions", node.0);
        }
    }
}

#[test]
fn another_future_begins_now_and_changes_nothing_before() {
    for node in nodes() {
        let config = config(&node);
        let origin = at(&config, 40);
        let other = |seed: u64| {
            let mut fork = origin.fork().unwrap();
            fork.redraw_future(seed).unwrap();
            assert_eq!(fork.seen(), origin.seen(), "{}", node.0);
            assert_eq!(fork.node().unwrap().hash(), origin.node().unwrap().hash());
            assert_eq!(fork.node().unwrap().arrived(), origin.node().unwrap().arrived());
            fork
        };
        let run = |mut env: ServingEnv| play(&mut env, 2, 40, u64::MAX >> 1);
        assert_eq!(run(other(7)), run(other(7)), "{}: one seed, one future", node.0);
        assert_ne!(run(other(7)), run(other(8)), "{}", node.0);
        assert_ne!(run(other(7)), run(origin.fork().unwrap()), "{}", node.0);
    }
}

#[test]
fn blocks_that_are_more_than_numbers_are_not_forked() {
    let plain = config(&nodes()[1]);
    let memory = MemorySource::Host { token_bytes: 32 };
    let config = Arc::new(EnvConfig { memory, ..EnvConfig::clone(&plain) });
    assert!(at(&config, 3).fork().is_none());
}

const GROUP: usize = 3;

fn vector(config: &Arc<EnvConfig>) -> (VecEnv, Batch) {
    let mut env = VecEnv::in_groups(config, 2 * GROUP, GROUP).unwrap();
    let mut batch = Batch::new(2 * GROUP, NUM_FEATURES, NUM_CHOICES);
    env.reset(4, &mut batch);
    (env, batch)
}

/// Other choices in each environment, or the same in all of a group.
fn step(env: &mut VecEnv, batch: &mut Batch, step: u64, together: bool) {
    let mut chosen = Vec::new();
    for (index, mask) in batch.masks.chunks_exact(NUM_CHOICES).enumerate() {
        let who = if together { index / GROUP } else { index };
        let mut stream = seed::stream(who as u64, "forks.vector", step);
        let mut rest = mask;
        for size in SIZES {
            let (head, after) = rest.split_at(size);
            let allowed: Vec<usize> = (0..size).filter(|&choice| head[choice]).collect();
            chosen.push(allowed[stream.random_range(0..allowed.len())] as u8);
            rest = after;
        }
    }
    env.step(&chosen, batch);
}

fn rows(batch: &Batch, env: usize) -> (Vec<u32>, Vec<bool>, u32, u64, u64, u64) {
    let observation = batch.observations[env * NUM_FEATURES..][..NUM_FEATURES].iter().map(|value| value.to_bits());
    (
        observation.collect(),
        batch.masks[env * NUM_CHOICES..][..NUM_CHOICES].to_vec(),
        batch.rewards[env].to_bits(),
        batch.clock_s[env].to_bits(),
        batch.elapsed_s[env].to_bits(),
        batch.traffic[env],
    )
}

#[test]
fn a_group_serves_one_traffic_and_others_another() {
    let (mut env, mut batch) = vector(&config(&nodes()[1]));
    for index in 0..300 {
        step(&mut env, &mut batch, index, true);
        for member in 0..2 * GROUP {
            assert_eq!(rows(&batch, member), rows(&batch, member / GROUP * GROUP), "step {index}");
        }
        assert_ne!(batch.traffic[0], batch.traffic[GROUP]);
    }
    assert!(batch.clock_s.iter().all(|clock_s| (0.0..20.5).contains(clock_s)));
}

#[test]
fn gathered_environments_are_the_leader_and_are_saved_as_it() {
    let config = config(&nodes()[2]);
    let (mut env, mut batch) = vector(&config);
    for index in 0..90 {
        step(&mut env, &mut batch, index, false);
    }
    assert_ne!(rows(&batch, 0).0, rows(&batch, 1).0);
    let leaders = [rows(&batch, 1), rows(&batch, GROUP + 1)];
    env.gather(1, &mut batch).unwrap();
    for member in 0..2 * GROUP {
        let (found, leader) = (rows(&batch, member), &leaders[member / GROUP]);
        assert_eq!((&found.0, &found.1, found.3, found.5), (&leader.0, &leader.1, leader.3, leader.5), "{member}");
    }
    let saved = env.save();
    let (mut again, mut restored) = vector(&config);
    again.restore(&saved, &mut restored).unwrap();
    for index in 90..200 {
        step(&mut env, &mut batch, index, true);
        step(&mut again, &mut restored, index, true);
        for member in 0..2 * GROUP {
            assert_eq!(rows(&batch, member), rows(&batch, member / GROUP * GROUP), "step {index}");
            assert_eq!(rows(&batch, member), rows(&restored, member), "step {index}: restored");
        }
    }
}
