//! Which policy a training run leaves to be shipped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvtide_envs::env::{EnvConfig, ServingArena};
use kvtide_runtime::{ActionProfile, Controls};
use serde::Serialize;

use super::train::TrainError;
use crate::agent::{AgentError, CrossEntropy, NetworkPolicy, Trainer, Validator};
use crate::checkpoint::{self, CheckpointError, Provenance};
use crate::distil::{self, DistilConfig};
use crate::experiment::Experiment;
use crate::export;
use crate::world::World;

/// The best policy so far, in a folder of its own.
pub(super) struct Keeper {
    folder: PathBuf,
    /// `None` where the last is the one to keep.
    judge: Option<Judge>,
}

/// Judges by the table a policy becomes, behind its guard: that is what ships.
struct Judge {
    /// Where tables are taught, and where they are judged.
    taught: Arc<EnvConfig>,
    judged: Arc<EnvConfig>,
    validator: Validator,
    engine: Controls,
    every: u64,
    best: f64,
}

/// What a judgement found: a `validation` line of `train.jsonl`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Judgement {
    /// Iterations, or generations, done.
    pub(super) iteration: u64,
    /// Share of requests that missed no target under the table, by which policies are kept.
    pub(super) attainment: f64,
    /// The same under the network it was made from.
    pub(super) network: f64,
    /// Leaves of the table.
    pub(super) leaves: usize,
    /// The best table so far, this one included.
    pub(super) best: f64,
}

impl Keeper {
    /// Of a run of `experiment` that leaves its policy in `folder`, where an interrupted run may have left one.
    pub(super) fn new(experiment: &Experiment, world: &World, folder: PathBuf) -> Result<Keeper, TrainError> {
        let judge = match (experiment.validation, experiment.validation_config(world)?) {
            (Some(validation), Some(judged)) => {
                let arena = Box::new(ServingArena::new(&judged)?);
                let validator = Validator::new(arena, validation.episodes, experiment.seed());
                let engine = world.node.engine.default_controls();
                let taught = experiment.modelled_config(world)?;
                Some(Judge { taught, judged, validator, engine, every: validation.every, best: best_of(&folder)? })
            }
            _ => None,
        };
        Ok(Keeper { folder, judge })
    }

    /// Looks at what is `learned` if it is time to, and keeps it if its table is the best so far.
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
        let policy = learned.policy(provenance.profile)?;
        let (attainment, leaves) = judge.table(&policy, provenance)?;
        let network = judge.validator.attainment(&policy)?;
        if attainment > judge.best {
            judge.best = attainment;
            let mut provenance = provenance.clone();
            provenance.metadata.insert(VALIDATION.to_owned(), format!("{attainment:.6}"));
            provenance.metadata.insert("validation_network".to_owned(), format!("{network:.6}"));
            learned.save(&self.folder, &provenance)?;
        }
        Ok(Some(Judgement { iteration, attainment, network, leaves, best: judge.best }))
    }
}

impl Judge {
    /// What the table of `policy` attains, made as `kvtide export` makes it, and its leaves. Not to be interrupted: a run that
    /// is resumed would not make it up.
    fn table(&self, policy: &NetworkPolicy, provenance: &Provenance) -> Result<(f64, usize), TrainError> {
        let (stop, config) = (AtomicBool::new(false), DistilConfig::default());
        let mut student = distil::distil(policy, &self.taught, &config, &mut |_| {}, &stop)?;
        export::add_margin(&mut student, &self.judged, config.seed, &stop)?;
        let provenance = export::Provenance { training: provenance.metadata.clone(), ..export::Provenance::default() };
        let chosen = export::choose(&student, &provenance, self.engine, &self.validator, &stop)?;
        Ok(chosen.map_or((0.0, 0), |chosen| (chosen.attainment, chosen.student.tree.leaves())))
    }
}

/// What the table of the policy kept in `folder` attained, if there is one.
fn best_of(folder: &Path) -> Result<f64, TrainError> {
    if !folder.exists() {
        return Ok(f64::NEG_INFINITY);
    }
    let kept = checkpoint::inspect(folder)?.metadata.get(VALIDATION).and_then(|text| text.parse().ok());
    Ok(kept.unwrap_or(f64::NEG_INFINITY))
}

/// The metadata that says what the table of a policy attained on validation traffic, to six digits.
const VALIDATION: &str = "validation_attainment";

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
