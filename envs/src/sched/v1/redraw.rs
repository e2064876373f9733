//! Other answers: a copy of the scheduler in which requests end elsewhere than they will.

use super::super::{Phase, RequestId};
use super::{StepPlace, V1};

impl V1 {
    /// Lets the answer of every open request that `answer` names come to that many tokens, or to as many as are certain by now if
    /// those are more. Called between two steps. `ending` are those whose last token is on its way: nothing can change them.
    pub(crate) fn redraw(&mut self, ending: &[RequestId], mut answer: impl FnMut(RequestId) -> Option<u32>) {
        for index in 0..self.sequences.len() {
            let id = RequestId(index as u32);
            let is_open = matches!(self.sequences[index].phase, Phase::Waiting | Phase::Running);
            if !is_open || ending.contains(&id) {
                continue;
            }
            let Some(answer) = answer(id) else { continue };
            let sequence = &mut self.sequences[index];
            // One token more than those that are there or on their way.
            let least = if sequence.is_member {
                sequence.computed_at(self.planned) + 2
            } else {
                sequence.tokens + sequence.sampling + u32::from(sequence.is_stale) + 1
            };
            let limit = sequence.prompt_tokens.saturating_add(answer).min(self.config.max_model_len);
            sequence.limit = limit.max(least);
        }
        self.expect_anew();
    }

    /// Enters the next event of every member anew.
    fn expect_anew(&mut self) {
        self.cohort.forget_events();
        for index in 0..self.running.len() {
            let id = self.running[index];
            let sequence = &self.sequences[id.index()];
            if !sequence.is_member {
                continue;
            }
            let computed = sequence.computed_at(self.planned);
            let until_multiple =
                |of: u32| (self.config.block_size - of % self.config.block_size) % self.config.block_size;
            let mut ahead = until_multiple(computed);
            if self.config.enable_prefix_caching && !self.config.async_scheduling {
                ahead = ahead.min(until_multiple(computed + 1));
            }
            // 0 in the step that samples the last token; one before it, that token is on its way already.
            ahead = ahead.min(sequence.limit.saturating_sub(computed + 2));
            let turn = StepPlace { ticket: sequence.ticket, id };
            let next_event = self.planned.wrapping_add(ahead);
            self.sequences[id.index()].next_event = next_event;
            self.cohort.expect(next_event, turn);
        }
    }
}
