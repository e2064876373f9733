//! Blocks with declared intent: what a block is for, what that is worth, what a request that leaves blocks to a cache declares of
//! them, and the order in which a cache gives such blocks up.
//!
//! | file | holds |
//! |---|---|
//! | `record.rs` | [`MemoryIntent`]: phase, priority, deadline, slack, costs, permissions of a block |
//! | `score.rs` | [`urgency`](score::urgency) and [`risk`](score::risk), and [`Scoring`], the scores made of them |
//! | `request.rs` | [`RequestIntent`]: what follows for a block from its request's targets, phase, session and price |
//! | `order.rs` | [`Order`]: idle blocks by score, of which none is kept for ever |
//!
//! Scores are those of the deadline-aware KV scheduler `kvmi` 0.6.0, term by term. What is declared of a block that a serving
//! engine leaves to its prefix cache, how long that holds and how a pool finds its victim without looking at every block is ours;
//! a simulated pool, a simulated host tier and the offload tier of a serving node do it by this code.

mod order;
mod record;
mod request;
pub mod score;

pub use order::{Order, PathStanding, STEPS_PER_TURNOVER, Standing, TERM_STEPS};
pub use record::{MemoryIntent, Phase, Priority, Tier, Tiers};
pub use request::{Leaving, RequestIntent};
pub use score::{Moment, Scoring};
