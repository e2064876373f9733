//! Which policy a training run leaves to be shipped.

use std::path::PathBuf;

use kvtide_envs::env::ServingArena;
use serde::Serialize;

use super::train::TrainError;
use crate::agent::{NetworkPolicy, Trainer, TrainerState, Validator};
use crate::checkpoint::{self, Provenance};
use crate::experiment::Experiment;
use crate::world::World;

/// The best policy so far, in a folder of its own.
pub(super) struct Keeper {
    folder: PathBuf,
    /// `None` where the last is the one to keep.
    judge: Option<Judge>,
}

struct Judge {
    validator: Validator,
    every: u64,
    best: f64,
}

/// What a judgement found: a `validation` line of `train.jsonl`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Judgement {
    /// Iterations done.
    pub(super) iteration: u64,
    /// Share of requests that missed no target.
    pub(super) attainment: f64,
    /// The best so far, this one included.
    pub(super) best: f64,
}

impl Keeper {
    /// Of a run of `experiment` that leaves its policy in `folder`, where an interrupted run may have left one.
    pub(super) fn new(experiment: &Experiment, world: &World, folder: PathBuf) -> Result<Keeper, TrainError> {
        let judge = match (experiment.validation, experiment.validation_config(world)?) {
            (Some(validation), Some(config)) => {
                let arena = Box::new(ServingArena::new(&config)?);
                let validator = Validator::new(arena, validation.episodes, experiment.ppo.seed);
                let best = if folder.exists() {
                    validator.attainment(&checkpoint::load_policy(&folder)?)?
                } else {
                    f64::NEG_INFINITY
                };
                Some(Judge { validator, every: validation.every, best })
            }
            _ => None,
        };
        Ok(Keeper { folder, judge })
    }

    /// Looks at the policy of `trainer` if it is time to, and keeps it if it is the best so far.
    pub(super) fn look(&mut self, trainer: &Trainer, provenance: &Provenance) -> Result<Option<Judgement>, TrainError> {
        let (iteration, finished) = (trainer.iteration(), trainer.is_finished());
        let Some(judge) = &mut self.judge else {
            if finished {
                checkpoint::save_policy(&self.folder, &trainer.state(), provenance)?;
            }
            return Ok(None);
        };
        if !finished && !iteration.is_multiple_of(judge.every) {
            return Ok(None);
        }
        let state = trainer.state();
        let attainment = judge.validator.attainment(&policy(&state, provenance)?)?;
        if attainment > judge.best {
            judge.best = attainment;
            let mut provenance = provenance.clone();
            provenance.metadata.insert("validation_attainment".to_owned(), format!("{attainment:.6}"));
            checkpoint::save_policy(&self.folder, &state, &provenance)?;
        }
        Ok(Some(Judgement { iteration, attainment, best: judge.best }))
    }
}

fn policy(state: &TrainerState, provenance: &Provenance) -> Result<NetworkPolicy, TrainError> {
    Ok(NetworkPolicy::new(&state.weights, state.normalisers.observation.as_ref(), provenance.profile)?)
}
