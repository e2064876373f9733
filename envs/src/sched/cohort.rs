//! The cohort: requests that decode one token a step, advanced as a whole.
//!
//! A member computes one token in every step, so that its state follows from the number of the step and one constant,
//! its *origin*: before step `s` it has computed `origin + s` tokens, wrapping. What can happen to it, and when, is known
//! as well: it needs a block when its last one is full, it fills a block, it samples its last token. These events are
//! kept in a timing wheel (Varghese and Lauck 1987) of more slots than a block has tokens, which is as far ahead as the
//! next event can be.
//!
//! Steps are those in which the cohort decodes. A scheduler that lets it pause does not count the pause.

use super::RequestId;

/// A running request's place in the order of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StepPlace {
    /// Ascends with the position in running.
    pub(super) ticket: u32,
    /// Whose turn it is.
    pub(super) id: RequestId,
}

/// Members, as far as they are counted, and their events. The members themselves are marked in their requests.
#[derive(Debug, Clone)]
pub(super) struct Cohort<Event> {
    members: u32,
    /// Sum of the members' origins, as signed numbers.
    origins: i64,
    /// Events by step number modulo the number of slots, a power of two.
    wheel: Vec<Vec<Event>>,
}

impl<Event> Cohort<Event> {
    pub(super) fn new(block_size: u32) -> Cohort<Event> {
        let slots = (block_size + 1).next_power_of_two();
        Cohort { members: 0, origins: 0, wheel: (0..slots).map(|_| Vec::new()).collect() }
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
        self.wheel.iter().map(|slot| slot.capacity() * size_of::<Event>()).sum()
    }

    fn slot(&mut self, step: u32) -> &mut Vec<Event> {
        let slots = self.wheel.len() - 1;
        &mut self.wheel[step as usize & slots]
    }

    /// Something happens in `step`, which is at most a block's tokens ahead.
    pub(super) fn expect(&mut self, step: u32, event: Event) {
        self.slot(step).push(event);
    }

    /// Forgets every event: each member's next one is then entered anew.
    pub(super) fn forget_events(&mut self) {
        self.wheel.iter_mut().for_each(Vec::clear);
    }

    /// Takes the events of `step`. Some may have become void.
    pub(super) fn due(&mut self, step: u32) -> std::vec::Drain<'_, Event> {
        self.slot(step).drain(..)
    }
}

/// An origin is a difference of two numbers below 2^31.
fn signed(origin: u32) -> i64 {
    i64::from(origin.cast_signed())
}
