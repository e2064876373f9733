//! The host tier as a cache, told as stories, and in drawn worlds whose every block is real.

use std::sync::Arc;

use crate::common::defective::{Defect, Defective};
use crate::common::node_config;
use crate::common::sim::any_controls;
use kvtide_envs::deploy::{ConfigError, EngineConfig, EngineKind};
use kvtide_envs::env::{Node, NodeError, NodeStatus, RunError, run};
use kvtide_envs::evict::Eviction;
use kvtide_envs::kv::Content;
use kvtide_envs::memory::{Contents, KvShape, MemoryError, MemorySource};
use kvtide_envs::metrics::{Collector, Summary};
use kvtide_envs::sched::{Outcome, Phase, PreemptedAs, Pricing, RequestId, Slo, StepPlan, V1};
use kvtide_envs::seed::{self, Stream};
use kvtide_envs::tier::{HostCache, HostCacheScope, Route, Tier};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_runtime::{Action, Controls, Preemption};
use rand::RngExt;

/// A prompt costs 1 ms a token, a block 1 ms over the link.
const PRICES: Pricing = Pricing { swap_ns_per_block: 1e6, prefill_ns_per_token: 1e6, attention_ns_per_token_pair: 0.0 };

/// Blocks of 4 tokens: `gpu` that can be held, `host` beside them.
fn engine(host_cache: HostCache, gpu: u32, host: u32) -> EngineConfig {
    EngineConfig {
        engine: EngineKind::V1,
        block_size: 4,
        num_gpu_blocks: gpu + 1,
        num_cpu_blocks: host,
        max_num_batched_tokens: 64,
        max_model_len: gpu * 4,
        enable_chunked_prefill: true,
        enable_prefix_caching: true,
        max_wait: Micros::MAX,
        host_cache,
        pricing: PRICES,
        ..EngineConfig::default()
    }
}

/// A request: its text, the tokens of its prompt and of its answer.
type Ask = (u64, u32, u32);

/// A synchronous scheduler driven step by step.
struct Driver {
    v1: V1,
    plan: StepPlan,
    outcome: Outcome,
    controls: Controls,
    now: u64,
}

impl Driver {
    fn new(config: EngineConfig) -> Driver {
        let v1 = V1::new(config).unwrap();
        let controls = Action::V1_DEFAULT.controls();
        Driver { v1, plan: StepPlan::default(), outcome: Outcome::default(), controls, now: 0 }
    }

    /// Requests of one text are the same as far as both go.
    fn submit(&mut self, (text, prompt, output): Ask) -> RequestId {
        let content = Content::new(0, text, Arc::default());
        self.v1.submit_with(Micros(self.now), prompt, output, Slo::default(), Some(content)).0
    }

    fn step(&mut self) {
        self.v1.schedule(Micros(self.now), &self.controls, &mut self.plan);
        self.v1.validate().unwrap();
        self.now += 1000;
        self.v1.complete(&self.plan, Micros(self.now), &mut self.outcome);
        self.v1.validate().unwrap();
    }

    /// Serves one request to its end. How many blocks were brought back for it, and how many stored meanwhile.
    fn serve(&mut self, ask: Ask) -> (u32, u32) {
        let id = self.submit(ask);
        let (mut fetched, mut stored) = (0, 0);
        for _ in 0..200 {
            self.step();
            fetched += self.plan.fetched.iter().map(|fetched| fetched.blocks).sum::<u32>();
            stored += self.plan.stored;
            if self.v1.view(id).phase == Phase::Finished {
                return (fetched, stored);
            }
        }
        panic!("request {id:?} is not done in 200 steps");
    }
}

#[test]
fn what_a_finished_request_left_is_brought_back_instead_of_computed() {
    for host_cache in [HostCache::WriteThrough, HostCache::WriteBack] {
        let mut driver = Driver::new(engine(host_cache, 6, 12));
        driver.serve((1, 13, 3));
        driver.serve((2, 21, 2));
        let id = driver.submit((1, 15, 2));
        driver.step();
        let prefill = driver.plan.prefills[0];
        assert_eq!((prefill.id, prefill.context, prefill.tokens), (id, 12, 3), "{host_cache:?}");
        assert_eq!(driver.plan.moved[Route::HostToGpu], [(id, 3)]);
        let table = driver.v1.table(id).to_vec();
        let back: Vec<_> = driver.plan.copies[Route::HostToGpu].iter().map(|copy| copy.dst).collect();
        assert_eq!(back, table[..3], "in the order of the text");
        // Another time its prompt is on the GPU, and nothing is brought back.
        driver.step();
        let id = driver.submit((1, 15, 2));
        driver.step();
        assert!(driver.plan.fetched.is_empty());
        assert_eq!(driver.plan.prefills.iter().find(|prefill| prefill.id == id).unwrap().context, 12);
    }
}

