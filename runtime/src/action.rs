//! What a policy may do: a multi-discrete action, one choice per [`Head`].

use crate::hash;

/// Number of heads.
pub const NUM_HEADS: usize = 4;

/// The watermarks a policy can choose, as fractions of the GPU pool. The last admits nothing while anything runs.
pub const WATERMARK_LEVELS: [f64; 12] = [0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25, 0.35, 0.5, 1.0];

/// One decision within an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Head {
    /// Fraction of the pool admission must leave free, an index into [`WATERMARK_LEVELS`].
    Watermark = 0,
    /// Which running request is preempted when blocks run out.
    Victim = 1,
    /// What happens to the victim's blocks.
    Preemption = 2,
    /// In which order waiting requests are admitted.
    Admission = 3,
}

impl Head {
    /// Every head, in index order.
    pub const ALL: [Head; NUM_HEADS] = [Head::Watermark, Head::Victim, Head::Preemption, Head::Admission];

    /// The head's name in files, flags and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Head::Watermark => "watermark",
            Head::Victim => "victim",
            Head::Preemption => "preemption",
            Head::Admission => "admission",
        }
    }

    /// Number of choices of this head.
    pub const fn size(self) -> usize {
        match self {
            Head::Watermark => WATERMARK_LEVELS.len(),
            Head::Victim => Victim::ALL.len(),
            Head::Preemption => Preemption::ALL.len(),
            Head::Admission => Admission::ALL.len(),
        }
    }
}

/// Sum of the sizes of all heads: the width of a policy network's output.
pub const NUM_CHOICES: usize =
    WATERMARK_LEVELS.len() + Victim::ALL.len() + Preemption::ALL.len() + Admission::ALL.len();

macro_rules! choices {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// Every choice, in index order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];

            /// The choice's name in files, flags and logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }

            /// The choice of that name.
            pub fn from_name(name: &str) -> Option<$name> {
                Self::ALL.iter().copied().find(|choice| choice.name() == name)
            }
        }
    };
}

choices! {
    /// Which running request is preempted. Candidates are the running requests not yet handled in the step.
    Victim {
        /// The tail of running, as vLLM does.
        Newest = "newest",
        /// The request holding the fewest blocks; the newest of equals.
        FewestBlocks = "fewest-blocks",
        /// The request holding the most blocks; the newest of equals.
        MostBlocks = "most-blocks",
        /// The request with the fewest generated tokens; the newest of equals.
        LeastProgress = "least-progress",
        /// The request whose next token deadline is furthest away; the newest of equals.
        MostSlack = "most-slack",
    }
}

choices! {
    /// What happens to a victim's blocks.
    Preemption {
        /// Copied to the host and brought back later.
        Swap = "swap",
        /// Dropped and computed again.
        Recompute = "recompute",
        /// Whichever the cost model prices lower for this victim.
        Cheaper = "cheaper",
    }
}

choices! {
    /// Order in which waiting requests are admitted. Whoever waited past the ageing bound comes first under every order.
    Admission {
        /// Queue order, as vLLM does.
        Fcfs = "fcfs",
        /// Requests that can still meet their targets before those that cannot; queue order within each.
        OnTimeFirst = "on-time-first",
        /// As `OnTimeFirst`, and among those on time the fewest tokens to compute first.
        ShortestOnTimeFirst = "shortest-on-time-first",
    }
}

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
            if choices[head] as usize >= Head::ALL[head].size() {
                return None;
            }
            head += 1;
        }
        Some(Action { choices })
    }

    /// vLLM's V0 default where it can be expressed: watermark 0.01, newest victim, recompute, first come first served.
    pub const ENGINE_DEFAULT: Action = Action { choices: [1, 0, 1, 0] };

    /// vLLM's V1 default: as [`ENGINE_DEFAULT`](Self::ENGINE_DEFAULT) with a watermark of 0.
    pub const V1_DEFAULT: Action = Action { choices: [0, 0, 1, 0] };

    /// The action whose controls come nearest to `controls`: its watermark is the level nearest to theirs, the lower of equals;
    /// NaN is 0.
    pub fn nearest(controls: &Controls) -> Action {
        let distance = |level: usize| (WATERMARK_LEVELS[level] - controls.watermark).abs();
        let level = (1..WATERMARK_LEVELS.len())
            .fold(0, |best, level| if distance(level) < distance(best) { level } else { best });
        Action { choices: [level as u8, controls.victim as u8, controls.preemption as u8, controls.admission as u8] }
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
    pub fn controls(self) -> Controls {
        Controls {
            watermark: pick(&WATERMARK_LEVELS, self.choices[0], 0.0),
            victim: pick(Victim::ALL, self.choices[1], Victim::Newest),
            preemption: pick(Preemption::ALL, self.choices[2], Preemption::Recompute),
            admission: pick(Admission::ALL, self.choices[3], Admission::Fcfs),
        }
    }
}

