//! From a checkpoint to a table: taught, cut to the size that serves best, judged beside its teacher, written.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvtide_envs::env::{EnvConfig, EnvError, ServingArena};
use kvtide_envs::seed;
use kvtide_runtime::Table;
use thiserror::Error;

use super::{
    ChooseError, Chosen, ExportError, Frontier, TableProvenance, add_margin, choose, deploy, encode, rust_source, save,
};
use crate::agent::Validator;
use crate::checkpoint::{self, CheckpointError};
use crate::distil::{self, Baseline, DistilConfig, DistilError, Fidelity, Loss, Student};
use crate::experiment::{Experiment, ExperimentError};
use crate::world::World;

/// Why there is no table.
#[derive(Debug, Error)]
pub enum MakeError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its experiment has no traffic to teach or judge on.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// There is nowhere to play.
    #[error(transparent)]
    Arena(#[from] EnvError),
    /// It cannot be distilled, or judged.
    #[error(transparent)]
    Distil(#[from] DistilError),
    /// No size can be chosen.
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// The table cannot be written.
    #[error(transparent)]
    Export(#[from] ExportError),
}

/// A table to be made of a checkpoint.
#[derive(Clone, Copy)]
pub struct ExportJob<'a> {
    /// The checkpoint, which teaches.
    pub checkpoint: &'a Path,
    /// What it was trained by.
    pub experiment: &'a Experiment,
    /// The first of the experiment's worlds.
    pub world: &'a World,
    /// Settings.
    pub config: &'a DistilConfig,
    /// Ends the work once set; nothing is then written.
    pub stop: &'a AtomicBool,
}

/// A student of a checkpoint, and where it comes from.
#[derive(Debug, Clone)]
pub struct DistilledStudent {
    /// The student, of the largest size.
    pub student: Student,
    /// Where it comes from.
    pub provenance: TableProvenance,
}

/// Where a table is judged beside its teacher.
#[derive(Debug, Clone)]
pub struct Trial {
    env: Arc<EnvConfig>,
    /// What nobody has seen, or what was validated on.
    is_unseen: bool,
    episodes: usize,
    seed: u64,
}

/// What a table lost there.
pub struct TableLoss {
    /// Of the table, behind its guard.
    pub loss: Loss,
    /// Of one tree a head.
    pub per_head: Loss,
    /// Of every size, if that was asked for.
    pub frontier: Option<Frontier>,
}

impl ExportJob<'_> {
    /// Where the table will be judged, on so many episodes: traffic that neither learning nor choosing has seen, where there
    /// is any. To be asked before the work.
    ///
    /// # Errors
    /// There is nothing to judge on.
    pub fn trial(&self, episodes: usize) -> Result<Trial, MakeError> {
        let (env, is_unseen) = self.experiment.unseen_config(self.world)?;
        Ok(Trial { env, is_unseen, episodes, seed: seed::derive(self.config.seed, "export", 0) })
    }

    /// The checkpoint as a tree, and where that comes from; `tell` hears of every iteration. `None` if stopped.
    ///
    /// # Errors
    /// The checkpoint cannot be read or distilled.
    pub fn taught(&self, tell: &mut dyn FnMut(distil::DaggerReport)) -> Result<Option<DistilledStudent>, MakeError> {
        let manifest = checkpoint::inspect(self.checkpoint)?;
        let teacher = checkpoint::load_policy(self.checkpoint)?;
        let env_config = self.experiment.env_config(self.world)?;
        let distilled = distil::distil(&teacher, &env_config, self.config, tell, self.stop);
        let Some(student) = unless_stopped(distilled)? else { return Ok(None) };
        let weights = manifest.files.get("weights.safetensors").map(|file| file.blake3.clone());
        let teacher = manifest.taught_by();
        let provenance = TableProvenance {
            experiment: self.experiment.name.clone(),
            commit: manifest.commit.unwrap_or_else(|| "unknown".to_owned()),
            seed: manifest.seed,
            checkpoint: weights.unwrap_or_default(),
            teacher,
            training: manifest.metadata,
        };
        Ok(Some(DistilledStudent { student, provenance }))
    }

    /// The size that does best on the traffic that training validated on, with the margin of that traffic; without validation
    /// the largest, as it was taught. `None` if stopped.
    ///
    /// # Errors
    /// A table cannot be encoded, or an episode cannot be played.
    pub fn chosen(&self, taught: &DistilledStudent) -> Result<Option<Chosen>, MakeError> {
        let ExportJob { experiment, world, config, stop, .. } = *self;
        let (mut student, engine) = (taught.student.clone(), world.node.engine.default_controls());
        let (Some(validation), Some(judged)) = (experiment.validation, experiment.validation_config(world)?) else {
            let deployed = deploy(&student, &taught.provenance, engine)?;
            return Ok(Some(Chosen { student, deployed, attainment: 1.0, worst_loss: 0.0 }));
        };
        if unless_stopped(add_margin(&mut student, &judged, config.seed, stop))?.is_none() {
            return Ok(None);
        }
        let validator = Validator::new(Box::new(ServingArena::new(&judged)?), validation.episodes, experiment.seed());
        Ok(choose(&student, &taught.provenance, engine, &validator, stop)?)
    }

    /// What the chosen table loses against its teacher in `trial`, and with `every_size` what each size does. `None` if stopped.
    ///
    /// # Errors
    /// An episode cannot be played, or there is nothing to judge on.
    pub fn judged(
        &self,
        taught: &DistilledStudent,
        chosen: &Chosen,
        trial: &Trial,
        every_size: bool,
    ) -> Result<Option<TableLoss>, MakeError> {
        let validator = Validator::new(Box::new(ServingArena::new(&trial.env)?), trial.episodes, trial.seed);
        let teacher = checkpoint::load_policy(self.checkpoint)?;
        let judge = || -> Result<TableLoss, DistilError> {
            let reference = Baseline::of(&teacher, &validator, self.stop)?;
            let loss = reference.loss(&chosen.deployed)?;
            let per_head = reference.loss(&chosen.student.per_head.0)?;
            let frontier = every_size.then(|| Frontier::of(&taught.student, &reference)).transpose()?;
            Ok(TableLoss { loss, per_head, frontier })
        };
        unless_stopped(judge())
    }

    /// Teaches, chooses and writes the table to `out`, unjudged. `None` if stopped.
    ///
    /// # Errors
    /// Those of every step.
    pub fn written(
        &self,
        out: &Path,
        tell: &mut dyn FnMut(distil::DaggerReport),
    ) -> Result<Option<(Chosen, TableSummary)>, MakeError> {
        let Some(taught) = self.taught(tell)? else { return Ok(None) };
        let Some(chosen) = self.chosen(&taught)? else { return Ok(None) };
        let bytes = write(&chosen.student, &taught.provenance, out, None)?;
        let summary = TableSummary::of(&chosen.student, &bytes);
        Ok(Some((chosen, summary)))
    }

    /// What was chosen by, in words; `None` where nothing was validated and the largest is taken.
    pub fn choice(&self, chosen: &Chosen) -> Option<String> {
        self.experiment.validation.map(|_| {
            format!(
                "of its sizes the one with {} leaves does best on validation traffic: {:.1} %, at most {:.1} points below \
                 its fallback in any world",
                chosen.student.tree.leaves(),
                chosen.attainment * 100.0,
                chosen.worst_loss * 100.0
            )
        })
    }
}