#[test]
fn without_a_host_cache_it_is_computed_again() {
    let mut driver = Driver::new(engine(HostCache::Off, 6, 12));
    driver.serve((1, 13, 3));
    driver.serve((2, 21, 2));
    assert_eq!(driver.serve((1, 15, 2)), (0, 0));
    assert_eq!(driver.v1.num_free(Tier::Host), 12);
}

#[test]
fn the_price_list_says_whether() {
    let fetched = |swap_ns_per_block| {
        let pricing = Pricing { swap_ns_per_block, ..PRICES };
        let mut driver = Driver::new(EngineConfig { pricing, ..engine(HostCache::WriteThrough, 6, 12) });
        driver.serve((1, 13, 3));
        driver.serve((2, 21, 2));
        driver.serve((1, 15, 2)).0
    };
    // A block is four tokens of a millisecond each.
    assert_eq!((fetched(3.9e6), fetched(4.1e6)), (3, 0));
}

#[test]
fn written_through_is_what_the_step_before_filled() {
    let mut driver =
        Driver::new(EngineConfig { max_num_batched_tokens: 10, ..engine(HostCache::WriteThrough, 12, 20) });
    driver.submit((1, 23, 12));
    let mut stored = Vec::new();
    for _ in 0..6 {
        driver.step();
        stored.push(driver.plan.stored);
    }
    // 10, 20 and 23 tokens are 2, 5 and 5 blocks.
    assert_eq!(stored, [0, 2, 3, 0, 0, 0]);
    let scope = HostCacheScope::All;
    let mut driver = Driver::new(EngineConfig { host_cache_scope: scope, ..engine(HostCache::WriteThrough, 12, 20) });
    let (fetched, stored) = driver.serve((1, 23, 12));
    // The prompt and what was generated before it finished; the rest is stored in the step after.
    assert_eq!((fetched, stored), (0, 8));
    assert_eq!(driver.serve((2, 9, 2)).1, 2);
}

#[test]
fn written_back_is_what_the_gpu_evicts() {
    let serve = |host_cache_scope| {
        let mut driver = Driver::new(EngineConfig { host_cache_scope, ..engine(HostCache::WriteBack, 6, 12) });
        // 3 blocks of prompt and one of answer, of which two others need 3.
        assert_eq!(driver.serve((1, 13, 7)), (0, 0));
        driver.serve((2, 17, 2)).1
    };
    assert_eq!(serve(HostCacheScope::All), 3);
    // The answer's is evicted first, and lost.
    assert_eq!(serve(HostCacheScope::Prompt), 2);
}

#[test]
fn a_small_host_helps_only_if_it_holds_other_blocks_than_the_gpu() {
    // Four texts of 4 blocks in turn, of which the GPU holds two and the host two.
    let brought = |host_cache| {
        let mut driver = Driver::new(engine(host_cache, 10, 8));
        let texts = [1, 2, 3, 4].repeat(5);
        texts.into_iter().map(|text| driver.serve((text, 17, 2)).0).sum::<u32>()
    };
    assert_eq!(brought(HostCache::WriteThrough), 0, "the host holds what the GPU does");
    assert!(brought(HostCache::WriteBack) > 20, "{}", brought(HostCache::WriteBack));
}

#[test]
fn the_end_of_a_text_goes_first() {
    let mut driver = Driver::new(engine(HostCache::WriteThrough, 6, 8));
    driver.serve((1, 21, 2));
    // 5 blocks more, of which the host has 3 free: the last two of the first text go.
    driver.serve((2, 21, 2));
    driver.serve((3, 2, 2));
    assert_eq!(driver.serve((1, 21, 2)).0, 3);
}

#[test]
fn a_swapped_request_takes_the_room_of_what_is_cached() {
    let mut driver = Driver::new(engine(HostCache::WriteThrough, 6, 5));
    driver.controls.preemption = Preemption::Swap;
    driver.serve((9, 21, 2));
    driver.step();
    assert_eq!(driver.v1.host().num_idle_cached(), 5);
    driver.submit((1, 10, 12));
    let victim = driver.submit((2, 9, 6));
    let (mut swapped, mut back) = (None, None);
    for _ in 0..60 {
        driver.step();
        if let Some(preempted) = driver.plan.preempted.first() {
            assert_eq!((preempted.id, preempted.how), (victim, PreemptedAs::Swap));
            swapped = Some(driver.v1.table_in(Tier::Host, victim).len());
        }
        if swapped.is_some() && driver.plan.prefills.iter().any(|prefill| prefill.id == victim) {
            back = Some((driver.plan.fetched.len(), driver.plan.moved[Route::HostToGpu].len()));
            break;
        }
    }
    assert_eq!((swapped, back), (Some(3), Some((0, 1))));
}

