//! Where a new table lies until its reader comes by.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::Live;

/// A place for one table, or for the news that there is none.
#[derive(Default)]
pub(crate) struct Mailbox {
    /// Whether the slot holds something the reader has not seen; written under the lock.
    news: AtomicBool,
    slot: Mutex<Option<Live>>,
}

impl Mailbox {
    /// Puts a table down, and frees what lay there: one that was never fetched, or the one the reader gave back.
    pub(crate) fn put(&self, table: Option<Live>) {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let before = mem::replace(&mut *slot, table);
        self.news.store(true, Ordering::Release);
        // Freeing may take long; the reader need not find the lock held.
        drop(slot);
        drop(before);
    }

    /// Exchanges `mine` for what is new, if there is something and nobody is just putting it down. Never waits: a
    /// reader that comes a moment too early keeps its table, which is as valid as it was. Whether there was something.
    pub(crate) fn fetch(&self, mine: &mut Option<Live>) -> bool {
        if !self.news.load(Ordering::Acquire) {
            return false;
        }
        let mut slot: MutexGuard<'_, Option<Live>> = match self.slot.try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        mem::swap(mine, &mut *slot);
        self.news.store(false, Ordering::Relaxed);
        true
    }
}
