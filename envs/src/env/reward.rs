//! What an interval was worth.

use serde::{Deserialize, Serialize};

use crate::cost::CostModel;
use crate::deploy::EngineConfig;
use crate::metrics::Collector;

/// Weights of the terms, each a share of the tokens the hardware could have delivered in a nominal interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RewardWeights {
    /// Each token delivered, on time or not: plain throughput.
    pub token: f64,
    /// Each token delivered by its deadline.
    pub on_time: f64,
    /// Each request that finished without having missed a target, worth the tokens of a mean answer. The clients of a
    /// closed loop send nothing while they wait, so that a policy that serves nobody misses little by `violation` alone;
    /// with `(1 - a) / a` of it, serving nobody is worth what attaining a share of *a* is (Dinkelbach 1967, "On Nonlinear
    /// Fractional Programming"). Of traffic that comes by itself it is `violation` again.
    pub attained: f64,
    /// Each request that missed a target, counted the moment that is certain, worth the tokens of a mean answer.
    pub violation: f64,
    /// Time spent on computing tokens again and on swaps, in tokens that could have been decoded meanwhile.
    pub waste: f64,
}

impl Default for RewardWeights {
    fn default() -> RewardWeights {
        RewardWeights { token: 0.0, on_time: 0.5, attained: 0.0, violation: 1.0, waste: 0.1 }
    }
}

/// Counters at the last decision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Marks {
    tokens: u64,
    on_time_tokens: u64,
    attained: u64,
    violations: u64,
    recomputed_tokens: u64,
    moved_blocks: u64,
}

/// Turns the growth of a collector's counters into rewards.
///
/// Rewards add up: their sum over an episode is a fixed linear function of its totals, however the episode is cut into
/// intervals. A rate per interval would reward short intervals.
#[derive(Debug, Clone)]
pub struct Reward {
    weights: RewardWeights,
    /// Tokens a full batch delivers in a nominal interval.
    interval_tokens: f64,
    /// Tokens of a mean answer.
    mean_output: f64,
    /// Tokens a full batch delivers in the time one token is computed again, and one block moved.
    tokens_per_recomputed: f64,
    tokens_per_moved: f64,
    last: Marks,
}

/// Context assumed for the yardstick.
const NOMINAL_CONTEXT: u32 = 1024;

impl Reward {
    /// A fresh account. `mean_output` is the mean answer of the workload in tokens, `interval` the decision interval in
    /// steps.
    pub fn new(
        weights: RewardWeights,
        engine: &EngineConfig,
        cost: &CostModel,
        interval: u32,
        mean_output: f64,
    ) -> Reward {
        let fitting = engine.num_usable_blocks().saturating_mul(engine.block_size) / NOMINAL_CONTEXT;
        let batch = fitting.clamp(1, engine.max_num_seqs);
        let tokens_per_ns = cost.clone().under(engine).decode_tokens_per_s(batch, NOMINAL_CONTEXT) * 1e-9;
        Reward {
            weights,
            // A node takes an interval of 0 for one of 1.
            interval_tokens: f64::from(batch) * f64::from(interval.max(1)),
            mean_output,
            tokens_per_recomputed: engine.pricing.prefill_ns_per_token * tokens_per_ns,
            tokens_per_moved: engine.pricing.swap_ns_per_block * tokens_per_ns,
            last: Marks::default(),
        }
    }

    /// The reward since the last call.
    pub fn take(&mut self, collector: &Collector) -> f32 {
        let now = Marks {
            tokens: collector.output_tokens,
            on_time_tokens: collector.on_time_tokens,
            attained: collector.attained,
            violations: collector.violations,
            recomputed_tokens: collector.recomputed_tokens,
            moved_blocks: collector.swapped_blocks(),
        };
        let grown = |field: fn(&Marks) -> u64| (field(&now) - field(&self.last)) as f64;
        let delivered = grown(|marks| marks.tokens);
        let on_time = grown(|marks| marks.on_time_tokens);
        let attained = grown(|marks| marks.attained) * self.mean_output;
        let violated = grown(|marks| marks.violations) * self.mean_output;
        let wasted = grown(|marks| marks.recomputed_tokens) * self.tokens_per_recomputed
            + grown(|marks| marks.moved_blocks) * self.tokens_per_moved;
        self.last = now;
        let weights = &self.weights;
        let tokens = weights.token * delivered + weights.on_time * on_time + weights.attained * attained
            - weights.violation * violated
            - weights.waste * wasted;
        (tokens / self.interval_tokens) as f32
    }
}
