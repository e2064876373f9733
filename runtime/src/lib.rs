//! What a serving node embeds.
//!
//! One definition of what a policy sees ([`Observation`]) and what it may do ([`Action`]) serves training,
//! evaluation and serving. A [`Policy`] maps the first to the second; a decision [`Table`] is the policy that ships,
//! read from a `.kvt` file (`FORMAT.md` beside this crate) or compiled in as a `static`; a [`Guard`] keeps a node on
//! its fallback watermark whenever the table cannot be trusted.
//!
//! Beside it, for those who need them: `kvtide-reload` replaces a table while a node serves, `kvtide-capi` is all of this
//! for C.
//!
//! ```
//! use kvtide_runtime::{ActionMask, Fallback, Guard, GuardConfig, Observer, Snapshot, Table};
//!
//! // In a node: the bytes of a file. Where there is none, the guard answers with the fallback and says so.
//! let bytes: &[u8] = &[];
//! let mut guard = Guard::new(Table::parse(bytes), GuardConfig::default());
//! let mut observer = Observer::new();
//! // Before each decision: what the scheduler knows.
//! let snapshot = Snapshot { num_gpu_blocks: 2588, free_gpu_blocks: 40, ..Snapshot::default() };
//! let controls = guard.decide(&observer.observe(&snapshot), 0, ActionMask::ALL);
//! assert_eq!(guard.last_fallback(), Some(Fallback::NoTable));
//! assert_eq!(controls.watermark, GuardConfig::default().fallback.watermark);
//! ```
//!
//! `examples/` has a decision of a table from a file, a node in outline, and a table that is compiled in.
//!
//! The crate has no dependencies, needs no allocator, contains no `unsafe`, and nothing on the decision path panics.
#![no_std]
#![forbid(unsafe_code)]

pub mod action;
pub mod census;
mod crc;
pub mod edition;
pub mod feature_set;
pub mod fixed;
pub mod format;
pub mod guard;
mod hash;
pub mod host;
pub mod observation;
pub mod observer;
pub mod owned;
pub mod policy;
pub mod retention;
pub mod table;

pub use action::{
    ACTION_SET_HASH, Action, ActionMask, ActionProfile, Admission, Asked, Choices, Controls, Eviction, HEADS, Head,
    HeadSetting, HeadSpec, PerHead, Preemption, Victim,
};
pub use census::{RunningRequest, WaitingRequest};
pub use edition::Edition;
pub use feature_set::FeatureSet;
pub use fixed::Fixed;
pub use format::FormatError;
pub use guard::{Fallback, Guard, GuardConfig, GuardCounters, GuardState};
pub use host::{Host, HostMismatch, UnknownHost};
pub use observation::{FEATURES, Feature, FeatureSpec, NUM_FEATURES, Observation, SCHEMA_HASH};
pub use observer::{Observer, Snapshot};
pub use owned::OwnedTable;
pub use policy::Policy;
pub use retention::{
    NUM_RELEASE_FEATURES, Part, RELEASE_FEATURES, RELEASE_SCHEMA_HASH, Release, ReleaseFeature, ReleaseObservation,
    Retention, RetentionCounters, RetentionFallback, RetentionGuard, RetentionPolicy, RetentionTable, Stop,
};
pub use table::{Table, TreeNode};