impl Trial {
    /// What kind of traffic it is, in a word.
    pub fn traffic(&self) -> &'static str {
        if self.is_unseen { "unseen" } else { "validation" }
    }
}

/// `None` where somebody asked it to stop.
fn unless_stopped<T>(result: Result<T, DistilError>) -> Result<Option<T>, MakeError> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(DistilError::Stopped) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes the table, and its Rust source where that is asked for; returns the table's bytes.
///
/// # Errors
/// It cannot be encoded or written.
pub fn write(
    student: &Student,
    provenance: &TableProvenance,
    out: &Path,
    rust: Option<&Path>,
) -> Result<Vec<u8>, ExportError> {
    let bytes = encode(student, provenance)?;
    save(out, &bytes)?;
    if let Some(rust) = rust {
        let source = rust_source(&bytes).expect("what was encoded for this build can be read by it");
        save(rust, source.as_bytes())?;
    }
    Ok(bytes)
}

/// A table in a line: how large it is, what it was made from, and how far it agrees with its teacher.
#[derive(Debug, Clone, PartialEq)]
pub struct TableSummary {
    bytes: usize,
    leaves: usize,
    depth: usize,
    samples: usize,
    fidelity: Fidelity,
}

impl TableSummary {
    /// Of a student and its file.
    pub fn of(student: &Student, bytes: &[u8]) -> TableSummary {
        let table = Table::parse(bytes).expect("what was encoded for this build can be read by it");
        TableSummary {
            bytes: bytes.len(),
            leaves: student.tree.leaves(),
            depth: table.depth().into(),
            samples: student.samples,
            fidelity: student.fidelity.clone(),
        }
    }
}

impl fmt::Display for TableSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes, {} leaves, at most {} comparisons, from {} samples; on {} others the student drove it agrees \
             with its teacher in {:.1} %:",
            self.bytes,
            self.leaves,
            self.depth,
            self.samples,
            self.fidelity.samples,
            self.fidelity.joint * 100.0
        )?;
        for head in &self.fidelity.heads {
            write!(f, " {} {:.1} % ({:.1} % by regret)", head.head, head.by_visits * 100.0, head.by_regret * 100.0)?;
        }
        Ok(())
    }
}
