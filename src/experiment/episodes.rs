//! Episodes: which part of the traffic they are cut from, and what of the world is drawn anew for each.

use kvtide_envs::env::{EpisodeSource, WorldDraw};
use kvtide_envs::sched::Slo;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::lengths::LENGTH_FACTORS;
use kvtide_envs::workload::{Window, WorkloadError, WorkloadSource};
use serde::{Deserialize, Serialize};

use super::ExperimentError;
use crate::world::{World, WorldError};

/// Microseconds.
const SECOND: u64 = 1_000_000;

/// Which part of the traffic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Part {
    /// What is learned from: all but the last so much.
    Train { but: f64 },
    /// The last so much.
    Validate { last: f64 },
    /// What may not be looked at in training; where nothing is left over, what is validated on.
    Unseen { or_last: f64 },
}

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
        Episodes { fit, length_s, load, weight: one(), pool: ones(), lengths: ones(), slos: Vec::new() }
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
        if !(low > 0.0 && low <= high && high.is_finite()) {
            return range("episodes.load", format!("[{low}, {high}]"), "0 < lowest <= highest");
        }
        if !(weight > 0.0 && weight.is_finite()) {
            return range("episodes.weight", weight.to_string(), "above 0");
        }
        if !(least > 0.0 && least <= most && most <= 1000.0) {
            return range("episodes.pool", format!("[{least}, {most}]"), "0 < smallest <= largest <= 1000");
        }
        let (shortest, longest) = self.lengths;
        if !(LENGTH_FACTORS.contains(&shortest) && shortest <= longest && LENGTH_FACTORS.contains(&longest)) {
            let expected = "0.01 <= shortest <= longest <= 100";
            return range("episodes.lengths", format!("[{shortest}, {longest}]"), expected);
        }
        for slo in &self.slos {
            slo.parse::<Slo>().map_err(WorldError::from)?;
        }
        Ok(())
    }

    /// The part of a world's traffic that is trained on, to the whole second where that leaves any.
    pub(super) fn fit_range(&self, world: &World) -> Result<Window, WorkloadError> {
        let span = world.span()?;
        let end = Micros((span.0 as f64 * self.fit) as u64);
        let whole = Micros(end.0 - end.0 % SECOND);
        Ok(Window { start: Micros::ZERO, end: if whole == Micros::ZERO { end } else { whole } })
    }

    /// Whether an episode can be played of traffic that may not be looked at in training; a generator always draws more.
    pub(super) fn has_rest(&self, world: &World) -> Result<bool, WorkloadError> {
        let rest = Window { start: self.fit_range(world)?.end, end: world.span()? };
        let is_generated = matches!(world.source, WorkloadSource::Synthetic(_));
        Ok(is_generated || rest.length() >= Micros::from_secs_f64(self.length_s))
    }

    /// The seconds of a trace that belong to `part`; of a generator, which never draws the same again, all of them.
    fn range(&self, world: &World, part: Part) -> Result<Window, WorkloadError> {
        let whole = self.fit_range(world)?;
        if matches!(world.source, WorkloadSource::Synthetic(_)) {
            return Ok(whole);
        }
        let share = match part {
            Part::Train { but: share } | Part::Validate { last: share } | Part::Unseen { or_last: share } => share,
        };
        if matches!(part, Part::Unseen { .. }) && self.has_rest(world)? {
            return Ok(Window { start: whole.end, end: world.span()? });
        }
        let kept = Micros((whole.end.0 as f64 * share) as u64);
        let cut = Micros(whole.end.0 - kept.0);
        Ok(match part {
            Part::Train { .. } => Window { end: cut, ..whole },
            Part::Validate { .. } | Part::Unseen { .. } => Window { start: cut, ..whole },
        })
    }

    /// What an environment draws its episodes from.
    pub(super) fn draw(&self, world: &World, part: Part) -> Result<WorldDraw, ExperimentError> {
        let length = Micros::from_secs_f64(self.length_s);
        // A closed loop over generated requests lasts as long as it lasts.
        let is_endless = world.node.clients.is_some() && matches!(world.source, WorkloadSource::Synthetic(_));
        let range = if is_endless { Window { start: Micros::ZERO, end: length } } else { self.range(world, part)? };
        if matches!(part, Part::Unseen { .. }) && range.length() < length {
            return Err(ExperimentError::NothingUnseen);
        }
        if range.length() < length {
            return Err(ExperimentError::Range {
                field: "episodes.length_s",
                value: self.length_s.to_string(),
                expected: "at most the part of the traffic that is trained on (episodes.fit)",
            });
        }
        let slos: Result<Vec<Slo>, _> = self.slos.iter().map(|slo| slo.parse::<Slo>()).collect();
        Ok(WorldDraw {
            weight: self.weight,
            node: world.node.clone(),
            pool: self.pool,
            lengths: self.lengths,
            slos: slos.map_err(WorldError::from)?,
            episodes: EpisodeSource { source: world.source.clone(), range, length, load: self.load },
        })
    }
}
