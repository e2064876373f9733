//! Settings of a distillation, and why one has no result.

use kvtide_envs::env::EnvError;
use kvtide_runtime::format::{MAX_DEPTH, MAX_NODES};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::agent::AgentError;

/// Most leaves of a tree whose nodes a file can hold.
const MAX_LEAVES: u32 = MAX_NODES.div_ceil(2);
/// Most bins: a bin's number is a byte.
const MAX_BINS: u32 = 256;
/// Most samples of all iterations together: 1.5 GB.
const MAX_SAMPLES: u64 = 10_000_000;

/// Settings of [`distil`](super::distil). The heads it decides are those of the environment's profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DistilConfig {
    /// Root of every stream.
    pub seed: u64,
    /// Most leaves, in `1..=8192`; a table takes 16 bytes a leaf.
    pub max_leaves: u32,
    /// Most comparisons of a decision, in `0..=32`.
    pub max_depth: u32,
    /// Fewest samples in a leaf, at least 1.
    pub min_leaf_samples: u32,
    /// Most bins a feature's values are sorted into before splits are looked for, in `2..=256`.
    pub bins: u32,
    /// Times the student drives and the teacher corrects it, after the one time the teacher drives; at most 100.
    pub dagger_iterations: u32,
    /// Decisions each iteration adds to the training samples; with all iterations at most ten million.
    pub samples_per_iteration: u32,
    /// Episodes from which these are drawn, in `1..=4096`; more are played where they are too short.
    pub episodes_per_iteration: u32,
    /// Decisions of further episodes on which fidelity is measured, as a share of the training samples, in `(0, 1]`.
    pub holdout_fraction: f64,
}

impl Default for DistilConfig {
    /// 256 leaves: a table of 5 KiB.
    fn default() -> DistilConfig {
        DistilConfig {
            seed: 1,
            max_leaves: 256,
            max_depth: 16,
            min_leaf_samples: 16,
            bins: 256,
            dagger_iterations: 4,
            samples_per_iteration: 20_000,
            episodes_per_iteration: 16,
            holdout_fraction: 0.2,
        }
    }
}

impl DistilConfig {
    /// Checks every range.
    ///
    /// # Errors
    /// [`DistilError::Config`] names the first setting out of range.
    pub fn validate(&self) -> Result<(), DistilError> {
        let within = |field, value: u32, min: u32, max: u32| {
            let range = format!("in {min}..={max}");
            if (min..=max).contains(&value) { Ok(()) } else { Err(out_of_range(field, &value, range)) }
        };
        within("max_leaves", self.max_leaves, 1, MAX_LEAVES)?;
        within("max_depth", self.max_depth, 0, MAX_DEPTH.into())?;
        within("min_leaf_samples", self.min_leaf_samples, 1, u32::MAX)?;
        within("bins", self.bins, 2, MAX_BINS)?;
        within("dagger_iterations", self.dagger_iterations, 0, 100)?;
        let most = MAX_SAMPLES / self.iterations();
        within("samples_per_iteration", self.samples_per_iteration, 1, most as u32)?;
        within("episodes_per_iteration", self.episodes_per_iteration, 1, 4096)?;
        if !(self.holdout_fraction > 0.0 && self.holdout_fraction <= 1.0) {
            let range = "above 0 and at most 1".to_owned();
            return Err(out_of_range("holdout_fraction", &self.holdout_fraction, range));
        }
        Ok(())
    }

    /// Iterations, with the one in which the teacher drives.
    pub(super) fn iterations(&self) -> u64 {
        u64::from(self.dagger_iterations) + 1
    }

    /// Decisions on which fidelity is measured.
    pub(super) fn holdout_samples(&self) -> usize {
        let samples = self.iterations() * u64::from(self.samples_per_iteration);
        (samples as f64 * self.holdout_fraction).ceil() as usize
    }
}

fn out_of_range(field: &'static str, value: &dyn ToString, range: String) -> DistilError {
    DistilError::Config { field, value: value.to_string(), range }
}

/// Why there is no student.
#[derive(Debug, Error)]
pub enum DistilError {
    /// A setting out of range.
    #[error("distil.{field} = {value}: must be {range}")]
    Config {
        /// The setting.
        field: &'static str,
        /// What it was.
        value: String,
        /// What it must be.
        range: String,
    },
    /// No episode can be played.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The teacher's opinion of a choice it may take is not a number.
    #[error("the teacher's logit of {head} {choice} is {logit}; it was trained into something that is no policy")]
    Logit {
        /// Which head.
        head: &'static str,
        /// Index of the choice.
        choice: u8,
        /// What it said.
        logit: f32,
    },
    /// An episode in which a student is held against its teacher cannot be played.
    #[error(transparent)]
    Play(#[from] AgentError),
    /// There is nothing to hold a student against its teacher on.
    #[error("no request arrives in any of the episodes the table is judged on")]
    NoRequests,
    /// Somebody asked it to stop.
    #[error("stopped before the student was grown")]
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_range_and_fit_into_16_kib() {
        let config = DistilConfig::default();
        config.validate().unwrap();
        assert!(config.max_leaves * 16 < 16 * 1024);
        assert_eq!(config.holdout_samples(), 20_000);
    }

    #[test]
    fn a_setting_out_of_range_is_named() {
        let error = |config: DistilConfig| config.validate().unwrap_err().to_string();
        let default = DistilConfig::default;
        assert_eq!(error(DistilConfig { max_leaves: 0, ..default() }), "distil.max_leaves = 0: must be in 1..=8192");
        assert_eq!(error(DistilConfig { max_depth: 33, ..default() }), "distil.max_depth = 33: must be in 0..=32");
        assert!(error(DistilConfig { bins: 257, ..default() }).contains("2..=256"));
        assert!(error(DistilConfig { samples_per_iteration: 2_000_001, ..default() }).contains("1..=2000000"));
        assert!(error(DistilConfig { holdout_fraction: f64::NAN, ..default() }).contains("above 0"));
    }

    #[test]
    fn what_a_file_leaves_out_is_the_default_and_typos_are_refused() {
        let config: DistilConfig = serde_json::from_str(r#"{"max_leaves": 64}"#).unwrap();
        assert_eq!(config, DistilConfig { max_leaves: 64, ..DistilConfig::default() });
        assert!(serde_json::from_str::<DistilConfig>(r#"{"leaves": 64}"#).is_err());
    }
}
