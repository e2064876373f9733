//! Every policy against the first one.

use kvtide_envs::metrics::{GuardReport, Percentiles};
use serde::Serialize;

use super::against::{Against, gain, pairs};
use super::capacity::{self, CAPACITY_TARGET, Capacity};
use super::distinct::{distinct, num_draws};
use super::resample::{PairedDraw, ResampledRun, Resampling};
use super::row::RunRow;
use crate::bootstrap::{Interval, interquartile_mean};
use crate::policy::{PolicyName, PolicySpec};

/// One policy over all draws, and its difference from the reference on the same draws: the `data` of a `comparison`
/// line.
///
/// Every load run counts, and a draw that is an earlier one again does not. Intervals are of 95 % and say what they rest on
/// ([`Evidence`](crate::evaluate::Evidence)). A mean of times is over runs that have one; `None` where none has, as where nobody finished.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The policy.
    pub policy: PolicyName,
    /// What it is compared with.
    pub reference: PolicyName,
    /// Draws that were run and count.
    pub runs: usize,
    /// Draws that were run and are left out, because they are an earlier one again.
    pub repeated: usize,
    /// Mean share of requests that met every target.
    pub slo_attainment: f64,
    /// The same with its interval.
    pub slo_attainment_mean: Option<Interval>,
    /// Its interquartile mean over draws.
    pub slo_attainment_iqm: Option<Interval>,
    /// Attainment less the reference's, paired by draw.
    pub slo_attainment_gain: Option<Interval>,
    /// Share of draws on which it attained more than the reference, draws with equal attainment counting half.
    pub improvement_probability: f64,
    /// The same with its interval.
    pub improvement: Option<Interval>,
    /// Against the default, `best-fixed`, `best-train`, `best-static-once`, `best-static`, the reference and whomever else was asked for.
    pub against: Vec<Against>,
    /// The highest load at which 90 % are attained.
    pub capacity: Option<Capacity>,
    /// Load by load.
    pub loads: Vec<AtLoad>,
    /// Mean attained requests per second.
    pub goodput_rps: f64,
    /// Mean output tokens per second.
    pub output_tok_s: f64,
    /// Mean over draws of the mean time to first token; `None` where a draw has none, as in results from before it was counted.
    pub ttft_mean_ms: Option<f64>,
    /// Mean over draws of the 99th percentile of time to first token.
    pub ttft_p99_ms: Option<f64>,
    /// Mean over draws of the mean time per output token after the first, by request; `None` as above.
    pub tpot_mean_ms: Option<f64>,
    /// Mean over draws of the mean gap between tokens; `None` as above.
    pub itl_mean_ms: Option<f64>,
    /// Mean over draws of the 99th percentile of gaps between tokens.
    pub itl_p99_ms: Option<f64>,
    /// Mean over draws of the mean time from arrival to last token; `None` as above.
    pub e2e_mean_ms: Option<f64>,
    /// Mean over draws of the longest time to a first token.
    pub longest_wait_ms: Option<f64>,
    /// Mean preemptions.
    pub preemptions: f64,
    /// Mean blocks swapped in either direction.
    pub swapped_blocks: f64,
    /// What the guard of a table did, over all of its draws.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardReport>,
    /// Constants chosen in hindsight or on training traffic, most frequent first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chosen: Vec<PolicySpec>,
}

/// One policy at one load. Draws that are those of a lower load again are its own as well.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AtLoad {
    /// The load.
    pub load: f64,
    /// Requests offered a second, the mean over draws; `None` in a closed loop.
    pub offered_rps: Option<f64>,
    /// Draws that were run at it.
    pub runs: usize,
    /// Mean share of requests that met every target.
    pub slo_attainment: Option<Interval>,
    /// Mean over draws of the mean time to first token; `None` where a draw has none, as in results from before it was counted.
    pub ttft_mean_ms: Option<f64>,
    /// Mean over draws of the 99th percentile of time to first token.
    pub ttft_p99_ms: Option<f64>,
    /// Mean over draws of the mean time from arrival to last token; `None` as above.
    pub e2e_mean_ms: Option<f64>,
    /// Mean over draws of the longest time to a first token.
    pub longest_wait_ms: Option<f64>,
    /// The same as a multiple of the reference's.
    pub longest_wait_times: Option<f64>,
}

