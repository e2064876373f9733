//! The world kvtide learns in.
//!
//! Floor by floor, each standing only on those before it: [`time`] and [`seed`]; [`trace`], what was recorded;
//! [`workload`], what is replayed or drawn; [`tier`], where blocks can be; [`evict`], which cached block goes first; [`kv`],
//! blocks; [`sched`], which request runs; [`cost`], how long a step takes; [`memory`], what blocks are made of; [`metrics`],
//! what came of it; [`env`](mod@env), the gym-like environment over all of it; [`baseline`], what a policy is measured
//! against; [`device`], what is found out about a GPU. [`golden`] replays decision logs of real engines. Nothing here ever
//! sees a tensor.

pub mod baseline;
pub mod cost;
pub mod device;
pub mod env;
pub mod evict;
pub mod golden;
pub mod kv;
pub mod memory;
pub mod metrics;
pub mod percentile;
pub mod sched;
pub mod seed;
pub mod tier;
pub mod trace;
pub mod workload;

pub use kvtide_rules::time;
