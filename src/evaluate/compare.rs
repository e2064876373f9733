//! Every policy against the first one.

use serde::Serialize;

use super::capacity::{self, CAPACITY_TARGET, Capacity};
use super::row::Row;
use super::violations::{Fewer, counted_loads, fewer, is_yardstick};
use crate::bootstrap::{Interval, interquartile_mean, paired_interval, stratified};

/// One policy over all draws, and its difference from the reference on the same draws: the `data` of a `comparison`
/// line.
///
/// Intervals are of 95 %, by resampling draws within each stratum, a window at a load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The policy.
    pub policy: String,
    /// What it is compared with.
    pub reference: String,
    /// Draws.
    pub runs: usize,
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
    /// Violations less than those of the default, of `best-fixed`, of `best-static` and of the reference.
    pub fewer_violations: Vec<Fewer>,
    /// The highest load at which 90 % are attained.
    pub capacity: Option<Capacity>,
    /// Load by load.
    pub loads: Vec<AtLoad>,
    /// Mean attained requests per second.
    pub goodput_rps: f64,
    /// Mean output tokens per second.
    pub output_tok_s: f64,
    /// Mean over draws of the 99th percentile of time to first token.
    pub ttft_p99_ms: f64,
    /// Mean over draws of the 99th percentile of gaps between tokens.
    pub itl_p99_ms: f64,
    /// Mean over draws of the longest time to a first token.
    pub longest_wait_ms: f64,
    /// Mean preemptions.
    pub preemptions: f64,
    /// Mean blocks swapped in either direction.
    pub swapped_blocks: f64,
    /// Constants chosen in hindsight, most frequent first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chosen: Vec<String>,
}

/// One policy at one load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AtLoad {
    /// The load.
    pub load: f64,
    /// Draws.
    pub runs: usize,
    /// Mean share of requests that met every target.
    pub slo_attainment: Option<Interval>,
    /// Mean over draws of the 99th percentile of time to first token.
    pub ttft_p99_ms: f64,
    /// Mean over draws of the longest time to a first token.
    pub longest_wait_ms: f64,
}

/// Compares every policy in `rows` with `reference`, in order of appearance. A cell that not every policy has finished,
/// as an interrupted run leaves it, is left out.
pub fn compare(rows: &[Row], reference: &str) -> Vec<Comparison> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.policy.as_str()) {
            names.push(&row.policy);
        }
    }
    let has = |name: &str, cell: &Row| rows.iter().any(|row| row.policy == name && same_cell(row, cell));
    let complete: Vec<&Row> =
        rows.chunk_by(same_cell).filter(|cell| names.iter().all(|name| has(name, &cell[0]))).flatten().collect();
    if complete.is_empty() {
        return Vec::new();
    }
    let of = |name: &str| complete.iter().copied().filter(|row| row.policy == name).collect::<Vec<&Row>>();
    let counted = counted_loads(&complete);
    let yardsticks: Vec<(&str, Vec<&Row>)> =
        names.iter().filter(|name| is_yardstick(name) || **name == reference).map(|name| (*name, of(name))).collect();
    let theirs = of(reference);
    let compared = names.into_iter().map(|name| {
        let mine = of(name);
        let others = yardsticks.iter().filter(|(other, _)| *other != name);
        let fewer = others.filter_map(|(other, rows)| fewer(&mine, other, rows, &counted)).collect();
        Comparison { fewer_violations: fewer, ..one(name, &mine, reference, &theirs) }
    });
    compared.collect()
}

fn one(name: &str, mine: &[&Row], reference: &str, theirs: &[&Row]) -> Comparison {
    let mean = |value: &dyn Fn(&Row) -> f64| mean(mine, value);
    let strata = strata(mine);
    let gains: Vec<Vec<f64>> = strata
        .iter()
        .map(|stratum| {
            stratum.iter().filter_map(|row| Some(attained(row) - attained(same_draw(row, theirs)?))).collect()
        })
        .collect();
    let better = |values: &[&f64]| share_better(values.iter().copied());
    let values = |rows: &[&&Row]| rows.iter().map(|row| attained(row)).collect::<Vec<f64>>();
    Comparison {
        policy: name.to_owned(),
        reference: reference.to_owned(),
        runs: mine.len(),
        slo_attainment: mean(&attained),
        slo_attainment_mean: paired_interval(&attainments(&strata)),
        slo_attainment_iqm: stratified(&strata, |rows| interquartile_mean(values(rows))),
        slo_attainment_gain: paired_interval(&gains),
        improvement_probability: share_better(gains.iter().flatten()).unwrap_or(0.5),
        improvement: stratified(&gains, better),
        fewer_violations: Vec::new(),
        capacity: capacity_of(&strata),
        loads: loads(mine).into_iter().map(|load| at_load(load, mine)).collect(),
        goodput_rps: mean(&|row| row.summary.goodput_rps),
        output_tok_s: mean(&|row| row.summary.output_tok_s),
        ttft_p99_ms: mean(&ttft_p99_ms),
        itl_p99_ms: mean(&|row| row.summary.itl_ms.map_or(0.0, |time| time.p99)),
        longest_wait_ms: mean(&longest_wait_ms),
        preemptions: mean(&|row| row.summary.preemptions as f64),
        swapped_blocks: mean(&|row| (row.summary.swap_in_blocks + row.summary.swap_out_blocks) as f64),
        chosen: chosen(mine),
    }
}

