//! Episodes: how they are cut from the traffic, and what of the world is drawn anew for each.

use kvtide_envs::sched::Slo;
use kvtide_envs::workload::lengths::LENGTH_FACTORS;
use serde::{Deserialize, Serialize};

use super::{ClockDraws, ExperimentError};
use crate::world::WorldError;

/// How episodes are cut from the traffic, and what of the node is drawn anew for each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Episodes {
    /// The first so much of the traffic, by time, is trained on; the rest is never seen. In `(0, 1]`.
    pub fit: f64,
    /// Length of an episode, seconds.
    pub length_s: f64,
    /// Lowest and highest load factor, drawn log-uniformly. In a closed loop it multiplies the clients.
    pub load: (f64, f64),
    /// How often episodes are drawn from this world, relative to the others.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: f64,
    /// Smallest and largest pool, relative to the node's, drawn log-uniformly.
    #[serde(default = "ones", skip_serializing_if = "are_ones")]
    pub pool: (f64, f64),
    /// What the traffic's lengths are multiplied by, smallest and largest, drawn log-uniformly.
    #[serde(default = "ones", skip_serializing_if = "are_ones")]
    pub lengths: (f64, f64),
    /// Targets to draw from, evenly; empty for the world's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slos: Vec<String>,
    /// Clocks to draw from, evenly, within the spread of the hardware's profile: `true`, or how many. `None`: the profile's
    /// own. What is validated and judged on is always timed by the profile's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_spread: Option<ClockDraws>,
}

fn one() -> f64 {
    1.0
}

fn ones() -> (f64, f64) {
    (1.0, 1.0)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(weight: &f64) -> bool {
    *weight == 1.0
}

fn are_ones(factors: &(f64, f64)) -> bool {
    *factors == ones()
}

impl Episodes {
    /// Episodes of which only traffic and load are drawn.
    pub fn new(fit: f64, length_s: f64, load: (f64, f64)) -> Episodes {
        let (pool, lengths) = (ones(), ones());
        Episodes { fit, length_s, load, weight: one(), pool, lengths, slos: Vec::new(), clock_spread: None }
    }

    /// Clocks that are drawn from; 0 for the profile's own alone.
    pub(super) fn clocks(&self) -> u32 {
        self.clock_spread.map_or(0, ClockDraws::count)
    }

    /// Checks every range that needs no trace.
    pub(super) fn validate(&self) -> Result<(), ExperimentError> {
        let range = |field, value: String, expected| Err(ExperimentError::Range { field, value, expected });
        let Episodes { fit, length_s, load: (low, high), weight, pool: (least, most), .. } = *self;
        if !(fit > 0.0 && fit <= 1.0) {
            return range("episodes.fit", fit.to_string(), "above 0, at most 1");
        }
        if !(1.0..=1e7).contains(&length_s) {
            return range("episodes.length_s", length_s.to_string(), "1 to 10000000 seconds");
        }
        if !(low >= 1e-6 && low <= high && high <= 1e3) {
            return range("episodes.load", format!("[{low}, {high}]"), "0.000001 <= lowest <= highest <= 1000");
        }
        if !(weight > 0.0 && weight <= 1e6) {
            return range("episodes.weight", weight.to_string(), "above 0, at most 1000000");
        }
        if !(least > 0.0 && least <= most && most <= 1000.0) {
            return range("episodes.pool", format!("[{least}, {most}]"), "0 < smallest <= largest <= 1000");
        }
        let (shortest, longest) = self.lengths;
        if !(LENGTH_FACTORS.contains(&shortest) && shortest <= longest && LENGTH_FACTORS.contains(&longest)) {
            let expected = "0.01 <= shortest <= longest <= 100";
            return range("episodes.lengths", format!("[{shortest}, {longest}]"), expected);
        }
        self.clock_spread.map_or(Ok(()), ClockDraws::validate)?;
        for slo in &self.slos {
            slo.parse::<Slo>().map_err(WorldError::from)?;
        }
        Ok(())
    }
}
