//! Rules that a serving node and its simulator share.
//!
//! What a table decides is only a name ("shortest-on-time-first", "most-slack"); what the name means is here, once. The
//! simulator's schedulers, the Python adapters and C nodes all call this crate, so that a table does on a node what it
//! did where it was trained:
//!
//! - [`slo`]: targets of a request, and by when each of its tokens is due;
//! - [`lateness`]: from when on a waiting request cannot meet its targets any more;
//! - [`pricing`]: what computing a prompt or moving blocks costs, and whether a victim is swapped or computed again;
//!   [`learning`]: what a prompt token costs, from a node's own steps;
//! - [`budget`]: how many tokens a step may have;
//! - [`ageing`]: when waiting has become too long; [`queue`]: who is admitted next;
//! - [`retention`]: how long blocks that are given back stay cached; [`reuse`]: what is remembered of prefixes for that;
//!   [`shadow`]: whether LRU would have hit more; [`branches`]: which cached blocks other text continues;
//! - [`intent`]: what is declared of the blocks that a request leaves to a cache, and which of them go first;
//! - [`victim`]: who is preempted; [`cadence`]: when a decision is due; [`windows`]: how far an observation looks.
//!
//! # On a node
//!
//! A node keeps one [`AdmissionQueue`] beside its own waiting queue. A request that arrives is put in with
//! [`push_back`](AdmissionQueue::push_back), one that was preempted with [`push_front`](AdmissionQueue::push_front); both
//! return a [`Seat`], a plain integer that stays valid until the request leaves. Before each admission the node asks
//! [`next`](AdmissionQueue::next) and, if it admits that request, calls [`admit`](AdmissionQueue::admit); who leaves
//! otherwise is taken out with [`remove`](AdmissionQueue::remove). Each step ends with
//! [`Cadence::stepped`]; a policy decides whenever [`Cadence::is_due`]. When blocks run out,
//! [`victim::choose`] names the running request to preempt. Nothing here reads a clock, and nothing fails: a seat that
//! is not taken is answered with `None`.
//!
//! ```
//! use kvtide_rules::{AdmissionQueue, Answer, Entry, Micros, Patience, Pricing, Slo};
//! use kvtide_runtime::Admission;
//!
//! let slo: Slo = "ttft:2000,tpot:100,stall:3000".parse()?;
//! let mut queue = AdmissionQueue::new();
//! for (id, tokens) in [("long", 8_000), ("short", 200)] {
//!     queue.push_back(Entry::new(id, slo, Micros::ZERO, Answer::Awaited, tokens, &Pricing::default()));
//! }
//! let first = queue.next(Admission::ShortestOnTimeFirst, Micros::from_millis(10), Patience::default());
//! assert_eq!(first.map(|(_, entry)| entry.id), Some("short"));
//! # Ok::<(), kvtide_rules::SloError>(())
//! ```
//!
//! The crate needs an allocator and no standard library, contains no `unsafe`, and depends on `kvtide-runtime` alone
//! (with the feature `serde` also on that).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod ageing;
pub mod branches;
pub mod budget;
pub mod cadence;
mod index;
pub mod intent;
pub mod lateness;
pub mod learning;
pub mod pricing;
pub mod queue;
pub mod retention;
pub mod reuse;
pub mod shadow;
pub mod slo;
pub mod time;
pub mod victim;
pub mod windows;

pub use ageing::{Ageing, Patience};
pub use branches::Branches;
pub use cadence::Cadence;
pub use lateness::Answer;
pub use learning::PrefillPrice;
pub use pricing::Pricing;
pub use queue::{AdmissionQueue, Entry, Seat};
pub use retention::{Term, Walk};
pub use reuse::{Reuse, Visit};
pub use shadow::Shadow;
pub use slo::{Slo, SloError};
pub use time::Micros;
