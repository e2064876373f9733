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
//! Floor by floor, each standing only on those before it: [`time`], [`seed`] and [`files`]; [`trace`], what was recorded;
//! [`workload`], what is replayed or drawn; [`intent`], what is declared of blocks; [`tier`], where blocks can be; [`evict`], which cached block goes first; [`kv`], blocks; [`reuse`], what of them is asked for again; [`deploy`], what serves on what; [`sched`], which request runs;
//! [`cost`], how long a step takes; [`calibrate`], its constants from a device's timings; [`memory`], what blocks are made of;
//! [`token_price`], cached blocks as assets; [`metrics`], what came of it; [`env`](mod@env), the gym-like environment over all of it; [`baseline`], what a policy is measured
//! against. [`golden`] replays decision logs of real engines. Nothing here ever sees a tensor, or talks to a device: whoever does
//! hands a [`memory::MemoryBackend`] in.
#![forbid(unsafe_code)]

pub mod baseline;
pub mod calibrate;
pub mod cost;
pub mod deploy;
pub mod env;
pub mod evict;
pub mod files;
pub mod golden;
pub mod intent;
pub mod kv;
pub mod memory;
pub mod metrics;
pub mod percentile;
pub mod reuse;
pub mod sched;
pub mod seed;
pub mod tier;
pub mod token_price;
pub mod trace;
pub mod workload;

pub use kvtide_rules::time;
