//! Training: an experiment becomes a folder with checkpoints, logs and the policy that is shipped.
//!
//! [`Run`] is the door. It looks for where learning starts (`prior.rs`, `start.rs`), and lets one of two learn, proximal policy
//! optimisation (`ppo.rs`) or a cross-entropy search (`search.rs`), under one driver (`driver.rs`): what is learned is
//! recorded, judged now and then by the table it becomes, the best of it kept (`checkpointer.rs`) with where it comes from
//! (`provenance.rs`), held against the best constant on the same traffic (`best_train.rs`), spread over other processes if there are any (`spread.rs`), and saved so that an interrupted run goes on as if it never had been.

mod best_train;
mod checkpointer;
mod driver;
mod error;
mod extend;
mod ppo;
mod prior;
mod provenance;
mod search;
mod spread;
mod start;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use kvtide_envs::files::Lock;
use kvtide_runtime::Controls;

pub use best_train::{BestTrain, best_train};
pub use error::TrainError;
pub use extend::Extension;
pub(crate) use prior::{with_fallback, with_prior};
pub(crate) use provenance::provenance;
pub use provenance::{experiment_of, resumed, resumed_to, same_traffic};
pub use spread::{SearchWork, Slice, Spread};

use crate::agent::{RunOutcome, Tensors};
use crate::checkpoint;
use crate::evaluate::Watch;
use crate::experiment::{Experiment, Method};
use crate::world::World;

/// Where a run's checkpoint is.
pub fn checkpoint_of(out: &Path) -> PathBuf {
    out.join("checkpoint")
}

/// Where a run leaves what is needed to decide, and no more: what is shipped.
pub fn policy_of(out: &Path) -> PathBuf {
    out.join("policy")
}

/// Who is told how a run comes along.
pub trait Listener {
    /// Many episodes are about to be played: who watches them, until it is dropped.
    fn watch(&self) -> Box<dyn Watch + '_>;

    /// Something was found that was looked for.
    fn found(&self, found: BestConstant);
}

/// What is looked for before learning starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BestConstant {
    /// The best constant choice on the traffic that is trained on: where learning starts.
    Prior(Controls),
    /// The best constant watermark there: what a table that cannot be trusted falls back to.
    Fallback(f64),
}

/// A training run: where it plays, what it leaves where, and who may end it.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// The first of the experiment's worlds.
    pub world: &'a World,
    /// The folder it leaves everything in: `checkpoint/`, `policy/`, `train.jsonl`, `tensorboard/`.
    pub out: &'a Path,
    /// Iterations between checkpoints.
    pub checkpoint_every: u64,
    /// What PPO multiplies with; a search needs nothing of the kind.
    pub tensors: Option<&'static dyn Tensors>,
    /// Who is told.
    pub listener: &'a dyn Listener,
    /// Who plays a search's candidates in this process's place, if anybody does.
    pub spread: Option<Spread<'a>>,
    /// Ends it once set; what is finished is kept.
    pub stop: &'a AtomicBool,
}

impl Run<'_> {
    /// Trains `experiment` from its start, with a prior and a fallback looked for where it has none. `None` if it was stopped
    /// before learning started: then nothing is left.
    ///
    /// # Errors
    /// Why the run cannot start or go on; a checkpoint of what was learned before is left where there is something to keep.
    pub fn start(&self, experiment: Experiment) -> Result<Option<RunOutcome>, TrainError> {
        let _lock = Lock::of_folder(self.out)?;
        let Some(experiment) = prior::resolve(experiment, self.world, self.listener, self.stop)? else {
            return Ok(None);
        };
        match start::resolve(&experiment, self.world, self.listener, self.stop)? {
            start::Found::Start(start) => self.learn(&experiment, None, start, None).map(Some),
            start::Found::Interrupted => Ok(None),
        }
    }

    /// Goes on from the checkpoint in its folder, as if it had never been interrupted; `experiment` is the one
    /// [`resumed`] gives. Where that is longer than was planned, see [`Extension`].
    ///
    /// # Errors
    /// As [`start`](Self::start), and [`TrainError::OtherTraffic`].
    pub fn resume(&self, experiment: &Experiment) -> Result<RunOutcome, TrainError> {
        let _lock = Lock::of_folder(self.out)?;
        let checkpoint = checkpoint_of(self.out);
        same_traffic(self.world, &checkpoint)?;
        let before = checkpoint::inspect(&checkpoint)?.metadata.remove(extend::EXTENDED);
        let extended = match Extension::of(&checkpoint, experiment)? {
            Some(extension) => extension.said(before.as_ref()),
            None => before,
        };
        self.learn(experiment, Some(&checkpoint), None, extended)
    }

    /// Whoever the experiment asks for learns, from the beginning or from `checkpoint` on.
    fn learn(
        &self,
        experiment: &Experiment,
        checkpoint: Option<&Path>,
        start: Option<start::Start>,
        extended: Option<String>,
    ) -> Result<RunOutcome, TrainError> {
        experiment.validate()?;
        let resumed = driver::Resumed { is_resumed: checkpoint.is_some(), extended };
        match experiment.method {
            Method::Ppo => {
                let tensors = self.tensors.ok_or(TrainError::NoTensors)?;
                let learner = ppo::learner(experiment, self.world, (checkpoint, start), tensors)?;
                driver::drive(learner, experiment, self, resumed)
            }
            Method::CrossEntropy => {
                driver::drive(search::learner(experiment, self, checkpoint)?, experiment, self, resumed)
            }
        }
    }
}
