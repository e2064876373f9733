//! Cached blocks as assets: what each is worth to its own conversation, and one price of memory for all of them.
//!
//! The rule is Token-PD ("Token-PD: Portfolio-Optimal KV-Cache Eviction for Multi-Tenant LLM Inference", KDD 2025 workshop on inference
//! optimization for generative AI): eviction *within* conversations, which loses attention, shared among all that are served together.
//! No engine of ours does that; this room is a bench of its own, with a clock from [`crate::cost`].
//!
//! | letter | is | here |
//! |---|---|---|
//! | `R` | return: the share of future attention | percent of a row of its conversation's attention, on average over the next [`HORIZON`] rows |
//! | `σ²` | risk | variance of that as predicted, percent squared |
//! | `c` | cost | 1: all blocks are of one size |
//! | `g` | excess value | `R − λ σ² − μ c`; kept if not negative |
//! | `μ` | price | `μ ← μ · exp(η (used − M) / M)` after each step, `η = η₀ / √T` over `T` steps |
//! | `δ` | penalty | attention that recomputing a block is taken to cost, in the [utility](Served::utility); its time is the clock's |
//!
//! A *row* is the attention of a block's worth of queries, as a share for each block up to their own: what a kernel would add up on its way,
//! told once for every block that fills. A policy sees rows of what it has kept, which sum to one without what it has not. The
//! attention that a block would have had which is not there is known to the process alone; where it is at least
//! [`ServeConfig::demand`] of a row, the block is *recomputed*, whoever evicted it. On a real engine that takes a summary of each
//! evicted block's keys. Nothing here feeds back: what is generated does not change because a block was missed.
//!
//! | file | what it has |
//! |---|---|
//! | `attention.rs` | conversations as rows of attention |
//! | `process.rs` | seeded ones: sinks, recency, heavy hitters, topics that return |
//! | `recorded.rs` | recorded ones, in the form that docs/ATTENTION.md describes |
//! | `block.rs` | what is known of a block, and who predicts its return from that |
//! | `keeper.rs` | the rules: FIFO, LRU, H2O, Token-PD, and the heap that blocks are popped from |
//! | `serve.rs` | streams that decode together on one pool and one clock |

mod attention;
mod block;
mod keeper;
mod process;
mod recorded;
mod serve;

pub use attention::{Attention, Conversation, MisshapenRow};
pub use block::{BlockStats, ConstantReturn, FEATURES, HORIZON, Return, ReturnPredictor, returns};
pub use keeper::{KeepRule, PriceRule};
pub use process::{AttentionProfile, Process, ProcessError};
pub use recorded::{AttentionFileError, read};
pub use serve::{ServeConfig, Served, Serving, Stamp, serve};
