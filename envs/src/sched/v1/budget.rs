//! How many tokens a step may have, where a policy says so.

use kvtide_rules::budget::{Asked, needed, step_tokens};

use super::super::RequestId;
use super::{StepContext, StepPlace, V1};

impl V1 {
    /// Tokens of the step that is being planned, in which something happens to `due` members of the cohort. Where prompts are
    /// computed whole it is the engine's own: a prompt longer than another would wait for ever.
    pub(super) fn tokens_of_step(&self, due: &[StepPlace], step: &StepContext<'_>) -> u32 {
        let (budget, engine) = (step.controls.budget, self.config.max_num_batched_tokens);
        if budget >= f64::from(engine) || !self.config.obeys_budget() {
            return engine;
        }
        let leaving = due.iter().filter(|turn| self.has_all(turn.id, step)).count() as u32;
        step.leaving.set(leaving);
        step_tokens(budget as u32, engine, self.needed(step))
    }

    /// Tokens that running requests ask for up to the last that decodes: the cohort, and the loose but for prompts at the end
    /// of running, behind which nobody decodes.
    pub(super) fn needed(&self, step: &StepContext<'_>) -> u32 {
        let leaving = step.leaving.get();
        let mut before = self.loose.as_slice();
        for &id in self.running.iter().rev() {
            match before.split_last() {
                Some((turn, others)) if turn.id == id && !self.decodes(id, step) => before = others,
                Some((turn, _)) if turn.id == id => break,
                _ if leaving > 0 && self.has_all(id, step) => {}
                _ => break,
            }
        }
        let asked = before.iter().map(|turn| Asked { tokens: self.wanted(turn.id, step), decodes: true });
        needed(asked.chain(std::iter::once(Asked { tokens: self.cohort.len() - leaving, decodes: true })))
    }

    /// Whether a loose request is to compute the token that it sampled last, and that alone.
    fn decodes(&self, id: RequestId, step: &StepContext<'_>) -> bool {
        let sequence = &self.sequences[id.index()];
        sequence.has_begun() && sequence.missing() == 1 && self.wanted(id, step) == 1
    }

    /// Whether it is a member that asks for nothing more, because its last token is being sampled.
    pub(super) fn has_all(&self, id: RequestId, step: &StepContext<'_>) -> bool {
        let sequence = &self.sequences[id.index()];
        sequence.is_member
            && sequence.next_event == step.number
            && sequence.computed_at(step.number) + 1 >= sequence.limit
    }
}
