//! The contract of everything that ships.

use crate::{Action, ActionMask, Observation};

/// From observation to action.
///
/// A policy is a pure function: the same observation and mask give the same action, and every choice it returns is
/// allowed by the mask. Implementations in this crate never panic, allocate or block.
pub trait Policy {
    /// The action for what is observed, among those the mask allows.
    fn decide(&self, observation: &Observation, mask: ActionMask) -> Action;
}
