//! The agent: proximal policy optimisation over several environments at once, and a second, simpler way to find a policy.
//!
//! [`ppo`] holds the whole algorithm and is read top to bottom; so does [`mod@cross_entropy`], the reference it is held
//! against; the rest are their parts, each of one idea. What leaves the room is a [`NetworkPolicy`], plain numbers that
//! decide without libtorch, or a [`TrainerState`] or [`SearchState`] from which a run goes on as if it had never stopped.
//! The agent knows environments only as a [`VectorEnv`](kvtide_envs::env::VectorEnv) or an
//! [`Arena`](kvtide_envs::env::Arena); it never sees a block.

pub mod adam;
pub mod config;
mod constant;
pub mod cross_entropy;
pub mod error;
pub mod gae;
mod gain;
pub mod gradient;
pub mod group;
pub mod heads;
pub mod inference;
mod loss;
pub mod normalise;
mod orthogonal;
pub mod policy;
pub mod ppo;
pub mod report;
pub mod rollout;
mod state;
mod tensors;
mod validate;
pub mod weights;

pub use config::{HyperparameterError, PpoConfig, Prior, Schedule};
pub use constant::{ConstantRace, ConstantSearch, best_constant};
pub use cross_entropy::{
    CrossEntropy, CrossEntropyConfig, GenerationReport, LinearPolicies, LinearSpace, Objective, Player, Players,
    SearchProgress, SearchState,
};
pub use error::AgentError;
pub use gain::Gain;
pub use inference::Activation;
pub use policy::NetworkPolicy;
pub use ppo::Trainer;
pub use report::{EpisodeSummary, IterationReport, Losses};
pub use state::{RunOutcome, TrainerState};
pub use tensors::{Network, Tensors};
pub use validate::{Attained, Decider, Server, Validator, worst_loss};
pub use weights::{Architecture, LinearStart, Weights};
