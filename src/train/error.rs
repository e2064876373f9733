//! Why a training run cannot start or go on.

use std::io;
use std::path::PathBuf;

use kvtide_envs::env::EnvError;
use kvtide_envs::files::LockError;
use kvtide_envs::workload::WorkloadError;
use thiserror::Error;

use super::extend::Extension;
use crate::agent::AgentError;
use crate::checkpoint::CheckpointError;
use crate::crew::CrewError;
use crate::distil::DistilError;
use crate::experiment::ExperimentError;
use crate::export::ChooseError;
use crate::policy::SpecError;

/// Why a training run cannot start or go on.
#[derive(Debug, Error)]
pub enum TrainError {
    /// Whoever learns cannot go on.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A search cannot be spread over others.
    #[error(transparent)]
    Spread(#[from] CrewError),
    /// Training by PPO, without a library to multiply with.
    #[error("training by PPO needs a tensor library, which this program was built without")]
    NoTensors,
    /// Another run writes there, or nobody can.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// A log cannot be written in the middle of a run.
    #[error(transparent)]
    Log(#[from] io::Error),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The experiment cannot be run.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// The traffic has no length.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// There is nowhere to play.
    #[error(transparent)]
    Arena(#[from] EnvError),
    /// A policy on validation cannot be made a table.
    #[error(transparent)]
    Distil(#[from] DistilError),
    /// No table can be chosen on validation.
    #[error(transparent)]
    Table(#[from] ChooseError),
    /// A checkpoint whose experiment is none.
    #[error("{}: its experiment: {reason}", folder.display())]
    Unreadable {
        /// The checkpoint.
        folder: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The checkpoint to go on from is of another experiment than the one given.
    #[error(
        "{} was trained with another experiment: {key} = {saved}, given is {given}; leave --experiment out{}",
        folder.display(), longer(key)
    )]
    OtherExperiment {
        /// The checkpoint.
        folder: PathBuf,
        /// What differs.
        key: String,
        /// In the checkpoint.
        saved: String,
        /// In the file.
        given: String,
    },
    /// The checkpoint is of other traffic than what is there now.
    #[error("{} was trained on other traffic than {trace}", folder.display())]
    OtherTraffic {
        /// The checkpoint.
        folder: PathBuf,
        /// What is there now.
        trace: String,
    },
    /// The state in a checkpoint cannot be gone on from here.
    #[error("{}", folder.display())]
    Resume {
        /// The checkpoint.
        folder: PathBuf,
        /// What it is not fit for.
        source: AgentError,
    },
    /// The run has come further than it is to go.
    #[error("{} {}", folder.display(), extension.shorter())]
    Shorter {
        /// The checkpoint.
        folder: PathBuf,
        /// What was planned, asked for and done.
        extension: Extension,
    },
    /// The folder of the run cannot be made.
    #[error("cannot create {}", folder.display())]
    Folder {
        /// The run's folder.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The logs cannot be begun.
    #[error("cannot write logs into {}", folder.display())]
    Logs {
        /// The folder of the run.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A run under way ended.
    #[error("{doing} into {}", folder.display())]
    Run {
        /// `training` or `searching`.
        doing: &'static str,
        /// The folder of the run.
        folder: PathBuf,
        /// By what.
        source: Box<TrainError>,
    },
    /// A start that is no linear policy.
    #[error("start: {}: its network has hidden layers; a start is the checkpoint of a search", folder.display())]
    NotLinear {
        /// The checkpoint.
        folder: PathBuf,
    },
    /// A start that decides other heads.
    #[error("start: {} decides the heads of profile {found}, the experiment those of {wanted}", folder.display())]
    OtherProfile {
        /// The checkpoint.
        folder: PathBuf,
        /// Its profile.
        found: &'static str,
        /// The experiment's.
        wanted: &'static str,
    },
    /// Two answers to where learning starts.
    #[error("prior and ppo.prior are both given; only one can be meant")]
    TwoPriors,
    /// The prior is no policy.
    #[error("prior")]
    Prior(#[source] SpecError),
    /// The prior is a policy, but no constant one.
    #[error("prior {0:?}: expected search or a fixed: policy")]
    NotConstant(String),
    /// A number of the prior lies between the levels an agent has, so no choice of it can be favoured.
    #[error("prior: {head} {setting} is none of {levels:?}")]
    Level {
        /// Whose number.
        head: &'static str,
        /// What it is.
        setting: String,
        /// What it could be.
        levels: &'static [f64],
    },
}

/// What to do about a length that differs.
fn longer(key: &str) -> &'static str {
    match key {
        "ppo.total_decisions" => ", and say with --decisions how long the run is to be",
        "cross_entropy.generations" => ", and say with --generations how long the run is to be",
        _ => "",
    }
}
