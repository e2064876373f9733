//! The cohort: requests that decode one token a step, advanced as a whole.
//!
//! A member computes one token in every step, so that its state follows from the number of the step and one constant
//! ([`Sequence::origin`]). What can happen to it, and when, is known as well: it needs a block when its last one is
//! full, it fills a block, it samples its last token. These events are kept in a timing wheel (Varghese and Lauck 1987)
//! of more slots than a block has tokens, which is as far ahead as the next event can be.
//!
//! [`Sequence::origin`]: super::sequence::Sequence::origin

use super::super::{RequestId, StepPlan};
use super::{Step, Turn, V1};

/// Members and their events. The members themselves are marked in their sequences.
#[derive(Debug, Clone)]
pub(super) struct Cohort {
    members: u32,
    /// Sum of the members' origins, as signed numbers.
    origins: i64,
    /// Events by step number modulo the number of slots, a power of two.
    wheel: Vec<Vec<Turn>>,
}

impl Cohort {
    pub(super) fn new(block_size: u32) -> Cohort {
        let slots = (block_size + 1).next_power_of_two() as usize;
        Cohort { members: 0, origins: 0, wheel: vec![Vec::new(); slots] }
    }

    pub(super) fn len(&self) -> u32 {
        self.members
    }

    /// Tokens that the members attend to in step `step`: those computed before and the one being computed.
    pub(super) fn context(&self, step: u32) -> u64 {
        (self.origins + i64::from(self.members) * (i64::from(step) + 1)) as u64
    }

    pub(super) fn enter(&mut self, origin: u32) {
        self.members += 1;
        self.origins += signed(origin);
    }

    pub(super) fn leave(&mut self, origin: u32) {
        self.members -= 1;
        self.origins -= signed(origin);
    }

    pub(super) fn bytes(&self) -> usize {
        self.wheel.iter().map(|slot| slot.capacity() * size_of::<Turn>()).sum()
    }

    fn slot(&mut self, step: u32) -> &mut Vec<Turn> {
        let slots = self.wheel.len() - 1;
        &mut self.wheel[step as usize & slots]
    }

    fn expect(&mut self, step: u32, turn: Turn) {
        self.slot(step).push(turn);
    }

    /// Moves the events of `step` to `turns`. Some may have become void.
    pub(super) fn due(&mut self, step: u32, turns: &mut Vec<Turn>) {
        turns.append(self.slot(step));
    }
}

/// An origin is a difference of two numbers below 2^31.
fn signed(origin: u32) -> i64 {
    i64::from(origin.cast_signed())
}

impl V1 {
    /// Makes a loose request, to which this step gives its one missing token and blocks for it, a member.
    pub(super) fn join(&mut self, turn: Turn, step: &Step<'_>, plan: &mut StepPlan) {
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
    pub(super) fn member_turn(&mut self, turn: Turn, step: &Step<'_>, plan: &mut StepPlan) -> bool {
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
    pub(super) fn loosen(&mut self, id: RequestId, step: &Step<'_>, plan: &mut StepPlan) {
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
        let turn = Turn { ticket: sequence.ticket, id };
        let place = self.loose.partition_point(|other| *other < turn);
        self.loose.insert(place, turn);
    }

    pub(super) fn forget_loose(&mut self, turn: Turn) {
        if let Ok(place) = self.loose.binary_search(&turn) {
            self.loose.remove(place);
        }
    }

    fn note_last_token(&self, id: RequestId, step: &Step<'_>, plan: &mut StepPlan) {
        let sequence = &self.sequences[id.index()];
        if sequence.computed_at(step.number) + 2 == sequence.limit {
            plan.finishing.push(id);
        }
    }

    /// Enters the next step in which something happens to a member: it needs a block, fills one, samples its last token,
    /// or has it on the way.
    fn expect_next(&mut self, turn: Turn, step: &Step<'_>) {
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
