//! Orders of eviction by what requests declare, told as stories of a scheduler: in its pool and in its host's cache.

use std::sync::Arc;

use kvtide_envs::deploy::{EngineConfig, EngineKind, Setting};
use kvtide_envs::evict::Eviction;
use kvtide_envs::kv::Content;
use kvtide_envs::sched::{Outcome, Phase, Pricing, RequestId, Slo, StepPlan, V1};
use kvtide_envs::tier::HostCache;
use kvtide_envs::time::Micros;
use kvtide_runtime::{Action, Controls};

const DECLARED: [Eviction; 2] = [Eviction::IntentAware, Eviction::DeadlineAware];

/// Blocks of 4 tokens, of which `gpu` can be held; a prompt costs 1 ms a token.
fn engine(eviction: Eviction, gpu: u32) -> EngineConfig {
    EngineConfig {
        engine: EngineKind::V1,
        block_size: 4,
        num_gpu_blocks: gpu + 1,
        num_cpu_blocks: 0,
        max_num_batched_tokens: 64,
        max_model_len: gpu * 4,
        enable_chunked_prefill: true,
        enable_prefix_caching: true,
        max_wait: Micros::MAX,
        eviction,
        pricing: Pricing { swap_ns_per_block: 1e3, prefill_ns_per_token: 1e6, attention_ns_per_token_pair: 0.0 },
        ..EngineConfig::default()
    }
}

/// A synchronous scheduler that serves one request after the other.
struct Driver {
    v1: V1,
    plan: StepPlan,
    outcome: Outcome,
    controls: Controls,
    now: u64,
}

impl Driver {
    fn new(config: EngineConfig) -> Driver {
        let (plan, outcome) = (StepPlan::default(), Outcome::default());
        Driver { v1: V1::new(config).unwrap(), plan, outcome, controls: Action::V1_DEFAULT.controls(), now: 0 }
    }

    fn step(&mut self) {
        self.v1.schedule(Micros(self.now), &self.controls, &mut self.plan);
        self.v1.validate().unwrap();
        self.now += 1000;
        self.v1.complete(&self.plan, Micros(self.now), &mut self.outcome);
        self.v1.validate().unwrap();
    }

    fn submit(&mut self, text: u64, prompt: u32, slo: Slo) -> RequestId {
        let content = Content::new(0, text, Arc::default());
        self.v1.submit_with(Micros(self.now), prompt, 2, slo, Some(content)).0
    }

    /// Serves `prompt` tokens of a text, and says how many of them were there: on the GPU, or on the host.
    fn serve(&mut self, text: u64, prompt: u32, slo: Slo) -> u32 {
        let id = self.submit(text, prompt, slo);
        let mut found = None;
        for _ in 0..100 {
            self.step();
            found = found.or(self.plan.prefills.iter().find(|prefill| prefill.id == id).map(|prefill| prefill.context));
            if self.v1.view(id).phase == Phase::Finished {
                return found.expect("it was admitted");
            }
        }
        panic!("request {id:?} is not done in 100 steps");
    }

    /// Texts that nobody asks for again, of two blocks each.
    fn passes_by(&mut self, texts: std::ops::Range<u64>, slo: Slo) {
        for text in texts {
            assert_eq!(self.serve(text, 9, slo), 0);
        }
    }
}

#[test]
fn a_session_that_came_back_outlasts_prompts_that_nobody_asks_for_again() {
    let found = |eviction| {
        let mut driver = Driver::new(engine(eviction, 12));
        driver.serve(1, 9, Slo::default());
        driver.serve(1, 17, Slo::default());
        driver.passes_by(10..20, Slo::default());
        driver.serve(1, 25, Slo::default())
    };
    assert_eq!(found(Eviction::Lru), 0);
    assert_eq!(DECLARED.map(found), [16, 16]);
}

#[test]
fn an_urgent_class_outlasts_one_with_time() {
    let (urgent, patient) = (Slo::class("real-time").unwrap(), Slo::class("batch").unwrap());
    let found = |eviction| {
        let mut driver = Driver::new(engine(eviction, 12));
        driver.serve(1, 9, urgent);
        driver.passes_by(10..16, patient);
        driver.serve(1, 9, urgent)
    };
    assert_eq!(found(Eviction::Lru), 0);
    assert_eq!(DECLARED.map(found), [8, 8]);
}

#[test]
fn what_is_declared_holds_for_a_while_and_not_for_ever() {
    for eviction in DECLARED {
        let mut driver = Driver::new(engine(eviction, 12));
        driver.serve(1, 9, Slo::default());
        driver.serve(1, 17, Slo::default());
        // Two blocks each: a turnover of the pool in six of them, of which 140 / 32 and one are the most.
        driver.passes_by(10..10 + 6 * 6, Slo::default());
        assert_eq!(driver.serve(1, 17, Slo::default()), 0, "{eviction:?}");
    }
}

#[test]
fn the_hosts_cache_goes_by_it_too_however_it_is_written() {
    let found = |host_cache, order| {
        let config =
            EngineConfig { num_cpu_blocks: 12, host_cache, host_cache_order: order, ..engine(Eviction::Lru, 6) };
        let mut driver = Driver::new(config);
        driver.serve(1, 9, Slo::default());
        driver.serve(1, 17, Slo::default());
        driver.passes_by(10..22, Slo::default());
        driver.serve(1, 21, Slo::default())
    };
    for host_cache in [HostCache::WriteThrough, HostCache::WriteBack] {
        assert_eq!(found(host_cache, Eviction::Lru), 0, "{host_cache:?}");
        assert_eq!(DECLARED.map(|order| found(host_cache, order)), [16, 16], "{host_cache:?}");
    }
}

#[test]
fn settings_name_the_orders_there_are() {
    let set = |text: &str| text.parse::<Setting>().and_then(|setting| EngineConfig::default().with(&[setting]));
    assert_eq!(set("eviction=intent-aware").unwrap().eviction, Eviction::IntentAware);
    assert_eq!(set("host_cache_order=deadline-aware").unwrap().host_cache_order, Eviction::DeadlineAware);
    let error = set("eviction=intent").unwrap_err().to_string();
    assert!(error.contains("intent-aware") && error.contains("deadline-aware") && error.contains("intent"), "{error}");
}
