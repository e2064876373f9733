//! Where PPO's network starts: the linear policy that it learns to correct.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use kvtide_envs::env::ServingArena;

use super::{Listener, TrainError};
use crate::agent::normalise::Moments;
use crate::agent::{CrossEntropy, LinearStart};
use crate::checkpoint;
use crate::experiment::{Experiment, Method, START_SEARCH};
use crate::world::World;

/// A policy to start from, and what its observations are standardised by.
pub(super) type Start = (LinearStart, Moments);

/// What was found to start from.
pub(super) enum Found {
    /// This; nothing where none is asked for.
    Start(Option<Start>),
    /// Nothing yet: somebody asked to stop.
    Interrupted,
}

/// What `experiment`, whose prior is known, starts from: what a search of its own finds, or a checkpoint; nothing if it does not
/// ask for any.
pub(super) fn resolve(
    experiment: &Experiment,
    world: &World,
    listener: &dyn Listener,
    stop: &AtomicBool,
) -> Result<Found, TrainError> {
    match &experiment.start {
        Some(start) if experiment.method == Method::Ppo && start == START_SEARCH => {
            let found = searched(experiment, world, listener, stop)?;
            Ok(found.map_or(Found::Interrupted, |start| Found::Start(Some(start))))
        }
        Some(folder) if experiment.method == Method::Ppo => {
            let folder = Path::new(folder);
            let manifest = checkpoint::inspect(folder)?;
            let (found, wanted) = (manifest.profile()?.name(), experiment.profile().name());
            if found != wanted {
                return Err(TrainError::OtherProfile { folder: folder.to_owned(), found, wanted });
            }
            let start = checkpoint::load_start(folder)?;
            start
                .map(|start| Found::Start(Some(start)))
                .ok_or_else(|| TrainError::NotLinear { folder: folder.to_owned() })
        }
        _ => Ok(Found::Start(None)),
    }
}

/// The mean of the experiment's own search; `None` if interrupted.
fn searched(
    experiment: &Experiment,
    world: &World,
    listener: &dyn Listener,
    stop: &AtomicBool,
) -> Result<Option<Start>, TrainError> {
    let arena = Box::new(ServingArena::new(&experiment.env_config(world)?)?);
    let (config, ppo) = (experiment.cross_entropy.clone(), &experiment.ppo);
    let watch = listener.watch();
    watch.planned(usize::try_from(config.generations).unwrap_or(usize::MAX));
    let mut search = CrossEntropy::new(config, ppo.prior.clone(), &ppo.blind, experiment.profile(), arena)?;
    while !search.is_finished() {
        if search.advance(stop)?.is_none() {
            return Ok(None);
        }
        watch.done();
    }
    let state = search.state();
    let start = state.weights().and_then(|weights| weights.linear());
    Ok(start.map(|start| (start, state.moments.clone())))
}
