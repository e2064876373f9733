//! Whole nodes drawn from seeds: either engine, in every mode, with prefix cache, host tier and closed loop, under
//! random controls. After every step everything is recounted, and every block that a request holds is compared with what
//! was written to it; at the end every accepted request has its tokens, the accounts add up, both pools are whole, and a
//! second run without memory, and a third on blocks whose contents are computed, are the same.
//!
//! `KVTIDE_SIM_SEEDS=a..b` runs other seeds.

use std::sync::Arc;

use crate::common::defective::Defective;
use crate::common::node_config;
use crate::common::sim::any_controls;
use kvtide_envs::deploy::{EngineConfig, EngineKind};
use kvtide_envs::env::{Node, NodeConfig, NodeStatus};
use kvtide_envs::evict::Eviction;
use kvtide_envs::kv::Sharing;
use kvtide_envs::memory::{Contents, KvShape, MemoryReport, MemorySource};
use kvtide_envs::metrics::Collector;
use kvtide_envs::sched::{Phase, Pricing, RequestId, Slo};
use kvtide_envs::seed::{self, Stream};
use kvtide_envs::tier::Tier;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use rand::RngExt;
use rayon::prelude::*;

fn pick<T: Copy>(s: &mut Stream, choices: &[T]) -> T {
    choices[s.random_range(0..choices.len())]
}

struct World {
    node: NodeConfig,
    requests: Arc<[Request]>,
    /// Chance of new controls in each step.
    fickle: f64,
}

impl World {
    /// Small pools and lengths, extremes often.
    fn draw(seed: u64) -> World {
        let s = &mut seed::stream(seed, "simulation_nodes.world", 0);
        let engine = if s.random_bool(0.75) { EngineKind::V1 } else { EngineKind::V0 };
        let block_size = pick(s, &[1, 1, 2, 3, 4, 7, 16]);
        let usable = if s.random_bool(0.1) { 1 } else { s.random_range(2..=48) };
        let tokens = block_size * usable;
        let max_model_len = if s.random_bool(0.5) { tokens } else { s.random_range(1..=tokens) };
        let enable_chunked_prefill = s.random_bool(0.7);
        let max_num_batched_tokens = if enable_chunked_prefill {
            if s.random_bool(0.3) { s.random_range(1..=3) } else { s.random_range(1..=tokens + 8) }
        } else {
            max_model_len + if s.random_bool(0.5) { 0 } else { s.random_range(0..=tokens) }
        };
        let scale = |s: &mut Stream| if s.random_bool(0.3) { 0.0 } else { s.random_range(0.0..1e5) };
        let config = EngineConfig {
            engine,
            block_size,
            num_gpu_blocks: usable + u32::from(engine == EngineKind::V1),
            num_cpu_blocks: pick(s, &[0, 0, 1, usable / 2, usable, 2 * usable]),
            max_num_seqs: pick(s, &[1, 2, 3, 8, 64]),
            max_num_batched_tokens,
            max_model_len,
            enable_chunked_prefill,
            async_scheduling: s.random_bool(0.5),
            enable_prefix_caching: s.random_bool(0.6),
            long_prefill_token_threshold: pick(s, &[0, 0, 1, 3, 17]),
            scheduler_reserve_full_isl: s.random_bool(0.7),
            eviction: pick(
                s,
                &[Eviction::Lru, Eviction::Radix, Eviction::Classes, Eviction::Sieve, Eviction::Arc, Eviction::Gdsf],
            ),
            prefix_sharing: pick(s, &[Sharing::Tenant, Sharing::Global]),
            max_wait: pick(s, &[Micros(0), Micros::from_millis(100), Micros::from_millis(5000), Micros::MAX]),
            pricing: Pricing {
                swap_ns_per_block: scale(s),
                prefill_ns_per_token: scale(s),
                attention_ns_per_token_pair: scale(s),
            },
            ..EngineConfig::default()
        };
        let requests = requests(s, &config);
        let slo = Slo::from_millis(s.random_range(1..3000), s.random_range(1..200), s.random_range(1..2000));
        let mut node = node_config(config, slo);
        node.clients = s.random_bool(0.3).then(|| s.random_range(1..12));
        World { node, requests, fickle: pick(s, &[0.0, 0.1, 0.5, 1.0]) }
    }

    /// Runs to the end, checking everything after each step; the hash of all that happened, and what memory did.
    fn run(&self, seed: u64, memory: &MemorySource) -> Result<(u64, Option<MemoryReport>), String> {
        let memory = memory.memory(&self.node.engine).map_err(|error| error.to_string())?;
        let mut node = Node::new(&self.node, Arc::clone(&self.requests), Collector::with_gaps())
            .map_err(|error| error.to_string())?
            .with_memory(memory);
        let s = &mut seed::stream(seed, "simulation_nodes.controls", 0);
        let mut controls = any_controls(s);
        // A token a step is the least anybody gets but for prompts in chunks of one, computed again after preemptions.
        let work: u64 =
            self.requests.iter().map(|request| u64::from(request.prompt_tokens + request.output_tokens)).sum();
        let most = 1000 + 200 * work;
        for step in 0..most {
            if s.random_bool(self.fickle) {
                controls = any_controls(s);
            }
            let progress = node.step(&controls).map_err(|error| format!("step {step}: {error}"))?;
            node.scheduler().validate().map_err(|wrong| format!("step {step}: {wrong}"))?;
            node.collector().reconcile(node.scheduler()).map_err(|wrong| format!("step {step}: {wrong}"))?;
            node.verify_memory().map_err(|wrong| format!("step {step}: {wrong}"))?;
            match progress {
                NodeStatus::Stepped => {}
                NodeStatus::Stalled => return Err(format!("stalled after {step} steps")),
                NodeStatus::Drained => return self.finish(&node),
            }
        }
        Err(format!("not done after {most} steps"))
    }

