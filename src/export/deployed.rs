//! A table as it would serve, in episodes: what a choice between tables is made by.

use kvtide_runtime::{Action, Controls, FormatError, GuardConfig, GuardState, OwnedTable};

use crate::agent::{Decider, Server};

/// A table behind the guard of a node.
///
/// In an episode everything is an action, so a fallback is the action nearest to the fallback's controls; the watermark a table
/// knows to fall back to is one of the levels.
#[derive(Debug, Clone)]
pub struct Deployed {
    table: OwnedTable<Vec<u8>>,
    config: GuardConfig,
}

impl Deployed {
    /// The table in `bytes`, on a node whose engine does `engine` by itself.
    ///
    /// # Errors
    /// The bytes are not a table for this build.
    pub fn new(bytes: Vec<u8>, engine: Controls) -> Result<Deployed, FormatError> {
        let table = OwnedTable::parse(bytes)?;
        let fallback = GuardConfig::fallback_for(engine, &table.table()?);
        Ok(Deployed { table, config: GuardConfig { fallback, ..GuardConfig::default() } })
    }

    /// What it falls back to.
    pub fn fallback(&self) -> Action {
        Action::nearest(&self.config.fallback)
    }

    /// The file.
    pub fn bytes(&self) -> &[u8] {
        self.table.bytes()
    }
}

impl Server for Deployed {
    fn start(&self) -> Decider<'_> {
        let mut guard = GuardState::new(self.config);
        Box::new(move |observation, mask| {
            let table = self.table.table().map_err(Into::into);
            let controls = guard.decide(table.as_ref().map_err(|reason| *reason), observation, 0, mask);
            mask.repair(Action::nearest(&controls))
        })
    }
}
