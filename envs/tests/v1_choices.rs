//! What is ours in V1: the host tier, victim rules, closed loops, and clear answers to hostile settings.

use std::sync::Arc;

use crate::common::node_config;
use crate::common::sim::any_controls;
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{ConfigError, DeadEnds, Deployment, EngineConfig, EngineKind};
use kvtide_envs::env::{Node, NodeConfig, NodeStatus, RunError, run};
use kvtide_envs::evict::Eviction;
use kvtide_envs::kv::Content;
use kvtide_envs::metrics::Collector;
use kvtide_envs::sched::{Outcome, Phase, PreemptedAs, Pricing, RequestId, Slo, StepPlan, V1};
use kvtide_envs::seed;
use kvtide_envs::tier::Route;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_envs::workload::SyntheticSpec;
use kvtide_runtime::{Action, Controls, Host, Preemption, Victim};
use rand::RngExt;

/// A safe engine of `usable` blocks of 4 tokens, synchronous and without prefix cache.
fn engine(usable: u32, host: u32) -> EngineConfig {
    EngineConfig {
        engine: EngineKind::V1,
        block_size: 4,
        num_gpu_blocks: usable + 1,
        num_cpu_blocks: host,
        max_num_batched_tokens: 64,
        max_model_len: usable * 4,
        enable_chunked_prefill: true,
        max_wait: Micros::MAX,
        ..EngineConfig::default()
    }
}

fn controls() -> Controls {
    Action::V1_DEFAULT.controls()
}

fn swapping() -> Controls {
    Controls { preemption: Preemption::Swap, ..controls() }
}

/// A synchronous scheduler driven step by step.
struct Driver {
    v1: V1,
    plan: StepPlan,
    outcome: Outcome,
    now: u64,
}

impl Driver {
    fn new(config: EngineConfig, requests: &[(u32, u32)]) -> Driver {
        let mut v1 = V1::new(config).unwrap();
        for &(prompt, output) in requests {
            v1.submit(Micros::ZERO, prompt, output, Slo::default());
        }
        Driver { v1, plan: StepPlan::default(), outcome: Outcome::default(), now: 0 }
    }

    fn step(&mut self, controls: &Controls) {
        self.v1.schedule(Micros(self.now), controls, &mut self.plan);
        self.now += 1000;
        self.v1.complete(&self.plan, Micros(self.now), &mut self.outcome);
        self.v1.validate().unwrap();
    }

    /// Steps until somebody is preempted.
    #[track_caller]
    fn until_preempted(&mut self, controls: &Controls) {
        for _ in 0..100 {
            self.step(controls);
            if !self.plan.preempted.is_empty() {
                return;
            }
        }
        panic!("nobody was preempted in 100 steps");
    }

    #[track_caller]
    fn until_resumed(&mut self, id: u32, controls: &Controls) {
        for _ in 0..100 {
            self.step(controls);
            if self.v1.view(RequestId(id)).phase == Phase::Running {
                return;
            }
        }
        panic!("request {id} did not come back in 100 steps");
    }
}

#[test]
fn a_swapped_victim_comes_back_with_its_tokens_and_computes_one() {
    let mut driver = Driver::new(engine(6, 8), &[(10, 12), (9, 6)]);
    driver.until_preempted(&swapping());
    let victim = driver.plan.preempted[0];
    assert_eq!((victim.id, victim.how, victim.lost_tokens), (RequestId(1), PreemptedAs::Swap, 0));
    // 9 prompt tokens and those decoded since, in 3 blocks.
    assert_eq!(driver.plan.moved[Route::GpuToHost], [(RequestId(1), 3)]);
    assert_eq!(driver.plan.copies[Route::GpuToHost].len(), 3);
    assert_eq!((driver.v1.num_on_host(), driver.v1.host().num_free()), (1, 5));
    let before = driver.v1.view(RequestId(1));
    assert_eq!(before.held_blocks, 3);
    let out = driver.plan.copies[Route::GpuToHost].clone();
    driver.until_resumed(1, &swapping());
    let prefill = driver.plan.prefills[0];
    assert_eq!((prefill.id, prefill.tokens, prefill.context), (RequestId(1), 1, before.len() - 1));
    assert_eq!(driver.plan.moved[Route::HostToGpu], [(RequestId(1), 3)]);
    let back: Vec<_> = driver.plan.copies[Route::HostToGpu].iter().map(|copy| copy.src).collect();
    assert_eq!(back, out.iter().map(|copy| copy.dst).collect::<Vec<_>>(), "the blocks that left, in their order");
    assert_eq!((driver.v1.num_on_host(), driver.v1.host().num_free()), (0, 8));
}

