//! The C interface of kvtide-runtime and kvtide-rules. `include/kvtide.h` is made from this crate and is its documentation;
//! `examples/node.c` is a node in outline.
//!
//! A node opens a policy, fills a snapshot before each decision, and is given the controls of the moment:
//!
//! ```c
//! kvtide_policy_observe(policy, &snapshot, running, num_running, waiting, num_waiting, &observation);
//! kvtide_policy_decide(policy, &observation, snapshot.now_us, NULL, &controls);
//! ```
//!
//! What is unsafe about talking to C is in this crate, and most of it in `foreign`: a pointer becomes a reference in one
//! place. Every function is wrapped in `status::guarded`, which turns failures into codes and stops panics.
#![expect(unsafe_code, reason = "pointers come from C; every block says why it is sound")]
#![expect(clippy::doc_markdown, reason = "documentation is for the C header, which has no markup")]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks, improper_ctypes_definitions)]

mod choices;
mod foreign;
mod functions;
mod policy;
mod queue;
mod retention;
#[cfg(test)]
mod retention_tests;
mod reuse;
mod rules;
#[cfg(test)]
mod rules_tests;
mod status;
mod structs;
#[cfg(test)]
mod tests;

pub use choices::{Admission, FallbackReason, Part, Preemption, Profile, Retention, Stop, Victim};
pub use functions::*;
pub use policy::Policy;
pub use queue::*;
pub use retention::*;
pub use reuse::*;
pub use rules::*;
pub use status::Status;
pub use structs::{Controls, Counters, Mask, Observation, Options, RunningRequest, Snapshot, WaitingRequest};

/// Version of the structs and functions in this header. Grows whenever a program built against an older header would
/// misread or be misread.
pub const KVTIDE_ABI_VERSION: u32 = 3;

/// Values of an observation.
pub const KVTIDE_NUM_FEATURES: usize = 35;

/// Words of a mask, one a head: watermark, victim, preemption, admission.
pub const KVTIDE_NUM_HEADS: usize = 6;

/// How many waiting requests are looked at from the front of the queue.
pub const KVTIDE_WAITING_WINDOW: usize = 16;

/// How many waiting requests are looked at from the back of the queue.
pub const KVTIDE_NEWEST_WINDOW: usize = 64;

/// Most requests of a kind that one observation may count.
pub const KVTIDE_MAX_REQUESTS: usize = 1_048_576;

/// The max_wait_us of kvtide_queue_new that tables are trained with.
pub const KVTIDE_MAX_WAIT_US: u64 = 5_000_000;

/// The patience of kvtide_queue_new that tables are trained with.
pub const KVTIDE_PATIENCE: f64 = 1.75;

const _: () = {
    assert!(KVTIDE_NUM_FEATURES == kvtide_runtime::NUM_FEATURES);
    assert!(KVTIDE_NUM_HEADS == kvtide_runtime::action::NUM_HEADS);
    assert!(KVTIDE_WAITING_WINDOW == kvtide_runtime::observer::WAITING_WINDOW);
    assert!(KVTIDE_NEWEST_WINDOW == kvtide_runtime::observer::NEWEST_WINDOW);
};
