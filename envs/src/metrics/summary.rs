//! The numbers of a run.

use serde::{Deserialize, Serialize};

use super::{Collector, Record};
use crate::percentile::percentile;
use crate::time::Micros;

/// Percentiles of a time, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
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
    /// Of any values; `None` of none.
    pub fn of(mut values: Vec<f64>) -> Option<Percentiles> {
        if values.is_empty() {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let at = |p| percentile(&values, p);
        Some(Percentiles { p50: at(50.0), p90: at(90.0), p95: at(95.0), p99: at(99.0) })
    }
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
    /// Gaps between tokens, over all of them: nearest rank, to three digits, from a histogram.
    pub itl_ms: Option<Percentiles>,
    /// Arrival to last token.
    pub e2e_ms: Option<Percentiles>,
    /// Longest time to a first token.
    pub longest_wait_ms: Option<f64>,
    /// Longest gap between two tokens of a request.
    pub longest_stall_ms: Option<f64>,
    /// Preemptions.
    pub preemptions: u64,
    /// Blocks copied to the host.
    pub swap_out_blocks: u64,
    /// Blocks copied back.
    pub swap_in_blocks: u64,
    /// Tokens computed again after preemptions.
    pub recomputed_tokens: u64,
    /// Mean share of GPU blocks in use, over time.
    pub kv_usage_mean: f64,
    /// First arrival's clock zero to the last token.
    pub makespan_s: f64,
    /// Scheduler steps.
    pub scheduler_steps: u64,
    /// Rolling hash of (time, decision): equal for equal runs.
    pub hash: String,
}

impl Summary {
    /// Sums up a run that ended at `now` on a pool of `num_gpu_blocks`.
    pub fn of(collector: &Collector, now: Micros, num_gpu_blocks: u32, hash: u64) -> Summary {
        let records = collector.records();
        let finished = || records.iter().filter(|record| record.phase == crate::sched::Phase::Finished);
        let times = |time: &dyn Fn(&Record) -> Option<f64>| finished().filter_map(time).collect::<Vec<f64>>();
        let ttft = times(&|record| Some(record.ttft()?.as_millis_f64()));
        let attained = records.iter().filter(|record| record.attained()).count() as f64;
        let seconds = now.as_secs_f64();
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let share = |count: f64, of: f64| if of > 0.0 { count / of } else { 0.0 };
        Summary {
            requests: records.len() as u64,
            completed: collector.completed,
            rejected: collector.rejected,
            slo_attainment: share(attained, records.len() as f64),
            goodput_rps: per_second(attained),
            output_tok_s: per_second(collector.output_tokens as f64),
            on_time_tokens: share(collector.on_time_tokens as f64, collector.output_tokens as f64),
            longest_wait_ms: ttft.iter().copied().max_by(f64::total_cmp),
            ttft_ms: Percentiles::of(ttft),
            tpot_ms: Percentiles::of(times(&|record| Some(record.tpot()? * 1e3))),
            itl_ms: collector.gaps().map(|gaps| {
                let gap = |p| gaps.value_at_percentile(p) as f64 * 1e-3;
                Percentiles { p50: gap(50.0), p90: gap(90.0), p95: gap(95.0), p99: gap(99.0) }
            }),
            e2e_ms: Percentiles::of(times(&|record| Some(record.e2e().as_millis_f64()))),
            longest_stall_ms: finished().map(|record| record.longest_stall).max().map(Micros::as_millis_f64),
            preemptions: collector.preemptions,
            swap_out_blocks: collector.swap_out_blocks,
            swap_in_blocks: collector.swap_in_blocks,
            recomputed_tokens: collector.recomputed_tokens,
            kv_usage_mean: collector.mean_used_blocks(now) / f64::from(num_gpu_blocks),
            makespan_s: seconds,
            scheduler_steps: collector.steps,
            hash: format!("{hash:016x}"),
        }
    }
}
