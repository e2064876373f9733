//! The decision thread's side.

use std::sync::Arc;

use kvtide_runtime::{
    ActionMask, Controls, Fallback, GuardConfig, GuardCounters, GuardState, Observation, OwnedTable,
    ReleaseObservation, Retention, RetentionCounters, RetentionFallback, RetentionGuard,
};

use crate::Live;
use crate::mailbox::Mailbox;

/// A guard over whatever table is the newest. Made by [`SharedPolicy::reader`](crate::SharedPolicy::reader), one for
/// each thread that decides.
pub struct Reader {
    table: Option<Live>,
    mailbox: Arc<Mailbox>,
    /// What the node does by itself.
    engine: Controls,
    state: GuardState,
    /// Of the table's second tree.
    retention: RetentionGuard,
}

impl Reader {
    pub(crate) fn new(table: Option<Live>, mailbox: Arc<Mailbox>, config: GuardConfig) -> Reader {
        let (engine, retention) = (config.fallback, RetentionGuard::new(config));
        let mut reader = Reader { table, mailbox, engine, state: GuardState::new(config), retention };
        reader.learn_fallback();
        reader
    }

    /// Takes the newest table, if there is a newer one.
    fn follow(&mut self) {
        if self.mailbox.fetch(&mut self.table) {
            self.learn_fallback();
        }
    }

    /// Where a table knows a better fallback than no watermark, takes it; see [`GuardConfig::fallback_for`].
    fn learn_fallback(&mut self) {
        let table = self.table.as_ref().and_then(|live| live.table().ok());
        let fallback = table.map_or(self.engine, |table| GuardConfig::fallback_for(self.engine, &table));
        self.state.set_fallback(fallback);
    }

    /// Decides from an `observation` taken `age_us` microseconds ago, as [`Guard::decide`](kvtide_runtime::Guard::decide),
    /// with the newest table. Counters and the memory of excursions go on over a change of table.
    ///
    /// Never waits, allocates or frees.
    pub fn decide(&mut self, observation: &Observation, age_us: u64, mask: ActionMask) -> Controls {
        self.follow();
        let table = match &self.table {
            Some(live) => live.table().map_err(Fallback::from),
            None => Err(Fallback::NoTable),
        };
        self.state.decide(table.as_ref().map_err(|reason| *reason), observation, age_us, mask)
    }

    /// The class of blocks that a request gives back, from an `observation` whose node part was taken `age_us` microseconds
    /// ago, as [`RetentionGuard::decide`] with the newest table's second tree; normal where it has none.
    ///
    /// Never waits, allocates or frees.
    pub fn retain(&mut self, observation: &ReleaseObservation, age_us: u64) -> Retention {
        self.follow();
        let tree = match &self.table {
            Some(live) => live.table().map_err(Fallback::from).and_then(|table| table.trusted_retention()),
            None => Err(Fallback::NoTable),
        };
        self.retention.decide(tree.as_ref().map_err(|reason| *reason), observation, age_us)
    }

    /// Says whether the pool hits less than LRU would have, as [`RetentionGuard::set_behind`].
    pub fn set_behind(&mut self, is_behind: bool) {
        self.retention.set_behind(is_behind);
    }

    /// What happened so far.
    pub fn counters(&self) -> &GuardCounters {
        self.state.counters()
    }

    /// Why the last decision was the fallback; `None` if a table took it.
    pub fn last_fallback(&self) -> Option<Fallback> {
        self.state.last_fallback()
    }

    /// What happened so far to classes of given-back blocks.
    pub fn retention_counters(&self) -> &RetentionCounters {
        self.retention.counters()
    }

    /// Why the last class was not the tree's; `None` if it was.
    pub fn last_retention_fallback(&self) -> Option<RetentionFallback> {
        self.retention.last_fallback()
    }

    /// The table that took or would have taken the last decision.
    pub fn table(&self) -> Option<&OwnedTable<Box<[u8]>>> {
        self.table.as_deref()
    }
}