    /// Everything accepted has finished with all its tokens, and both pools are whole again.
    fn finish(&self, node: &Node) -> Result<(u64, Option<MemoryReport>), String> {
        let scheduler = node.scheduler();
        let config = scheduler.config();
        let free = (scheduler.free_blocks(Tier::Gpu), scheduler.free_blocks(Tier::Host));
        if free != (config.num_usable_blocks(), config.num_cpu_blocks) {
            return Err(format!("{} and {} blocks are free at the end", free.0, free.1));
        }
        if scheduler.num_requests() != self.requests.len() {
            return Err(format!("{} of {} requests were sent", scheduler.num_requests(), self.requests.len()));
        }
        for (id, request) in (0..).zip(self.requests.iter()) {
            let ended = scheduler.view(RequestId(id));
            let (prompt, output) = (request.prompt_tokens, request.output_tokens);
            // V0 generates one token beyond the longest sequence; V1's front end asks for room for one.
            let room = config.max_model_len + u32::from(config.engine == EngineKind::V0);
            let expected =
                if prompt >= room { (Phase::Rejected, 0) } else { (Phase::Finished, output.min(room - prompt)) };
            if (ended.phase, ended.generated) != expected {
                return Err(format!("request {id} ended {:?} with {}", ended.phase, ended.generated));
            }
        }
        let summary = node.summary().map_err(|wrong| wrong.to_string())?;
        Ok((node.hash(), summary.memory))
    }
}

fn requests(s: &mut Stream, engine: &EngineConfig) -> Arc<[Request]> {
    let longest = engine.max_model_len;
    let gap_us = pick(s, &[0, 1000, 20_000, 300_000]);
    let long_outputs = s.random_bool(0.3);
    let hash_block_tokens = engine.block_size * pick(s, &[1, 2]);
    let prefixes = pick(s, &[0_u64, 0, 1, 3]);
    let mut arrival = Micros::ZERO;
    let mut draw = || {
        arrival += Micros(s.random_range(0..=gap_us));
        let prompt = match s.random_range(0..10) {
            0 => longest,
            1 => longest + 1,
            2 => 1,
            3..6 => s.random_range(1..=longest),
            _ => s.random_range(1..=longest.div_ceil(4)),
        };
        let most = if long_outputs { longest + 2 } else { 12 };
        let mut request = Request::new(arrival, prompt, s.random_range(1..=most));
        if prefixes > 0 && s.random_bool(0.7) {
            let family = s.random_range(0..prefixes);
            request.hash_ids = (0..u64::from(prompt / hash_block_tokens)).map(|block| family << 32 | block).collect();
            request.hash_block_tokens = if request.hash_ids.is_empty() { 0 } else { hash_block_tokens };
        } else if s.random_bool(0.2) {
            request.session = Some(format!("s{}", s.random_range(0..3)));
        }
        request.tenant = s.random_bool(0.3).then(|| format!("t{}", s.random_range(0..2)));
        request
    };
    let count = if draw().prompt_tokens % 7 == 0 { 3 } else { 40 };
    (0..count).map(|_| draw()).collect()
}

/// Seeds of the environment variable, or the usual ones.
fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("KVTIDE_SIM_SEEDS") else { return usual };
    let range = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.unwrap_or_else(|| panic!("KVTIDE_SIM_SEEDS is {text:?}; give a range of seeds, as in 0..200"))
}

/// The runs of a seed; what memory did in the first.
fn thrice(seed: u64) -> Result<MemoryReport, String> {
    let world = World::draw(seed);
    let (first, report) = world.run(seed, &MemorySource::Host { token_bytes: 32 })?;
    let (second, _) = world.run(seed, &MemorySource::Modelled)?;
    // Contents that are known only once they are there, and differ wherever somebody else computed them.
    let shape = KvShape::small(32, world.node.engine.block_size).expect("32 is a size");
    let computed = Defective::source(shape, &world.node.engine, Contents::Computed, |_, _| {});
    let (third, _) = world.run(seed, &computed)?;
    if first != second || first != third {
        return Err("runs differ".to_owned());
    }
    report.ok_or_else(|| "memory did nothing".to_owned())
}

#[test]
fn every_node_ends_well_and_its_blocks_hold_what_was_written() {
    let usual = 0..2000;
    let reports: Vec<MemoryReport> = seeds(usual.clone())
        .into_par_iter()
        .map(|seed| match thrice(seed) {
            Ok(report) => report,
            Err(wrong) => panic!(
                "seed {seed}: {wrong}\n{:?}\nreplay with: KVTIDE_SIM_SEEDS={seed}..{} cargo test -p kvtide-envs --test all \
                 simulation_nodes::",
                World::draw(seed).node.engine,
                seed + 1
            ),
        })
        .collect();
    if reports.len() == usual.count() {
        let of = |count: fn(&MemoryReport) -> u64| reports.iter().map(count).sum::<u64>();
        let swapped = reports.iter().filter(|report| report.round_trips_checked > 0).count();
        assert!(swapped >= 300, "{swapped} of {} nodes swapped", reports.len());
        assert!(of(|report| report.round_trips_checked) > 10_000, "{}", of(|report| report.round_trips_checked));
        assert!(of(|report| report.blocks_checked) > 1_000_000, "{}", of(|report| report.blocks_checked));
    }
}
