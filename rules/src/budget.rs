//! How many tokens a step may have: what a policy sets, between what decodes need and what the engine allows.
//!
//! As vLLM's V1 scheduler spends a step's `token_budget`: running requests first, in running order, each as much as it asks
//! for while any is left, then those that wait. A budget that is smaller than the engine's own must therefore reach as far as
//! the last running request that decodes, or somebody's next token would wait behind a prompt's.
//!
//! An adapter sets vLLM's `max_num_scheduled_tokens`, which is read anew in every step, to [`step_tokens`]; the simulator
//! does the same.

/// What a running request asks of the step that is about to be planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Tokens it would be given of an endless budget: what it has without keys and values, no more than a chunk of a prompt
    /// may have.
    pub tokens: u32,
    /// Whether its prompt is computed, and what it had of its answer before a preemption: with this step it has its next
    /// token.
    pub decodes: bool,
}

/// Tokens of a step: `budget`, but no fewer than [`needed`] and no more than the `engine` allows.
///
/// ```
/// use kvtide_rules::budget::step_tokens;
///
/// assert_eq!(step_tokens(512, 8192, 40), 512);
/// assert_eq!(step_tokens(512, 8192, 700), 700);
/// assert_eq!(step_tokens(1_048_576, 8192, 40), 8192);
/// ```
pub fn step_tokens(budget: u32, engine: u32, needed: u32) -> u32 {
    budget.max(needed).min(engine)
}

/// Tokens that the running requests ask for up to the last one that decodes, itself included; `running` is in running order.
///
/// Where a prompt is never behind an unfinished one (vLLM's `long_prefill_token_threshold` is 0), that is what decodes ask
/// for, one token each: a prompt that was cut short took all that was left, so that nobody was admitted behind it.
///
/// ```
/// use kvtide_rules::budget::{Asked, needed};
///
/// let prompt = Asked { tokens: 512, decodes: false };
/// let decode = Asked { tokens: 1, decodes: true };
/// assert_eq!(needed([decode, decode, prompt]), 2);
/// assert_eq!(needed([decode, prompt, decode, prompt]), 514);
/// assert_eq!(needed([prompt]), 0);
/// ```
pub fn needed(running: impl IntoIterator<Item = Asked>) -> u32 {
    let (mut sum, mut needed) = (0_u32, 0);
    for request in running {
        sum = sum.saturating_add(request.tokens);
        if request.decodes {
            needed = sum;
        }
    }
    needed
}