#[test]
fn a_step_has_the_tokens_a_policy_gives_it_and_those_decodes_need() {
    let mut driver = Driver::new(engine(40, 0), &[(5, 9), (5, 9), (30, 2), (4, 2)]);
    let mut told = |budget: f64| {
        driver.step(&Controls { budget, ..controls() });
        let chunks: Vec<_> = driver.plan.prefills.iter().map(|chunk| (chunk.id.0, chunk.tokens)).collect();
        (chunks, driver.plan.cohort, driver.v1.num_waiting())
    };
    // The engine has 64 tokens a step; the first two prompts are given 12 of them, the second cut short, by what is set.
    assert_eq!(told(8.0), (vec![(0, 5), (1, 3)], 0, 2));
    assert_eq!(told(8.0), (vec![(1, 2), (2, 5)], 1, 1));
    // Two decode: fewer tokens than that there never are, and prompts get none of those.
    assert_eq!(told(1.0), (vec![], 2, 1));
    assert_eq!(told(3.0), (vec![(2, 1)], 2, 1));
    // More than the engine allows is what it allows.
    assert_eq!(told(1_048_576.0), (vec![(2, 24), (3, 4)], 2, 0));

    // Where prompts are computed whole it is the engine's own.
    let whole = EngineConfig { enable_chunked_prefill: false, max_num_batched_tokens: 160, ..engine(40, 0) };
    let mut driver = Driver::new(whole, &[(5, 9), (30, 2)]);
    driver.step(&Controls { budget: 8.0, ..controls() });
    assert_eq!(driver.plan.prefills.len(), 2);
}

#[test]
fn a_victim_the_host_cannot_hold_is_computed_again() {
    let mut driver = Driver::new(engine(6, 2), &[(10, 12), (9, 6)]);
    driver.until_preempted(&swapping());
    assert_eq!(driver.plan.preempted[0].how, PreemptedAs::Recompute);
    assert!(driver.plan.preempted[0].lost_tokens >= 9);
    assert!(driver.plan.copies[Route::GpuToHost].is_empty());
}

#[test]
fn cheaper_compares_the_way_there_and_back_with_computing_again() {
    let priced = |swap_ns_per_block, prefill_ns_per_token| {
        let pricing = Pricing { swap_ns_per_block, prefill_ns_per_token, attention_ns_per_token_pair: 0.0 };
        let mut driver = Driver::new(EngineConfig { pricing, ..engine(6, 8) }, &[(10, 12), (9, 6)]);
        driver.until_preempted(&Controls { preemption: Preemption::Cheaper, ..controls() });
        driver.plan.preempted[0].how
    };
    // 3 blocks twice against some 12 tokens.
    assert_eq!(priced(1e6, 1e6), PreemptedAs::Swap);
    assert_eq!(priced(3e6, 1e6), PreemptedAs::Recompute);
}

#[test]
fn what_the_cache_still_holds_is_not_brought_back() {
    let config = EngineConfig { enable_prefix_caching: true, ..engine(6, 8) };
    let mut driver = Driver::new(config, &[(10, 12), (9, 6)]);
    driver.until_preempted(&swapping());
    // Nobody else needs blocks any more: the victim's two full blocks stay in the cache until request 0 takes them.
    driver.until_resumed(1, &swapping());
    let prefill = driver.plan.prefills[0];
    let blocks: u32 = driver.plan.moved[Route::HostToGpu].iter().map(|swapped| swapped.1).sum();
    assert_eq!(driver.plan.copies[Route::HostToGpu].len() as u32, blocks);
    assert!(prefill.context >= 9, "{prefill:?}");
    assert!(blocks < 4, "{blocks} blocks were brought back");
}

#[test]
fn every_victim_rule_names_whom_it_says() {
    let victim = |victim: Victim| {
        // Blocks held when the pool is full: 2, 4, 3 of 9; generated alike; request 0 asks and is never a victim.
        let mut driver = Driver::new(engine(9, 0), &[(5, 20), (13, 20), (9, 20)]);
        driver.until_preempted(&Controls { victim, ..controls() });
        driver.plan.preempted[0].id.0
    };
    assert_eq!(victim(Victim::Newest), 2);
    assert_eq!(victim(Victim::FewestBlocks), 2);
    assert_eq!(victim(Victim::MostBlocks), 1);
    assert_eq!(victim(Victim::LeastProgress), 2);
}

