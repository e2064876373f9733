//! Which policy a training run leaves to be shipped.

use std::path::{Path, PathBuf};

use kvtide_envs::env::ServingArena;
use kvtide_runtime::ActionProfile;
use serde::Serialize;

use super::train::TrainError;
use crate::agent::{AgentError, CrossEntropy, NetworkPolicy, Trainer, Validator};
use crate::checkpoint::{self, CheckpointError, Provenance};
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
    /// Iterations, or generations, done.
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
                let validator = Validator::new(arena, validation.episodes, experiment.seed());
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

    /// Looks at what is `learned` if it is time to, and keeps it if it is the best so far.
    pub(super) fn look(
        &mut self,
        learned: &impl Learned,
        provenance: &Provenance,
    ) -> Result<Option<Judgement>, TrainError> {
        let (iteration, finished) = (learned.iteration(), learned.is_finished());
        let Some(judge) = &mut self.judge else {
            if finished {
                learned.save(&self.folder, provenance)?;
            }
            return Ok(None);
        };
        if !finished && !iteration.is_multiple_of(judge.every) {
            return Ok(None);
        }
        let attainment = judge.validator.attainment(&learned.policy(provenance.profile)?)?;
        if attainment > judge.best {
            judge.best = attainment;
            let mut provenance = provenance.clone();
            provenance.metadata.insert("validation_attainment".to_owned(), format!("{attainment:.6}"));
            learned.save(&self.folder, &provenance)?;
        }
        Ok(Some(Judgement { iteration, attainment, best: judge.best }))
    }
}

/// What a run, by whichever method, has come to.
pub(super) trait Learned {
    /// Iterations, or generations, done.
    fn iteration(&self) -> u64;
    /// Whether they are all done.
    fn is_finished(&self) -> bool;
    /// What it would decide with.
    fn policy(&self, profile: ActionProfile) -> Result<NetworkPolicy, AgentError>;
    /// Leaves that in a folder.
    fn save(&self, folder: &Path, provenance: &Provenance) -> Result<(), CheckpointError>;
}

impl Learned for Trainer {
    fn iteration(&self) -> u64 {
        Trainer::iteration(self)
    }

    fn is_finished(&self) -> bool {
        Trainer::is_finished(self)
    }

    fn policy(&self, profile: ActionProfile) -> Result<NetworkPolicy, AgentError> {
        let state = self.state();
        NetworkPolicy::new(&state.weights, state.normalisers.observation.as_ref(), profile)
    }

    fn save(&self, folder: &Path, provenance: &Provenance) -> Result<(), CheckpointError> {
        checkpoint::save_policy(folder, &self.state(), provenance)
    }
}

impl Learned for CrossEntropy {
    fn iteration(&self) -> u64 {
        self.state().progress.generation
    }

    fn is_finished(&self) -> bool {
        CrossEntropy::is_finished(self)
    }

    fn policy(&self, profile: ActionProfile) -> Result<NetworkPolicy, AgentError> {
        self.state().policy(profile)
    }

    fn save(&self, folder: &Path, provenance: &Provenance) -> Result<(), CheckpointError> {
        checkpoint::save_search_policy(folder, self.state(), provenance)
    }
}
