//! Why an experiment cannot be run.

use std::path::PathBuf;

use kvtide_envs::workload::WorkloadError;
use kvtide_runtime::HostMismatch;

use crate::agent::HyperparameterError;
use crate::world::WorldError;

/// Why an experiment cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is no experiment.
    #[error("{}: {reason}", path.display())]
    Toml {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, with its line.
        reason: String,
    },
    /// What the file says cannot be.
    #[error("{}: {source}", path.display())]
    In {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<ExperimentError>,
    },
    /// A value out of range.
    #[error("{field} = {value}: expected {expected}")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// What stood there.
        value: String,
        /// What would do.
        expected: &'static str,
    },
    /// In a further world.
    #[error("[[also]] {number}: {source}")]
    Also {
        /// Which of them, counted from 1.
        number: usize,
        /// What is wrong.
        source: Box<ExperimentError>,
    },
    /// A setting of the method.
    #[error(transparent)]
    Method(#[from] HyperparameterError),
    /// The world cannot be set up.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The traffic cannot be cut.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A head is to be learned that the world's host decides itself: no table of it would be loaded there.
    #[error("profile {profile}: {source}")]
    Unfit {
        /// The profile.
        profile: String,
        /// Which head.
        source: HostMismatch,
    },
    /// All of a trace was trained on.
    #[error("no episode of a trace is left to judge on: lower episodes.fit, or add [validation]")]
    NothingUnseen,
}
