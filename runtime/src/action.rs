//! What a policy may do: a multi-discrete action, one choice per [`Head`]. `action/heads.rs` declares them; adding one is an
//! entry there, and every place that acts on it.

mod declare;
mod heads;
mod mask;
mod profile;

use core::fmt;

use crate::hash;

pub use heads::{
    Admission, BUDGET_LEVELS, Controls, Eviction, HEADS, Head, NUM_HEADS, PerHead, Preemption, Victim, WATERMARK_LEVELS,
};
pub use mask::ActionMask;
pub use profile::ActionProfile;

/// What a head is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadSpec {
    /// Name in files, flags and logs.
    pub name: &'static str,
    /// What it is called in policy texts.
    pub key: &'static str,
    /// What is decided, in one sentence.
    pub what: &'static str,
    /// The narrowest profile that decides it.
    pub profile: ActionProfile,
    /// When a scheduler asks for it.
    pub asked: Asked,
    /// What can be chosen.
    pub choices: Choices,
}

/// When a scheduler asks what a head is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// In every step.
    Always,
    /// When a running request is preempted: where nobody is, every choice is the same run.
    OnPreemption,
}

/// What can be chosen of a head, in index order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choices {
    /// Numbers in ascending order: neighbours do much the same.
    Levels(&'static [f64]),
    /// Rules, of which each is as near to any other.
    Named(&'static [&'static str]),
}

impl Choices {
    /// How many there are.
    pub const fn len(self) -> usize {
        match self {
            Choices::Levels(levels) => levels.len(),
            Choices::Named(names) => names.len(),
        }
    }

    /// Never: a head has choices.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// What choice `index` sets the head to, if there is one.
    pub fn get(self, index: u8) -> Option<HeadSetting> {
        let index = usize::from(index);
        match self {
            Choices::Levels(levels) => levels.get(index).copied().map(HeadSetting::Level),
            Choices::Named(names) => names.get(index).copied().map(HeadSetting::Choice),
        }
    }

    /// Whether they are numbers.
    pub const fn are_levels(self) -> bool {
        matches!(self, Choices::Levels(_))
    }
}

/// What a head is set to, whichever head it is. Written as in policy texts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadSetting {
    /// A number, of a head with levels; it need not be one of them.
    Level(f64),
    /// The name of a choice.
    Choice(&'static str),
}

impl fmt::Display for HeadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeadSetting::Level(level) => write!(f, "{level}"),
            HeadSetting::Choice(name) => f.write_str(name),
        }
    }
}

impl Head {
    /// The head's name in files, flags and logs.
    pub const fn name(self) -> &'static str {
        HEADS[self as usize].name
    }

    /// What it is called in policy texts.
    pub const fn key(self) -> &'static str {
        HEADS[self as usize].key
    }

    /// What can be chosen.
    pub const fn choices(self) -> Choices {
        HEADS[self as usize].choices
    }

    /// When a scheduler asks for it.
    pub const fn asked(self) -> Asked {
        HEADS[self as usize].asked
    }

    /// Number of choices of this head.
    pub const fn size(self) -> usize {
        SIZES[self as usize]
    }
}

/// Number of choices of each head, in index order.
pub const SIZES: [usize; NUM_HEADS] = {
    let mut sizes = [0; NUM_HEADS];
    let mut head = 0;
    while head < NUM_HEADS {
        sizes[head] = HEADS[head].choices.len();
        // A mask has a bit for each.
        assert!(0 < sizes[head] && sizes[head] <= 32, "from one choice to thirty-two");
        head += 1;
    }
    sizes
};

/// Sum of the sizes of all heads: the width of a policy network's output.
pub const NUM_CHOICES: usize = {
    let (mut sum, mut head) = (0, 0);
    while head < NUM_HEADS {
        sum += SIZES[head];
        head += 1;
    }
    sum
};

/// One choice index per head. Indices are always in range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action {
    choices: [u8; NUM_HEADS],
}

impl Action {
    /// An action from raw indices, or `None` if one is out of its head's range.
    pub const fn new(choices: [u8; NUM_HEADS]) -> Option<Action> {
        let mut head = 0;
        while head < NUM_HEADS {
            if choices[head] as usize >= SIZES[head] {
                return None;
            }
            head += 1;
        }
        Some(Action { choices })
    }

    /// vLLM's V0 default where it can be expressed: watermark 0.01, newest victim, recompute, first come first served.
    pub const ENGINE_DEFAULT: Action = Action { choices: heads::V0_CHOICES };

    /// vLLM's V1 default: as [`ENGINE_DEFAULT`](Self::ENGINE_DEFAULT) with a watermark of 0.
    pub const V1_DEFAULT: Action = Action { choices: heads::V1_CHOICES };

