//! What happens to blocks, one event after the other.

use serde::{Deserialize, Serialize};

use super::record::{MemoryIntent, named};

named! {
    /// What happens to a block.
    EventKind:
    /// It is there for the first time, or anew.
    Allocated = "ALLOCATED",
    /// It is read, and has to be in HBM for that.
    Accessed = "ACCESSED",
    /// The token being generated waits for it from now on.
    MarkedDecodeCritical = "MARKED_DECODE_CRITICAL",
    /// Nobody expects it to be read from now on.
    MarkedCold = "MARKED_COLD",
    /// Its tokens are accepted.
    Committed = "COMMITTED",
    /// Whoever runs the engine moves it to DRAM.
    Spilled = "SPILLED",
    /// Whoever runs the engine foresees its use; the policy decides.
    Prefetched = "PREFETCHED",
    /// Whoever runs the engine drops it.
    Evicted = "EVICTED",
    /// It is over.
    Freed = "FREED",
    /// It was not there; nothing follows of that.
    Miss = "MISS",
}

impl EventKind {
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
