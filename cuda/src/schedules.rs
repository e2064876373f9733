//! Random schedules on real blocks: whatever is preempted, swapped and brought back, every block holds what was written.

use std::ops::Range;
use std::sync::Arc;

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::Deployment;
use kvtide_envs::deploy::{EngineConfig, EngineKind};
use kvtide_envs::env::{Node, NodeConfig, NodeError, NodeStatus};
use kvtide_envs::memory::{KvShape, MemoryError, MemoryReport, MemorySource};
use kvtide_envs::metrics::Collector;
use kvtide_envs::sched::Slo;
use kvtide_envs::seed::{self, Stream};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_runtime::action::WATERMARK_LEVELS;
use kvtide_runtime::{Action, Controls, Host, Preemption, Victim};
use rand::RngExt;
use serde::{Deserialize, Serialize};

/// What came of a number of schedules.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScheduleReport {
    /// Whose memory.
    pub backend: String,
    /// Schedules run.
    pub schedules: u64,
    /// Schedules in which blocks went to the host and came back.
    pub swapped: u64,
    /// Tokens written.
    pub written_tokens: u64,
    /// Blocks compared with what was written to them.
    pub blocks_checked: u64,
    /// Of those, blocks that had been to the host and back.
    pub round_trips_checked: u64,
    /// Schedules whose every checksum was compared with host memory's.
    pub compared: u64,
}

/// A schedule that went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("schedule of seed {seed}: {reason}")]
pub struct ScheduleError {
    /// Seed of the schedule, to run it again by.
    pub seed: u64,
    /// What it found wrong, in words.
    pub reason: String,
}

/// Who makes the memory of a schedule: blocks of a shape for an engine.
pub type MemoryOf<'a> = dyn FnMut(KvShape, &EngineConfig) -> Result<MemorySource, MemoryError> + 'a;

/// Runs the schedule of each seed on what `memory` makes: random pools, requests, and controls that change at random steps.
/// All blocks in use are checked after every eighth step, besides what [`Memory`](kvtide_envs::memory::Memory) looks at
/// anyway. If the memory is a device's, the schedule is run on host memory too, and has to leave the same checksums. `watch`
/// is called after each schedule.
///
/// # Errors
/// The first schedule that went wrong.
pub fn check_schedules(
    seeds: Range<u64>,
    memory: &mut MemoryOf<'_>,
    watch: &mut dyn FnMut(),
) -> Result<ScheduleReport, ScheduleError> {
    let mut sum = ScheduleReport::default();
    for seed in seeds {
        let failed = |reason: String| ScheduleError { seed, reason };
        let schedule = RandomSchedule::draw(seed);
        let shape = schedule.shape;
        let source = memory(shape, &schedule.node.engine).map_err(|error| failed(error.to_string()))?;
        let report = schedule.run(&source).map_err(|error| failed(error.to_string()))?;
        if source.is_exclusive() {
            let token_bytes = (shape.block_bytes() / u64::from(shape.block_size)) as u32;
            let host = schedule.run(&MemorySource::Host { token_bytes }).map_err(|error| failed(error.to_string()))?;
            let told = MemoryReport { backend: report.backend.clone(), ..host };
            if told != report {
                return Err(failed(format!("{report:?} on the device, {told:?} in host memory")));
            }
            sum.compared += 1;
        }
        sum.schedules += 1;
        sum.swapped += u64::from(report.round_trips_checked > 0);
        sum.written_tokens += report.written_tokens;
        sum.blocks_checked += report.blocks_checked;
        sum.round_trips_checked += report.round_trips_checked;
        sum.backend = report.backend;
        watch();
    }
    Ok(sum)
}

struct RandomSchedule {
    node: NodeConfig,
    shape: KvShape,
    requests: Arc<[Request]>,
    /// Chance of other controls in each step.
    fickle: f64,
    seed: u64,
}

fn pick<T: Copy>(stream: &mut Stream, choices: &[T]) -> T {
    choices[stream.random_range(0..choices.len())]
}