fn at_load(load: f64, rows: &[&Row]) -> AtLoad {
    let rows: Vec<&Row> = rows.iter().copied().filter(|row| row.load == load).collect();
    AtLoad {
        load,
        runs: rows.len(),
        slo_attainment: paired_interval(&attainments(&strata(&rows))),
        ttft_p99_ms: mean(&rows, &ttft_p99_ms),
        longest_wait_ms: mean(&rows, &longest_wait_ms),
    }
}

/// The load at which 90 % are attained, by straight lines between loads. Resamples whose capacity lies beyond the loads that
/// were run count with the last of them.
fn capacity_of(strata: &[Vec<&Row>]) -> Option<Capacity> {
    let interpolated = |rows: &[&&Row]| {
        let mut curve = by_load(rows.iter().map(|row| (row.load, attained(row))));
        curve.sort_by(|a, b| a.0.total_cmp(&b.0));
        capacity::interpolated(&curve, CAPACITY_TARGET)
    };
    let all: Vec<&&Row> = strata.iter().flatten().collect();
    let (load, bound) = interpolated(&all)?;
    let interval = stratified(strata, |rows| interpolated(rows).map(|(load, _)| load))?;
    Some(Capacity { load, low: interval.low, high: interval.high, bound })
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

fn mean(rows: &[&Row], value: &dyn Fn(&Row) -> f64) -> f64 {
    rows.iter().map(|row| value(row)).sum::<f64>() / rows.len() as f64
}

/// One group of draws for each window at each load.
pub(super) fn strata<'a>(rows: &[&'a Row]) -> Vec<Vec<&'a Row>> {
    rows.chunk_by(|a, b| same_cell(a, b)).map(<[&Row]>::to_vec).collect()
}

fn attainments(strata: &[Vec<&Row>]) -> Vec<Vec<f64>> {
    strata.iter().map(|stratum| stratum.iter().map(|row| attained(row)).collect()).collect()
}

/// Loads, ascending.
fn loads(rows: &[&Row]) -> Vec<f64> {
    let mut loads: Vec<f64> = rows.iter().map(|row| row.load).collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    loads
}

/// Of the differences, the share above zero, zeros counting half; `None` of none.
fn share_better<'a>(gains: impl Iterator<Item = &'a f64>) -> Option<f64> {
    let (mut better, mut count) = (0.0, 0.0);
    for gain in gains {
        better += if *gain > 0.0 { 1.0 } else { 0.5 * f64::from(u8::from(*gain == 0.0)) };
        count += 1.0;
    }
    (count > 0.0).then(|| better / count)
}

pub(super) fn attained(row: &Row) -> f64 {
    row.summary.slo_attainment
}

fn ttft_p99_ms(row: &Row) -> f64 {
    row.summary.ttft_ms.map_or(0.0, |time| time.p99)
}

fn longest_wait_ms(row: &Row) -> f64 {
    row.summary.longest_wait_ms.unwrap_or_default()
}

fn same_cell(a: &Row, b: &Row) -> bool {
    a.window == b.window && a.load == b.load
}

/// The row of `rows` that served the draw `row` did.
pub(super) fn same_draw<'a>(row: &Row, rows: &[&'a Row]) -> Option<&'a Row> {
    rows.iter().copied().find(|other| same_cell(other, row) && other.seed == row.seed)
}

