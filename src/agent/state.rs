//! What is left of a run between two iterations, and how it ended: plain data, whoever learns.

use super::adam::AdamState;
use super::config::PpoConfig;
use super::normalise::Normalisers;
use super::weights::Weights;

/// Everything a run of PPO is between two iterations, as plain numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainerState {
    /// What it learns by.
    pub config: PpoConfig,
    /// Iterations done.
    pub iteration: u64,
    /// Decisions taken.
    pub decisions: u64,
    /// Actor and critic.
    pub weights: Weights,
    /// The optimiser.
    pub optimiser: AdamState,
    /// Moments of observations and returns.
    pub normalisers: Normalisers,
    /// The environments, as they save themselves.
    pub env: serde_json::Value,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOutcome {
    /// All iterations are done.
    Finished,
    /// It was asked to stop; the iteration under way was completed.
    Interrupted,
}
