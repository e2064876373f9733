//! A table as a node runs it: behind its guard.

use kvtide_runtime::{ActionMask, ActionProfile, Controls, GuardConfig, GuardState, Observation, Observer, Table};

use super::observe::observe;
use super::{Controller, Node, mask};
use crate::metrics::GuardReport;

/// A table behind the guard a serving node puts it behind, with the same settings: what is measured is what ships.
///
/// Where the table cannot be trusted the node does what [`GuardConfig::fallback_for`] says, given what its engine does by
/// itself. An observation is never stale here: it is taken at the moment of the decision.
#[derive(Debug, Clone)]
pub struct Guarded<'a> {
    table: Table<'a>,
    config: GuardConfig,
    observer: Observer,
    /// Made at the first decision: what is fallen back to is up to the node.
    state: Option<GuardState>,
    seen: Option<(Observation, ActionMask)>,
}

impl<'a> Guarded<'a> {
    /// `table` behind a guard of the default settings.
    pub fn new(table: Table<'a>) -> Guarded<'a> {
        Guarded { table, config: GuardConfig::default(), observer: Observer::new(), state: None, seen: None }
    }

    /// The table.
    pub fn table(&self) -> &Table<'a> {
        &self.table
    }

    /// What the table decided the last time by, if it was the table that decided.
    pub fn seen(&self) -> Option<(Observation, ActionMask)> {
        self.seen
    }
}

impl Controller for Guarded<'_> {
    fn control(&mut self, node: &Node) -> Controls {
        let Guarded { table, config, observer, state, seen } = self;
        let state = state.get_or_insert_with(|| {
            let fallback = GuardConfig::fallback_for(node.scheduler().default_controls(), table);
            GuardState::new(GuardConfig { fallback, ..*config })
        });
        let (observation, mask) = (observe(node, observer), mask(node, ActionProfile::Full));
        let controls = state.decide(Ok(table), &observation, 0, mask);
        *seen = state.last_fallback().is_none().then_some((observation, mask));
        controls
    }

    fn guard(&self) -> Option<GuardReport> {
        self.state.as_ref().map(GuardReport::of)
    }
}
