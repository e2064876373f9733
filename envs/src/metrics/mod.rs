//! What came of a run: every request, token and copied block counted once.

mod cohort;
mod collector;
mod group;
mod guard;
mod reconcile;
mod record;
mod stretch;
mod summary;

pub use collector::Collector;
pub use group::{Group, GroupSummary};
pub use guard::GuardReport;
pub use reconcile::Unreconciled;
pub use record::Record;
pub use stretch::{Stretch, Stretches};
pub use summary::{HostCacheSummary, Percentiles, Summary};
