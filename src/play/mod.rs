//! Thousands of candidates on the same worlds and seeds: what a searcher who knows nothing of gradients asks for.
//!
//! [`Grounds`] are where they play: the episodes of an experiment, as training draws them, or whole traffic at some loads, as
//! evaluation runs it, with the same hash. [`play`] plays every candidate in every world with every seed, on all threads of the
//! pool it is called in, and gives what came of each run in that order. A run depends on its candidate, world and seed and on
//! nothing else: cut along any of them, the parts are those of the whole. [`search_space`] says which policies the coordinates of a
//! search stand for, and [`save`] makes one of them a checkpoint like any other.

mod error;
mod grounds;
mod run;
mod table;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::env::{Controller, ServingArena};
use rayon::prelude::*;

pub use error::PlayError;
pub use grounds::Grounds;
pub use run::Played;
pub use table::{RequestRow, RunTable, StepRow, run_table};

use grounds::Start;
use run::Learned;

use crate::agent::{Activation, CrossEntropy, LinearPolicies, LinearSpace};
use crate::checkpoint::{self, ImportedPolicy, Origin};
use crate::experiment::Experiment;
use crate::policy::{PolicyName, PolicySpec, Subject};
use crate::train::{self, Listener, TrainError};
use crate::world::World;

/// Draws that are kept at a time: as many as keep all threads busy, few enough for any memory.
const DRAWS_AT_A_TIME: usize = 256;

/// Who is played.
#[derive(Debug, Clone, Copy)]
pub enum Candidates<'a> {
    /// Points of a search, one after another.
    Points {
        /// What they stand for.
        policies: &'a LinearPolicies,
        /// `[candidates, coordinates]`.
        values: &'a [f64],
    },
    /// Policies by name.
    Named(&'a [(PolicyName, Subject)]),
}

impl Candidates<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Candidates::Points { policies, values } => values.len() / policies.start().len().max(1),
            Candidates::Named(named) => named.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether each of them can be played in `worlds`.
    fn check(&self, grounds: &Grounds, worlds: &[usize]) -> Result<(), PlayError> {
        match self {
            Candidates::Points { policies, values } => {
                let dimension = policies.start().len();
                if dimension == 0 || !values.len().is_multiple_of(dimension) {
                    let found = values.len();
                    let what = format!("{found} numbers are no candidates of {dimension} coordinates");
                    return Err(PlayError::Candidate(what));
                }
                // What no network has room for is no number there either.
                let wrong = values.iter().position(|value| !(*value as f32).is_finite());
                wrong.map_or(Ok(()), |at| {
                    let (candidate, coordinate) = (at / dimension, at % dimension);
                    let what = format!("candidate {candidate}, coordinate {coordinate} is {}", values[at]);
                    Err(PlayError::Candidate(what))
                })
            }
            Candidates::Named(named) => named.iter().try_for_each(|(name, subject)| {
                if subject.controller().is_none() {
                    return Err(PlayError::Candidate(format!("{name} is many runs; name the constant it finds")));
                }
                grounds.check(name, subject, worlds)
            }),
        }
    }

    fn name(&self, index: usize) -> String {
        match self {
            Candidates::Points { .. } => format!("candidate {index}"),
            Candidates::Named(named) => named[index].0.to_string(),
        }
    }

    /// Lets the candidate of that number play.
    fn with<T>(&self, index: usize, grounds: &Grounds, play: impl FnOnce(&mut dyn Controller) -> T) -> Option<T> {
        match self {
            Candidates::Points { policies, values } => {
                let dimension = policies.start().len();
                let policy = policies.policy(&values[index * dimension..][..dimension])?;
                Some(play(&mut Learned::new(&policy, grounds.allowed())))
            }
            Candidates::Named(named) => Some(play(&mut *named[index].1.controller()?)),
        }
    }
}

/// Loads policies by the words of the command line, each under its name.
///
/// # Errors
/// One is none, or its file cannot be read.
pub fn named(texts: &[String]) -> Result<Vec<(PolicyName, Subject)>, PlayError> {
    let load = |text: &String| {
        let spec: PolicySpec = text.parse()?;
        let subject = Subject::load(&spec)?;
        Ok((PolicyName::from(spec), subject))
    };
    texts.iter().map(load).collect()
}

