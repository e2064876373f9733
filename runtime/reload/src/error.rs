//! Why a table was not taken.

use std::fmt;
use std::io;
use std::path::PathBuf;

use kvtide_runtime::{ActionProfile, FormatError};

/// Why a table was not taken. The one before it stays in use.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The file could not be read.
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Something else than a file; reading a pipe might wait for ever.
    NotAFile {
        /// The file or folder.
        path: PathBuf,
    },
    /// The bytes are not a table for this build.
    Format {
        /// Which rule they break.
        error: FormatError,
    },
    /// The table decides heads that the node cannot act on.
    Profile {
        /// The table's.
        found: ActionProfile,
        /// The widest the node can act on.
        honoured: ActionProfile,
    },
}

impl LoadError {
    /// The reason's name in metrics and logs: that of the [`FormatError`], or `io`, `not_a_file`, `action_profile`.
    pub fn name(&self) -> &'static str {
        match self {
            LoadError::Io { .. } => "io",
            LoadError::NotAFile { .. } => "not_a_file",
            LoadError::Format { error } => error.name(),
            LoadError::Profile { .. } => "action_profile",
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Io { path, error } => write!(f, "{}: {error}", path.display()),
            LoadError::NotAFile { path } => write!(f, "{}: not a file", path.display()),
            LoadError::Format { error } => error.fmt(f),
            LoadError::Profile { found, honoured } => {
                write!(f, "table decides profile {}, this node can act on {}", found.name(), honoured.name())
            }
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::Io { error, .. } => Some(error),
            LoadError::Format { error } => Some(error),
            LoadError::NotAFile { .. } | LoadError::Profile { .. } => None,
        }
    }
}

impl From<FormatError> for LoadError {
    fn from(error: FormatError) -> LoadError {
        LoadError::Format { error }
    }
}
