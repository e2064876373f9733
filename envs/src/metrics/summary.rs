//! The numbers of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Collector, GroupSummary, GuardReport, Record, Stretches};
use crate::memory::MemoryReport;
use crate::percentile::percentile;
use crate::sched::RetentionReport;
use crate::tier::Route;
use crate::time::Micros;

/// Mean and percentiles of a time, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Mean; absent in results from before it was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// Median.
    pub p50: f64,
    /// 90th.
    pub p90: f64,
    /// 95th.
    pub p95: f64,
    /// 99th.
    pub p99: f64,
}

impl Percentiles {
    /// Of any values; `None` of none. The same for the same values in whatever order.
    pub fn of(mut values: Vec<f64>) -> Option<Percentiles> {
        values.sort_by(f64::total_cmp);
        let least = values.first()?;
        // From the least on, so that the mean of equal values is that value.
        let above: f64 = values.iter().map(|value| value - least).sum();
        let at = |p| percentile(&values, p);
        Some(Percentiles {
            mean: Some(least + above / values.len() as f64),
            p50: at(50.0),
            p90: at(90.0),
            p95: at(95.0),
            p99: at(99.0),
        })
    }

    /// Of times, whose mean is exact to the last bit of its one division; `None` of none.
    pub fn of_times(times: &[Micros]) -> Option<Percentiles> {
        let sum = times.iter().map(|time| u128::from(time.0)).sum();
        let all = Percentiles::of(times.iter().copied().map(Micros::as_millis_f64).collect())?;
        Some(Percentiles { mean: mean_millis(sum, times.len() as u64), ..all })
    }
}

/// The mean of so many times that come to `sum` microseconds, in milliseconds; `None` of none.
fn mean_millis(sum: u128, count: u64) -> Option<f64> {
    (count > 0).then(|| sum as f64 / count as f64 / 1e3)
}

/// What the host tier did as a cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HostCacheSummary {
    /// Prompt tokens brought back at admission instead of being computed.
    pub hit_tokens: u64,
    /// The same / prompt tokens found in either cache or computed.
    pub hit_ratio: f64,
    /// Blocks stored.
    pub stored_blocks: u64,
    /// Blocks brought back.
    pub fetched_blocks: u64,
}

/// The numbers of a run, under the field's names, unit last.
///
/// Latencies are of requests that finished; `None` where there are none. A request is attained if it met its TTFT,
/// TPOT and stall targets at once; rejected and unfinished requests are not attained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that finished.
    pub completed: u64,
    /// Requests dropped because they can never fit.
    pub rejected: u64,
    /// Attained requests / requests.
    pub slo_attainment: f64,
    /// Attained requests per second of the makespan.
    pub goodput_rps: f64,
    /// Generated tokens per second of the makespan.
    pub output_tok_s: f64,
    /// Generated tokens that met their deadline / generated tokens.
    pub on_time_tokens: f64,
    /// Time to first token.
    pub ttft_ms: Option<Percentiles>,
    /// Mean time per output token after the first, by request.
    pub tpot_ms: Option<Percentiles>,
    /// Gaps between tokens, over all of them: percentiles are nearest rank, to three digits, from a histogram.
    pub itl_ms: Option<Percentiles>,
    /// Arrival to last token.
    pub e2e_ms: Option<Percentiles>,
    /// Longest time to a first token.
    pub longest_wait_ms: Option<f64>,
    /// Longest gap between two tokens of a request.
    pub longest_stall_ms: Option<f64>,
    /// Preemptions.
    pub preemptions: u64,
    /// Blocks of swapped requests copied to the host.
    pub swap_out_blocks: u64,
    /// Blocks copied back.
    pub swap_in_blocks: u64,
    /// Tokens computed again after preemptions.
    pub recomputed_tokens: u64,
    /// Prompt tokens found in the prefix cache; those of a victim that are found again count too.
    #[serde(default)]
    pub prefix_hit_tokens: u64,
    /// Prompt tokens found in the prefix cache / prompt tokens found or computed.
    #[serde(default)]
    pub prefix_hit_ratio: f64,
    /// What the host tier did as a cache; absent where it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_cache: Option<HostCacheSummary>,
    /// Mean share of GPU blocks in use, over time.
    pub kv_usage_mean: f64,
    /// First arrival's clock zero to the last token.
    pub makespan_s: f64,
    /// Scheduler steps.
    pub scheduler_steps: u64,
    /// Rolling hash of (time, decision): equal for equal runs.
    pub hash: String,
    /// Requests and attained ones over time; empty in results from before it was counted.
    #[serde(default)]
    pub stretches: Stretches,
    /// By the class requests name, those without one under `-`; empty if none names one. The 63 largest are told apart
    /// where there are more than 64; the others are under `*`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_class: BTreeMap<String, GroupSummary>,
    /// By tenant, likewise.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_tenant: BTreeMap<String, GroupSummary>,
    /// What memory did, where blocks are more than numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryReport>,
    /// What the guard of a table did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardReport>,
    /// What became of given-back blocks, where the pool has classes for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionReport>,
}

