//! How many prompt tokens a step may have beside the budget of all its tokens.

use std::num::NonZeroU32;

use crate::deploy::{EngineConfig, EngineKind};

/// Most prompt tokens of one step, all prompts together, beside `max_num_batched_tokens`. Decodes are never limited.
///
/// Which tokens are a prompt's is the rule's own: of a running request a chunk that begins within its prompt, the whole of it;
/// of one that is admitted its first chunk, whatever is in it. What a preempted request computes of its answer again after
/// that is a decode's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptLimit {
    /// The budget alone.
    #[default]
    Budget,
    /// Fewer while prompts press upon decodes.
    Pressure(PromptPressure),
}

/// P-PAS (arXiv 2608.15171): prompts are limited in a step at whose start some request decodes and several have prompt left
/// to compute. One prompt is served fastest in few large chunks, and so are many with nobody to wait for them; several
/// beside a decode are not.
///
/// Who decodes is a running request whose prompt was computed or is being, its last token's step included; who has prompt
/// left is any other that runs, and whoever waits. What the prefix cache holds of a waiting prompt is not asked.
///
/// This is the paper's, on vLLM 0.22.1. Its author's later versions limit the whole step instead, decodes included, and look at how long
/// a prompt is as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptPressure {
    /// Requests, running or waiting, with prompt left to compute, from which on it applies.
    pub prompts: NonZeroU32,
    /// Most prompt tokens of such a step.
    pub tokens: NonZeroU32,
}

impl PromptPressure {
    /// As it was measured: two prompts, 2,048 tokens, beside a budget of 16,384.
    pub const PUBLISHED: PromptPressure = match (NonZeroU32::new(2), NonZeroU32::new(2048)) {
        (Some(prompts), Some(tokens)) => PromptPressure { prompts, tokens },
        _ => unreachable!(),
    };
}

/// Why an engine cannot limit prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PromptLimitError {
    /// Its steps are of whole prompts or of decodes.
    #[error("engine v0 computes prompts in steps of their own, so that there is nothing to limit; --engine v1")]
    V0,
    /// A prompt longer than the limit would wait for every decode to end.
    #[error(
        "it cuts prompts into chunks, and enable_chunked_prefill is off; --set enable_chunked_prefill=true, or a smaller \
         max_num_batched_tokens"
    )]
    WholePrompts,
}

impl PromptLimit {
    /// Whether an engine of these settings can obey it.
    ///
    /// # Errors
    /// Why not.
    pub fn check(self, engine: &EngineConfig) -> Result<(), PromptLimitError> {
        match (self, engine.engine) {
            (PromptLimit::Budget, _) => Ok(()),
            (_, EngineKind::V0) => Err(PromptLimitError::V0),
            (_, EngineKind::V1) if !engine.enable_chunked_prefill => Err(PromptLimitError::WholePrompts),
            (_, EngineKind::V1) => Ok(()),
        }
    }
}
