//! At which loads the node begins to fail, and what that says of the traffic as it was recorded.

use std::fmt::Write;
use std::sync::atomic::AtomicBool;

use kvtide_envs::metrics::Summary;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Window, WorkloadError};
use serde::{Deserialize, Serialize};

use super::TuneError;
use super::traffic::{Cut, busiest};
use crate::evaluate::{AUTO_DRAWS, AUTO_TARGETS, FoundLoad, Unserved, Watch, find_loads};
use crate::policy::PolicySpec;
use crate::world::{Draw, World};

/// Seeds of the draws that are looked at; results are judged on others.
const SEEDS: [u64; AUTO_DRAWS] = [9_000, 9_001, 9_002];
/// A node that loses less than this share in any stretch of time has nothing to gain.
const IDLE: f64 = 0.005;
/// A node that attains less than this is drowned, and everybody drowns alike.
const DROWNED: f64 = 0.3;
/// Loads nearer to each other than this are one.
const SAME: f64 = 0.02;
/// What is trained on beyond the loads found.
const BELOW: f64 = 0.92;
const ABOVE: f64 = 1.05;

/// What one node does with the traffic as it was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum AtOne {
    /// It serves it with ease, at its peak as well.
    Idle {
        /// What is attained.
        attained: f64,
        /// The load at which it begins to fail, if there is one.
        fails_at: Option<f64>,
    },
    /// It serves it, not without losses.
    Busy {
        /// What is attained.
        attained: f64,
    },
    /// It drowns in it.
    Drowned {
        /// What is attained; `None` if there is more than can be drawn.
        attained: Option<f64>,
        /// How many such nodes the traffic takes.
        nodes: u64,
    },
}

/// The loads a run is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadRange {
    /// The part of the traffic they were looked for on.
    pub window: Window,
    /// The loads at which the default attains so much.
    pub found: Vec<FoundLoad>,
    /// What it attains at load 1.
    pub at_one: AtOne,
    /// The loads judged, ascending.
    pub judged: Vec<f64>,
    /// The lowest and highest load trained on.
    pub trained: (f64, f64),
}

