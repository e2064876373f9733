//! What came of a replay, counted.

use std::collections::BTreeMap;

use serde::Serialize;

use super::policy::PolicyName;
use super::rules::{Mode, TierCapacity};
use crate::percentile::interpolated;

/// How often each latency occurred: as many entries as there are different ones, which are few.
#[derive(Debug, Clone, Default)]
pub(super) struct Latency {
    /// The one that nearly all have, apart from the others: what it is, and how often.
    usual: (u64, u64),
    others: BTreeMap<u64, u64>,
    count: u64,
}

impl Latency {
    /// Of nothing yet; `usual_us` is what most will be.
    pub(super) fn new(usual_us: u64) -> Latency {
        Latency { usual: (usual_us, 0), ..Latency::default() }
    }

    /// Counts one.
    #[inline]
    pub(super) fn add(&mut self, latency_us: u64) {
        self.count += 1;
        if latency_us == self.usual.0 {
            self.usual.1 += 1;
        } else {
            *self.others.entry(latency_us).or_default() += 1;
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Percentiles in ascending order; 0 of nothing.
    fn percentiles<const N: usize>(&self, of: [f64; N]) -> [f64; N] {
        if self.count == 0 {
            return [0.0; N];
        }
        let mut all = self.others.clone();
        if self.usual.1 > 0 {
            *all.entry(self.usual.0).or_default() += self.usual.1;
        }
        let at = |index: u64| {
            let mut before = 0;
            let found = all.iter().find(|(_, count)| {
                before += **count;
                index < before
            });
            found.map_or(0.0, |(latency, _)| *latency as f64)
        };
        of.map(|p| interpolated(self.count, p, at))
    }
}

/// A decode step under way: accesses of one request to decode-critical blocks, each block once.
#[derive(Debug, Clone, Default)]
pub(super) struct DecodeStep {
    pub(super) request: u64,
    pub(super) first_step: u64,
    pub(super) last_step: u64,
    pub(super) latency_us: u64,
    pub(super) deadline_us: Option<u64>,
}

/// Counts of a replay, as they are written.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    pub(super) events: u64,
    pub(super) peak_hbm_demand: u64,
    pub(super) actual_peak_hbm: u64,
    pub(super) capacity_exhaustion: u64,
    pub(super) pinned_capacity_exhaustion: u64,
    pub(super) spills: u64,
    pub(super) prefetches: u64,
    pub(super) accesses: u64,
    pub(super) misses: u64,
    pub(super) dram_hits: u64,
    pub(super) evictions: u64,
    pub(super) decode_critical_accesses: u64,
    pub(super) decode_critical_misses: u64,
    pub(super) decode_critical_evictions: u64,
    pub(super) total_latency: u64,
    pub(super) deadline_steps: u64,
    pub(super) deadline_misses: u64,
    pub(super) of_events: Latency,
    pub(super) of_decode_steps: Latency,
}

/// What came of one policy at one capacity. The fields from `total_blocks` to `final_dram_used_bytes` are those of the simulator
/// that the faithful mode follows; what stands behind them is added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierResult {
    /// The policy, as in options.
    pub policy: &'static str,
    /// The same as its authors write it.
    pub policy_name: &'static str,
    /// `faithful` or `corrected`.
    pub mode: &'static str,
    /// Room in HBM.
    pub hbm_capacity_bytes: u64,
    /// Room in DRAM.
    pub dram_capacity_bytes: u64,
    /// Different blocks of the stream.
    pub total_blocks: u64,
    /// Its events.
    pub total_steps: u64,
    /// Most bytes that HBM would have had to hold at an allocation.
    pub peak_hbm_demand_bytes: u64,
    /// Most bytes that it held once room was made.
    pub actual_peak_hbm_used_bytes: u64,
    /// What the first exceeds the second by.
    pub hbm_bytes_saved: u64,
    /// How often no room could be made.
    pub capacity_exhaustion_events: u64,
    /// How often because everything was pinned; corrected, how often something pinned had to go.
    pub pinned_capacity_exhaustion_events: u64,
    /// Blocks moved to DRAM.
    pub spill_count: u64,
    /// Blocks brought in ahead of their use.
    pub prefetch_count: u64,
    /// Accesses to blocks that were not in HBM.
    pub miss_count: u64,
    /// Blocks that left HBM for others.
    pub eviction_count: u64,
    /// All time that was taken.
    pub total_latency_us: u64,
    /// Median latency: of an event, corrected of a decode step.
    pub p50_latency_us: f64,
    /// 95th percentile of it.
    pub p95_latency_us: f64,
    /// 99th percentile of it.
    pub p99_latency_us: f64,
    /// Misses of blocks that the token being generated waited for.
    pub decode_critical_misses: u64,
    /// Those by different blocks of the stream, at most 1.
    pub decode_critical_miss_rate: f64,
    /// Decode-critical blocks that left HBM for others.
    pub decode_critical_evictions: u64,
    /// Bytes in HBM at the end.
    pub final_hbm_used_bytes: u64,
    /// Bytes in DRAM at the end.
    pub final_dram_used_bytes: u64,
    /// Accesses.
    pub accesses: u64,
    /// Those that found the block in HBM.
    pub hits: u64,
    /// Misses that found it in DRAM.
    pub dram_hits: u64,
    /// Accesses to decode-critical blocks.
    pub decode_critical_accesses: u64,
    /// Decode steps: runs of accesses of one request to decode-critical blocks, each block once.
    pub decode_steps: u64,
    /// Those with a deadline.
    pub deadline_steps: u64,
    /// Those that took longer than the nearest deadline of their blocks.
    pub deadline_misses: u64,
    /// Their share of those with a deadline.
    pub deadline_miss_rate: f64,
    /// Median time of a decode step.
    pub decode_step_p50_us: f64,
    /// 95th percentile of it.
    pub decode_step_p95_us: f64,
    /// 99th percentile of it.
    pub decode_step_p99_us: f64,
}

