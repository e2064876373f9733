//! The policy that always answers the same.

use crate::{Action, ActionMask, Observation, Policy};

/// One action, whatever is observed; a forbidden choice becomes the head's first allowed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed(pub Action);

impl Policy for Fixed {
    fn decide(&self, _: &Observation, mask: ActionMask) -> Action {
        mask.repair(self.0)
    }
}
