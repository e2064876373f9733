//! How far a simulation is off on a part of a run.

use kvtide_envs::percentile::percentile;
use kvtide_envs::trace::Request;
use serde::Serialize;

use super::seen::{ObservedRun, Stamps, Tick};
use super::serve::SimulatedRun;

/// A measured number and the simulated one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pair {
    /// What the server did.
    pub measured: f64,
    /// What the simulator did.
    pub simulated: f64,
    /// `simulated / measured - 1`.
    pub error: f64,
}

impl Pair {
    pub(in crate::calibrate) fn new(measured: f64, simulated: f64) -> Pair {
        Pair { measured, simulated, error: simulated / measured - 1.0 }
    }
}

/// Mean and percentiles of a latency over requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PairedPercentiles {
    /// Requests it is of.
    pub requests: usize,
    /// Mean.
    pub mean: Pair,
    /// Median.
    pub p50: Pair,
    /// 90th.
    pub p90: Pair,
    /// 95th.
    pub p95: Pair,
    /// 99th.
    pub p99: Pair,
    /// Mean over requests of the absolute relative error of each.
    pub mean_abs_error: f64,
}

/// Curves over ticks: mean absolute errors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Curves {
    /// Ticks of the server's metrics that were compared.
    pub ticks: usize,
    /// Mean number of running requests as measured.
    pub running_mean: f64,
    /// By how many running requests it is off.
    pub running_error: f64,
    /// Mean number of waiting requests as measured.
    pub waiting_mean: f64,
    /// By how many waiting requests it is off.
    pub waiting_error: f64,
    /// Mean share of KV blocks in use as measured.
    pub kv_usage_mean: f64,
    /// Share of KV blocks.
    pub kv_usage_error: f64,
    /// Tokens generated so far, as a share of all tokens of the run.
    pub output_tokens_error: f64,
}

/// The requests that were slowed down most after their first token, and whether the simulation slowed down the same.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Stalls {
    /// How many: a twentieth of the part's requests, by measured TPOT.
    pub requests: usize,
    /// Their median TPOT as a multiple of the part's.
    pub slowdown: Pair,
    /// How many of them the simulation preempted.
    pub preempted: usize,
    /// Greatest relative error of the TPOT of one of them.
    pub worst_error: f64,
    /// Correlation of measured and simulated TPOT over all requests of the part; `None` where all are equal.
    pub correlation: Option<f64>,
}

/// All of it. A latency is of the part in which its request's token appeared: the first token for TTFT, the last for
/// TPOT and E2E. `None` where the part has none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunErrors {
    /// Generated tokens per second.
    pub output_tok_s: Option<Pair>,
    /// First arrival to last token of all, where the part ends with the run.
    pub makespan_s: Option<Pair>,
    /// Time to first token.
    pub ttft_ms: Option<PairedPercentiles>,
    /// Mean time per token after the first.
    pub tpot_ms: Option<PairedPercentiles>,
    /// Arrival to last token.
    pub e2e_ms: Option<PairedPercentiles>,
    /// Curves over time.
    pub curves: Option<Curves>,
    /// Stalls.
    pub stalls: Option<Stalls>,
}

/// A part of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RunPart {
    /// All up to a moment, seconds.
    Until(f64),
    /// All after it.
    After(f64),
}

impl RunPart {
    fn holds(self, at_s: f64) -> bool {
        match self {
            RunPart::Until(cut_s) => at_s <= cut_s,
            RunPart::After(cut_s) => at_s > cut_s,
        }
    }
}

/// A request in the run and in the simulation.
struct Twice {
    request: usize,
    measured: RequestTimes,
    simulated: RequestTimes,
}

/// The times of a request, seconds.
#[derive(Clone, Copy)]
struct RequestTimes {
    arrival: f64,
    first: f64,
    last: f64,
    /// Gaps between its tokens.
    gaps: u32,
}

