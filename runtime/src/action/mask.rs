//! What the engine can carry out.

use super::{Action, Head, NUM_HEADS};

/// Which choices the engine can carry out right now: bit *i* of a head's word allows choice *i*.
///
/// Every head always allows at least one choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActionMask {
    allowed: [u32; NUM_HEADS],
}

impl ActionMask {
    /// Everything allowed.
    pub const ALL: ActionMask = {
        let mut allowed = [0; NUM_HEADS];
        let mut head = 0;
        while head < NUM_HEADS {
            allowed[head] = u32::MAX >> (u32::BITS as usize - Head::ALL[head].size());
            head += 1;
        }
        ActionMask { allowed }
    };

    /// Whether `choice` of `head` is allowed.
    pub const fn allows(self, head: Head, choice: u8) -> bool {
        choice < 32 && self.allowed[head as usize] >> choice & 1 == 1
    }

    /// The mask without one choice. The last remaining choice of a head cannot be forbidden.
    #[must_use]
    pub const fn forbid(mut self, head: Head, choice: u8) -> ActionMask {
        let bit = if choice < 32 { 1 << choice } else { 0 };
        let left = self.allowed[head as usize] & !bit;
        if left != 0 {
            self.allowed[head as usize] = left;
        }
        self
    }

    /// The mask with one head pinned to a single choice.
    #[must_use]
    pub const fn pin(mut self, head: Head, choice: u8) -> ActionMask {
        if (choice as usize) < head.size() {
            self.allowed[head as usize] = 1 << choice;
        }
        self
    }

    /// What both masks allow; a head on which they have nothing in common stays as it is here.
    #[must_use]
    pub const fn and(mut self, other: ActionMask) -> ActionMask {
        let mut head = 0;
        while head < NUM_HEADS {
            let both = self.allowed[head] & other.allowed[head];
            if both != 0 {
                self.allowed[head] = both;
            }
            head += 1;
        }
        self
    }

    /// `action` with every forbidden choice replaced by the head's first allowed one.
    #[must_use]
    pub fn repair(self, action: Action) -> Action {
        self.action(action.choices)
    }

    /// The action of these choices, with every one that is forbidden, or that there is not, replaced by the head's first
    /// allowed one.
    #[inline]
    pub(crate) fn action(self, choices: [u8; NUM_HEADS]) -> Action {
        // Nearly always all are allowed: then nothing waits for this.
        let (mut all, mut any) = (1, 0);
        for (word, choice) in self.allowed.iter().zip(choices) {
            all &= word >> (choice & 31);
            any |= choice;
        }
        if all & 1 == 1 && any < 32 { Action { choices } } else { self.repaired(choices) }
    }

    #[cold]
    fn repaired(self, mut choices: [u8; NUM_HEADS]) -> Action {
        for (word, choice) in self.allowed.iter().zip(&mut choices) {
            *choice = allowed_or_first(*word, *choice);
        }
        Action { choices }
    }

    /// `choice` of `head`, or the head's first allowed one in its place.
    pub(super) const fn instead(self, head: Head, choice: u8) -> u8 {
        allowed_or_first(self.allowed[head as usize], choice)
    }

    /// Raw words in head order.
    pub const fn words(self) -> [u32; NUM_HEADS] {
        self.allowed
    }
}

/// `choice`, or the first one in `word` if it is not there.
const fn allowed_or_first(word: u32, choice: u8) -> u8 {
    match word.checked_shr(choice as u32) {
        Some(rest) if rest & 1 == 1 => choice,
        _ => word.trailing_zeros() as u8,
    }
}
