//! What can go wrong in training.

use thiserror::Error;

use super::HyperparameterError;

/// Why training cannot start or go on. The weights are never touched by the step that failed.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum AgentError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] HyperparameterError),
    /// An environment nothing can be learned from.
    #[error(
        "environment has {num_envs} environments, observations of {observation_size} and heads {head_sizes:?}: all must be at least 1, heads at most 256"
    )]
    Shape {
        /// Number of environments.
        num_envs: usize,
        /// Length of an observation.
        observation_size: usize,
        /// Choices of each head.
        head_sizes: Vec<usize>,
    },
    /// The environment gave a number nobody can learn from.
    #[error("iteration {iteration}: {what} of environment {env} is {value}")]
    Environment {
        /// Iteration, counted from 1.
        iteration: u64,
        /// Number of the environment.
        env: usize,
        /// Which number.
        what: String,
        /// Its value.
        value: f32,
    },
    /// The environments cannot go on: a device was lost.
    #[error("iteration {iteration}: {reason}")]
    Failed {
        /// Iteration, counted from 1.
        iteration: u64,
        /// What came in the way, in words.
        reason: String,
    },
    /// A head without an allowed choice.
    #[error("iteration {iteration}: environment {env} allows no choice of head {head}")]
    EmptyMask {
        /// Iteration, counted from 1.
        iteration: u64,
        /// Number of the environment.
        env: usize,
        /// Number of the head.
        head: usize,
    },
    /// Whoever plays in this process's place does not, or not the same.
    #[error("{0}")]
    Elsewhere(String),
    /// The optimisation diverged.
    #[error(
        "iteration {iteration}, epoch {epoch}, minibatch {minibatch}: {what} is {value}; \
         lower learning_rate or max_grad_norm, or go on from the last checkpoint"
    )]
    NonFinite {
        /// Iteration, counted from 1.
        iteration: u64,
        /// Pass over the rollout, counted from 1.
        epoch: usize,
        /// Minibatch of the pass, counted from 1.
        minibatch: usize,
        /// Which number.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// An episode of a search came to nothing.
    #[error("episode {seed:016x}: {reason}")]
    Play {
        /// Its seed.
        seed: u64,
        /// What came in the way, in words.
        reason: String,
    },
    /// A network that is not over kvtide's observation and action.
    #[error("a network from {observation_size} features to heads {head_sizes:?} cannot decide here")]
    Foreign {
        /// Length of its observations.
        observation_size: usize,
        /// Choices of each of its heads.
        head_sizes: Vec<usize>,
    },
    /// The saved state is not of this environment.
    #[error("cannot resume: {0}")]
    Resume(String),
}
