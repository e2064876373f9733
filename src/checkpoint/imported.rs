//! Checkpoints of policies that were trained elsewhere.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::manifest::RunFacts;
use super::{CheckpointError, FileContents, NORMALISER, RunProvenance, WEIGHTS, json, tensors, write};
use crate::agent::normalise::{Moments, Normalisers};
use crate::agent::{Activation, PpoConfig, Weights};

/// Where a policy comes from that was not trained here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// What trained it, in words.
    pub framework: String,
    /// Name of the file its weights were read from, if they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// BLAKE3 of that file, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
    /// What is between its layers.
    pub activation: Activation,
}

/// A policy that was trained elsewhere, over kvtide's observation and action.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedPolicy {
    /// Where it comes from.
    pub origin: Origin,
    /// Its actor; the critic is zeros, since nobody asks a policy that is not trained any further what it expects.
    pub weights: Weights,
    /// What its observations were standardised by, if they were.
    pub moments: Option<Moments>,
    /// Decisions it was trained on; 0 if nobody says.
    pub decisions: u64,
    /// The seed it was trained from.
    pub seed: u64,
}

/// Writes a policy that was trained elsewhere, as [`save_policy`](super::save_policy) writes one of here: nothing can be resumed
/// from it.
///
/// # Errors
/// [`CheckpointError::Write`].
pub fn save_imported(path: &Path, policy: &ImportedPolicy, provenance: &RunProvenance) -> Result<(), CheckpointError> {
    let normalisers = Normalisers { observation: policy.moments.clone(), reward: None };
    let contents = FileContents::from([
        (WEIGHTS.to_owned(), tensors::encode_weights(&policy.weights)),
        (NORMALISER.to_owned(), json(&normalisers)),
    ]);
    let architecture = policy.weights.architecture();
    // Of the settings of PPO only these mean anything.
    let config = PpoConfig {
        hidden: architecture.hidden.clone(),
        seed: policy.seed,
        normalise_observations: policy.moments.is_some(),
        normalise_rewards: false,
        ..PpoConfig::default()
    };
    let facts = RunFacts {
        config: &config,
        cross_entropy: None,
        imported: Some(&policy.origin),
        iteration: 0,
        decisions: policy.decisions,
        architecture,
    };
    write(path, &facts, provenance, contents)
}