impl Comparison {
    /// Requests offered a second for each unit of load, the mean over the loads run; `None` in a closed loop.
    pub(super) fn rate_of_load(&self) -> Option<f64> {
        let rates: Vec<f64> = self.loads.iter().filter_map(|at| Some(at.offered_rps? / at.load)).collect();
        (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
    }

    fn with_offered_capacity(self) -> Comparison {
        let rate = self.rate_of_load();
        let capacity = self.capacity.map(|at| Capacity { offered_rps: rate.map(|rate| rate * at.load), ..at });
        Comparison { capacity, ..self }
    }
}

/// Compares every policy in `rows` with `reference` and `versus`, in order of appearance. A cell that not every policy has
/// finished, as an interrupted run leaves it, is left out.
pub fn compare(rows: &[RunRow], reference: &PolicyName, versus: &[PolicyName]) -> Vec<Comparison> {
    let mut names: Vec<&PolicyName> = Vec::new();
    for row in rows {
        if !names.contains(&&row.policy) {
            names.push(&row.policy);
        }
    }
    let has = |name: &PolicyName, cell: &[RunRow]| cell.iter().any(|row| row.policy == *name);
    let complete: Vec<&RunRow> =
        rows.chunk_by(RunRow::is_same_cell).filter(|cell| names.iter().all(|name| has(name, cell))).flatten().collect();
    if complete.is_empty() {
        return Vec::new();
    }
    let rows = distinct(&complete);
    let repeated = num_draws(&complete) - num_draws(&rows);
    let resampling = Resampling::new(&rows);
    let policies: Vec<(&PolicyName, Vec<ResampledRun<'_>>)> =
        names.iter().map(|name| (*name, resampling.served(&of(name, &rows)))).collect();
    let is_asked = |name: &PolicyName| name.spec().is_yardstick() || name == reference || versus.contains(name);
    let theirs = policies.iter().find(|(name, _)| *name == reference).map_or(&[][..], |(_, served)| served);
    let loads: Vec<Loaded<'_>> = loads(&complete).into_iter().map(|load| Loaded::of(load, &complete)).collect();
    let compared = policies.iter().map(|(name, mine)| {
        let others = policies.iter().filter(|(other, _)| other != name && is_asked(other));
        let against = others.filter_map(|(other, theirs)| Against::of(&resampling, mine, other, theirs)).collect();
        let loads = loads.iter().map(|at| at.of_policy(name, reference)).collect();
        let line = Comparison { repeated, against, loads, ..one(&resampling, name, mine, reference, theirs) };
        line.with_offered_capacity()
    });
    compared.collect()
}

fn of<'a>(name: &PolicyName, rows: &[&'a RunRow]) -> Vec<&'a RunRow> {
    rows.iter().copied().filter(|row| row.policy == *name).collect()
}

