//! Where the bytes of tables live.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

static KEPT: Mutex<BTreeSet<&'static [u8]>> = Mutex::new(BTreeSet::new());

/// `bytes` for the rest of the process, equal ones once.
///
/// A table borrows its bytes, and Python objects cannot borrow. A table has at most
/// [`MAX_FILE_BYTES`](kvtide_runtime::format::MAX_FILE_BYTES) and is replaced a few times in a process's life, so it is
/// kept. Only what is a table comes here.
pub fn keep(bytes: &[u8]) -> &'static [u8] {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = kept.get(bytes) {
        return known;
    }
    let new: &'static [u8] = Box::leak(bytes.into());
    kept.insert(new);
    new
}