fn crowd(clients: u32, hardware: &str) -> NodeConfig {
    let deployment: Deployment = format!("llama-3-8b@{hardware}").parse().unwrap();
    let config = EngineConfig {
        max_num_seqs: 64,
        async_scheduling: true,
        enable_prefix_caching: true,
        max_num_batched_tokens: 512,
        ..engine(400, 0)
    };
    let cost = CostModel::new(&deployment, config.block_size);
    NodeConfig { engine: config, cost, slo: Slo::default(), clients: Some(clients), host: Host::KVTIDE }
}

#[test]
fn in_a_closed_loop_decisions_do_not_depend_on_the_clock() {
    let spec: SyntheticSpec = "uniform:n=120,in=60,out=120,spread=0.5,rate=1".parse().unwrap();
    let requests = spec.generate().unwrap().share();
    let served = |hardware: &str, watermark: f64| {
        let mut node = Node::new(&crowd(24, hardware), Arc::clone(&requests), Collector::default()).unwrap();
        run(&mut node, &mut Controls { watermark, ..controls() }, 8).unwrap()
    };
    let (slow, fast) = (served("rtx-4090", 0.0), served("h200", 0.0));
    assert!(slow.makespan_s > 1.5 * fast.makespan_s);
    assert_eq!((slow.preemptions, slow.scheduler_steps), (fast.preemptions, fast.scheduler_steps));
    assert_eq!((slow.completed, fast.completed), (120, 120));
    assert!(slow.preemptions > 2 * served("rtx-4090", 0.2).preemptions, "a watermark saves preemptions");
}

#[test]
fn a_client_sends_its_next_request_when_the_last_is_done() {
    let spec: SyntheticSpec = "uniform:n=30,in=20,out=10,rate=1".parse().unwrap();
    let mut node = Node::new(&crowd(4, "h100"), spec.generate().unwrap().share(), Collector::default()).unwrap();
    let mut most = 0;
    while node.step(&controls()).unwrap() == NodeStatus::Stepped {
        most = most.max(node.scheduler().num_open());
    }
    assert_eq!((most, node.collector().completed), (4, 30));
}

#[test]
fn settings_under_which_a_node_would_hang_are_refused() {
    let error = |config: EngineConfig| V1::new(config).unwrap_err();
    let pool = |usable_blocks, max_model_len| ConfigError::Pool { usable_blocks, max_model_len, block_size: 4 };
    // The null block is no use: a pool of one block holds nothing.
    let null = EngineConfig { num_gpu_blocks: 1, max_model_len: 1, ..engine(9, 0) };
    assert!(matches!(error(null), ConfigError::Range { name: "num_gpu_blocks", min: 2, .. }));
    assert_eq!(error(EngineConfig { max_model_len: 37, ..engine(9, 0) }), pool(9, 37));
    let whole = EngineConfig { enable_chunked_prefill: false, max_num_batched_tokens: 35, ..engine(9, 0) };
    assert!(matches!(error(whole), ConfigError::Budget { .. }));
    assert!(matches!(error(EngineConfig { num_gpu_blocks: 0, ..engine(9, 0) }), ConfigError::Range { .. }));
}

#[test]
fn a_prompt_of_a_million_tokens_is_refused_and_the_rest_served() {
    let requests: Vec<Request> = [(1_000_000, 5), (36, 1), (35, 4), (1, 1)]
        .map(|(prompt, output)| Request::new(Micros(0), prompt, output))
        .into();
    let mut node =
        Node::new(&node_config(engine(9, 0), Slo::default()), requests.into(), Collector::default()).unwrap();
    let summary = run(&mut node, &mut controls(), 8).unwrap();
    // A prompt as long as the longest sequence leaves no room for a token.
    assert_eq!((summary.requests, summary.rejected, summary.completed), (4, 2, 2));
    assert_eq!(node.scheduler().view(RequestId(2)).generated, 1);
}

#[test]
fn a_million_tokens_in_chunks() {
    let config = EngineConfig { block_size: 16, ..engine(1 << 16, 0) };
    let config = EngineConfig { max_model_len: 1 << 20, max_num_batched_tokens: 2048, ..config };
    let request = Request::new(Micros(0), 1_000_000, 3);
    let mut node = Node::new(&node_config(config, Slo::default()), [request].into(), Collector::default()).unwrap();
    let summary = run(&mut node, &mut controls(), 8).unwrap();
    assert_eq!((summary.completed, summary.scheduler_steps), (1, 489 + 2));
}