fn one(
    resampling: &Resampling<'_>,
    name: &PolicyName,
    mine: &[ResampledRun<'_>],
    reference: &PolicyName,
    theirs: &[ResampledRun<'_>],
) -> Comparison {
    let rows: Vec<&RunRow> = mine.iter().map(|served| served.row).collect();
    let mean = |value: &dyn Fn(&RunRow) -> f64| rows.iter().map(|row| value(row)).sum::<f64>() / rows.len() as f64;
    let (alone, paired) = (pairs(mine, mine), pairs(mine, theirs));
    let slo_attainment_mean = resampling.interval(&alone, attainment);
    let improvement = resampling.interval(&paired, share_better);
    Comparison {
        policy: name.clone(),
        reference: reference.clone(),
        runs: rows.len(),
        repeated: 0,
        slo_attainment: mean(&|row| row.summary.slo_attainment),
        slo_attainment_mean,
        slo_attainment_iqm: resampling
            .interval(&alone, |pairs| interquartile_mean(pairs.iter().map(|pair| pair.mine).collect())),
        slo_attainment_gain: resampling.interval(&paired, gain),
        improvement_probability: improvement.map_or(0.5, |share| share.mean),
        improvement,
        against: Vec::new(),
        capacity: capacity_of(resampling, &alone),
        loads: Vec::new(),
        goodput_rps: mean(&|row| row.summary.goodput_rps),
        output_tok_s: mean(&|row| row.summary.output_tok_s),
        ttft_mean_ms: mean_of_means(&rows, |row| row.summary.ttft_ms),
        ttft_p99_ms: ttft_p99_ms(&rows),
        tpot_mean_ms: mean_of_means(&rows, |row| row.summary.tpot_ms),
        itl_mean_ms: mean_of_means(&rows, |row| row.summary.itl_ms),
        itl_p99_ms: mean_of(&rows, |row| Some(row.summary.itl_ms?.p99)),
        e2e_mean_ms: mean_of_means(&rows, |row| row.summary.e2e_ms),
        longest_wait_ms: longest_wait_ms(&rows),
        preemptions: mean(&|row| row.summary.preemptions as f64),
        swapped_blocks: mean(&|row| (row.summary.swap_in_blocks + row.summary.swap_out_blocks) as f64),
        guard: GuardReport::of_all(rows.iter().filter_map(|row| row.summary.guard.as_ref())),
        chosen: chosen(&rows),
    }
}

/// The runs at one load, all policies'.
struct Loaded<'a> {
    load: f64,
    rows: Vec<&'a RunRow>,
    resampling: Resampling<'a>,
}

impl<'a> Loaded<'a> {
    fn of(load: f64, rows: &[&'a RunRow]) -> Loaded<'a> {
        let rows = distinct(&rows.iter().copied().filter(|row| row.load == load).collect::<Vec<&RunRow>>());
        Loaded { load, resampling: Resampling::new(&rows), rows }
    }

    fn of_policy(&self, name: &PolicyName, reference: &PolicyName) -> AtLoad {
        let (rows, theirs) = (of(name, &self.rows), of(reference, &self.rows));
        let served = self.resampling.served(&rows);
        let wait = longest_wait_ms(&rows);
        let times = wait.zip(longest_wait_ms(&theirs)).filter(|(_, theirs)| *theirs > 0.0);
        AtLoad {
            load: self.load,
            offered_rps: mean_of(&rows, |row| row.offered_rps),
            runs: rows.len(),
            slo_attainment: self.resampling.interval(&pairs(&served, &served), attainment),
            ttft_mean_ms: mean_of_means(&rows, |row| row.summary.ttft_ms),
            ttft_p99_ms: ttft_p99_ms(&rows),
            e2e_mean_ms: mean_of_means(&rows, |row| row.summary.e2e_ms),
            longest_wait_ms: wait,
            longest_wait_times: times.map(|(mine, theirs)| mine / theirs),
        }
    }
}

/// The load at which 90 % are attained, by straight lines between loads. Resamples whose capacity lies beyond the loads that
/// were run count with the last of them.
fn capacity_of(resampling: &Resampling<'_>, alone: &[(&ResampledRun<'_>, &ResampledRun<'_>)]) -> Option<Capacity> {
    let interpolated = |pairs: &[PairedDraw]| {
        let mut curve = by_load(pairs.iter().map(|pair| (pair.load, pair.mine)));
        curve.sort_by(|a, b| a.0.total_cmp(&b.0));
        capacity::interpolated(&curve, CAPACITY_TARGET)
    };
    let (load, bound) = interpolated(&alone.iter().map(|(mine, _)| mine.alone()).collect::<Vec<PairedDraw>>())?;
    let interval = resampling.interval(alone, |pairs| interpolated(pairs).map(|(load, _)| load))?;
    Some(Capacity {
        load,
        low: interval.low,
        high: interval.high,
        offered_rps: None,
        bound,
        evidence: interval.evidence,
    })
}

/// The mean value of each load, in order of appearance.
pub(super) fn by_load(values: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut sums: Vec<(f64, f64, f64)> = Vec::new();
    for (load, value) in values {
        match sums.iter_mut().find(|(known, ..)| *known == load) {
            Some((_, sum, count)) => (*sum, *count) = (*sum + value, *count + 1.0),
            None => sums.push((load, value, 1.0)),
        }
    }
    sums.into_iter().map(|(load, sum, count)| (load, sum / count)).collect()
}

/// The mean over rows that have a value; `None` if none has.
fn mean_of(rows: &[&RunRow], value: impl Fn(&RunRow) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = rows.iter().filter_map(|row| value(row)).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Loads, ascending.
pub(super) fn loads(rows: &[&RunRow]) -> Vec<f64> {
    let mut loads: Vec<f64> = rows.iter().map(|row| row.load).collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    loads
}

pub(super) fn attainment(pairs: &[PairedDraw]) -> Option<f64> {
    (!pairs.is_empty()).then(|| pairs.iter().map(|pair| pair.mine).sum::<f64>() / pairs.len() as f64)
}

/// Of the draws, the share on which more was attained, draws with equal attainment counting half; `None` of none.
fn share_better(pairs: &[PairedDraw]) -> Option<f64> {
    let better = |pair: &PairedDraw| {
        if pair.mine > pair.theirs { 1.0 } else { 0.5 * f64::from(u8::from(pair.mine == pair.theirs)) }
    };
    (!pairs.is_empty()).then(|| pairs.iter().map(better).sum::<f64>() / pairs.len() as f64)
}

/// The mean over rows whose requests have such times; `None` if none has, or one that was written before there were means.
fn mean_of_means(rows: &[&RunRow], times: impl Fn(&RunRow) -> Option<Percentiles>) -> Option<f64> {
    let is_old = |row: &&RunRow| times(row).is_some_and(|times| times.mean.is_none());
    if rows.iter().any(is_old) {
        return None;
    }
    mean_of(rows, |row| times(row)?.mean)
}

fn ttft_p99_ms(rows: &[&RunRow]) -> Option<f64> {
    mean_of(rows, |row| Some(row.summary.ttft_ms?.p99))
}

pub(super) fn longest_wait_ms(rows: &[&RunRow]) -> Option<f64> {
    mean_of(rows, |row| row.summary.longest_wait_ms)
}

fn chosen(rows: &[&RunRow]) -> Vec<PolicySpec> {
    let mut counts: Vec<(usize, PolicySpec)> = Vec::new();
    for name in rows.iter().filter_map(|row| row.chosen.as_ref()) {
        match counts.iter_mut().find(|(_, known)| known == name) {
            Some((count, _)) => *count += 1,
            None => counts.push((1, name.clone())),
        }
    }
    counts.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    counts.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::super::capacity::Bound;
    use super::*;

    fn compare(rows: &[RunRow], reference: &str, versus: &[&str]) -> Vec<Comparison> {
        let versus: Vec<PolicyName> = versus.iter().map(|text| PolicyName::sample(text)).collect();
        super::compare(rows, &PolicyName::sample(reference), &versus)
    }

    fn runs(policy: &str, load: f64, attained: &[f64]) -> Vec<RunRow> {
        (1..).zip(attained).map(|(seed, one)| RunRow::sample(policy, load, seed, *one)).collect()
    }

    fn against<'a>(line: &'a Comparison, than: &str) -> &'a Against {
        line.against.iter().find(|against| against.than.as_str() == than).unwrap()
    }

    #[test]
    fn differences_are_paired_by_draw() {
        let rows = [
            runs("a", 1.0, &[0.5, 0.9]),
            runs("b", 1.0, &[0.6, 0.8]),
            runs("a", 2.0, &[0.1, 0.1]),
            runs("b", 2.0, &[0.4, 0.1]),
        ]
        .concat();
        let lines = compare(&rows, "a", &[]);
        assert_eq!(lines.iter().map(|line| line.policy.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let gain = lines[1].slo_attainment_gain.unwrap();
        assert!((gain.mean - 0.075).abs() < 1e-12);
        // Seed 1 gains 0.1 and 0.3, seed 2 loses 0.1 and nothing: if only one of them is drawn, 0.2 or -0.05.
        assert!((gain.low.unwrap() + 0.05).abs() < 1e-9 && (gain.high.unwrap() - 0.2).abs() < 1e-9, "{gain:?}");
        assert_eq!(lines[1].improvement_probability, 2.5 / 4.0);
        assert_eq!(lines[1].improvement.unwrap().mean, 2.5 / 4.0);
        assert_eq!(lines[0].slo_attainment_mean.unwrap().mean, lines[0].slo_attainment);
        // Of 0.1, 0.1, 0.5 and 0.9 the middle half.
        assert_eq!(lines[0].slo_attainment_iqm.unwrap().mean, 0.3);
        let attained = |line: &Comparison| {
            line.loads.iter().map(|at| (at.load, at.runs, at.slo_attainment.unwrap().mean)).collect::<Vec<_>>()
        };
        assert_eq!(attained(&lines[0]), [(1.0, 2, 0.7), (2.0, 2, 0.1)]);
    }

    #[test]
    fn capacity_is_interpolated_over_loads_and_resampled() {
        let rows = [runs("a", 1.0, &[1.0, 0.96]), runs("a", 2.0, &[0.86, 0.78])].concat();
        let capacity = compare(&rows, "a", &[])[0].capacity.unwrap();
        // From 0.98 at load 1 down to 0.82 at load 2: half of the way.
        assert!((capacity.load - 1.5).abs() < 1e-9 && capacity.bound == Bound::Exact, "{capacity:?}");
        // At the extremes from 0.96 to 0.78 and from 1 to 0.86.
        assert!((capacity.low.unwrap() - (1.0 + 0.06 / 0.18)).abs() < 1e-9, "{capacity:?}");
        assert!((capacity.high.unwrap() - (1.0 + 0.10 / 0.14)).abs() < 1e-9, "{capacity:?}");
    }

    #[test]
    fn violations_are_counted_over_every_load_run() {
        let mut rows = Vec::new();
        for (load, default, best, agent) in
            [(1.0, 1.0, 1.0, 1.0), (2.0, 0.99, 0.99, 0.89), (3.0, 0.5, 0.7, 0.85), (4.0, 0.2, 0.2, 0.3)]
        {
            for (policy, attained) in [("default", default), ("best-fixed", best), ("agent", agent)] {
                rows.extend(runs(policy, load, &[attained; 2]));
            }
        }
        let lines = compare(&rows, "default", &[]);
        assert!(lines[0].against.iter().all(|against| against.than.as_str() != "default"));
        // Of the default 0 + 0.01 + 0.5 + 0.8, of best-fixed 0.2 less, of the agent 0.11 + 0.15 + 0.7.
        let than_default = against(&lines[2], "default");
        let share = than_default.fewer_violations.unwrap();
        assert!((share.mean - (1.0 - 0.96 / 1.31)).abs() < 1e-9, "{share:?}");
        assert!((share.low.unwrap() - share.high.unwrap()).abs() < 1e-9);
        // Where the default is hardly ever late is where the agent hurts: it was left out once.
        let worst = than_default.worst_load.unwrap();
        assert!(worst.load == 2.0 && (worst.gain + 0.1).abs() < 1e-9, "{worst:?}");
        let than_best = against(&lines[2], "best-fixed").fewer_violations.unwrap().mean;
        assert!((than_best - (1.0 - 0.96 / 1.11)).abs() < 1e-9);
        let worse = against(&lines[0], "best-fixed").fewer_violations.unwrap().mean;
        assert!((worse - (1.0 - 1.31 / 1.11)).abs() < 1e-9, "{worse}");
        // Each load counts the same, however many draws it has.
        for (policy, attained) in [("default", 0.5), ("best-fixed", 0.7), ("agent", 0.85)] {
            let at = rows.iter().rposition(|row| row.policy.as_str() == policy && row.load == 3.0).unwrap();
            rows.insert(at + 1, RunRow::sample(policy, 3.0, 3, attained));
        }
        let again = against(&compare(&rows, "default", &[])[2], "default").fewer_violations.unwrap();
        assert!((again.mean - share.mean).abs() < 1e-9, "{again:?}");
    }

    #[test]
    fn anybody_can_be_compared_with() {
        let mut rows = [runs("default", 1.0, &[0.5]), runs("fixed:0.03", 1.0, &[0.6]), runs("b", 1.0, &[0.8])].concat();
        rows[1].summary.longest_wait_ms = Some(4.0);
        rows[2].summary.longest_wait_ms = Some(6.0);
        let line = &compare(&rows, "default", &["fixed:0.03"])[2];
        let against = against(line, "fixed:0.03");
        assert!((against.gain.unwrap().mean - 0.2).abs() < 1e-12);
        assert_eq!(against.longest_waits[0].times, Some(1.5));
        assert_eq!(line.loads[0].longest_wait_times, Some(6.0));
        assert_eq!(compare(&rows, "default", &[])[2].against.len(), 1);
    }

    #[test]
    fn a_reference_without_violations_cannot_be_undercut() {
        let rows = [RunRow::sample("best-fixed", 1.0, 1, 1.0), RunRow::sample("b", 1.0, 1, 0.6)];
        let lines = compare(&rows, "best-fixed", &[]);
        assert_eq!(against(&lines[1], "best-fixed").fewer_violations, None);
        assert_eq!(lines[1].capacity.unwrap().bound, Bound::Below);
    }

    #[test]
    fn a_cell_somebody_has_not_finished_is_left_out() {
        let rows =
            [RunRow::sample("a", 1.0, 1, 0.5), RunRow::sample("b", 1.0, 1, 0.6), RunRow::sample("a", 2.0, 1, 0.1)];
        let lines = compare(&rows, "a", &[]);
        assert_eq!((lines[0].runs, lines[1].runs), (1, 1));
        assert_eq!(lines[0].slo_attainment, 0.5);
        assert!(compare(&[], "a", &[]).is_empty());
    }

    #[test]
    fn the_same_run_at_two_loads_counts_once_and_is_shown_at_both() {
        let mut rows = [runs("a", 1.0, &[0.2, 0.4]), runs("a", 1.1, &[0.2, 0.9])].concat();
        rows[2].summary.hash = rows[0].summary.hash.clone();
        let line = &compare(&rows, "a", &[])[0];
        assert_eq!((line.runs, line.repeated), (3, 1));
        assert!((line.slo_attainment - 0.5).abs() < 1e-12, "{}", line.slo_attainment);
        let second = line.loads[1].slo_attainment.unwrap();
        assert!(line.loads[1].runs == 2 && (second.mean - 0.55).abs() < 1e-12, "{second:?}");
    }

    #[test]
    fn a_mean_is_of_all_draws_or_none() {
        let mut rows = runs("a", 1.0, &[0.5, 0.6, 0.7]);
        assert_eq!(compare(&rows, "a", &[])[0].ttft_mean_ms, None, "written before there were means");
        for (row, mean) in rows.iter_mut().zip([10.0, 20.0, 60.0]) {
            let times = row.summary.ttft_ms.unwrap();
            row.summary.ttft_ms = Some(Percentiles { mean: Some(mean), ..times });
        }
        let line = &compare(&rows, "a", &[])[0];
        assert_eq!((line.ttft_mean_ms, line.loads[0].ttft_mean_ms), (Some(30.0), Some(30.0)));
        assert_eq!((line.ttft_p99_ms, line.e2e_mean_ms), (Some(1.0), None));
        // A draw nobody finished in has no time, one that was written before has none that is known.
        rows[2].summary.ttft_ms = None;
        assert_eq!(compare(&rows, "a", &[])[0].ttft_mean_ms, Some(15.0));
        rows[2].summary.ttft_ms = rows[0].summary.ttft_ms.map(|times| Percentiles { mean: None, ..times });
        assert_eq!(compare(&rows, "a", &[])[0].ttft_mean_ms, None);
    }

    #[test]
    fn where_nobody_finished_there_is_no_time() {
        let mut rows = [runs("a", 1.0, &[0.0, 0.5]), runs("b", 1.0, &[0.0, 0.0])].concat();
        for row in rows.iter_mut().filter(|row| row.summary.slo_attainment == 0.0) {
            (row.summary.ttft_ms, row.summary.longest_wait_ms) = (None, None);
        }
        let lines = compare(&rows, "a", &[]);
        // Of the one run that has a time, and of none.
        assert_eq!((lines[0].ttft_p99_ms, lines[1].ttft_p99_ms), (Some(1.0), None));
        assert_eq!((lines[1].itl_p99_ms, lines[1].longest_wait_ms), (None, None));
        assert_eq!((lines[1].loads[0].ttft_p99_ms, lines[1].loads[0].longest_wait_times), (None, None));
        let json = serde_json::to_value(&lines[1]).unwrap();
        for time in ["ttft_mean_ms", "ttft_p99_ms", "itl_mean_ms", "e2e_mean_ms", "longest_wait_ms"] {
            assert!(json.get(time).is_some_and(serde_json::Value::is_null), "{time}: {json}");
        }
        let text = super::super::table::render(&lines, &[], 100);
        let line = text.lines().find(|line| line.starts_with("b ")).unwrap();
        assert_eq!(line.matches('–').count(), 6, "{line}");
    }
}
