//! A teacher who always says the same: what becomes a table of one leaf.

use kvtide_runtime::action::NUM_CHOICES;
use kvtide_runtime::{Action, ActionMask, Head, Observation, Policy};

use super::Teacher;
use super::dataset::first_choice;

/// One action, as far as the mask allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConstantTeacher(pub Action);

impl Policy for ConstantTeacher {
    fn decide(&self, _: &Observation, mask: ActionMask) -> Action {
        mask.repair(self.0)
    }
}

impl Teacher for ConstantTeacher {
    fn logits(&self, _: &Observation, mask: ActionMask) -> [f32; NUM_CHOICES] {
        let action = mask.repair(self.0);
        let mut logits = [0.0; NUM_CHOICES];
        for head in Head::ALL {
            logits[first_choice(head) + usize::from(action.get(head))] = 1.0;
        }
        logits
    }
}
