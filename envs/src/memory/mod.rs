//! What blocks are made of: bytes that are written, moved from tier to tier and read again.
//!
//! A scheduler hands out block numbers; a simulation needs no more. With a [`MemoryBackend`] the blocks are real: each
//! [`Work`] is one planned step, carried out in the order of a serving engine: the copies of each route in turn, then the
//! keys and values of the tokens computed. [`HostMemory`] does it with ordinary memory, so that every promise about contents is
//! tested on any machine; that of `kvtide-cuda` does it on a GPU, and measures what the cost model otherwise says. Whoever has
//! such a backend hands it in with [`MemorySource::lend`]; nothing here knows where it comes from. Every backend is given the same
//! copies in the same order; only the clock differs.
//!
//! [`Memory`] stands between a node and its backend. It knows what every live block has to hold, and compares checksums:
//! of a request's blocks when they come back from the host and when it finishes, and of all live blocks when asked to.

mod audit;
mod checksum;
mod error;
mod host;
mod node;
mod shape;
mod source;
mod text;
mod work;

pub use audit::MemoryReport;
pub use checksum::checksum;
pub use error::{Corruption, MemoryError};
pub use host::HostMemory;
pub use node::Memory;
pub use shape::KvShape;
pub use source::{Lease, MemoryKind, MemorySource};
pub use work::{Filled, Span, Work};

use std::fmt::Debug;

use crate::tier::Tier;
use crate::time::Micros;

/// Where the contents of a slot come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Drawn from the token and everything before it ([`Work::seeds`]): whoever has the same text has the same bytes.
    Drawn,
    /// Computed by a model: known once they are there.
    Computed,
}

/// Blocks in every tier, and steps carried out on them.
///
/// Steps are submitted in the order planned. A backend may carry out a step later than [`submit`](Self::submit) returns,
/// but everything that reads or writes a block does so as if the steps ran one after the other, each in parts: the copies
/// of each [route](crate::tier::Route) in their order, then writes of its tokens. What it reads back ([`checksums`](Self::checksums)) is the state after
/// every step submitted.
pub trait MemoryBackend: Debug + Send {
    /// What it is, for people: `host memory`, or the name of the device.
    fn name(&self) -> String;

    /// Where contents come from.
    fn contents(&self) -> Contents;

    /// Carries out one step, or sends it off.
    ///
    /// # Errors
    /// The device failed; nothing is known of its blocks from then on.
    fn submit(&mut self, work: &Work<'_>) -> Result<(), MemoryError>;

    /// Waits for the first step that was submitted and not waited for. How long it took, if the backend measures.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn wait(&mut self) -> Result<Option<Micros>, MemoryError>;

    /// The [`checksum`] of each block of `tier` over its first `tokens` slots, appended to `sums`.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn checksums(&mut self, tier: Tier, blocks: &[Filled], sums: &mut Vec<u64>) -> Result<(), MemoryError>;

    /// Forgets everything: blocks hold nothing any more, and no step is on its way.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn reset(&mut self) -> Result<(), MemoryError>;
}