impl Summary {
    /// Sums up a run that ended at `now` on a pool of `num_gpu_blocks`.
    pub fn of(collector: &Collector, now: Micros, num_gpu_blocks: u32, hash: u64) -> Summary {
        let records: Vec<Record> = collector.records().collect();
        let records: Vec<&Record> = records.iter().collect();
        let seconds = now.as_secs_f64();
        let all = GroupSummary::of(&records, seconds);
        let share = |count: f64, of: f64| if of > 0.0 { count / of } else { 0.0 };
        let prompt_tokens = collector.prefix_hit_tokens + collector.host_hit_tokens + collector.prefilled_tokens;
        Summary {
            requests: all.requests,
            completed: all.completed,
            rejected: all.rejected,
            slo_attainment: all.slo_attainment,
            goodput_rps: all.goodput_rps,
            output_tok_s: all.output_tok_s,
            on_time_tokens: share(collector.on_time_tokens as f64, collector.output_tokens as f64),
            ttft_ms: all.ttft_ms,
            tpot_ms: all.tpot_ms,
            itl_ms: collector.gaps().map(|gaps| {
                let gap = |p| gaps.value_at_percentile(p) as f64 * 1e-3;
                let mean = mean_millis(collector.sum_of_gaps_us(), gaps.len());
                Percentiles { mean, p50: gap(50.0), p90: gap(90.0), p95: gap(95.0), p99: gap(99.0) }
            }),
            e2e_ms: all.e2e_ms,
            longest_wait_ms: all.longest_wait_ms,
            longest_stall_ms: all.longest_stall_ms,
            preemptions: collector.preemptions,
            swap_out_blocks: collector.moved_blocks[Route::GpuToHost] - collector.stored_blocks,
            swap_in_blocks: collector.moved_blocks[Route::HostToGpu] - collector.fetched_blocks,
            recomputed_tokens: collector.recomputed_tokens,
            prefix_hit_tokens: collector.prefix_hit_tokens,
            prefix_hit_ratio: share(collector.prefix_hit_tokens as f64, prompt_tokens as f64),
            host_cache: None,
            kv_usage_mean: collector.mean_used_blocks(now) / f64::from(num_gpu_blocks),
            makespan_s: seconds,
            scheduler_steps: collector.steps,
            hash: format!("{hash:016x}"),
            stretches: Stretches::of(&records),
            by_class: collector.groups.by_class(&records, seconds),
            by_tenant: collector.groups.by_tenant(&records, seconds),
            memory: None,
            guard: None,
            retention: None,
        }
    }

    /// The same with what the host tier did as a cache.
    #[must_use]
    pub fn with_host_cache(self, collector: &Collector) -> Summary {
        let of = collector.prefix_hit_tokens + collector.host_hit_tokens + collector.prefilled_tokens;
        let host_cache = HostCacheSummary {
            hit_tokens: collector.host_hit_tokens,
            hit_ratio: if of > 0 { collector.host_hit_tokens as f64 / of as f64 } else { 0.0 },
            stored_blocks: collector.stored_blocks,
            fetched_blocks: collector.fetched_blocks,
        };
        Summary { host_cache: Some(host_cache), ..self }
    }
}