impl RandomSchedule {
    /// Everything arrives at once and nobody decides by the clock, so that a schedule is the same however long steps take.
    fn draw(seed: u64) -> RandomSchedule {
        let s = &mut seed::stream(seed, "schedules", 0);
        let engine = pick(s, &[EngineKind::V0, EngineKind::V1]);
        let is_v1 = engine == EngineKind::V1;
        let block_size = pick(s, &[1, 2, 4, 16]);
        let usable: u32 = s.random_range(4..=40);
        let tokens = usable * block_size;
        let enable_chunked_prefill = is_v1 || s.random_bool(0.5);
        let config = EngineConfig {
            engine,
            block_size,
            num_gpu_blocks: usable + u32::from(is_v1),
            num_cpu_blocks: s.random_range(1..=2 * usable),
            max_num_seqs: pick(s, &[2, 4, 8, 32]),
            max_num_batched_tokens: if enable_chunked_prefill { s.random_range(8..=tokens + 8) } else { tokens },
            max_model_len: tokens,
            enable_chunked_prefill,
            async_scheduling: s.random_bool(0.5),
            enable_prefix_caching: s.random_bool(0.5),
            ..EngineConfig::default()
        };
        let sessions = s.random_bool(0.5);
        let request = |s: &mut Stream| {
            let prompt = s.random_range(1..=(tokens / 3).max(1));
            let mut request = Request::new(Micros::ZERO, prompt, s.random_range(1..=(tokens / 2).max(1)));
            request.session = (sessions && s.random_bool(0.5)).then(|| format!("s{}", s.random_range(0..3)));
            request
        };
        let count = s.random_range(6..=24);
        let requests: Vec<Request> = (0..count).map(|_| request(s)).collect();
        let token_bytes = pick(s, &[32, 64, 160, 4096]);
        let deployment: Deployment = "llama-3-8b@h200".parse().expect("a built-in pair");
        RandomSchedule {
            shape: KvShape::small(token_bytes, block_size).expect("a multiple of 32"),
            node: NodeConfig {
                cost: CostModel::new(&deployment, block_size),
                engine: config,
                slo: Slo::default(),
                clients: None,
                host: Host::KVTIDE,
            },
            requests: requests.into(),
            fickle: pick(s, &[0.0, 0.02, 0.2]),
            seed,
        }
    }

    fn controls(s: &mut Stream) -> Controls {
        Controls {
            watermark: pick(s, &WATERMARK_LEVELS[..8]),
            victim: pick(s, &[Victim::Newest, Victim::FewestBlocks, Victim::MostBlocks, Victim::LeastProgress]),
            // Mostly swaps: they are what is looked at.
            preemption: pick(s, &[Preemption::Swap, Preemption::Swap, Preemption::Swap, Preemption::Recompute]),
            ..Action::ENGINE_DEFAULT.controls()
        }
    }

    fn run(&self, source: &MemorySource) -> Result<MemoryReport, NodeError> {
        let s = &mut seed::stream(self.seed, "schedules.controls", 0);
        let mut node = Node::new(&self.node, Arc::clone(&self.requests), Collector::default())
            .expect("settings are drawn from what works")
            .with_memory(source.memory(&self.node.engine)?);
        let mut controls = RandomSchedule::controls(s);
        for step in 0_u64.. {
            if s.random_bool(self.fickle) {
                controls = RandomSchedule::controls(s);
            }
            let progress = node.step(&controls)?;
            if step % 8 == 7 {
                node.verify_memory()?;
            }
            if progress != NodeStatus::Stepped {
                break;
            }
        }
        Ok(node.memory_report().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_random_schedules_keep_every_block() {
        let mut host = |shape: KvShape, _: &EngineConfig| {
            let token_bytes = (shape.block_bytes() / u64::from(shape.block_size)) as u32;
            Ok(MemorySource::Host { token_bytes })
        };
        let report = check_schedules(0..1400, &mut host, &mut || {}).unwrap();
        assert!(report.swapped >= 1000, "{report:?}");
        assert!(report.round_trips_checked > 20_000 && report.blocks_checked > 200_000, "{report:?}");
    }
}
