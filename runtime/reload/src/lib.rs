//! Replaces a decision table while a node serves.
//!
//! A [`SharedPolicy`] belongs to whoever loads tables: it reads a file, validates the whole of it, and only then hands
//! it out. What is refused changes nothing but a counter. A [`Reader`] belongs to one decision thread; it never waits,
//! allocates or frees: a new table lies ready in a mailbox, the reader exchanges its own for it at its next decision,
//! and whoever loads the table after that frees the old one.
//!
//! Why a crate and not a feature of `kvtide-runtime`: features of one build add up, so that a feature could not promise
//! that the runtime stays without `std`.
//!
//! ```no_run
//! use kvtide_reload::SharedPolicy;
//! use kvtide_runtime::{ActionMask, ActionProfile, GuardConfig, Observation};
//!
//! let policy = SharedPolicy::new(ActionProfile::Core);
//! let mut reader = policy.reader(GuardConfig::default());
//! if let Err(error) = policy.load_file("policy.kvt".as_ref()) {
//!     eprintln!("{error}; the fallback watermark stays");
//! }
//! // The decision thread:
//! let controls = reader.decide(&Observation::ZERO, 0, ActionMask::ALL);
//! # let _ = controls;
//! ```
#![forbid(unsafe_code)]

mod error;
mod mailbox;
mod read;
mod reader;
mod shared;

pub use error::LoadError;
pub use reader::Reader;
pub use shared::{LoadCounters, SharedPolicy};

/// A validated table, shared between the loader and its readers.
type Live = std::sync::Arc<kvtide_runtime::OwnedTable<Box<[u8]>>>;