    /// The action whose controls come nearest to `controls`: of a head with levels the one nearest to theirs, the lower of
    /// equals; NaN is the first.
    pub fn nearest(controls: &Controls) -> Action {
        Action { choices: controls.nearest() }
    }

    /// The index chosen for `head`, in `0..head.size()`.
    pub const fn get(self, head: Head) -> u8 {
        self.choices[head as usize]
    }

    /// The raw indices in head order.
    pub const fn indices(self) -> [u8; NUM_HEADS] {
        self.choices
    }

    /// The same action with another choice for one head, or `None` if `choice` is out of range.
    #[must_use]
    pub const fn with(self, head: Head, choice: u8) -> Option<Action> {
        let mut choices = self.choices;
        choices[head as usize] = choice;
        Action::new(choices)
    }

    /// What the scheduler is told.
    #[inline]
    pub fn controls(self) -> Controls {
        Controls::of(self.choices)
    }
}

impl Controls {
    /// The same controls with another choice for one head, or `None` if `choice` is out of range.
    #[must_use]
    pub fn with(mut self, head: Head, choice: u8) -> Option<Controls> {
        self.take(head, &Action::ENGINE_DEFAULT.with(head, choice)?.controls());
        Some(self)
    }
}

/// Hash of the meaning of an action: heads, then each head's levels or choices, in order. A table made for a set that is neither
/// this nor one of the [editions](crate::edition::EDITIONS) before it is refused.
pub const ACTION_SET_HASH: u64 = {
    let (mut names, mut choices) = ([""; NUM_HEADS], [Choices::Named(&[]); NUM_HEADS]);
    let mut head = 0;
    while head < NUM_HEADS {
        (names[head], choices[head]) = (HEADS[head].name, HEADS[head].choices);
        head += 1;
    }
    set_hash(&names, &choices)
};

/// Hash of the meaning of an action of heads of these names and choices.
pub(crate) const fn set_hash(names: &[&str], choices: &[Choices]) -> u64 {
    let mut state = hash::OFFSET_BASIS;
    let mut head = 0;
    while head < names.len() {
        state = hash::absorb(state, names[head].as_bytes());
        head += 1;
    }
    head = 0;
    while head < choices.len() {
        state = absorb_choices(state, choices[head]);
        head += 1;
    }
    state
}

