//! How many prompt tokens a step may have: asked once, at its start.

use super::super::{PromptLimit, PromptLimitError};
use super::{Sequence, V1};

impl V1 {
    /// Limits the prompt tokens of every step from now on.
    ///
    /// # Errors
    /// Prompts are computed whole.
    pub fn limit_prompts(&mut self, limit: PromptLimit) -> Result<(), PromptLimitError> {
        limit.check(&self.config)?;
        self.prompt_limit = limit;
        Ok(())
    }

    /// Most prompt tokens of the step that is about to be planned, which none reaches where only the budget counts.
    pub(super) fn prompt_tokens_of_step(&self) -> u32 {
        match self.prompt_limit {
            PromptLimit::Pressure(pressure) if self.is_pressed(pressure.prompts.get()) => pressure.tokens.get(),
            PromptLimit::Budget | PromptLimit::Pressure(_) => u32::MAX,
        }
    }

    /// Whether somebody decodes, and at least `prompts` requests have prompt left to compute.
    fn is_pressed(&self, prompts: u32) -> bool {
        let prompts = prompts as usize;
        // Members of the cohort decode.
        let running = self.loose.iter().filter(|turn| self.sequences[turn.id.index()].is_within_prompt()).count();
        if running == self.running.len() {
            return false;
        }
        let missing = prompts.saturating_sub(running);
        let waiting = self.waiting.iter().filter(|entry| self.sequences[entry.id.index()].is_within_prompt());
        waiting.take(missing).count() == missing
    }
}

impl Sequence {
    /// Whether it has prompt left to compute, on the host's copy of it too if it was moved there.
    pub(super) fn is_within_prompt(&self) -> bool {
        self.computed.max(self.host_tokens) < self.prompt_tokens
    }
}
