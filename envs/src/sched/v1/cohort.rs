//! V1's part of the cohort: who joins, what happens to members, who leaves.

use super::super::{RequestId, StepPlan};
use super::{StepContext, StepPlace, V1};

impl V1 {
    /// Makes a loose request, to which this step gives its one missing token and blocks for it, a member.
    pub(super) fn join(&mut self, turn: StepPlace, step: &StepContext<'_>, plan: &mut StepPlan) {
        let sequence = &mut self.sequences[turn.id.index()];
        sequence.is_member = true;
        sequence.origin = sequence.computed.wrapping_sub(step.number);
        self.cohort.enter(sequence.origin);
        self.forget_loose(turn);
        plan.joined.push(turn.id);
        self.note_last_token(turn.id, step, plan);
        self.expect_next(turn, step);
    }

    /// Something happens to a member in this step. False if it was preempted.
    pub(super) fn member_turn(&mut self, turn: StepPlace, step: &StepContext<'_>, plan: &mut StepPlan) -> bool {
        let sequence = &self.sequences[turn.id.index()];
        let computed = sequence.computed_at(step.number);
        if computed + 1 >= sequence.limit {
            // Planned ahead: its last token is being sampled. It keeps its blocks until that is known.
            self.loosen(turn.id, step, plan);
            return true;
        }
        let is_full = sequence.blocks.len() as u32 * self.config.block_size == computed;
        if is_full && !self.grow(turn.id, 1, step, plan) {
            return false;
        }
        let known = self.sequences[turn.id.index()].known_after(self.completed);
        self.register(turn.id, known.min(computed + 1));
        self.note_last_token(turn.id, step, plan);
        self.expect_next(turn, step);
        true
    }

    /// Takes a member out of the cohort as it is before this step.
    pub(super) fn loosen(&mut self, id: RequestId, step: &StepContext<'_>, plan: &mut StepPlan) {
        if step.leaving.get() > 0 && self.has_all(id, step) {
            step.leaving.update(|leaving| leaving - 1);
        }
        let sequence = &mut self.sequences[id.index()];
        sequence.is_member = false;
        sequence.computed = sequence.computed_at(step.number);
        sequence.tokens = sequence.known_after(self.completed);
        sequence.sampling = sequence.computed + 1 - sequence.tokens;
        sequence.in_flight = sequence.sampling;
        sequence.last_token = Some(self.clock);
        if sequence.sampling > 0 {
            self.departed.push(id);
        }
        self.cohort.leave(sequence.origin);
        plan.left.push(id);
        let turn = StepPlace { ticket: sequence.ticket, id };
        let place = self.loose.partition_point(|other| *other < turn);
        self.loose.insert(place, turn);
    }

    pub(super) fn forget_loose(&mut self, turn: StepPlace) {
        if let Ok(place) = self.loose.binary_search(&turn) {
            self.loose.remove(place);
        }
    }

    fn note_last_token(&self, id: RequestId, step: &StepContext<'_>, plan: &mut StepPlan) {
        let sequence = &self.sequences[id.index()];
        if sequence.computed_at(step.number) + 2 == sequence.limit {
            plan.finishing.push(id);
        }
    }

    /// Enters the next step in which something happens to a member: it needs a block, fills one, samples its last token,
    /// or has it on the way.
    fn expect_next(&mut self, turn: StepPlace, step: &StepContext<'_>) {
        let fills_before_it_needs = self.config.enable_prefix_caching && !self.config.async_scheduling;
        let sequence = &mut self.sequences[turn.id.index()];
        let computed = sequence.computed_at(step.number);
        let next_multiple = |of: u32| self.config.block_size - of % self.config.block_size;
        let mut ahead = next_multiple(computed);
        if fills_before_it_needs {
            ahead = ahead.min(next_multiple(computed + 1));
        }
        // 0 in the step that samples the last token.
        let left = sequence.limit - 2 - computed;
        if left > 0 {
            ahead = ahead.min(left);
        } else if self.config.async_scheduling {
            ahead = 1;
        }
        sequence.next_event = step.number.wrapping_add(ahead);
        let next_event = sequence.next_event;
        self.cohort.expect(next_event, turn);
    }
}