impl RequestTimes {
    fn ttft_ms(self) -> f64 {
        (self.first - self.arrival) * 1e3
    }

    fn e2e_ms(self) -> f64 {
        (self.last - self.arrival) * 1e3
    }

    /// Meaningless without gaps.
    fn tpot_ms(self) -> f64 {
        (self.last - self.first) * 1e3 / f64::from(self.gaps)
    }
}

impl RunErrors {
    /// Of `served` on a part of the whole run.
    ///
    /// # Panics
    /// If `whole` is not a whole run, or `served` is not that run served to its end.
    pub fn of(whole: &ObservedRun, served: &SimulatedRun, part: RunPart) -> RunErrors {
        let twice = twice(whole, served);
        let started: Vec<&Twice> = twice.iter().filter(|twice| part.holds(twice.measured.first)).collect();
        let finished: Vec<&Twice> = twice.iter().filter(|twice| part.holds(twice.measured.last)).collect();
        let spoken: Vec<&Twice> = finished.iter().copied().filter(|twice| twice.measured.gaps > 0).collect();
        let end_s = whole.end_s();
        // A recorder may go on when nothing is left to serve; being right then is no merit.
        let is_busy = |tick: &Tick| tick.at_s <= end_s.max(served.end_s);
        let ticks = whole.ticks.iter().zip(&served.ticks).filter(|(tick, _)| part.holds(tick.at_s) && is_busy(tick));
        let ticks: Vec<(&Tick, &Tick)> = ticks.collect();
        let all_tokens: f64 = whole.requests.iter().map(|request| f64::from(request.output_tokens)).sum();
        RunErrors {
            output_tok_s: throughput(whole, served, part, (end_s, all_tokens)),
            makespan_s: matches!(part, RunPart::After(_)).then(|| Pair::new(end_s, served.end_s)),
            ttft_ms: percentiles(&started, RequestTimes::ttft_ms),
            tpot_ms: percentiles(&spoken, RequestTimes::tpot_ms),
            e2e_ms: percentiles(&finished, RequestTimes::e2e_ms),
            curves: curves(&ticks, all_tokens),
            stalls: stalls(spoken, served),
        }
    }
}

fn twice(whole: &ObservedRun, served: &SimulatedRun) -> Vec<Twice> {
    let pairs = whole.requests.iter().zip(whole.stamps.iter().zip(&served.stamps)).enumerate();
    let both = |(request, (row, (measured, simulated)))| {
        let row: &Request = row;
        let times = |stamps: &Stamps| RequestTimes {
            arrival: row.arrival.as_secs_f64(),
            first: stamps.first_s.expect("everybody is served"),
            last: stamps.last_s.expect("everybody is served to the end"),
            gaps: row.output_tokens - 1,
        };
        Twice { request, measured: times(measured), simulated: times(simulated) }
    };
    pairs.map(both).collect()
}

