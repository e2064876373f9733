//! What a handle stands for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use kvtide_reload::{Reader, SharedPolicy};
use kvtide_runtime::{Controls, GuardConfig, GuardCounters, Observer};

use crate::retention::ToldRetention;
use crate::status::Failure;
use crate::structs::{Counters, Options};

/// A table under a guard, with the averages of its node.
pub struct Policy {
    /// Where tables are loaded.
    pub(crate) shared: SharedPolicy,
    /// What the deciding thread uses. A second one at the same time is turned away, not made to wait.
    deciding: Mutex<Deciding>,
    /// What a call gets that fails.
    pub(crate) fallback: Controls,
    /// The guard's counters as of the last decision, for other threads.
    told: [AtomicU64; 8],
    pub(crate) failed: AtomicU64,
    /// The same of classes of given-back blocks.
    pub(crate) retained: ToldRetention,
}

/// What the header promises about threads.
const _: () = {
    const fn for_any_thread<T: Send + Sync>() {}
    for_any_thread::<Policy>();
};

/// What one decision needs.
pub(crate) struct Deciding {
    pub(crate) reader: Reader,
    pub(crate) observer: Observer,
}

impl Policy {
    pub(crate) fn new(options: &Options) -> Result<Policy, Failure> {
        let (honoured, config): (_, GuardConfig) = options.meaning()?;
        let shared = SharedPolicy::new(honoured);
        let deciding = Mutex::new(Deciding { reader: shared.reader(config), observer: Observer::new() });
        Ok(Policy {
            shared,
            deciding,
            fallback: config.fallback,
            told: Default::default(),
            failed: AtomicU64::new(0),
            retained: ToldRetention::default(),
        })
    }

    pub(crate) fn deciding(&self) -> Result<MutexGuard<'_, Deciding>, Failure> {
        alone(&self.deciding)
    }

    /// Tells the other threads what has been counted.
    pub(crate) fn tell(&self, counters: &GuardCounters) {
        let GuardCounters {
            decisions,
            table_decisions,
            held,
            no_table,
            unknown_schema,
            stale,
            non_finite,
            out_of_range,
        } = *counters;
        let all = [decisions, table_decisions, no_table, unknown_schema, stale, non_finite, out_of_range, held];
        for (told, counted) in self.told.iter().zip(all) {
            told.store(counted, Ordering::Relaxed);
        }
    }

    pub(crate) fn counters(&self, struct_size: u32) -> Counters {
        let [decisions, table_decisions, no_table, unknown_schema, stale, non_finite, out_of_range, held] =
            self.told.each_ref().map(|told| told.load(Ordering::Relaxed));
        let loads = self.shared.counters();
        Counters {
            struct_size,
            reserved: 0,
            decisions,
            table_decisions,
            no_table,
            unknown_schema,
            stale,
            non_finite,
            out_of_range,
            failed: self.failed.load(Ordering::Relaxed),
            loads_accepted: loads.accepted,
            loads_unreadable: loads.unreadable,
            loads_invalid: loads.invalid,
            loads_unknown_schema: loads.unknown_schema,
            loads_unfit_profile: loads.unfit_profile,
            held,
        }
    }
}

/// What only one thread uses at a time. A second one is turned away, not made to wait.
pub(crate) fn alone<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, Failure> {
    match mutex.try_lock() {
        Ok(mine) => Ok(mine),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Failure::Busy),
    }
}
