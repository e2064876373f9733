//! What came of a run: every request, token and copied block counted once.

mod collector;
mod summary;

pub use collector::{Collector, Record, Unreconciled};
pub use summary::{Percentiles, Summary};