fn percentiles(requests: &[&Twice], latency: fn(RequestTimes) -> f64) -> Option<PairedPercentiles> {
    if requests.is_empty() {
        return None;
    }
    let sorted = |times: fn(&Twice) -> RequestTimes| {
        let mut values: Vec<f64> = requests.iter().map(|twice| latency(times(twice))).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let (measured, simulated) = (sorted(|twice| twice.measured), sorted(|twice| twice.simulated));
    let at = |p| Pair::new(percentile(&measured, p), percentile(&simulated, p));
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let off = |twice: &&Twice| Pair::new(latency(twice.measured), latency(twice.simulated)).error.abs();
    let mean_abs_error = requests.iter().map(off).sum::<f64>() / requests.len() as f64;
    Some(PairedPercentiles {
        requests: requests.len(),
        mean: Pair::new(mean(&measured), mean(&simulated)),
        p50: at(50.0),
        p90: at(90.0),
        p95: at(95.0),
        p99: at(99.0),
        mean_abs_error,
    })
}

/// Tokens over time, from the start to the last tick of the first part, and from there to each one's own end.
fn throughput(
    whole: &ObservedRun,
    served: &SimulatedRun,
    part: RunPart,
    (end_s, all_tokens): (f64, f64),
) -> Option<Pair> {
    let (RunPart::Until(cut_s) | RunPart::After(cut_s)) = part;
    let last = whole.ticks.iter().zip(&served.ticks).rev().find(|(tick, _)| tick.at_s <= cut_s);
    let (measured, simulated) = last.map_or_else(Default::default, |(measured, simulated)| (*measured, *simulated));
    let cut_s = measured.at_s;
    match part {
        RunPart::Until(_) => {
            (cut_s > 0.0).then(|| Pair::new(measured.output_tokens / cut_s, simulated.output_tokens / cut_s))
        }
        RunPart::After(_) => (end_s > cut_s && served.end_s > cut_s).then(|| {
            let rate = |before: f64, end_s: f64| (all_tokens - before) / (end_s - cut_s);
            Pair::new(rate(measured.output_tokens, end_s), rate(simulated.output_tokens, served.end_s))
        }),
    }
}

fn curves(ticks: &[(&Tick, &Tick)], all_tokens: f64) -> Option<Curves> {
    if ticks.is_empty() {
        return None;
    }
    let count = ticks.len() as f64;
    let mean = |of: fn(&Tick) -> f64| ticks.iter().map(|(measured, _)| of(measured)).sum::<f64>() / count;
    let off = |of: fn(&Tick) -> f64| {
        ticks.iter().map(|(measured, simulated)| (of(simulated) - of(measured)).abs()).sum::<f64>() / count
    };
    Some(Curves {
        ticks: ticks.len(),
        running_mean: mean(|tick| tick.running),
        running_error: off(|tick| tick.running),
        waiting_mean: mean(|tick| tick.waiting),
        waiting_error: off(|tick| tick.waiting),
        kv_usage_mean: mean(|tick| tick.kv_usage),
        kv_usage_error: off(|tick| tick.kv_usage),
        output_tokens_error: off(|tick| tick.output_tokens) / all_tokens,
    })
}

/// Share of requests that count as stalled.
const STALLED: f64 = 0.05;

fn stalls(mut requests: Vec<&Twice>, served: &SimulatedRun) -> Option<Stalls> {
    let measured = |twice: &Twice| twice.measured.tpot_ms();
    let median = percentiles(&requests, RequestTimes::tpot_ms)?.p50;
    let correlation = correlation(&requests);
    let worst = ((requests.len() as f64 * STALLED).ceil() as usize).max(1);
    requests.sort_by(|a, b| measured(b).total_cmp(&measured(a)));
    requests.truncate(worst);
    let stalled = percentiles(&requests, RequestTimes::tpot_ms)?.p50;
    let off = |twice: &&Twice| Pair::new(twice.measured.tpot_ms(), twice.simulated.tpot_ms()).error.abs();
    Some(Stalls {
        requests: worst,
        slowdown: Pair::new(stalled.measured / median.measured, stalled.simulated / median.simulated),
        preempted: requests.iter().filter(|twice| served.preempted[twice.request] > 0).count(),
        worst_error: requests.iter().map(off).fold(0.0, f64::max),
        correlation,
    })
}

/// Pearson's, of measured and simulated TPOT.
fn correlation(requests: &[&Twice]) -> Option<f64> {
    let pairs = || requests.iter().map(|twice| (twice.measured.tpot_ms(), twice.simulated.tpot_ms()));
    let count = requests.len() as f64;
    let (x, y) = pairs().fold((0.0, 0.0), |(x, y), (a, b)| (x + a / count, y + b / count));
    let moment = |of: fn(f64, f64) -> f64| pairs().map(|(a, b)| of(a - x, b - y)).sum::<f64>();
    let spread = (moment(|a, _| a * a) * moment(|_, b| b * b)).sqrt();
    (spread > 0.0).then(|| moment(|a, b| a * b) / spread)
}
