//! Every policy against the first one.

use std::fmt::Write;

use serde::Serialize;

use super::bootstrap::{Interval, interquartile_mean, paired_interval};
use super::row::Row;

/// One policy over all draws, and its difference from the reference on the same draws: the `data` of a `comparison`
/// line.
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
    /// Its interquartile mean over draws.
    pub slo_attainment_iqm: f64,
    /// Attainment less the reference's, paired by draw; resampled by seed within each window and load.
    pub slo_attainment_gain: Option<Interval>,
    /// Share of draws on which it attained more than the reference, draws with equal attainment counting half.
    pub improvement_probability: f64,
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
    let complete: Vec<Row> = rows
        .chunk_by(same_cell)
        .filter(|cell| names.iter().all(|name| has(name, &cell[0])))
        .flatten()
        .cloned()
        .collect();
    names.into_iter().filter(|_| !complete.is_empty()).map(|name| one(&complete, name, reference)).collect()
}

fn one(rows: &[Row], name: &str, reference: &str) -> Comparison {
    let mine: Vec<&Row> = rows.iter().filter(|row| row.policy == name).collect();
    let mean = |value: &dyn Fn(&Row) -> f64| mine.iter().map(|row| value(row)).sum::<f64>() / mine.len() as f64;
    let pairs: Vec<(&Row, f64)> = mine
        .iter()
        .filter_map(|row| {
            let theirs = rows.iter().find(|other| other.policy == reference && same_draw(other, row))?;
            Some((*row, row.summary.slo_attainment - theirs.summary.slo_attainment))
        })
        .collect();
    let strata = pairs.chunk_by(|a, b| same_cell(a.0, b.0)).map(|cell| cell.iter().map(|pair| pair.1).collect());
    let better: f64 = pairs
        .iter()
        .map(|(_, gain)| {
            if *gain > 0.0 {
                1.0
            } else if *gain == 0.0 {
                0.5
            } else {
                0.0
            }
        })
        .sum();
    Comparison {
        policy: name.to_owned(),
        reference: reference.to_owned(),
        runs: mine.len(),
        slo_attainment: mean(&|row| row.summary.slo_attainment),
        slo_attainment_iqm: interquartile_mean(mine.iter().map(|row| row.summary.slo_attainment).collect())
            .unwrap_or_default(),
        slo_attainment_gain: paired_interval(&strata.collect::<Vec<_>>()),
        improvement_probability: if pairs.is_empty() { 0.5 } else { better / pairs.len() as f64 },
        goodput_rps: mean(&|row| row.summary.goodput_rps),
        output_tok_s: mean(&|row| row.summary.output_tok_s),
        ttft_p99_ms: mean(&|row| row.summary.ttft_ms.map_or(0.0, |time| time.p99)),
        itl_p99_ms: mean(&|row| row.summary.itl_ms.map_or(0.0, |time| time.p99)),
        longest_wait_ms: mean(&|row| row.summary.longest_wait_ms.unwrap_or_default()),
        preemptions: mean(&|row| row.summary.preemptions as f64),
        swapped_blocks: mean(&|row| (row.summary.swap_in_blocks + row.summary.swap_out_blocks) as f64),
        chosen: chosen(&mine),
    }
}

fn same_cell(a: &Row, b: &Row) -> bool {
    a.window == b.window && a.load == b.load
}

fn same_draw(a: &Row, b: &Row) -> bool {
    same_cell(a, b) && a.seed == b.seed
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

/// The comparison as a table for people.
pub fn render(comparisons: &[Comparison]) -> String {
    let width = comparisons.iter().map(|line| line.policy.chars().count()).max().unwrap_or(0).max(6);
    let mut text = String::new();
    let head = ["attained", "gain [95 %]", "tokens/s", "TTFT p99", "ITL p99", "longest wait", "preempt."];
    let _ = writeln!(
        text,
        "{:width$}  {:>8}  {:>24}  {:>8}  {:>9}  {:>8}  {:>12}  {:>8}",
        "policy", head[0], head[1], head[2], head[3], head[4], head[5], head[6]
    );
    for line in comparisons {
        let gain = match line.slo_attainment_gain {
            _ if line.policy == line.reference => "reference".to_owned(),
            Some(Interval { mean, low: Some(low), high: Some(high) }) => {
                format!("{:+.1} [{:+.1}, {:+.1}] pts", mean * 100.0, low * 100.0, high * 100.0)
            }
            Some(Interval { mean, .. }) => format!("{:+.1} [one draw] pts", mean * 100.0),
            None => "-".to_owned(),
        };
        let _ = writeln!(
            text,
            "{:width$}  {:>6.1} %  {:>24}  {:>8.0}  {:>7.2} s  {:>5.0} ms  {:>10.1} s  {:>8.0}",
            line.policy,
            line.slo_attainment * 100.0,
            gain,
            line.output_tok_s,
            line.ttft_p99_ms / 1e3,
            line.itl_p99_ms,
            line.longest_wait_ms / 1e3,
            line.preemptions,
        );
        if let Some(first) = line.chosen.first() {
            let others = line.chosen.len() - 1;
            let more = if others == 0 { String::new() } else { format!(" (and {others} others)") };
            let _ = writeln!(text, "{:width$}  = {first}{more}", "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
