//! What can go wrong with memory.

use crate::tier::Tier;

/// Why blocks cannot be real, or are not any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// There is no device, or this build cannot use one.
    #[error("{0}")]
    Unavailable(String),
    /// A pool, or what a model needs beside it, does not fit.
    #[error("out of {tier} memory: {what}: {} asked for, {} free", bytes(*needed), free.map_or_else(|| "less".to_owned(), bytes))]
    OutOfMemory {
        /// The pool that is full.
        tier: Tier,
        /// What was to be allocated.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes free, where that is known.
        free: Option<u64>,
    },
    /// The device failed and does not recover: an error of a kernel, of its memory, or the device is gone.
    #[error("the device is lost: {call}: {error}")]
    DeviceLost {
        /// What was being done.
        call: &'static str,
        /// What the driver says.
        error: String,
    },
    /// The driver refused something.
    #[error("{call}: {error}")]
    Driver {
        /// What was being done.
        call: &'static str,
        /// What the driver says.
        error: String,
    },
    /// A kernel does not compile for this device.
    #[error("{kernel} does not compile: {error}")]
    Compile {
        /// Its source.
        kernel: &'static str,
        /// What the compiler says.
        error: String,
    },
    /// What a setting asks for does not work with this backend.
    #[error("{0}")]
    Unsupported(String),
    /// A scheduler's plan brings blocks back that the request does not have: a defect.
    #[error("request {request} came back from the host to GPU block {block}, which is not in its table")]
    Astray {
        /// Number of the request whose block it is.
        request: u32,
        /// The first of them.
        block: u32,
    },
    /// A live block does not hold what was written to it.
    #[error(transparent)]
    Corrupt(Box<Corruption>),
}

/// A block that does not hold what was written to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "request {request}: block {index} of its table ({tier} block {block}) does not hold the {tokens} tokens written to it: \
     checksum {found:016x}, expected {expected:016x}"
)]
pub struct Corruption {
    /// Number of the request whose block it is.
    pub request: u32,
    /// Which of its blocks.
    pub index: u32,
    /// Where the block is.
    pub tier: Tier,
    /// Its number there.
    pub block: u32,
    /// Tokens it has to hold.
    pub tokens: u32,
    /// Checksum it should have.
    pub expected: u64,
    /// Checksum it has.
    pub found: u64,
}

/// A number of bytes for people.
fn bytes(count: u64) -> String {
    match count as f64 {
        count if count < 1e6 => format!("{:.1} kB", count * 1e-3),
        count if count < 1e9 => format!("{:.1} MB", count * 1e-6),
        count => format!("{:.2} GB", count * 1e-9),
    }
}
