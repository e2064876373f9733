//! Blocks with declared intent: what each is for, when it is needed and what it costs to have it again; a replay of HBM and DRAM
//! over such declarations, and policies that decide by them which block leaves.
//!
//! | file | holds |
//! |---|---|
//! | `policy/` | [`TierPolicy`] and a file for each policy |
//! | `event.rs`, `read.rs`, `scan.rs`, `names.rs`, `lines.rs`, `error.rs` | what happens to blocks; reading it from files, with file, line and field of what is wrong |
//! | `rules.rs` | [`Rules`]: as the simulator that is followed, or corrected; latencies, capacities |
//! | `replay.rs`, `ranking.rs` | [`TierReplay`]; who goes first, without looking at every block |
//! | `account.rs`, `series.rs` | what came of it |
//! | `decision.rs`, `log.rs` | why, if asked |
//! | `profile.rs`, `import.rs`, `draft.rs` | streams of our own, streams from logs of requests, and how they are written |
//!
//! What is declared of a block, [`MemoryIntent`], and what that is worth, [`score`], is `kvtide_rules::intent`, where pools and
//! serving nodes have it from as well.
//!
//! The faithful mode reproduces the deadline-aware KV scheduler `kvmi` 0.6.0 decision for decision: every sum is added in its order.
//! A replay keeps what it knows of known blocks, in vectors by their numbers, so that its memory is that of the blocks known at one
//! time; an event takes constant time, a decision what looking at the first few candidates takes.

mod account;
mod decision;
mod draft;
mod error;
mod event;
mod import;
mod lines;
mod log;
mod names;
pub mod policy;
mod profile;
mod ranking;
mod read;
mod replay;
mod rules;
mod scan;
mod series;

pub use account::TierResult;
pub use decision::{Candidate, DeadlineMiss, DecisionKind, LogLine, LogReader, Term, TierDecision, Waited};
pub use draft::DraftEvent;
pub use error::{IntentError, IntentFault};
pub use event::{EventBatch, EventKind, IntentEvent};
pub use import::{ImportSpec, LoggedRequest, read_requests};
pub use kvtide_rules::intent::{MemoryIntent, Phase, Priority, Tier, Tiers, score};
pub use policy::{PolicyName, Rank, TierPolicy, UnknownPolicy};
pub use profile::{ProfileError, ProfileName, ProfileSpec};
pub use read::EventReader;
pub use replay::{TierReplay, TierSetup};
pub use rules::{Latencies, Mode, Rules, TierCapacity};
pub use series::Sample;
