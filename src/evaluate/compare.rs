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

/// Compares every policy in `rows` with `reference`, in order of appearance.
pub fn compare(rows: &[Row], reference: &str) -> Vec<Comparison> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.policy.as_str()) {
            names.push(&row.policy);
        }
    }
    names.into_iter().map(|name| one(rows, name, reference)).collect()
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
            Some(gain) => {
                let points = |value: f64| value * 100.0;
                format!("{:+.1} [{:+.1}, {:+.1}] pts", points(gain.mean), points(gain.low), points(gain.high))
            }
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
