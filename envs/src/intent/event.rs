//! What happens to blocks, one event after the other.

use kvtide_rules::intent::MemoryIntent;
use serde::{Deserialize, Serialize};

/// What happens to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum EventKind {
    /// It is there for the first time, or anew.
    Allocated,
    /// It is read, and has to be in HBM for that.
    Accessed,
    /// The token being generated waits for it from now on.
    MarkedDecodeCritical,
    /// Nobody expects it to be read from now on.
    MarkedCold,
    /// Its tokens are accepted.
    Committed,
    /// Whoever runs the engine moves it to DRAM.
    Spilled,
    /// Whoever runs the engine foresees its use; the policy decides.
    Prefetched,
    /// Whoever runs the engine drops it.
    Evicted,
    /// It is over.
    Freed,
    /// It was not there; nothing follows of that.
    Miss,
}

impl EventKind {
    /// Every one.
    pub const ALL: [EventKind; 10] = [
        EventKind::Allocated,
        EventKind::Accessed,
        EventKind::MarkedDecodeCritical,
        EventKind::MarkedCold,
        EventKind::Committed,
        EventKind::Spilled,
        EventKind::Prefetched,
        EventKind::Evicted,
        EventKind::Freed,
        EventKind::Miss,
    ];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Allocated => "ALLOCATED",
            EventKind::Accessed => "ACCESSED",
            EventKind::MarkedDecodeCritical => "MARKED_DECODE_CRITICAL",
            EventKind::MarkedCold => "MARKED_COLD",
            EventKind::Committed => "COMMITTED",
            EventKind::Spilled => "SPILLED",
            EventKind::Prefetched => "PREFETCHED",
            EventKind::Evicted => "EVICTED",
            EventKind::Freed => "FREED",
            EventKind::Miss => "MISS",
        }
    }

    /// The one of that name.
    pub(super) fn named(name: &str) -> Option<EventKind> {
        EventKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether a block that was not known is from then on.
    pub(super) fn makes_known(self) -> bool {
        matches!(self, EventKind::Allocated | EventKind::Accessed | EventKind::MarkedDecodeCritical)
    }
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntentEvent {
    /// When, in steps of the stream; several events may have one.
    pub step: u64,
    /// What happens.
    pub kind: EventKind,
    /// To which block: its number among those that are known at the time.
    pub block: u32,
    /// What is declared of it.
    pub intent: MemoryIntent,
}

/// Events in order, and the names of their blocks by number. A number is used again for another block only in a later batch.
#[derive(Debug, Clone, Default)]
pub struct EventBatch {
    /// The events.
    pub events: Vec<IntentEvent>,
    /// The name of each block that an event of this batch or a known block has.
    pub names: Vec<Box<str>>,
}
