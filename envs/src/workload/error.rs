//! What can be wrong with a workload that was asked for.

use thiserror::Error;

use super::lengths::LENGTH_FACTORS;
use super::replay::MAX_LOAD;
use super::synthetic::{MAX_CV, MAX_REQUESTS};
use super::windows::Window;
use crate::time::Micros;

/// A workload that cannot be made, in one line that says which value is wrong.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum WorkloadError {
    /// A workload without requests.
    #[error("workload {name}: no requests")]
    NoRequests {
        /// The workload.
        name: String,
    },
    /// A request without prompt or output.
    #[error("workload {name}: request {index} has a prompt or an output of 0 tokens")]
    EmptyRequest {
        /// The workload.
        name: String,
        /// The request.
        index: usize,
    },
    /// Requests that are not in arrival order.
    #[error("workload {name}: requests are not in arrival order")]
    OutOfOrder {
        /// The workload.
        name: String,
    },
    /// A load factor out of range.
    #[error("load {0}: must be above 0 and at most {MAX_LOAD}")]
    Load(f64),
    /// A factor of lengths out of range.
    #[error("length factor {0}: must be from {low} to {high}", low = LENGTH_FACTORS.start(), high = LENGTH_FACTORS.end())]
    LengthFactor(f64),
    /// A burstiness out of range.
    #[error("cv {0}: must be from 0 to {MAX_CV}")]
    Cv(f64),
    /// What only recorded arrivals can have, of a generator.
    #[error(
        "{name}: arrivals are drawn, not recorded: a load scales rates (--scale thin), and there is no clock to smooth (--jitter)"
    )]
    NotRecorded {
        /// The traffic.
        name: String,
    },
    /// A window that ends before or where it starts.
    #[error("window {0}: is empty, its end must be after its start")]
    EmptyWindow(Window),
    /// A window that is not within the trace.
    #[error("window {window}: reaches beyond the trace, which ends at {end}")]
    WindowBeyondTrace {
        /// The window.
        window: Window,
        /// Where the trace ends.
        end: Micros,
    },
    /// A window in which nothing arrives.
    #[error("window {0}: no request arrives in it")]
    IdleWindow(Window),
    /// A thinning that left no request.
    #[error("load {load}: none of {requests} requests is left (seed {seed})")]
    ThinnedToNothing {
        /// The load factor.
        load: f64,
        /// Requests before.
        requests: usize,
        /// The seed.
        seed: u64,
    },
    /// More requests than a simulation is meant for.
    #[error("about {requests} requests: more than {MAX_REQUESTS}")]
    TooManyRequests {
        /// How many there would be.
        requests: u64,
    },
    /// More requests in statistics than a simulation is meant for.
    #[error(
        "window {window}: about {requests} requests, more than {MAX_REQUESTS}: ask for a shorter window or a lower load"
    )]
    TooBusy {
        /// The window.
        window: Window,
        /// How many there would be.
        requests: u64,
    },
    /// A trace that cannot be split as asked.
    #[error("split: {0}")]
    Split(String),
    /// A text that does not describe a workload, a window or a duration.
    #[error("`{text}`: {reason}")]
    Spec {
        /// What was given.
        text: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
}

impl WorkloadError {
    pub(super) fn spec(text: &str, reason: impl Into<String>) -> WorkloadError {
        WorkloadError::Spec { text: text.to_owned(), reason: reason.into() }
    }
}
