//! Settings of a scheduler, under vLLM's names.

use serde::{Deserialize, Serialize};

use crate::time::Micros;

/// What the scheduler does where vLLM's V0 stalls for ever, leaks host blocks or dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadEnds {
    /// As vLLM does, decision for decision.
    Faithful,
    /// Repaired so that every accepted request finishes:
    /// the watermark is 0 while nothing runs and never makes a request impossible; a victim the host pool cannot hold
    /// is recomputed; a prefill swapped in is chunked; a lone request is asked for the blocks it needs, not the blocks
    /// it touches; a dropped request gives back its host blocks; and a prompt that can never fit is refused on arrival.
    #[default]
    Safe,
}

/// What the scheduler believes a preemption costs: the price list behind
/// [`Preemption::Cheaper`](kvtide_runtime::Preemption::Cheaper) and behind "can still meet its target".
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Pricing {
    /// One block over `PCIe` in one direction, nanoseconds.
    pub swap_ns_per_block: f64,
    /// Prefill, nanoseconds per token.
    pub prefill_ns_per_token: f64,
    /// Attention within a prefill, nanoseconds per token and token of context before it.
    pub attention_ns_per_token_pair: f64,
}

impl Pricing {
    /// Out and in again.
    pub fn swap(&self, blocks: u32) -> Micros {
        Micros::from_secs_f64(2.0 * f64::from(blocks) * self.swap_ns_per_block * 1e-9)
    }

    /// The whole sequence from nothing.
    pub fn prefill(&self, tokens: u32) -> Micros {
        let tokens = f64::from(tokens);
        let pairs = tokens * tokens / 2.0;
        Micros::from_secs_f64((tokens * self.prefill_ns_per_token + pairs * self.attention_ns_per_token_pair) * 1e-9)
    }
}

/// Settings of a scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks on the GPU.
    pub num_gpu_blocks: u32,
    /// Blocks on the host, for swapping; 0 for none.
    pub num_cpu_blocks: u32,
    /// Most requests running at once.
    pub max_num_seqs: u32,
    /// Most tokens computed in a step.
    pub max_num_batched_tokens: u32,
    /// Longest sequence, prompt and answer together.
    pub max_model_len: u32,
    /// Whether prompts are computed in chunks beside decodes.
    pub enable_chunked_prefill: bool,
    /// Behaviour at vLLM's dead ends.
    pub dead_ends: DeadEnds,
    /// Ageing bound: whoever waited longer is admitted first under every admission order.
    pub max_wait: Micros,
    /// Price list of preemptions.
    pub pricing: Pricing,
}

/// A setting the scheduler cannot work with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Out of its range.
    #[error("{name} is {value}; it must be from {min} to {max}")]
    Range {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// Smallest that works.
        min: u64,
        /// Largest that works.
        max: u64,
    },
    /// Without chunked prefill a prompt must fit into one step.
    #[error(
        "max_num_batched_tokens ({budget}) is smaller than max_model_len ({max_model_len}); without chunked prefill a \
         prompt must fit into one step"
    )]
    Budget {
        /// `max_num_batched_tokens`.
        budget: u32,
        /// `max_model_len`.
        max_model_len: u32,
    },
    /// A sequence of the greatest length must fit into the pool.
    #[error(
        "max_model_len ({max_model_len}) is more than the pool holds: {num_gpu_blocks} blocks of {block_size} tokens"
    )]
    Pool {
        /// `max_model_len`.
        max_model_len: u32,
        /// `num_gpu_blocks`.
        num_gpu_blocks: u32,
        /// `block_size`.
        block_size: u32,
    },
}

/// Largest pool, in blocks: 2^26 blocks of 16 tokens are a billion tokens.
const MAX_BLOCKS: u64 = 1 << 26;
/// Largest batch.
const MAX_SEQS: u64 = 1 << 16;
/// Longest sequence and largest step, in tokens.
const MAX_TOKENS: u64 = 1 << 26;

impl EngineConfig {
    /// Checks every range, and under [`DeadEnds::Safe`] what guarantees that every accepted request finishes.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let limits = [
            ("block_size", self.block_size, 1, 4096),
            ("num_gpu_blocks", self.num_gpu_blocks, 1, MAX_BLOCKS),
            ("num_cpu_blocks", self.num_cpu_blocks, 0, MAX_BLOCKS),
            ("max_num_seqs", self.max_num_seqs, 1, MAX_SEQS),
            ("max_num_batched_tokens", self.max_num_batched_tokens, 1, MAX_TOKENS),
            ("max_model_len", self.max_model_len, 1, MAX_TOKENS),
        ];
        for (name, value, min, max) in limits {
            let value = u64::from(value);
            if !(min..=max).contains(&value) {
                return Err(ConfigError::Range { name, value, min, max });
            }
        }
        if self.dead_ends == DeadEnds::Faithful {
            return Ok(());
        }
        if !self.enable_chunked_prefill && self.max_num_batched_tokens < self.max_model_len {
            return Err(ConfigError::Budget { budget: self.max_num_batched_tokens, max_model_len: self.max_model_len });
        }
        if u64::from(self.max_model_len) > u64::from(self.num_gpu_blocks) * u64::from(self.block_size) {
            return Err(ConfigError::Pool {
                max_model_len: self.max_model_len,
                num_gpu_blocks: self.num_gpu_blocks,
                block_size: self.block_size,
            });
        }
        Ok(())
    }
}
