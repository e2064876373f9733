//! Blocks with declared intent: what each is for, when it is needed and what it costs to have it again; a replay of HBM and DRAM
//! over such declarations, and policies that decide by them which block leaves.
//!
//! | file | holds |
//! |---|---|
//! | `record.rs` | [`MemoryIntent`]: phase, priority, deadline, slack, costs, permissions of a block |
//! | `score.rs` | [`urgency`](score::urgency) and [`risk`](score::risk), what the policies' scores are made of |
//! | `policy/` | [`TierPolicy`] and a file for each policy |
//! | `event.rs`, `read.rs`, `scan.rs`, `names.rs`, `lines.rs`, `error.rs` | what happens to blocks; reading it from files, with file, line and field of what is wrong |
//! | `rules.rs` | [`Rules`]: as the simulator that is followed, or corrected; latencies, capacities |
//! | `replay.rs`, `ranking.rs` | [`TierReplay`]; who goes first, without looking at every block |
//! | `account.rs`, `series.rs` | what came of it |
//! | `decision.rs`, `log.rs` | why, if asked |
//! | `profile.rs`, `import.rs`, `draft.rs` | streams of our own, streams from logs of requests, and how they are written |
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
mod record;
mod replay;
mod rules;
mod scan;
pub mod score;
mod series;

pub use account::TierResult;
pub use decision::{Candidate, DeadlineMiss, DecisionKind, LogLine, LogReader, Term, TierDecision, Waited};
pub use draft::DraftEvent;
pub use error::{IntentError, IntentFault};
pub use event::{EventBatch, EventKind, IntentEvent};
pub use import::{ImportSpec, LoggedRequest, read_requests};
pub use policy::{PolicyName, Rank, TierPolicy, UnknownPolicy};
pub use profile::{ProfileError, ProfileName, ProfileSpec};
pub use read::EventReader;
pub use record::{MemoryIntent, Phase, Priority, Tier, Tiers};
pub use replay::{TierReplay, TierSetup};
pub use rules::{Latencies, Mode, Rules, TierCapacity};
pub use series::Sample;