/// Indexing without a panic path; the constructor keeps every index in range.
fn pick<T: Copy>(choices: &[T], index: u8, otherwise: T) -> T {
    choices.get(usize::from(index)).copied().unwrap_or(otherwise)
}

/// The resolved action: what a scheduler obeys until the next decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Controls {
    /// Fraction of the GPU pool admission must leave free, in `0..=1`. Not restricted to [`WATERMARK_LEVELS`].
    pub watermark: f64,
    /// Who is preempted.
    pub victim: Victim,
    /// How.
    pub preemption: Preemption,
    /// Who is admitted next.
    pub admission: Admission,
}

/// Which choices the engine can carry out right now: bit *i* of a head's word allows choice *i*.
///
/// Every head always allows at least one choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActionMask {
    allowed: [u16; NUM_HEADS],
}

impl ActionMask {
    /// Everything allowed.
    pub const ALL: ActionMask = {
        let mut allowed = [0; NUM_HEADS];
        let mut head = 0;
        while head < NUM_HEADS {
            allowed[head] = (1 << Head::ALL[head].size()) - 1;
            head += 1;
        }
        ActionMask { allowed }
    };

    /// Whether `choice` of `head` is allowed.
    pub const fn allows(self, head: Head, choice: u8) -> bool {
        choice < 16 && self.allowed[head as usize] >> choice & 1 == 1
    }

    /// The mask without one choice. The last remaining choice of a head cannot be forbidden.
    #[must_use]
    pub const fn forbid(mut self, head: Head, choice: u8) -> ActionMask {
        let bit = if choice < 16 { 1 << choice } else { 0 };
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
    pub fn repair(self, mut action: Action) -> Action {
        for (word, choice) in self.allowed.iter().zip(&mut action.choices) {
            if word >> *choice & 1 == 0 {
                *choice = word.trailing_zeros() as u8;
            }
        }
        action
    }

    /// Raw words in head order.
    pub const fn words(self) -> [u16; NUM_HEADS] {
        self.allowed
    }
}

/// The heads in use; the others stay at the engine's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ActionProfile {
    /// Watermark alone: what a stock vLLM flag could do.
    Watermark = 0,
    /// Watermark, victim, preemption.
    Core = 1,
    /// Everything, with admission order.
    Full = 2,
}

impl ActionProfile {
    /// Every profile, in index order.
    pub const ALL: [ActionProfile; 3] = [ActionProfile::Watermark, ActionProfile::Core, ActionProfile::Full];

