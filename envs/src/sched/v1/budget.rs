//! How many tokens a step may have, where a policy says so.

use kvtide_rules::budget::{Asked, needed, step_tokens};

use super::super::RequestId;
use super::{StepContext, StepPlace, V1};

impl V1 {
    /// Tokens of the step that is about to be planned under `budget`. Where prompts are computed whole it is the engine's own:
    /// a prompt longer than another would wait for ever.
    pub(super) fn tokens_of_step(&self, budget: f64, step: &StepContext<'_>) -> u32 {
        let engine = self.config.max_num_batched_tokens;
        if budget >= f64::from(engine) || !self.config.obeys_budget() {
            return engine;
        }
        step_tokens(budget as u32, engine, self.needed(step))
    }

    /// Tokens that running requests ask for up to the last that decodes: the cohort, and the loose but for prompts at the end
    /// of running, behind which nobody decodes.
    pub(super) fn needed(&self, step: &StepContext<'_>) -> u32 {
        let is_last = |(id, turn): &(RequestId, &StepPlace)| *id == turn.id && !self.decodes(turn.id, step);
        let behind = self.running.iter().rev().copied().zip(self.loose.iter().rev()).take_while(is_last).count();
        let before = &self.loose[..self.loose.len() - behind];
        let asked = before.iter().map(|turn| Asked { tokens: self.wanted(turn.id, step), decodes: true });
        needed(asked.chain(std::iter::once(Asked { tokens: self.cohort.len(), decodes: true })))
    }

    /// Whether a loose request is to compute the token that it sampled last, and that alone.
    fn decodes(&self, id: RequestId, step: &StepContext<'_>) -> bool {
        let sequence = &self.sequences[id.index()];
        sequence.has_begun() && sequence.missing() == 1 && self.wanted(id, step) == 1
    }
}