/// Plays every candidate in every world of `worlds` with every seed: `[candidates, worlds, seeds]`. `None` once `stop` is set.
///
/// # Errors
/// A candidate cannot be played, or a run has no result: the first in that order.
pub fn play(
    grounds: &Grounds,
    candidates: Candidates<'_>,
    worlds: &[usize],
    seeds: &[u64],
    stop: &AtomicBool,
) -> Result<Option<Vec<Played>>, PlayError> {
    there(grounds, worlds)?;
    candidates.check(grounds, worlds)?;
    let draws: Vec<(usize, u64)> =
        worlds.iter().flat_map(|&world| seeds.iter().map(move |&seed| (world, seed))).collect();
    // Of each draw, what came of each candidate.
    let mut by_draw: Vec<Played> = Vec::with_capacity(draws.len() * candidates.len());
    for some in draws.chunks(DRAWS_AT_A_TIME) {
        let drawn: Vec<Result<Option<Start>, PlayError>> =
            some.par_iter().map(|&(world, seed)| unless_stopped(stop, || grounds.draw(world, seed))).collect();
        let Some(starts) = drawn.into_iter().collect::<Result<Option<Vec<Start>>, PlayError>>()? else {
            return Ok(None);
        };
        let runs = some.len() * candidates.len();
        let played: Vec<Result<Option<Played>, PlayError>> = (0..runs)
            .into_par_iter()
            .map(|run| {
                let (draw, candidate) = (run / candidates.len(), run % candidates.len());
                one(grounds, candidates, candidate, (some[draw], &starts[draw]), stop)
            })
            .collect();
        for played in played {
            let Some(played) = played? else { return Ok(None) };
            by_draw.push(played);
        }
    }
    let order = (0..candidates.len()).flat_map(|one| (0..draws.len()).map(move |draw| (draw, one)));
    Ok(Some(order.map(|(draw, one)| by_draw[draw * candidates.len() + one]).collect()))
}

fn there(grounds: &Grounds, worlds: &[usize]) -> Result<(), PlayError> {
    let known = grounds.names().len();
    worlds.iter().find(|world| **world >= known).map_or(Ok(()), |world| {
        Err(PlayError::World(format!("there is no world {world}: there are {known}, counted from 0")))
    })
}

fn unless_stopped<T>(stop: &AtomicBool, make: impl FnOnce() -> Result<T, PlayError>) -> Result<Option<T>, PlayError> {
    if stop.load(Ordering::Relaxed) { Ok(None) } else { make().map(Some) }
}

fn one(
    grounds: &Grounds,
    candidates: Candidates<'_>,
    candidate: usize,
    ((world, seed), start): ((usize, u64), &Start),
    stop: &AtomicBool,
) -> Result<Option<Played>, PlayError> {
    let played =
        candidates.with(candidate, grounds, |controller| run::run(start, controller, grounds.interval(), None, stop));
    let Some(played) = played else {
        return Err(PlayError::Candidate(format!("{}: none", candidates.name(candidate))));
    };
    played.map(|played| played.map(|(_, played)| played)).map_err(|source| PlayError::Run {
        candidate: candidates.name(candidate),
        world: grounds.names()[world].clone(),
        seed,
        source: Box::new(source),
    })
}

/// What the coordinates of a search of `experiment` stand for: with its prior, looked for where it says so, and the moments of the
/// features, exactly as training by search starts. `None` once `stop` is set.
///
/// # Errors
/// The experiment cannot be played.
pub fn search_space(
    experiment: &Experiment,
    world: &World,
    listener: &dyn Listener,
    stop: &AtomicBool,
) -> Result<Option<LinearSpace>, TrainError> {
    let Some(experiment) = train::with_prior(experiment.clone(), world, listener, stop)? else { return Ok(None) };
    let arena = Box::new(ServingArena::new(&experiment.env_config(world)?)?);
    let (config, ppo) = (experiment.cross_entropy.clone(), &experiment.ppo);
    let search = CrossEntropy::new(config, ppo.prior.clone(), &ppo.blind, experiment.profile(), arena)?;
    Ok(Some(search.space()))
}

/// Writes the policy of a point as a checkpoint at `out`, which says that `made_by` found it for `experiment` on so many decisions; a
/// fallback for its tables is looked for where the experiment has none. Whether it was, and not stopped before.
///
/// # Errors
/// The point is none, the experiment cannot be played, or the checkpoint cannot be written.
pub fn save(
    out: &Path,
    (policies, point): (&LinearPolicies, &[f64]),
    (experiment, world): (&Experiment, &World),
    (made_by, decisions): (&str, u64),
    (listener, stop): (&dyn Listener, &AtomicBool),
) -> Result<bool, SaveError> {
    if let Some(at) = point.iter().position(|value| !(*value as f32).is_finite()) {
        return Err(PlayError::Candidate(format!("coordinate {at} is {}", point[at])).into());
    }
    let weights = policies.weights(point).ok_or_else(|| {
        let (found, dimension) = (point.len(), policies.start().len());
        PlayError::Candidate(format!("a point of {found} coordinates where there are {dimension}"))
    })?;
    let Some(experiment) = train::with_fallback(experiment.clone(), world, listener, stop)? else { return Ok(false) };
    let origin = Origin { framework: made_by.to_owned(), file: None, blake3: None, activation: Activation::default() };
    let (moments, seed) = (Some(policies.moments().clone()), experiment.seed());
    let policy = ImportedPolicy { origin, weights, moments, decisions, seed };
    let provenance =
        train::provenance(&Experiment { profile: policies.profile().name().to_owned(), ..experiment }, world)?;
    checkpoint::save_imported(out, &policy, &provenance).map_err(TrainError::from)?;
    Ok(true)
}

/// Why a point was not saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// It is no point.
    #[error(transparent)]
    Play(#[from] PlayError),
    /// The experiment cannot be played, or the checkpoint not be written.
    #[error(transparent)]
    Train(#[from] TrainError),
}