const fn absorb_choices(mut state: u64, choices: Choices) -> u64 {
    let mut index = 0;
    while index < choices.len() {
        state = match choices {
            Choices::Levels(levels) => hash::absorb(state, &levels[index].to_bits().to_le_bytes()),
            Choices::Named(names) => hash::absorb(state, names[index].as_bytes()),
        };
        index += 1;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_sum_over_heads() {
        assert_eq!(NUM_CHOICES, Head::ALL.iter().map(|head| head.size()).sum::<usize>());
    }

    #[test]
    fn the_hash_is_that_of_the_tables_there_are() {
        assert_eq!(ACTION_SET_HASH, 0x215d_7b24_8ad7_105a);
    }

    #[test]
    fn a_head_is_what_its_declaration_says() {
        assert_eq!(Head::ALL.map(Head::name), ["watermark", "victim", "preemption", "admission", "budget", "eviction"]);
        assert_eq!(Head::ALL.map(Head::key), ["watermark", "victim", "mode", "admission", "budget", "eviction"]);
        assert_eq!(HEADS[1].what, "Which running request is preempted when blocks run out.");
        assert_eq!(SIZES, [20, 5, 3, 3, 9, 2]);
        assert_eq!(Head::Watermark.choices().get(4), Some(HeadSetting::Level(0.05)));
        assert_eq!(Head::Victim.choices().get(4), Some(HeadSetting::Choice("most-slack")));
        assert_eq!(Head::Victim.choices().get(5), None);
        for profile in ActionProfile::ALL {
            let decided = Head::ALL.into_iter().filter(|&head| profile.decides(head));
            assert!(profile.heads().iter().copied().eq(decided));
        }
    }

    #[test]
    fn controls_are_read_and_set_head_by_head() {
        let default = Action::V1_DEFAULT.controls();
        let controls = default.read(Head::Watermark, "0.07").unwrap().read(Head::Preemption, "swap").unwrap();
        assert_eq!(controls, Controls { watermark: 0.07, preemption: Preemption::Swap, ..default });
        for (head, text) in
            [(Head::Watermark, "1.5"), (Head::Watermark, "nan"), (Head::Victim, "me"), (Head::Victim, "")]
        {
            assert_eq!(default.read(head, text), None);
        }
        assert_eq!(
            Head::ALL.map(|head| controls.get(head)),
            [
                HeadSetting::Level(0.07),
                HeadSetting::Choice("newest"),
                HeadSetting::Choice("swap"),
                HeadSetting::Choice("fcfs"),
                HeadSetting::Level(1_048_576.0),
                HeadSetting::Choice("lru"),
            ]
        );
        let mut taken = default;
        for head in Head::ALL {
            taken.take(head, &controls);
        }
        assert_eq!(taken, controls);
        assert_eq!(default.with(Head::Preemption, 0), default.read(Head::Preemption, "swap"));
        assert_eq!(default.with(Head::Watermark, 20), None);
    }

    #[test]
    fn what_a_mask_forbids_is_replaced_but_for_numbers() {
        let controls = Controls { watermark: 0.07, preemption: Preemption::Swap, ..Action::V1_DEFAULT.controls() };
        let mask = ActionMask::ALL.forbid(Head::Preemption, 0).pin(Head::Watermark, 3);
        assert_eq!(controls.repaired(mask), Controls { preemption: Preemption::Recompute, ..controls });
        let sound = |watermark| Controls { watermark, ..controls }.sound().watermark;
        assert_eq!([-1.0, f64::NAN, 0.3, 7.0].map(sound), [0.0, 0.0, 0.3, 1.0]);
    }

    #[test]
    fn the_default_is_vllms() {
        let controls = Action::ENGINE_DEFAULT.controls();
        assert_eq!(controls.watermark, 0.01);
        assert_eq!(controls.victim, Victim::Newest);
        assert_eq!(controls.preemption, Preemption::Recompute);
        assert_eq!(controls.admission, Admission::Fcfs);
        assert_eq!((controls.budget, controls.eviction), (1_048_576.0, Eviction::Lru));
    }

    #[test]
    fn controls_lead_back_to_their_action() {
        for choices in [[0, 0, 1, 0, 8, 0], [19, 4, 2, 2, 0, 1], [5, 2, 0, 1, 4, 0]] {
            let action = Action::new(choices).unwrap();
            assert_eq!(Action::nearest(&action.controls()), action);
        }
        let level =
            |watermark| Action::nearest(&Controls { watermark, ..Action::V1_DEFAULT.controls() }).get(Head::Watermark);
        assert_eq!([level(0.004), level(0.06), level(0.07), level(9.0), level(f64::NAN)], [0, 4, 5, 19, 0]);
    }

    #[test]
    fn out_of_range_is_refused() {
        assert_eq!(Action::new([20, 0, 0, 0, 8, 0]), None);
        assert_eq!(Action::ENGINE_DEFAULT.with(Head::Admission, 3), None);
    }

    #[test]
    fn a_mask_never_empties_a_head() {
        let mask = (0..=255).fold(ActionMask::ALL, |mask, choice| mask.forbid(Head::Victim, choice));
        assert_eq!(mask.words()[Head::Victim as usize].count_ones(), 1);
    }

    #[test]
    fn both_masks_are_obeyed_where_they_have_something_in_common() {
        let (one, other) = (ActionMask::ALL.forbid(Head::Victim, 0), ActionMask::ALL.pin(Head::Admission, 2));
        assert_eq!(one.and(other), other.and(one));
        assert!(!one.and(other).allows(Head::Victim, 0) && one.and(other).allows(Head::Admission, 2));
        assert_eq!(one.pin(Head::Admission, 1).and(other), one.pin(Head::Admission, 1));
    }

    #[test]
    fn repair_moves_only_what_is_forbidden() {
        let mask = ActionMask::ALL.forbid(Head::Preemption, 0);
        let swap = Action::new([4, 2, 0, 1, 8, 0]).unwrap();
        assert_eq!(mask.repair(swap).indices(), [4, 2, 1, 1, 8, 0]);
        let recompute = Action::new([4, 2, 1, 1, 8, 0]).unwrap();
        assert_eq!(mask.repair(recompute), recompute);
    }

    #[test]
    fn a_profile_covers_itself_and_those_with_fewer_heads() {
        for (wide, profile) in ActionProfile::ALL.into_iter().enumerate() {
            let covered = ActionProfile::ALL.map(|table| profile.covers(table));
            assert_eq!(covered, [true, wide >= 1, wide >= 2, wide >= 3]);
        }
    }

    #[test]
    fn a_profile_pins_the_other_heads() {
        let mask = ActionProfile::Watermark.restrict(ActionMask::ALL, Action::ENGINE_DEFAULT);
        assert_eq!(mask.words(), [(1 << 20) - 1, 1, 2, 1, 1 << 8, 1]);
    }
}
