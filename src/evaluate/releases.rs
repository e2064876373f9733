//! What became of the blocks that requests gave back, run by run: to look at, or to learn from.

use std::sync::Arc;

use kvtide_envs::env::{Controller, Retaining, RunError};
use kvtide_envs::sched::{ReleaseSample, Retain};
use kvtide_envs::workload::Workload;
use kvtide_runtime::{Part, RELEASE_FEATURES, ReleaseFeature, ReleaseObservation, Retention, RetentionPolicy};
use serde::Serialize;
use serde_json::{Map, Value};

use super::matrix::{Cell, MatrixError, window_name};
use super::row::RunRow;
use crate::policy::{PolicyName, Subject};
use crate::world::{Draw, World};

/// One part of one request's blocks, given back, and what became of it in the rest of the run: the `data` of a `release` line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReleaseRow {
    /// The policy as it was named.
    pub policy: PolicyName,
    /// The part of the traffic, or `all`.
    pub window: String,
    /// Load factor.
    pub load: f64,
    /// Seed of the draw.
    pub seed: u64,
    /// When.
    pub at_s: f64,
    /// `head` or `tail`.
    pub part: &'static str,
    /// The class that was chosen.
    pub retention: &'static str,
    /// Blocks of the part.
    pub blocks: u32,
    /// How many of them somebody asked for before anybody gave them back again.
    pub asked_again: u32,
    /// How many of those were still cached.
    pub found: u32,
    /// Blocks evicted, since the pool was made, when it was given back.
    pub evicted: u64,
    /// The same when one of them was first asked for again; `None` if none was.
    pub evicted_when_asked: Option<u64>,
    /// Blocks of the pool: as many evicted blocks are a turnover.
    pub num_gpu_blocks: u32,
    /// What was seen, by feature.
    pub observation: Map<String, Value>,
}

/// A run with the parts that were given back in it.
#[derive(Debug, Clone)]
pub struct NotedRun {
    /// The run.
    pub row: RunRow,
    /// In the order in which they were given back.
    pub releases: Vec<ReleaseRow>,
}

/// The same classes for every head and every tail, by somebody who looks: only then a node knows what it would be asked by.
struct Looking([Retention; 2]);

impl RetentionPolicy for Looking {
    fn retain(&self, seen: &ReleaseObservation) -> Retention {
        self.0[usize::from(seen[ReleaseFeature::Part] > 0.5)]
    }
}

/// `controller`, with the same classes by somebody who looks.
fn looking(controller: Box<dyn Controller + Send>) -> Box<dyn Controller + Send> {
    let classes = match controller.retain() {
        Retain::Always(classes) => classes,
        Retain::Guarded(Err(_)) => [Retention::Normal; 2],
        Retain::Guarded(Ok(_)) | Retain::Policy(_) => return controller,
    };
    Box::new(Retaining::new(controller, Retain::Policy(Arc::new(Looking(classes)))))
}

/// Serves one draw of `world` under a policy, and notes what is given back; the run is the same as without. `None` for hindsight,
/// which is many runs.
///
/// # Errors
/// The draw is impossible, or the run has no result.
pub fn note_releases(
    world: &World,
    (name, subject): &(PolicyName, Subject),
    cell: Cell,
    seed: u64,
) -> Result<Option<NotedRun>, MatrixError> {
    let Cell { window, load } = cell;
    let Some(controller) = subject.controller() else { return Ok(None) };
    let in_window = window_name(window);
    let failed = |error: RunError| MatrixError::Run {
        policy: name.clone(),
        window: in_window.clone(),
        load,
        seed,
        error: Box::new(error),
    };
    let workload: Workload = world.draw(&Draw { window, load, seed }).map_err(|error| MatrixError::Draw {
        window: in_window.clone(),
        load,
        seed,
        error,
    })?;
    let (summary, samples) =
        world.serve_noting_releases(load, &workload, looking(controller).as_mut()).map_err(failed)?;
    let num_gpu_blocks = world.node_at(load).engine.num_gpu_blocks;
    let release = |sample: &ReleaseSample| ReleaseRow {
        policy: name.clone(),
        window: in_window.clone(),
        load,
        seed,
        at_s: sample.at.as_secs_f64(),
        part: match sample.part {
            Part::Head => "head",
            Part::Tail => "tail",
        },
        retention: sample.class.name(),
        blocks: sample.blocks,
        asked_again: sample.asked_again,
        found: sample.found,
        evicted: sample.evicted,
        evicted_when_asked: sample.asked_at,
        num_gpu_blocks,
        observation: observed(&sample.seen),
    };
    let releases = samples.iter().map(release).collect();
    Ok(Some(NotedRun { row: RunRow::new(world, name, None, cell, (seed, &workload), summary), releases }))
}

/// Every feature by name, each the shortest decimal that reads back to the same `f32`.
fn observed(seen: &ReleaseObservation) -> Map<String, Value> {
    let number = |value: f32| value.to_string().parse::<f64>().map_or(Value::Null, Value::from);
    RELEASE_FEATURES.iter().zip(seen.values).map(|(spec, value)| (spec.name.to_owned(), number(value))).collect()
}
