//! Why a policy that was trained elsewhere is refused.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::checkpoint::CheckpointError;
use crate::experiment::ExperimentError;
use crate::train::TrainError;

/// Why a policy that was trained elsewhere is refused.
#[derive(Debug, Error)]
pub enum ImportError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file is larger than any policy's.
    #[error("{}: more than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// Not a safetensors file.
    #[error("{}: no safetensors file: {source}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with its bytes.
        source: Box<safetensors::SafeTensorError>,
    },
    /// A file says what cannot be, or not what must be said.
    #[error("{}: {what}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A tensor is missing, or of another type or shape.
    #[error("{}: tensor {name} is {found}, must be {expected}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// What is there.
        found: Box<str>,
        /// What must be.
        expected: Box<str>,
    },
    /// A tensor holds an infinity or NaN.
    #[error("{}: tensor {name} holds {value}", path.display())]
    NonFinite {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// The first such value.
        value: f64,
    },
    /// The experiment it was trained by cannot be run.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// It cannot be said what it was trained on, or no fallback is found there.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The checkpoint cannot be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl ImportError {
    pub(super) fn tensor(path: &Path, name: &str, found: &str, expected: &str) -> ImportError {
        let (found, expected) = (found.into(), expected.into());
        ImportError::Tensor { path: path.to_owned(), name: name.to_owned(), found, expected }
    }
}

/// A file something is wrong with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a>(pub(super) &'a Path);

impl Place<'_> {
    pub(super) fn refuse(&self, what: String) -> ImportError {
        ImportError::Refused { path: self.0.to_owned(), what }
    }
}
