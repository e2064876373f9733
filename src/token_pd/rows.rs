//! What is reported.

use kvtide_envs::token_price::Served;
use serde::Serialize;

use super::{TokenPdFinding, TokenPdMean, TokenPdVerdict};

/// A line of the report.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// How well the predictor learned.
    Training(TokenPdTraining),
    /// A run.
    Row(TokenPdRow),
    /// The price along a run.
    Price(TokenPdPrice),
    /// What a horizon costs.
    Regret(TokenPdRegret),
    /// What is found of the claims.
    Verdict(TokenPdVerdict),
    /// Runs over several seeds.
    Mean(TokenPdMean),
    /// What is found of the claims over several seeds.
    Finding(TokenPdFinding),
}

impl Line {
    /// The run, if it is one.
    pub(super) fn row(&self) -> Option<&TokenPdRow> {
        if let Line::Row(row) = self { Some(row) } else { None }
    }

    /// The verdict, if it is one.
    pub(super) fn verdict(&self) -> Option<&TokenPdVerdict> {
        if let Line::Verdict(verdict) = self { Some(verdict) } else { None }
    }
}

/// How well the predictor of returns learned, judged by examples that it has not seen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenPdTraining {
    /// Seed of the attention and of the predictor.
    pub seed: u64,
    /// The attention it learned from.
    pub attention: String,
    /// Steps of Adam.
    pub steps: u32,
    /// Examples that it was judged by.
    pub examples: usize,
    /// Share of the variance of returns that it explains.
    pub explained: f64,
    /// Mean of squared errors over the variance predicted; 1 where risk is what it is said to be.
    pub calibration: f64,
}

/// One policy under one setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenPdRow {
    /// Seed of the attention and of the predictor.
    pub seed: u64,
    /// Which question it answers: `streams`, `memory`, `risk` or `predictor`.
    pub part: &'static str,
    /// The attention that was served.
    pub attention: String,
    /// Model and hardware.
    pub env: String,
    /// Streams at once.
    pub streams: u32,
    /// Scheduler steps.
    pub steps: u32,
    /// `fifo`, `lru`, `h2o` or `token-pd`.
    pub policy: &'static str,
    /// Token-PD: `learned` or `constant`.
    pub predictor: Option<&'static str>,
    /// Token-PD: `λ`.
    pub risk_aversion: Option<f64>,
    /// Blocks of the pool.
    pub capacity_blocks: u32,
    /// Token-PD: blocks that its price aims at.
    pub target_blocks: Option<u32>,
    /// Most blocks kept after any step.
    pub peak_blocks: u32,
    /// Mean blocks kept.
    pub mean_blocks: f64,
    /// Conversations finished.
    pub requests: usize,
    /// The same a second, by the clock of the cost model.
    pub requests_per_s: f64,
    /// Half of them took no longer, from the arrival of the prompt to the last token.
    pub latency_p50_ms: Option<f64>,
    /// 95 % of them took no longer.
    pub latency_p95_ms: Option<f64>,
    /// Attention that was there when it was wanted, a mean over rows.
    pub retained: f64,
    /// Blocks let go while their conversation went on.
    pub evicted_blocks: u64,
    /// Blocks computed again on demand.
    pub recomputed_blocks: u64,
}

/// The price along a run, at moments evenly apart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenPdPrice {
    /// Seed of the attention and of the predictor.
    pub seed: u64,
    /// Streams at once.
    pub streams: u32,
    /// `λ`.
    pub risk_aversion: f64,
    /// Blocks that the price aims at.
    pub target_blocks: u32,
    /// Steps so far.
    pub step: Vec<u32>,
    /// `μ`, percent of a row of attention for a block.
    pub price: Vec<f64>,
    /// Blocks kept.
    pub kept_blocks: Vec<u32>,
}

/// What a run of `steps` is behind the best constant price, and beyond its target; nothing but the price lets anybody go.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenPdRegret {
    /// Seed of the attention and of the predictor.
    pub seed: u64,
    /// Streams at once.
    pub streams: u32,
    /// `T`.
    pub steps: u32,
    /// `η`.
    pub rate: f64,
    /// The best constant price that keeps to the target on average, percent of a row of attention for a block.
    pub best_price: f64,
    /// Its utility: attention that was there less the penalty, summed over rows.
    pub best_utility: f64,
    /// That of the price that moves.
    pub utility: f64,
    /// The difference.
    pub regret: f64,
    /// The same over the square root of `T`.
    pub regret_over_sqrt_steps: f64,
    /// Blocks above the target, over the target, summed over steps.
    pub violation: f64,
    /// The same over the square root of `T`.
    pub violation_over_sqrt_steps: f64,
}

/// Points of a line.
const POINTS: usize = 200;

impl TokenPdPrice {
    pub(super) fn of(row: &TokenPdRow, served: &Served) -> TokenPdPrice {
        let every = served.stamps.len().div_ceil(POINTS).max(1);
        let stamps = || served.stamps.iter().skip(every - 1).step_by(every);
        TokenPdPrice {
            seed: row.seed,
            streams: row.streams,
            risk_aversion: row.risk_aversion.unwrap_or(0.0),
            target_blocks: row.target_blocks.unwrap_or(0),
            step: stamps().map(|stamp| stamp.step).collect(),
            price: stamps().map(|stamp| stamp.price).collect(),
            kept_blocks: stamps().map(|stamp| stamp.kept).collect(),
        }
    }
}