#[test]
fn a_prompt_longer_than_any_sequence_is_refused_by_either_setting() {
    for (dead_ends, caching) in [(DeadEnds::Safe, true), (DeadEnds::Faithful, true), (DeadEnds::Faithful, false)] {
        let config = EngineConfig { dead_ends, enable_prefix_caching: caching, max_model_len: 20, ..engine(9, 0) };
        let requests = [Request::new(Micros(0), 33, 5), Request::new(Micros(0), 8, 5)];
        let mut node = Node::new(&node_config(config, Slo::default()), requests.into(), Collector::default()).unwrap();
        let summary = run(&mut node, &mut controls(), 8).unwrap();
        assert_eq!((summary.completed, summary.rejected), (1, 1), "{dead_ends:?}");
    }
}

#[test]
fn a_faithful_node_stalls_and_says_so() {
    let config = EngineConfig { dead_ends: DeadEnds::Faithful, max_model_len: 4096, ..engine(9, 0) };
    let requests: Vec<Request> = [(40, 5), (4, 1)].map(|(prompt, out)| Request::new(Micros(0), prompt, out)).into();
    let mut node = Node::new(&node_config(config, Slo::default()), requests.into(), Collector::default()).unwrap();
    let stalled = run(&mut node, &mut controls(), 8).unwrap_err();
    assert!(matches!(stalled, RunError::Stalled { left: 2, .. }), "{stalled}");
}

#[test]
fn a_faithful_node_in_a_livelock_says_so() {
    let config = EngineConfig {
        dead_ends: DeadEnds::Faithful,
        max_model_len: 4096,
        scheduler_reserve_full_isl: false,
        max_num_batched_tokens: 16,
        ..engine(9, 0)
    };
    let requests: Vec<Request> = vec![Request::new(Micros(0), 40, 5)];
    let mut node = Node::new(&node_config(config, Slo::default()), requests.into(), Collector::default()).unwrap();
    let stalled = run(&mut node, &mut controls(), 8).unwrap_err();
    assert!(matches!(stalled, RunError::Stalled { left: 1, .. }), "{stalled}");
    assert!(node.collector().preemptions > 1000, "it is admitted again and again");
}

/// A block that nobody else can ask for has no key until its request is preempted; nothing may tell the difference.
#[test]
fn blocks_without_a_key_are_like_any_other() {
    let mut preemptions = 0;
    for seed in 0..60 {
        let s = &mut seed::stream(seed, "keyless", 0);
        let config = EngineConfig {
            enable_prefix_caching: true,
            async_scheduling: s.random_bool(0.5),
            max_num_batched_tokens: s.random_range(4..64),
            eviction: if s.random_bool(0.5) { Eviction::Lru } else { Eviction::Radix },
            ..engine(s.random_range(8..40), 0)
        };
        let mut schedulers = [V1::new(config.clone()).unwrap(), V1::new(config.clone()).unwrap()];
        for id in 0..40 {
            let (prompt, output) = (s.random_range(1..20), s.random_range(1..24));
            for (has_key, v1) in [false, true].into_iter().zip(&mut schedulers) {
                let content = has_key.then(|| Content::new(0, id, Arc::default()));
                v1.submit_with(Micros::ZERO, prompt, output, Slo::default(), content);
            }
        }
        let mut plans = [[StepPlan::default(), StepPlan::default()], [StepPlan::default(), StepPlan::default()]];
        let mut outcome = Outcome::default();
        for step in 0..3000 {
            let controls = Controls { watermark: 0.0, ..any_controls(s) };
            for (v1, [previous, plan]) in schedulers.iter_mut().zip(&mut plans) {
                std::mem::swap(previous, plan);
                v1.schedule(Micros(step), &controls, plan);
                if !config.async_scheduling {
                    v1.complete(plan, Micros(step), &mut outcome);
                } else if step > 0 {
                    v1.complete(previous, Micros(step), &mut outcome);
                }
                v1.validate().unwrap();
            }
            let [a, b] = &schedulers;
            assert_eq!(plans[0][1].prefills, plans[1][1].prefills, "seed {seed}, step {step}");
            assert_eq!(plans[0][1].preempted, plans[1][1].preempted, "seed {seed}, step {step}");
            assert!(a.pool().free_blocks().eq(b.pool().free_blocks()), "seed {seed}, step {step}");
            assert_eq!(a.pool().num_keys(), b.pool().num_keys(), "seed {seed}, step {step}");
            if a.is_empty() {
                break;
            }
        }
        assert!(schedulers[0].is_empty() && schedulers[1].is_empty(), "seed {seed} is not done");
        preemptions += schedulers[0].preemptions();
    }
    assert!(preemptions > 500, "{preemptions} preemptions test little");
}
