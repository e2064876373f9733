//! What several seeds say together: each draws its attention and teaches its predictor, and a mean goes with its interval.

use serde::Serialize;

use super::{Line, TokenPdRow, TokenPdVerdict};
use crate::bootstrap::{Interval, resampled};

/// One policy under one setting, over seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenPdMean {
    /// Which question it answers: `streams`, `memory`, `risk` or `predictor`.
    pub part: &'static str,
    /// Streams at once.
    pub streams: u32,
    /// `fifo`, `lru`, `h2o` or `token-pd`.
    pub policy: &'static str,
    /// Token-PD: `learned` or `constant`.
    pub predictor: Option<&'static str>,
    /// Token-PD: `λ`.
    pub risk_aversion: Option<f64>,
    /// Seeds that were run.
    pub seeds: usize,
    /// Blocks of the pool, a mean: a share of FIFO's peak is another number with each seed.
    pub capacity_blocks: f64,
    /// Most blocks kept after any step.
    pub peak_blocks: Interval,
    /// Conversations finished a second.
    pub requests_per_s: Interval,
    /// 95 % of them took no longer.
    pub latency_p95_ms: Option<Interval>,
    /// Attention that was there when it was wanted.
    pub retained: Interval,
    /// The same less that of the first row of its part with the same pool, seed by seed: less FIFO's, or less that without aversion to
    /// risk, or less that of the predictor that learned.
    pub retained_ahead: Interval,
}

/// What is found of the claims at one number of streams, over seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenPdFinding {
    /// Streams at once.
    pub streams: u32,
    /// Seeds that were run.
    pub seeds: usize,
    /// With how many of them less memory was confirmed.
    pub memory_confirmed: usize,
    /// With how many of them more throughput was.
    pub throughput_confirmed: usize,
    /// Share of FIFO's peak memory that Token-PD does without.
    pub memory_saved: Interval,
    /// Its requests a second over FIFO's with all of the pool.
    pub throughput: Interval,
    /// Attention retained by Token-PD.
    pub retained: Interval,
    /// The same less FIFO's with all of the pool, seed by seed.
    pub retained_ahead_of_fifo: Interval,
    /// The same less that of the best of the others with as little memory, seed by seed.
    pub retained_ahead_of_best_other: Interval,
}

/// A mean for every row, in the order of a seed's rows, then a finding for every number of streams; nothing of a single seed. `seeds` are
/// the lines of each.
pub fn over_seeds(seeds: &[Vec<Line>]) -> Vec<Line> {
    let rows: Vec<Vec<&TokenPdRow>> = seeds.iter().map(|lines| lines.iter().filter_map(Line::row).collect()).collect();
    let verdicts: Vec<Vec<&TokenPdVerdict>> =
        seeds.iter().map(|lines| lines.iter().filter_map(Line::verdict).collect()).collect();
    if seeds.len() < 2 {
        return Vec::new();
    }
    let means = across(&rows).filter_map(|alike| mean(&rows, &alike)).map(Line::Mean);
    means.chain(across(&verdicts).filter_map(|alike| finding(&alike)).map(Line::Finding)).collect()
}

/// The first of every seed, then the second, and so on: what was run in that order.
fn across<T: Copy>(seeds: &[Vec<T>]) -> impl Iterator<Item = Vec<T>> {
    let most = seeds.iter().map(Vec::len).min().unwrap_or(0);
    (0..most).map(move |index| seeds.iter().map(|all| all[index]).collect())
}

/// The mean of a number over seeds, and its interval.
fn over<T>(alike: &[T], value: impl Fn(&T) -> Option<f64>) -> Option<Interval> {
    let values: Option<Vec<f64>> = alike.iter().map(value).collect();
    resampled(&values?, |drawn| Some(drawn.iter().copied().sum::<f64>() / drawn.len() as f64))
}

fn mean(seeds: &[Vec<&TokenPdRow>], alike: &[&TokenPdRow]) -> Option<TokenPdMean> {
    let first = alike.first()?;
    let ahead: Option<Vec<f64>> =
        seeds.iter().zip(alike).map(|(rows, row)| Some(row.retained - reference(rows, row)?)).collect();
    Some(TokenPdMean {
        part: first.part,
        streams: first.streams,
        policy: first.policy,
        predictor: first.predictor,
        risk_aversion: first.risk_aversion,
        seeds: alike.len(),
        capacity_blocks: alike.iter().map(|row| f64::from(row.capacity_blocks)).sum::<f64>() / alike.len() as f64,
        peak_blocks: over(alike, |row| Some(row.peak_blocks.into()))?,
        requests_per_s: over(alike, |row| Some(row.requests_per_s))?,
        latency_p95_ms: over(alike, |row| row.latency_p95_ms),
        retained: over(alike, |row| Some(row.retained))?,
        retained_ahead: over(&ahead?, |ahead| Some(*ahead))?,
    })
}

/// Attention retained by the first row of the same part with the same pool.
fn reference(rows: &[&TokenPdRow], row: &TokenPdRow) -> Option<f64> {
    let of = |row: &TokenPdRow| (row.part, row.streams, row.capacity_blocks);
    rows.iter().find(|other| of(other) == of(row)).map(|other| other.retained)
}

fn finding(alike: &[&TokenPdVerdict]) -> Option<TokenPdFinding> {
    Some(TokenPdFinding {
        streams: alike.first()?.streams,
        seeds: alike.len(),
        memory_confirmed: alike.iter().filter(|verdict| verdict.memory_confirmed).count(),
        throughput_confirmed: alike.iter().filter(|verdict| verdict.throughput_confirmed).count(),
        memory_saved: over(alike, |verdict| Some(verdict.memory_saved))?,
        throughput: over(alike, |verdict| Some(verdict.throughput))?,
        retained: over(alike, |verdict| Some(verdict.retained))?,
        retained_ahead_of_fifo: over(alike, |verdict| Some(verdict.retained - verdict.retained_by_fifo))?,
        retained_ahead_of_best_other: over(alike, |verdict| Some(verdict.retained - verdict.retained_by_best_other))?,
    })
}

impl TokenPdFinding {
    /// In words.
    pub fn text(&self) -> String {
        format!(
            "{} streams, {} seeds: {} less peak memory than FIFO (confirmed by {} of the seeds); {} times FIFO's requests a second \
             (confirmed by {}); {} of attention retained, {} points more than FIFO with all of the pool, {} more than the best of the others with as little",
            self.streams,
            self.seeds,
            percent(self.memory_saved),
            self.memory_confirmed,
            bounded(self.throughput, |value| format!("{value:.2}")),
            self.throughput_confirmed,
            percent(self.retained),
            points(self.retained_ahead_of_fifo),
            points(self.retained_ahead_of_best_other),
        )
    }
}

/// A share and its interval as percent.
pub(super) fn percent(interval: Interval) -> String {
    bounded(interval, |value| format!("{:.1}", value * 100.0)) + " %"
}

/// A difference of shares and its interval as points in a hundred.
pub fn points(interval: Interval) -> String {
    bounded(interval, |value| format!("{:+.1}", value * 100.0))
}

/// `1.02 [0.98, 1.05]`.
fn bounded(interval: Interval, shown: impl Fn(f64) -> String) -> String {
    let bounds = interval.low.zip(interval.high);
    let bounds = bounds.map_or_else(String::new, |(low, high)| format!(" [{}, {}]", shown(low), shown(high)));
    shown(interval.mean) + &bounds
}