fn chosen(rows: &[&Row]) -> Vec<String> {
    let mut counts: Vec<(usize, String)> = Vec::new();
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
    use serde_json::json;

    use super::super::capacity::Bound;
    use super::*;

    fn row(policy: &str, load: f64, seed: u64, slo_attainment: f64) -> Row {
        let times = json!({"p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 1.0});
        serde_json::from_value(json!({
            "policy": policy, "trace": "t", "env": "e", "window": "all", "load": load, "seed": seed, "slo": "s",
            "requests": 10, "completed": 10, "rejected": 0, "slo_attainment": slo_attainment, "goodput_rps": 1.0,
            "output_tok_s": 1.0, "on_time_tokens": 1.0, "ttft_ms": times, "tpot_ms": null, "itl_ms": null,
            "e2e_ms": null, "longest_wait_ms": 1.0, "longest_stall_ms": null, "preemptions": 0, "swap_out_blocks": 0,
            "swap_in_blocks": 0, "recomputed_tokens": 0, "kv_usage_mean": 0.5, "makespan_s": 1.0,
            "scheduler_steps": 1, "hash": "0"
        }))
        .unwrap()
    }

    #[test]
    fn differences_are_paired_by_draw() {
        let rows = [
            row("a", 1.0, 1, 0.5),
            row("a", 1.0, 2, 0.9),
            row("b", 1.0, 1, 0.6),
            row("b", 1.0, 2, 0.8),
            row("a", 2.0, 1, 0.1),
            row("a", 2.0, 2, 0.1),
            row("b", 2.0, 1, 0.4),
            row("b", 2.0, 2, 0.1),
        ];
        let lines = compare(&rows, "a");
        assert_eq!(lines.iter().map(|line| line.policy.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let gain = lines[1].slo_attainment_gain.unwrap();
        assert!((gain.mean - 0.075).abs() < 1e-12);
        // Within load 1 the gain is 0.1 or -0.1, within load 2 it is 0.3 or 0: at the extremes -0.05 and 0.2.
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
        let mut rows = Vec::new();
        for (load, attained) in [(1.0, [1.0, 0.96]), (2.0, [0.86, 0.78])] {
            rows.extend([1, 2].map(|seed| row("a", load, seed, attained[seed as usize - 1])));
        }
        let capacity = compare(&rows, "a")[0].capacity.unwrap();
        // From 0.98 at load 1 down to 0.82 at load 2: half of the way.
        assert!((capacity.load - 1.5).abs() < 1e-9 && capacity.bound == Bound::Exact, "{capacity:?}");
        // At the extremes from 0.96 to 0.78 and from 1 to 0.86.
        assert!((capacity.low.unwrap() - (1.0 + 0.06 / 0.18)).abs() < 1e-9, "{capacity:?}");
        assert!((capacity.high.unwrap() - (1.0 + 0.10 / 0.14)).abs() < 1e-9, "{capacity:?}");
    }

    #[test]
    fn violations_are_counted_where_the_default_fails_a_little() {
        let mut rows = Vec::new();
        for (load, default, best, agent) in [
            (1.0, [0.99, 0.99], [0.99, 0.99], [0.0, 0.0]),
            (2.0, [0.9, 0.9], [0.9, 0.9], [0.95, 0.95]),
            (3.0, [0.5, 0.5], [0.7, 0.7], [0.85, 0.85]),
            (4.0, [0.2, 0.2], [0.2, 0.2], [0.2, 0.2]),
        ] {
            for (policy, attained) in [("default", default), ("best-fixed", best), ("agent", agent)] {
                rows.extend([1, 2].map(|seed| row(policy, load, seed, attained[seed as usize - 1])));
            }
        }
        let lines = compare(&rows, "default");
        let fewer = |line: &Comparison, than: &str| line.fewer_violations.iter().find(|one| one.than == than).cloned();
        assert_eq!(fewer(&lines[0], "default"), None);
        // Loads 2 and 3 count. Default: (0.1 + 0.5) / 2, best-fixed: (0.1 + 0.3) / 2, agent: (0.05 + 0.15) / 2.
        let than_default = fewer(&lines[2], "default").unwrap();
        assert_eq!(than_default.loads, [2.0, 3.0]);
        let share = than_default.share.unwrap();
        assert!((share.mean - 2.0 / 3.0).abs() < 1e-9 && (share.low.unwrap() - share.high.unwrap()).abs() < 1e-9);
        let than_best = fewer(&lines[2], "best-fixed").unwrap().share.unwrap().mean;
        assert!((than_best - 0.5).abs() < 1e-9);
        let worse = fewer(&lines[0], "best-fixed").unwrap().share.unwrap().mean;
        assert!((worse + 0.5).abs() < 1e-9, "the default has half as many again");
        // Each load counts the same, however many draws it has.
        rows.extend(
            [("default", 0.9), ("best-fixed", 0.9), ("agent", 0.95)].map(|(policy, one)| row(policy, 2.0, 3, one)),
        );
        rows.sort_by(|a, b| a.load.total_cmp(&b.load));
        let share = fewer(&compare(&rows, "default")[2], "default").unwrap().share.unwrap();
        assert!((share.mean - 2.0 / 3.0).abs() < 1e-9, "{share:?}");
    }

    #[test]
    fn a_reference_without_violations_cannot_be_undercut() {
        let rows = [row("best-fixed", 1.0, 1, 1.0), row("b", 1.0, 1, 0.6)];
        let lines = compare(&rows, "best-fixed");
        assert_eq!(lines[1].fewer_violations[0].share, None);
        assert_eq!(lines[1].capacity.unwrap().bound, Bound::Below);
    }

    #[test]
    fn a_cell_somebody_has_not_finished_is_left_out() {
        let rows = [row("a", 1.0, 1, 0.5), row("b", 1.0, 1, 0.6), row("a", 2.0, 1, 0.1)];
        let lines = compare(&rows, "a");
        assert_eq!((lines[0].runs, lines[1].runs), (1, 1));
        assert_eq!(lines[0].slo_attainment, 0.5);
        assert!(compare(&[], "a").is_empty());
    }
}
