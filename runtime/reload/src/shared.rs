//! The loader's side.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use kvtide_runtime::{ActionProfile, FormatError, GuardConfig, OwnedTable};

use crate::Live;
use crate::error::LoadError;
use crate::mailbox::Mailbox;
use crate::read::read_table;
use crate::reader::Reader;

/// The table that is in use now, and those who use it. Clones are the same policy.
#[derive(Clone)]
pub struct SharedPolicy {
    honoured: ActionProfile,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    table: Option<Live>,
    readers: Vec<Weak<Mailbox>>,
    counters: LoadCounters,
}

/// Tables offered so far. Each is counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadCounters {
    /// Tables that were sound and are, or were, in use.
    pub accepted: u64,
    /// [`LoadError::Io`] and [`LoadError::NotAFile`].
    pub unreadable: u64,
    /// [`LoadError::Format`], the file itself.
    pub invalid: u64,
    /// [`LoadError::Format`], sound but made for another schema or action set.
    pub unknown_schema: u64,
    /// [`LoadError::Profile`].
    pub unfit_profile: u64,
}

impl LoadCounters {
    fn count(&mut self, outcome: Result<(), &LoadError>) {
        let counter = match outcome {
            Ok(()) => &mut self.accepted,
            Err(LoadError::Io { .. } | LoadError::NotAFile { .. }) => &mut self.unreadable,
            Err(LoadError::Format { error }) if error.is_unknown_meaning() => &mut self.unknown_schema,
            Err(LoadError::Format { .. }) => &mut self.invalid,
            Err(LoadError::Profile { .. }) => &mut self.unfit_profile,
        };
        *counter = counter.saturating_add(1);
    }

    /// Offers that changed nothing.
    pub const fn refused(&self) -> u64 {
        self.unreadable
            .saturating_add(self.invalid)
            .saturating_add(self.unknown_schema)
            .saturating_add(self.unfit_profile)
    }
}

impl SharedPolicy {
    /// A policy without a table, for a node that can act on the heads of `honoured`. Its readers fall back until a table
    /// is taken.
    pub fn new(honoured: ActionProfile) -> SharedPolicy {
        SharedPolicy { honoured, state: Arc::default() }
    }

    /// A reader, for one decision thread. `config` holds for all tables to come.
    pub fn reader(&self, config: GuardConfig) -> Reader {
        let mut state = self.lock();
        let mailbox = Arc::new(Mailbox::default());
        state.readers.retain(|reader| reader.strong_count() > 0);
        state.readers.push(Arc::downgrade(&mailbox));
        Reader::new(state.table.clone(), mailbox, config)
    }

    /// Takes the table in the file at `path`, if it is valid as a whole and the node can act on it.
    ///
    /// Write a table beside its place and rename it: then no half-written file is ever offered. One that is all the same
    /// is refused.
    ///
    /// # Errors
    /// Why the file was not taken. The table before it stays in use, and the refusal is counted.
    pub fn load_file(&self, path: &Path) -> Result<(), LoadError> {
        self.offer(read_table(path))
    }

    /// Takes the table in `bytes`, as [`load_file`](Self::load_file).
    ///
    /// # Errors
    /// Why the bytes were not taken.
    pub fn load_bytes(&self, bytes: &[u8]) -> Result<(), LoadError> {
        // Refused before it is copied.
        let limit = kvtide_runtime::format::MAX_FILE_BYTES;
        self.offer(if bytes.len() > limit {
            Err(FormatError::TooLarge { found: bytes.len() }.into())
        } else {
            Ok(bytes.into())
        })
    }

    /// Takes the table away: readers fall back with [`NoTable`](kvtide_runtime::Fallback::NoTable) until another is
    /// taken.
    pub fn withdraw(&self) {
        self.lock().publish(None);
    }

    /// Tables offered so far.
    pub fn counters(&self) -> LoadCounters {
        self.lock().counters
    }

    /// The heads the node can act on.
    pub fn honoured(&self) -> ActionProfile {
        self.honoured
    }

    fn offer(&self, bytes: Result<Box<[u8]>, LoadError>) -> Result<(), LoadError> {
        let outcome = bytes.and_then(|bytes| self.validate(bytes));
        let mut state = self.lock();
        state.counters.count(outcome.as_ref().map(|_| ()));
        state.publish(Some(outcome?));
        Ok(())
    }

    fn validate(&self, bytes: Box<[u8]>) -> Result<Live, LoadError> {
        let table = OwnedTable::parse(bytes)?;
        let found = table.table()?.profile();
        if !self.honoured.covers(found) {
            return Err(LoadError::Profile { found, honoured: self.honoured });
        }
        Ok(Arc::new(table))
    }

    /// Readers never take this lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn publish(&mut self, table: Option<Live>) {
        self.readers.retain(|reader| reader.upgrade().inspect(|mailbox| mailbox.put(table.clone())).is_some());
        self.table = table;
    }
}
