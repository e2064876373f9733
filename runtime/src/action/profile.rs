//! Which heads are in use.

use super::{Action, ActionMask, HEADS, Head, NUM_HEADS};

/// The heads in use; the others stay at the engine's defaults. Each profile decides all that those before it do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ActionProfile {
    /// Watermark alone: what a stock vLLM flag could do.
    Watermark = 0,
    /// Watermark, victim, preemption.
    Core = 1,
    /// Everything a scheduler decides, with admission order and the tokens of a step.
    Full = 2,
    /// Everything, with the order in which cached blocks go.
    Cache = 3,
}

impl ActionProfile {
    /// Every profile, in index order.
    pub const ALL: [ActionProfile; 4] =
        [ActionProfile::Watermark, ActionProfile::Core, ActionProfile::Full, ActionProfile::Cache];

    /// The profile's name in files and flags.
    pub const fn name(self) -> &'static str {
        match self {
            ActionProfile::Watermark => "watermark",
            ActionProfile::Core => "core",
            ActionProfile::Full => "full",
            ActionProfile::Cache => "cache",
        }
    }

    /// The profile of that name.
    pub fn from_name(name: &str) -> Option<ActionProfile> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Whether it decides `head`: the narrowest profile that does is declared with it.
    pub const fn decides(self, head: Head) -> bool {
        HEADS[head as usize].profile as u8 <= self as u8
    }

    const fn count(self) -> usize {
        let (mut count, mut head) = (0, 0);
        while head < NUM_HEADS {
            count += self.decides(Head::ALL[head]) as usize;
            head += 1;
        }
        count
    }

    /// The heads this profile decides, in index order.
    pub const fn heads(self) -> &'static [Head] {
        const WATERMARK: &[Head] = &decided::<{ ActionProfile::Watermark.count() }>(ActionProfile::Watermark);
        const CORE: &[Head] = &decided::<{ ActionProfile::Core.count() }>(ActionProfile::Core);
        const FULL: &[Head] = &decided::<{ ActionProfile::Full.count() }>(ActionProfile::Full);
        const CACHE: &[Head] = &decided::<{ ActionProfile::Cache.count() }>(ActionProfile::Cache);
        match self {
            ActionProfile::Watermark => WATERMARK,
            ActionProfile::Core => CORE,
            ActionProfile::Full => FULL,
            ActionProfile::Cache => CACHE,
        }
    }

    /// Whether a node that can carry out this profile's heads can carry out `table`'s.
    pub const fn covers(self, table: ActionProfile) -> bool {
        table as u8 <= self as u8
    }

    /// `mask` with every head outside the profile pinned to `default`'s choice.
    #[must_use]
    pub fn restrict(self, mask: ActionMask, default: Action) -> ActionMask {
        Head::ALL
            .into_iter()
            .filter(|head| !self.decides(*head))
            .fold(mask, |mask, head| mask.pin(head, default.get(head)))
    }
}

/// The heads of `profile`, of which there are `COUNT`.
const fn decided<const COUNT: usize>(profile: ActionProfile) -> [Head; COUNT] {
    let mut heads = [Head::ALL[0]; COUNT];
    let (mut next, mut head) = (0, 0);
    while head < NUM_HEADS {
        if profile.decides(Head::ALL[head]) {
            heads[next] = Head::ALL[head];
            next += 1;
        }
        head += 1;
    }
    heads
}