/// How full tiers are.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Used {
    pub(super) hbm: u64,
    pub(super) dram: u64,
}

impl Counts {
    /// Of nothing yet, where an event takes `base_us`.
    pub(super) fn new(base_us: u64) -> Counts {
        Counts { of_events: Latency::new(base_us), of_decode_steps: Latency::new(base_us), ..Counts::default() }
    }

    /// A decode step has ended; whether it missed its deadline.
    pub(super) fn end(&mut self, step: &DecodeStep) -> bool {
        self.of_decode_steps.add(step.latency_us);
        self.deadline_steps += u64::from(step.deadline_us.is_some());
        let is_late = step.deadline_us.is_some_and(|deadline| step.latency_us > deadline);
        self.deadline_misses += u64::from(is_late);
        is_late
    }

    pub(super) fn result(
        &self,
        (policy, mode): (PolicyName, Mode),
        capacity: TierCapacity,
        used: Used,
        total_blocks: u64,
    ) -> TierResult {
        let of_steps = mode.rules().latency_of_decode_steps;
        let latency = if of_steps { &self.of_decode_steps } else { &self.of_events };
        let [p50, p95, p99] = latency.percentiles([50.0, 95.0, 99.0]);
        let [step_p50, step_p95, step_p99] = self.of_decode_steps.percentiles([50.0, 95.0, 99.0]);
        let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
        TierResult {
            policy: policy.name(),
            policy_name: policy.title(),
            mode: mode.name(),
            hbm_capacity_bytes: capacity.hbm_bytes,
            dram_capacity_bytes: capacity.dram_bytes,
            total_blocks,
            total_steps: self.events,
            peak_hbm_demand_bytes: self.peak_hbm_demand,
            actual_peak_hbm_used_bytes: self.actual_peak_hbm,
            hbm_bytes_saved: self.peak_hbm_demand.saturating_sub(self.actual_peak_hbm),
            capacity_exhaustion_events: self.capacity_exhaustion,
            pinned_capacity_exhaustion_events: self.pinned_capacity_exhaustion,
            spill_count: self.spills,
            prefetch_count: self.prefetches,
            miss_count: self.misses,
            eviction_count: self.evictions,
            total_latency_us: self.total_latency,
            p50_latency_us: p50,
            p95_latency_us: p95,
            p99_latency_us: p99,
            decode_critical_misses: self.decode_critical_misses,
            decode_critical_miss_rate: share(self.decode_critical_misses, total_blocks).min(1.0),
            decode_critical_evictions: self.decode_critical_evictions,
            final_hbm_used_bytes: used.hbm,
            final_dram_used_bytes: used.dram,
            accesses: self.accesses,
            hits: self.accesses - self.misses,
            dram_hits: self.dram_hits,
            decode_critical_accesses: self.decode_critical_accesses,
            decode_steps: self.of_decode_steps.count(),
            deadline_steps: self.deadline_steps,
            deadline_misses: self.deadline_misses,
            deadline_miss_rate: share(self.deadline_misses, self.deadline_steps),
            decode_step_p50_us: step_p50,
            decode_step_p95_us: step_p95,
            decode_step_p99_us: step_p99,
        }
    }
}