#[test]
fn a_plan_that_is_no_step_leaves_its_copies_to_the_next() {
    let mut driver = Driver::new(engine(HostCache::WriteThrough, 6, 12));
    driver.serve((1, 13, 1));
    // Nothing runs: what was filled is still to be stored.
    driver.v1.schedule(Micros(driver.now), &driver.controls, &mut driver.plan);
    assert!(driver.plan.is_idle() && driver.plan.copies[Route::GpuToHost].is_empty());
    driver.v1.validate().unwrap();
    driver.submit((2, 5, 1));
    driver.step();
    assert_eq!((driver.plan.stored, driver.plan.copies[Route::GpuToHost].len()), (3, 3));
}

#[test]
fn a_host_cache_where_there_is_none_is_refused() {
    let refused = |config: EngineConfig| V1::new(config).unwrap_err();
    let cached = engine(HostCache::WriteThrough, 6, 12);
    assert_eq!(
        refused(EngineConfig { num_cpu_blocks: 0, ..cached.clone() }),
        ConfigError::HostCache("a host pool: num_cpu_blocks above 0")
    );
    assert_eq!(
        refused(EngineConfig { enable_prefix_caching: false, ..cached.clone() }),
        ConfigError::HostCache("enable_prefix_caching=true")
    );
    let v0 = EngineConfig { engine: EngineKind::V0, ..cached };
    assert_eq!(v0.validate().unwrap_err(), ConfigError::HostCache("engine v1"));
}

#[test]
fn a_request_with_a_prompt_longer_than_the_host_is_served() {
    for host_cache in [HostCache::WriteThrough, HostCache::WriteBack] {
        for host in 1..5 {
            let mut driver = Driver::new(engine(host_cache, 8, host));
            for text in [1, 2, 1, 2] {
                driver.serve((text, 25, 3));
            }
        }
    }
}

fn pick<T: Copy>(stream: &mut Stream, choices: &[T]) -> T {
    choices[stream.random_range(0..choices.len())]
}

/// Orders of the host's evictions, the two that vLLM has among them.
const ORDERS: [Eviction; 7] = [
    Eviction::Lru,
    Eviction::Arc,
    Eviction::Radix,
    Eviction::Sieve,
    Eviction::TinyLfu,
    Eviction::IntentAware,
    Eviction::DeadlineAware,
];

/// A small engine, and requests that share prefixes and quote answers.
fn world(seed: u64) -> (EngineConfig, Vec<Request>) {
    let s = &mut seed::stream(seed, "host_cache.world", 0);
    let gpu = s.random_range(6..40);
    let host = pick(s, &[1, 3, gpu / 2, gpu, 2 * gpu, 4 * gpu]).max(1);
    let config = EngineConfig {
        async_scheduling: s.random_bool(0.5),
        max_num_batched_tokens: s.random_range(4..64),
        max_num_seqs: pick(s, &[1, 3, 8]),
        eviction: pick(s, &[Eviction::Lru, Eviction::Radix, Eviction::DeadlineAware]),
        host_cache_order: pick(s, &ORDERS),
        host_cache_scope: pick(s, &[HostCacheScope::Prompt, HostCacheScope::All]),
        pricing: Pricing { swap_ns_per_block: pick(s, &[0.0, 1e6, 3e6]), ..PRICES },
        ..engine(pick(s, &[HostCache::WriteThrough, HostCache::WriteBack]), gpu, host)
    };
    let longest = config.max_model_len;
    let mut requests = Vec::new();
    let mut at = 0;
    for _ in 0..s.random_range(10..50) {
        at += s.random_range(0..30_000);
        let prompt = s.random_range(1..=longest.min(60));
        let mut request = Request::new(Micros(at), prompt, s.random_range(1..20));
        // A session's prompt quotes its own past, of whatever length.
        request.session = Some(format!("s{}", s.random_range(0..6)));
        requests.push(request);
    }
    (config, requests)
}

/// Serves a world to its end under any controls, every step recounted and every live block looked at.
fn serve(seed: u64) -> Summary {
    let (config, requests) = world(seed);
    let memory = MemorySource::Host { token_bytes: 32 }.memory(&config).unwrap();
    let mut node = Node::new(&node_config(config.clone(), Slo::default()), requests.into(), Collector::with_gaps())
        .unwrap()
        .with_memory(memory);
    let s = &mut seed::stream(seed, "host_cache.controls", 0);
    let mut controls = any_controls(s);
    for step in 0..20_000 {
        if s.random_bool(0.2) {
            controls = any_controls(s);
        }
        let progress = node.step(&controls).unwrap_or_else(|wrong| panic!("seed {seed}, step {step}: {wrong}"));
        node.scheduler().validate().unwrap_or_else(|wrong| panic!("seed {seed}, step {step}: {wrong}\n{config:?}"));
        node.summary().unwrap_or_else(|wrong| panic!("seed {seed}, step {step}: {wrong}"));
        node.verify_memory().unwrap_or_else(|wrong| panic!("seed {seed}, step {step}: {wrong}"));
        if progress == NodeStatus::Drained {
            return node.summary().unwrap();
        }
        assert_eq!(progress, NodeStatus::Stepped, "seed {seed}, step {step}");
    }
    panic!("seed {seed} is not done");
}

