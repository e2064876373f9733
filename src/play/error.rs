//! Why candidates cannot be played.

use kvtide_envs::deploy::ConfigError;
use kvtide_envs::env::{EnvError, RunError};
use kvtide_envs::sched::PromptLimitError;
use kvtide_envs::workload::WorkloadError;
use thiserror::Error;

use crate::agent::AgentError;
use crate::evaluate::TrainedOnError;
use crate::policy::SpecError;

/// Why candidates cannot be played.
#[derive(Debug, Error)]
pub enum PlayError {
    /// There is nowhere to play, or an episode cannot be drawn.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The traffic cannot be cut or drawn.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The engine's settings.
    #[error(transparent)]
    Engine(#[from] ConfigError),
    /// A policy cannot be read, or the host would refuse it.
    #[error(transparent)]
    Policy(#[from] SpecError),
    /// It cannot be said what a policy was trained on, or it was made for another engine.
    #[error(transparent)]
    TrainedOn(#[from] TrainedOnError),
    /// A space of policies that contradicts itself.
    #[error(transparent)]
    Space(#[from] AgentError),
    /// The engine cannot limit prompts.
    #[error(transparent)]
    PromptLimit(#[from] PromptLimitError),
    /// A run has no result.
    #[error("{candidate}, {world}, seed {seed}: {source}")]
    Run {
        /// Who played.
        candidate: String,
        /// Where.
        world: String,
        /// Which draw.
        seed: u64,
        /// What came in the way.
        source: Box<RunError>,
    },
    /// A candidate that is none.
    #[error("{0}")]
    Candidate(String),
    /// Nowhere to play, or no world of that number.
    #[error("{0}")]
    World(String),
}
