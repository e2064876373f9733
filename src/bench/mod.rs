//! How fast the world turns: scheduler steps, evictions, tiers, steps of streams whose blocks have a price, requests served, environment
//! decisions, training.
//!
//! Every figure is measured several times and given with its spread. Machines are shared and clocks differ, so figures
//! of one call compare with each other, not with those of another machine.

mod environment;
mod eviction;
mod scheduler;
mod serving;
mod streams;
mod tiers;
mod training;

use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;

pub use environment::decisions;
pub use eviction::{EvictionBenchError, evictions};
pub use scheduler::{bytes_per_request, steps};
pub use serving::requests;
pub use streams::stream_steps;
pub use tiers::{TierBenchError, tiers};
pub use training::{TrainingBenchError, training};

/// One figure: how often something was done in a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Throughput {
    /// What was measured: `scheduler_steps`, `evictions`, `stream_steps`, `tier_events`, `tier_reading`, `tier_file`, `requests`,
    /// `env_decisions`, `training`, `request_bytes`.
    pub bench: &'static str,
    /// Under which conditions.
    pub case: String,
    /// Of `min`, `median` and `max`.
    pub unit: &'static str,
    /// How often it was measured.
    pub repeats: usize,
    /// Slowest repeat (or least).
    pub min: f64,
    /// Median repeat.
    pub median: f64,
    /// Fastest repeat (or most).
    pub max: f64,
    /// Time of one, at the median, nanoseconds; `None` where no time is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub each_ns: Option<f64>,
}

impl Throughput {
    /// From the seconds that `count` of something took in each repeat.
    fn rate(bench: &'static str, case: String, unit: &'static str, count: u64, seconds: &[f64]) -> Throughput {
        let mut rates: Vec<f64> = seconds.iter().map(|seconds| count as f64 / seconds.max(1e-12)).collect();
        rates.sort_by(f64::total_cmp);
        let median = rates[rates.len() / 2];
        let (min, max) = (rates[0], rates[rates.len() - 1]);
        Throughput { bench, case, unit, repeats: rates.len(), min, median, max, each_ns: Some(1e9 / median) }
    }

    /// A number that is counted, not timed.
    fn count(bench: &'static str, case: String, unit: &'static str, value: f64) -> Throughput {
        Throughput { bench, case, unit, repeats: 1, min: value, median: value, max: value, each_ns: None }
    }
}

/// Seconds that `work` takes.
#[expect(clippy::disallowed_methods, reason = "speed is measured in wall-clock time, and only reported")]
fn seconds<T>(work: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    black_box(work());
    start.elapsed().as_secs_f64()
}