#[test]
fn drawn_worlds_lose_nothing() {
    let (mut stored, mut fetched, mut swapped, mut checked) = (0, 0, 0, 0);
    for seed in 0..150 {
        let summary = serve(seed);
        assert_eq!(summary.completed + summary.rejected, summary.requests, "seed {seed}");
        assert_eq!(serve(seed), summary, "seed {seed}: the second run is another one");
        let cache = summary.host_cache.unwrap();
        let memory = summary.memory.unwrap();
        assert_eq!(memory.blocks_in, cache.fetched_blocks + summary.swap_in_blocks, "seed {seed}");
        (stored, fetched) = (stored + cache.stored_blocks, fetched + cache.fetched_blocks);
        (swapped, checked) = (swapped + summary.swap_out_blocks, checked + memory.round_trips_checked);
    }
    assert!(
        stored > 5000 && fetched > 500 && swapped > 500 && checked > 1000,
        "{stored} {fetched} {swapped} {checked}"
    );
}

/// Two conversations in turn, of which the GPU holds one.
fn turns() -> (EngineConfig, Vec<Request>) {
    let turn = |at: u32| {
        let mut request = Request::new(Micros(u64::from(at) * 10_000_000), 13 + at / 2, 4);
        request.session = Some(["a", "b"][at as usize % 2].to_owned());
        request
    };
    (engine(HostCache::WriteThrough, 6, 16), (0..14).map(turn).collect())
}

fn defective(defect: Defect) -> Result<Summary, RunError> {
    let (config, requests) = turns();
    let memory = Defective::source(KvShape::small(32, 4).unwrap(), &config, Contents::Drawn, defect);
    let node = Node::new(&node_config(config.clone(), Slo::default()), requests.into(), Collector::with_gaps());
    let mut node = node.unwrap().with_memory(memory.memory(&config)?);
    run(&mut node, &mut Action::V1_DEFAULT.controls(), 8)
}

#[test]
fn whatever_goes_wrong_with_a_cached_block_is_noticed() {
    let report = defective(|_, _| {}).unwrap().memory.unwrap();
    assert!(report.round_trips_checked > 20, "{report:?}");
    let defects: [(&str, Defect); 4] = [
        ("a block is not stored", |copies, _| _ = copies.out.pop()),
        ("a block is not brought back", |copies, _| _ = copies.back.pop()),
        ("another block is stored", |copies, _| {
            if let [first, second, ..] = &mut copies.out[..] {
                std::mem::swap(&mut first.src, &mut second.src);
            }
        }),
        ("another block is brought back", |copies, _| {
            if let [first, second, ..] = &mut copies.back[..] {
                std::mem::swap(&mut first.src, &mut second.src);
            }
        }),
    ];
    for (name, defect) in defects {
        let result = defective(defect);
        let is_noticed = matches!(result, Err(RunError::Node(NodeError::Memory(MemoryError::Corrupt(_)))));
        assert!(is_noticed, "{name}: {result:?}");
    }
}

#[test]
fn tokens_brought_back_are_counted_apart() {
    let config = engine(HostCache::WriteThrough, 6, 12);
    let requests: Vec<Request> = [("a", 13, 3), ("b", 21, 2), ("a", 15, 2)]
        .into_iter()
        .enumerate()
        .map(|(at, (session, prompt, output))| {
            let mut request = Request::new(Micros(at as u64 * 10_000_000), prompt, output);
            request.session = Some(session.to_owned());
            request
        })
        .collect();
    let mut node = Node::new(&node_config(config, Slo::default()), requests.into(), Collector::with_gaps()).unwrap();
    let summary = run(&mut node, &mut Action::V1_DEFAULT.controls(), 8).unwrap();
    let cache = summary.host_cache.unwrap();
    assert_eq!((cache.hit_tokens, cache.fetched_blocks), (12, 3));
    assert_eq!((summary.prefix_hit_tokens, summary.swap_in_blocks, summary.swap_out_blocks), (0, 0, 0));
    // 49 tokens of prompts, of which 12 came back.
    assert!((cache.hit_ratio - 12.0 / 49.0).abs() < 1e-12, "{}", cache.hit_ratio);
}
