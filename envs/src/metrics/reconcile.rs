//! Whether the accounts add up.

use super::Collector;
use crate::sched::{Phase, RequestId, Scheduler};
use crate::tier::Tier;

/// The account of a tier's blocks.
fn in_use(tier: Tier) -> &'static str {
    match tier {
        Tier::Gpu => "GPU blocks in use",
        Tier::Host => "host blocks in use",
    }
}

/// An account that does not add up: a defect of the simulator, never of the workload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the run does not reconcile: {what} is {found}, expected {expected}")]
pub struct Unreconciled {
    what: &'static str,
    found: u64,
    expected: u64,
}

impl Collector {
    /// Checks that tokens, requests and blocks are each accounted for once. Linear in all that ever arrived.
    ///
    /// # Errors
    /// The first account that does not add up.
    pub fn reconcile(&self, scheduler: &Scheduler) -> Result<(), Unreconciled> {
        let equal = |what, found: u64, expected: u64| {
            if found == expected { Ok(()) } else { Err(Unreconciled { what, found, expected }) }
        };
        equal("requests", self.records().len() as u64, scheduler.num_requests() as u64)?;
        let [mut finished, mut rejected, mut open] = [0, 0, 0];
        let [mut tokens, mut completed_tokens, mut violations, mut attained] = [0, 0, 0, 0];
        for (index, record) in self.records().enumerate() {
            let generated = scheduler.view(RequestId(index as u32)).generated;
            equal("tokens of a request", u64::from(record.tokens), u64::from(generated))?;
            tokens += u64::from(generated);
            violations += u64::from(record.violated);
            match record.phase {
                Phase::Finished => {
                    finished += 1;
                    completed_tokens += u64::from(generated);
                    attained += u64::from(!record.violated);
                }
                Phase::Rejected => rejected += 1,
                Phase::Waiting | Phase::Running | Phase::Swapped => open += 1,
            }
        }
        equal("completed requests", self.completed, finished)?;
        equal("rejected requests", self.rejected, rejected)?;
        equal("open requests", open, scheduler.num_open() as u64)?;
        equal("output tokens", self.output_tokens, tokens)?;
        equal("tokens of completed requests", self.completed_tokens, completed_tokens)?;
        equal("violations", self.violations, violations)?;
        equal("requests that attained their targets", self.attained, attained)?;
        for members in self.cohort.recount() {
            equal("members of the cohort", members, u64::from(self.cohort.num_members()))?;
        }
        let fetched = self.fetched_blocks * u64::from(scheduler.config().block_size);
        equal("prompt tokens from the host's cache", self.host_hit_tokens, fetched)?;
        if scheduler.config().host_cache.is_off() {
            equal("blocks copied to and from a cache that is off", self.stored_blocks + fetched, 0)?;
        }
        let held = scheduler.held_blocks();
        for tier in Tier::ALL {
            let used = scheduler.num_blocks(tier) - scheduler.free_blocks(tier);
            equal(in_use(tier), held[tier], u64::from(used))?;
        }
        Ok(())
    }
}
