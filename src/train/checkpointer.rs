//! Which policy a training run leaves to be shipped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvtide_envs::env::{EnvConfig, ServingArena};
use kvtide_runtime::Controls;
use serde::Serialize;

use super::TrainError;
use super::driver::Learner;
use crate::agent::{NetworkPolicy, Validator};
use crate::checkpoint::{self, RunProvenance};
use crate::distil::{self, DistilConfig};
use crate::experiment::Experiment;
use crate::export;
use crate::world::World;

/// The best policy so far, in a folder of its own.
pub(super) struct Checkpointer {
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
    samples: u32,
    best: f64,
}

/// What a judgement found: a `validation` line of `train.jsonl`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Judgement {
    /// Iterations, or generations, done.
    pub(super) iteration: u64,
    /// What policies are kept by: the table's attainment, less its worst loss.
    pub(super) score: f64,
    /// The best score so far, this one included.
    pub(super) best: f64,
    /// Share of requests that missed no target under the table.
    pub(super) attainment: f64,
    /// How much less than under a constant watermark that is in the world that loses most.
    pub(super) worst_loss: f64,
    /// Share of requests that missed no target under the network the table was made from.
    pub(super) network: f64,
    /// Leaves of the table.
    pub(super) leaves: usize,
}

impl Checkpointer {
    /// Of a run of `experiment` that leaves its policy in `folder`; one that is resumed has left one there before, by whose score
    /// it goes on. What else lies there, of a run that was killed before it could be resumed, is replaced.
    pub(super) fn new(
        experiment: &Experiment,
        world: &World,
        folder: PathBuf,
        resume: bool,
    ) -> Result<Checkpointer, TrainError> {
        let judge = match (experiment.validation, experiment.validation_config(world)?) {
            (Some(validation), Some(judged)) => {
                let arena = Box::new(ServingArena::new(&judged)?);
                let validator = Validator::new(arena, validation.episodes, experiment.seed());
                let engine = world.node.engine.default_controls();
                let taught = experiment.modelled_config(world)?;
                let best = if resume { best_of(&folder)? } else { f64::NEG_INFINITY };
                let (every, samples) = (validation.every, validation.samples);
                Some(Judge { taught, judged, validator, engine, every, samples, best })
            }
            _ => None,
        };
        Ok(Checkpointer { folder, judge })
    }

    /// Looks at what is `learned` if it is time to, and keeps it if its table is the best so far.
    pub(super) fn look(
        &mut self,
        learned: &impl Learner,
        provenance: &RunProvenance,
    ) -> Result<Option<Judgement>, TrainError> {
        let (iteration, finished) = (learned.iteration(), learned.is_finished());
        let Some(judge) = &mut self.judge else {
            if finished {
                learned.save_policy(&self.folder, provenance)?;
            }
            return Ok(None);
        };
        if !finished && !iteration.is_multiple_of(judge.every) {
            return Ok(None);
        }
        let policy = learned.policy(provenance.profile)?;
        let mut judgement = judge.table(&policy, provenance, iteration)?;
        if judgement.score > judge.best {
            judge.best = judgement.score;
            let mut provenance = provenance.clone();
            let Judgement { score, attainment, worst_loss, network, .. } = judgement;
            let said = [
                ("validation_attainment", attainment),
                ("validation_worst_loss", worst_loss),
                ("validation_network", network),
            ];
            // In full: a run that is resumed compares with it.
            provenance.metadata.insert(SCORE.to_owned(), score.to_string());
            provenance.metadata.extend(said.into_iter().map(|(key, value)| (key.to_owned(), format!("{value:.6}"))));
            learned.save_policy(&self.folder, &provenance)?;
        }
        judgement.best = judge.best;
        Ok(Some(judgement))
    }
}

impl Judge {
    /// Judges the table of `policy`, made as `kvtide export` makes it. Not to be interrupted: a run that is resumed would not
    /// make it up.
    fn table(
        &self,
        policy: &NetworkPolicy,
        provenance: &RunProvenance,
        iteration: u64,
    ) -> Result<Judgement, TrainError> {
        let stop = AtomicBool::new(false);
        let config = DistilConfig { samples_per_iteration: self.samples, ..DistilConfig::default() };
        let mut student = distil::distil(policy, &self.taught, &config, &mut |_| {}, &stop)?;
        export::add_margin(&mut student, &self.judged, config.seed, &stop)?;
        let provenance =
            export::TableProvenance { training: provenance.metadata.clone(), ..export::TableProvenance::default() };
        let chosen = export::choose(&student, &provenance, self.engine, &self.validator, &stop)?;
        let chosen = chosen.expect("nobody stops it");
        Ok(Judgement {
            iteration,
            score: chosen.score(),
            best: self.best,
            attainment: chosen.attainment,
            worst_loss: chosen.worst_loss,
            network: self.validator.attainment(policy)?,
            leaves: chosen.student.tree.leaves(),
        })
    }
}

/// The score of the policy kept in `folder`, if there is one.
fn best_of(folder: &Path) -> Result<f64, TrainError> {
    if !folder.exists() {
        return Ok(f64::NEG_INFINITY);
    }
    let kept = checkpoint::inspect(folder)?.metadata.get(SCORE).and_then(|text| text.parse().ok());
    Ok(kept.unwrap_or(f64::NEG_INFINITY))
}

/// The metadata that says what a policy was kept by.
const SCORE: &str = "validation_score";
