//! The world kvtide learns in.
//! It decides what the real engine decides, step for step. Recorded decisions hold it to that:
//! ```
//! use kvtide_envs::golden;
//! for log in golden::find_logs("../tests/golden/vllm-v1".as_ref())? {
//!     let report = golden::replay_log(&log)?;
//!     assert_eq!(report.divergence, None, "{}", report.run);
//! }
//! # Ok::<(), golden::GoldenError>(())
//! ```
//! A [`Node`](env::Node) is a simulated server that a [`Controller`](env::Controller) steers; a [`VecEnv`](env::VecEnv) is many of
//! them as an environment to learn in.
//!
//! Floor by floor, each standing only on those before it: [`time`] and [`seed`]; [`trace`], what was recorded;
//! [`workload`], what is replayed or drawn; [`kv`], blocks; [`sched`], which request runs; [`cost`], how long a step
//! takes; [`memory`], what blocks are made of; [`metrics`], what came of it; [`env`](mod@env), the gym-like environment over
//! all of it; [`baseline`], what a policy is measured against; [`device`], what is found out about a GPU. [`golden`] replays
//! decision logs of real engines. Nothing here ever sees a tensor.

pub mod baseline;
pub mod cost;
pub mod device;
pub mod env;
pub mod golden;
pub mod kv;
pub mod memory;
pub mod metrics;
pub mod percentile;
pub mod sched;
pub mod seed;
pub mod trace;
pub mod workload;

pub use kvtide_rules::time;