    /// The profile's name in files and flags.
    pub const fn name(self) -> &'static str {
        match self {
            ActionProfile::Watermark => "watermark",
            ActionProfile::Core => "core",
            ActionProfile::Full => "full",
        }
    }

    /// The profile of that name.
    pub fn from_name(name: &str) -> Option<ActionProfile> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// The heads this profile decides, in index order.
    pub const fn heads(self) -> &'static [Head] {
        match self {
            ActionProfile::Watermark => &[Head::Watermark],
            ActionProfile::Core => &[Head::Watermark, Head::Victim, Head::Preemption],
            ActionProfile::Full => &Head::ALL,
        }
    }

    /// Whether a node that can carry out this profile's heads can carry out `table`'s.
    pub fn covers(self, table: ActionProfile) -> bool {
        table.heads().iter().all(|head| self.heads().contains(head))
    }

    /// `mask` with every head outside the profile pinned to `default`'s choice.
    #[must_use]
    pub fn restrict(self, mask: ActionMask, default: Action) -> ActionMask {
        Head::ALL
            .into_iter()
            .filter(|head| !self.heads().contains(head))
            .fold(mask, |mask, head| mask.pin(head, default.get(head)))
    }
}

/// Hash of the meaning of an action: heads, choices and watermark levels, in order. A table made for another set is refused.
pub const ACTION_SET_HASH: u64 = {
    let mut state = hash::OFFSET_BASIS;
    let mut head = 0;
    while head < NUM_HEADS {
        state = hash::absorb(state, Head::ALL[head].name().as_bytes());
        head += 1;
    }
    let mut index = 0;
    while index < WATERMARK_LEVELS.len() {
        state = hash::absorb(state, &WATERMARK_LEVELS[index].to_bits().to_le_bytes());
        index += 1;
    }
    index = 0;
    while index < Victim::ALL.len() {
        state = hash::absorb(state, Victim::ALL[index].name().as_bytes());
        index += 1;
    }
    index = 0;
    while index < Preemption::ALL.len() {
        state = hash::absorb(state, Preemption::ALL[index].name().as_bytes());
        index += 1;
    }
    index = 0;
    while index < Admission::ALL.len() {
        state = hash::absorb(state, Admission::ALL[index].name().as_bytes());
        index += 1;
    }
    state
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_sum_over_heads() {
        assert_eq!(NUM_CHOICES, Head::ALL.iter().map(|head| head.size()).sum::<usize>());
    }

    #[test]
    fn the_default_is_vllms() {
        let controls = Action::ENGINE_DEFAULT.controls();
        assert_eq!(controls.watermark, 0.01);
        assert_eq!(controls.victim, Victim::Newest);
        assert_eq!(controls.preemption, Preemption::Recompute);
        assert_eq!(controls.admission, Admission::Fcfs);
    }

    #[test]
    fn controls_lead_back_to_their_action() {
        for choices in [[0, 0, 1, 0], [11, 4, 2, 2], [5, 2, 0, 1]] {
            let action = Action::new(choices).unwrap();
            assert_eq!(Action::nearest(&action.controls()), action);
        }
        let level =
            |watermark| Action::nearest(&Controls { watermark, ..Action::V1_DEFAULT.controls() }).get(Head::Watermark);
        assert_eq!([level(0.004), level(0.06), level(0.07), level(9.0), level(f64::NAN)], [0, 4, 5, 11, 0]);
    }

    #[test]
    fn out_of_range_is_refused() {
        assert_eq!(Action::new([12, 0, 0, 0]), None);
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
        let swap = Action::new([4, 2, 0, 1]).unwrap();
        assert_eq!(mask.repair(swap).indices(), [4, 2, 1, 1]);
        let recompute = Action::new([4, 2, 1, 1]).unwrap();
        assert_eq!(mask.repair(recompute), recompute);
    }

    #[test]
    fn a_profile_covers_itself_and_those_with_fewer_heads() {
        for (wide, profile) in ActionProfile::ALL.into_iter().enumerate() {
            let covered = ActionProfile::ALL.map(|table| profile.covers(table));
            assert_eq!(covered, [true, wide >= 1, wide >= 2]);
        }
    }

    #[test]
    fn a_profile_pins_the_other_heads() {
        let mask = ActionProfile::Watermark.restrict(ActionMask::ALL, Action::ENGINE_DEFAULT);
        assert_eq!(mask.words(), [(1 << 12) - 1, 1, 2, 1]);
    }
}
