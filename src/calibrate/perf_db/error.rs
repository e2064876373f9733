//! What is wrong with a database of measured kernels.

use std::path::{Path, PathBuf};

/// A file of a database that cannot be used, or something it does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct PerfDbError {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl PerfDbError {
    pub(super) fn new(path: &Path, reason: impl Into<String>) -> PerfDbError {
        PerfDbError { path: path.to_owned(), reason: reason.into() }
    }
}