impl LoadRange {
    /// Looks for them on what is trained on, of more than `longest_s` on its busiest stretch of that length. `None` if stopped.
    ///
    /// # Errors
    /// Nothing can be drawn, the engine dies, or the targets are met at no load.
    pub fn find(
        world: &World,
        cut: &Cut,
        longest_s: u64,
        watch: &dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Option<LoadRange>, TuneError> {
        let window = looked_at(world, cut.train, longest_s)?;
        let Some(found) = find_loads(world, Some(window), &SEEDS, &AUTO_TARGETS, watch, stop)? else { return Ok(None) };
        let at_load_one = at_load_one(world, window)?;
        let attained = at_load_one.as_ref().map(|(summary, _)| summary.slo_attainment);
        if let Some((summary, smallest)) = &at_load_one
            && summary.completed == 0
        {
            let (default, counts) = (PolicySpec::Default.into(), (summary.requests, summary.rejected));
            return Err(TuneError::Unserved(Unserved::of(world, default, counts, *smallest)));
        }
        if found.iter().all(|found| found.load.is_none()) {
            return Err(TuneError::NoLoad { targets: AUTO_TARGETS.to_vec(), attained });
        }
        let worst_stretch = at_load_one.as_ref().map_or(0.0, |(summary, _)| worst_stretch(summary));
        let at_one = AtOne::of(attained, worst_stretch, &found);
        Ok(Some(LoadRange { window, judged: judged(&found, at_one), trained: trained(&found), found, at_one }))
    }

    /// What was found, in a sentence or two.
    pub fn text(&self) -> String {
        let mut text = String::from("the engine's default attains ");
        let one = |found: &FoundLoad| match (found.load, found.attained) {
            (Some(load), Some(attained)) => Some(format!("{:.0} % at load {load}", attained * 100.0)),
            _ => None,
        };
        text += &self.found.iter().filter_map(one).collect::<Vec<String>>().join(", ");
        let _ = match self.at_one {
            AtOne::Idle { attained, fails_at } => write!(
                text,
                "; at load 1, the traffic as it is, {:.1} %: the node is idle even at its peak{}",
                attained * 100.0,
                fails_at.map_or_else(String::new, |load| format!(", and begins to fail at {load} times the traffic"))
            ),
            AtOne::Busy { attained } => write!(text, "; at load 1, the traffic as it is, {:.1} %", attained * 100.0),
            AtOne::Drowned { attained, nodes } => {
                let share =
                    attained.map_or_else(|| "next to nothing".to_owned(), |share| format!("{:.1} %", share * 100.0));
                write!(text, "; at load 1, the traffic as it is, {share}: it takes {nodes} such nodes")
            }
        };
        text
    }
}

impl AtOne {
    /// Of what is attained at load 1, in all and in the worst stretch of time, and of the loads found.
    fn of(attained: Option<f64>, worst_stretch: f64, found: &[FoundLoad]) -> AtOne {
        let loads = || found.iter().filter_map(|found| found.load);
        let first_to_fail = loads().next();
        let Some(attained) = attained.filter(|attained| *attained >= DROWNED || loads().any(|load| load >= 1.0)) else {
            let nodes = first_to_fail.map_or(1.0, |load| (1.0 / load).ceil()) as u64;
            return AtOne::Drowned { attained, nodes };
        };
        if 1.0 - worst_stretch <= IDLE {
            return AtOne::Idle { attained, fails_at: first_to_fail };
        }
        AtOne::Busy { attained }
    }
}

/// The part that loads are looked for on.
fn looked_at(world: &World, train: Window, longest_s: u64) -> Result<Window, TuneError> {
    let longest = Micros(longest_s * 1_000_000);
    if train.length() <= longest {
        return Ok(train);
    }
    let drawn = match world.draw(&Draw { window: Some(train), load: 1.0, seed: SEEDS[0] }) {
        Ok(drawn) => drawn,
        // More than can be drawn at once: the beginning will have to do.
        Err(WorkloadError::TooBusy { .. } | WorkloadError::TooManyRequests { .. }) => {
            return Ok(Window { start: train.start, end: train.start + longest });
        }
        Err(error) => return Err(error.into()),
    };
    let busiest = train.start + busiest(&drawn, longest).0;
    // Whole seconds are told to people; near the end it is the stretch that ends with what is trained on.
    let start = Micros(busiest.0 - busiest.0 % 1_000_000);
    let end = (start + longest).min(train.end);
    Ok(Window { start: Micros(end.0 - longest.0), end })
}

/// What the default does at load 1, and tokens of the smallest request there; `None` if there is more than can be drawn.
fn at_load_one(world: &World, window: Window) -> Result<Option<(Summary, u64)>, TuneError> {
    let drawn = match world.draw(&Draw { window: Some(window), load: 1.0, seed: SEEDS[0] }) {
        Ok(drawn) => drawn,
        Err(WorkloadError::TooBusy { .. } | WorkloadError::TooManyRequests { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut controls = world.node.engine.default_controls();
    Ok(Some((world.serve(1.0, &drawn, &mut controls)?, Unserved::smallest(&drawn))))
}

/// What is attained of the stretch of time of which least is; of those with too few requests for a share, all together.
fn worst_stretch(summary: &Summary) -> f64 {
    const ENOUGH: u32 = 20;
    let shares = summary.stretches.counts.iter().filter(|stretch| stretch.requests >= ENOUGH);
    shares
        .map(|stretch| f64::from(stretch.attained) / f64::from(stretch.requests))
        .fold(summary.slo_attainment, f64::min)
}

/// Those found and, unless everybody drowns in it, load 1.
fn judged(found: &[FoundLoad], at_one: AtOne) -> Vec<f64> {
    let mut loads: Vec<f64> = found.iter().filter_map(|found| found.load).collect();
    if !matches!(at_one, AtOne::Drowned { .. }) {
        loads.retain(|load| (load - 1.0).abs() > SAME);
        loads.push(1.0);
    }
    loads.sort_by(f64::total_cmp);
    loads.dedup_by(|b, a| *b / *a - 1.0 < SAME);
    loads
}

/// From a little below the lowest found to a little above the highest.
fn trained(found: &[FoundLoad]) -> (f64, f64) {
    let loads = || found.iter().filter_map(|found| found.load);
    let (lowest, highest) = (loads().fold(f64::INFINITY, f64::min), loads().fold(0.0, f64::max));
    (to_three_digits(lowest * BELOW), to_three_digits(highest * ABOVE))
}

/// Loads are given to people, so to three digits.
fn to_three_digits(load: f64) -> f64 {
    format!("{load:.2e}").parse().unwrap_or(load)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(loads: &[f64]) -> Vec<FoundLoad> {
        let one = |(&target, &load): (&f64, &f64)| {
            let (load, attained) = (Some(load), Some(target));
            FoundLoad { target, load, attained, offered_rps: None }
        };
        AUTO_TARGETS.iter().zip(loads).map(one).collect()
    }

    #[test]
    fn traffic_as_recorded_is_idle_busy_or_too_much() {
        let knee = found(&[0.8, 0.9, 1.1, 1.3]);
        assert_eq!(AtOne::of(Some(0.7), 0.2, &knee), AtOne::Busy { attained: 0.7 });
        let far = found(&[5.0, 6.0, 7.0, 8.0]);
        assert_eq!(AtOne::of(Some(1.0), 1.0, &far), AtOne::Idle { attained: 1.0, fails_at: Some(5.0) });
        // Nearly everything is attained, but not at the peak.
        assert_eq!(AtOne::of(Some(0.999), 0.9, &far), AtOne::Busy { attained: 0.999 });
        let near = found(&[0.3, 0.35, 0.4, 0.45]);
        assert_eq!(AtOne::of(Some(0.01), 0.0, &near), AtOne::Drowned { attained: Some(0.01), nodes: 4 });
        assert_eq!(AtOne::of(None, 0.0, &near), AtOne::Drowned { attained: None, nodes: 4 });
    }

    #[test]
    fn load_one_is_judged_unless_everybody_drowns_in_it() {
        let busy = AtOne::Busy { attained: 0.7 };
        assert_eq!(judged(&found(&[0.8, 0.9, 1.1, 1.3]), busy), [0.8, 0.9, 1.0, 1.1, 1.3]);
        assert_eq!(judged(&found(&[0.8, 0.9, 0.99, 1.3]), busy), [0.8, 0.9, 1.0, 1.3]);
        let drowned = AtOne::Drowned { attained: None, nodes: 4 };
        assert_eq!(judged(&found(&[0.3, 0.3, 0.4, 0.45]), drowned), [0.3, 0.4, 0.45]);
        assert_eq!(trained(&found(&[0.3, 0.3, 0.4, 0.45])), (0.276, 0.473));
    }
}
