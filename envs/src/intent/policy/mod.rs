//! Which block leaves the accelerator's memory: one contract, [`TierPolicy`], and a file for each policy.
//!
//! As in the room of [evictions](crate::evict) a policy is an order, and the **victim** is its first; unlike there a policy keeps
//! nothing of its own: it ranks a block by what is declared of it and the moment at which it is looked at. The replay asks for the
//! greatest [`Rank`] among the blocks in HBM.
//!
//! **A new policy** is a file here, an entry in `tier_policies!` (of which names, `--policies` and its help follow), and a line in
//! `with_policy!`, which the compiler asks for.

mod deadline_aware;
mod hot_cold;
mod intent_aware;
mod lru;
mod predictive_hotness;

use std::fmt;
use std::str::FromStr;

use kvtide_rules::intent::{MemoryIntent, Moment};

pub use deadline_aware::DeadlineAware;
pub use hot_cold::HotCold;
pub use intent_aware::IntentAware;
pub use lru::Lru;
pub use predictive_hotness::PredictiveHotness;

/// How soon a block goes: the greatest goes first. Of equal ones the block's name decides, as
/// [`LATER_NAME_FIRST`](TierPolicy::LATER_NAME_FIRST) says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rank {
    /// The sum of the policy's terms.
    pub score: f64,
    /// Step of the last access where that decides next, counted backwards; 0 where it does not.
    pub idle_since: i64,
    /// Bytes: of blocks that are otherwise equal the larger goes.
    pub size_bytes: u64,
}

impl Rank {
    /// In order, the victim greatest. Scores are finite: what is read is checked.
    #[inline]
    pub(super) fn compare(&self, other: &Rank) -> std::cmp::Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then(self.idle_since.cmp(&other.idle_since)).then(self.size_bytes.cmp(&other.size_bytes))
    }
}

/// Ranks blocks by what is declared of them.
///
/// A score may rise while a block is left alone only because its recency fades or its age grows, and falls only because its
/// target step comes nearer: that is what lets a replay find the victim without looking at every block.
pub trait TierPolicy {
    /// Its name.
    const NAME: PolicyName;

    /// Whether blocks that are asked to stay are no candidates.
    const SPARES_PINNED: bool = false;

    /// Whether of blocks of equal rank the one with the greater name goes first, and not the one with the lesser.
    const LATER_NAME_FIRST: bool = false;

    /// What a score rises by when recency fades by 0.03, at most; 0 if it does not depend on recency.
    const RISE_BY_FADING: f64;

    /// What it rises by from one step to the next because a block is left alone, at most.
    const RISE_BY_AGE: f64 = 0.0;

    /// Steps after which the age of a block adds nothing more.
    const AGES_FOR: u64 = 0;

    /// Tells `add` the terms of a block's score, in the order in which they are added.
    fn terms(intent: &MemoryIntent, at: Moment, add: &mut impl FnMut(&'static str, f64));

    /// What decides between equal scores before size does.
    #[inline]
    fn idle_since(_intent: &MemoryIntent) -> i64 {
        0
    }

    /// Whether a block that is not in HBM is brought in because somebody foresees its use.
    #[inline]
    fn prefetches(_intent: &MemoryIntent) -> bool {
        false
    }

    /// The rank of a block.
    #[inline]
    fn rank(intent: &MemoryIntent, at: Moment) -> Rank {
        let mut score = 0.0;
        Self::terms(intent, at, &mut |_, term| score += term);
        Rank { score, idle_since: Self::idle_since(intent), size_bytes: intent.size_bytes }
    }
}

/// Makes of the list of policies their names.
macro_rules! tier_policies {
    ($($(#[$meta:meta])* $policy:ident = $name:literal, $title:literal;)+) => {
        /// The name of a policy.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum PolicyName {
            $($(#[$meta])* $policy,)+
        }

        impl PolicyName {
            /// Every policy, in order.
            pub const ALL: &[PolicyName] = &[$(PolicyName::$policy,)+];

            /// As in options and results.
            pub fn name(self) -> &'static str {
                match self {
                    $(PolicyName::$policy => $name,)+
                }
            }

            /// As its authors write it, which is what results of theirs say.
            pub fn title(self) -> &'static str {
                match self {
                    $(PolicyName::$policy => $title,)+
                }
            }
        }
    };
}

tier_policies! {
    /// Least recently used; see [`Lru`].
    Lru = "lru", "LRU";
    /// Least recent by a score that fades; see [`HotCold`].
    HotCold = "hotcold", "HotCold";
    /// The same and what is said of reuse; see [`PredictiveHotness`].
    PredictiveHotness = "predictive", "PredictiveHotness";
    /// All that is declared; see [`IntentAware`].
    IntentAware = "intent", "IntentAware";
    /// The same and more weight on deadlines; see [`DeadlineAware`].
    DeadlineAware = "deadline", "KVDeadline";
}

/// Evaluates `$body` with `$Policy` as the type of the policy that `$name` names.
macro_rules! with_policy {
    ($name:expr, $Policy:ident => $body:expr) => {
        match $name {
            $crate::intent::policy::PolicyName::Lru => {
                type $Policy = $crate::intent::policy::Lru;
                $body
            }
            $crate::intent::policy::PolicyName::HotCold => {
                type $Policy = $crate::intent::policy::HotCold;
                $body
            }
            $crate::intent::policy::PolicyName::PredictiveHotness => {
                type $Policy = $crate::intent::policy::PredictiveHotness;
                $body
            }
            $crate::intent::policy::PolicyName::IntentAware => {
                type $Policy = $crate::intent::policy::IntentAware;
                $body
            }
            $crate::intent::policy::PolicyName::DeadlineAware => {
                type $Policy = $crate::intent::policy::DeadlineAware;
                $body
            }
        }
    };
}
pub(super) use with_policy;

impl PolicyName {
    /// The rank of a block under this policy, for whoever keeps blocks in a manner of their own.
    pub fn rank(self, intent: &MemoryIntent, at: Moment) -> Rank {
        with_policy!(self, Policy => Policy::rank(intent, at))
    }

    /// Whether blocks that are asked to stay are no candidates under this policy.
    pub fn spares_pinned(self) -> bool {
        with_policy!(self, Policy => Policy::SPARES_PINNED)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {0:?}: expected lru, hotcold, predictive, intent or deadline")]
pub struct UnknownPolicy(String);

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<PolicyName, UnknownPolicy> {
        let wanted = text.trim();
        let is_it = |policy: &&PolicyName| policy.name() == wanted || policy.title().eq_ignore_ascii_case(wanted);
        PolicyName::ALL.iter().find(is_it).copied().ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}
