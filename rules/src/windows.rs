//! How far an observation looks into the waiting queue: the first few, who are admitted next under queue order, and the
//! newest, of whom most can still be on time.

pub use kvtide_runtime::observer::{NEWEST_WINDOW, WAITING_WINDOW};
use kvtide_runtime::{Snapshot, WaitingRequest};

use crate::Pricing;
use crate::queue::{AdmissionQueue, Entry};

impl<Id> Entry<Id> {
    /// As a policy counts it.
    pub fn waiting(&self, pricing: &Pricing) -> WaitingRequest {
        WaitingRequest {
            tokens: self.tokens,
            arrival_us: self.arrival.0,
            first_token_deadline_us: self.first_token_by.map(|deadline| deadline.0),
            prefill_us: pricing.prefill(self.tokens).0,
        }
    }
}

/// Counts both ends of `queue` into `shot`, whose `now_us` and `block_size` must be set.
pub fn look_at_waiting<Id>(queue: &AdmissionQueue<Id>, pricing: &Pricing, shot: &mut Snapshot) {
    let seen = |entry: &Entry<Id>| entry.waiting(pricing);
    shot.waiting = u32::try_from(queue.len()).unwrap_or(u32::MAX);
    shot.look_at_waiting(queue.iter().map(seen), queue.iter().rev().map(seen));
}
