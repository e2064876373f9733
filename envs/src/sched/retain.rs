//! Who chooses the class of blocks that are given back, and what came of it.

use std::fmt;
use std::sync::Arc;

use kvtide_runtime::{Fallback, Retention, RetentionCounters, RetentionPolicy, RetentionTable};
use serde::{Deserialize, Serialize};

/// Who chooses the class of blocks that a request gives back; only a pool with classes asks.
#[derive(Clone)]
pub enum Retain {
    /// The same for every head, and the same for every tail. Nothing is observed for it.
    Always([Retention; 2]),
    /// A table's second tree behind its guard, as a node runs it; why there is none otherwise.
    Guarded(Result<RetentionTable<'static>, Fallback>),
    /// Any policy, without a guard.
    Policy(Arc<dyn RetentionPolicy + Send + Sync>),
}

impl Retain {
    /// What every engine does.
    pub const NORMAL: Retain = Retain::Always([Retention::Normal; 2]);

    /// Whether it needs a pool with classes: whether anything it says could differ from what every engine does.
    pub fn chooses(&self) -> bool {
        !matches!(self, Retain::Always([Retention::Normal, Retention::Normal]) | Retain::Guarded(Err(_)))
    }

    /// Whether it looks at what is released: whether anything need be remembered for it.
    pub fn looks(&self) -> bool {
        !matches!(self, Retain::Always(_) | Retain::Guarded(Err(_)))
    }
}

impl Default for Retain {
    fn default() -> Retain {
        Retain::NORMAL
    }
}

impl fmt::Debug for Retain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Retain::Always(classes) => f.debug_tuple("Always").field(classes).finish(),
            Retain::Guarded(table) => f.debug_tuple("Guarded").field(table).finish(),
            Retain::Policy(_) => f.write_str("Policy"),
        }
    }
}

/// What became of given-back blocks in a run, by class in the order of [`Retention::ALL`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionReport {
    /// Heads and tails given back, by the class chosen for them.
    pub heads: [u64; 4],
    /// Tails given back.
    pub tails: [u64; 4],
    /// Cached blocks evicted, by the class they were in.
    pub evicted_blocks: [u64; 4],
    /// Decisions that fell back to normal, because the tree could not be trusted or the pool was behind LRU.
    #[serde(default)]
    pub fallbacks: u64,
    /// Of those, how many because the pool was behind LRU.
    #[serde(default)]
    pub behind_lru: u64,
    /// Of the blocks of a sample that were asked for: how many, how many the pool had, and how many LRU would have had; zeros
    /// where nothing was observed.
    #[serde(default)]
    pub shadow: [u64; 3],
}

impl RetentionReport {
    /// Takes over what a guard has counted.
    pub(super) fn set_guard(&mut self, counters: &RetentionCounters) {
        self.behind_lru = counters.behind;
        self.fallbacks = counters.decisions - counters.table_decisions;
    }
}
