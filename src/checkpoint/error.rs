//! Why a checkpoint is refused.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::agent::{AgentError, HyperparameterError};

/// Why a checkpoint cannot be written, read or used.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// There is none, nor one that an interrupted replacement left beside.
    #[error("{}: no checkpoint here", path.display())]
    NotFound {
        /// The folder asked for.
        path: PathBuf,
    },
    /// The operating system refused to write.
    #[error("{}: cannot write: {source}", path.display())]
    Write {
        /// File or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The operating system refused to read; a file is missing.
    #[error("{}: cannot read: {source}", path.display())]
    Read {
        /// The file that was read.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file is larger than any checkpoint's.
    #[error("{}: {bytes} bytes, at most {limit} are read", path.display())]
    TooLarge {
        /// The file that was read.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A file is not the one that was written.
    #[error("{}: damaged: its BLAKE3 is {found}, recorded is {expected}", path.display())]
    Digest {
        /// The file that was read.
        path: PathBuf,
        /// Of its bytes.
        found: String,
        /// As recorded.
        expected: String,
    },
    /// Written by another version of this module.
    #[error("{}: format version {found}, this kvtide reads {supported}", path.display())]
    FormatVersion {
        /// The manifest that was read.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version this build reads.
        supported: u64,
    },
    /// Trained on observations or actions that have since changed their meaning.
    #[error("{}: {what} is {found}, this kvtide's is {expected}: train again (tables made of it decide as before)", path.display())]
    Schema {
        /// The manifest that was read.
        path: PathBuf,
        /// `schema_hash` or `action_set_hash`.
        what: &'static str,
        /// As recorded.
        found: String,
        /// What this build has.
        expected: String,
    },
    /// An action profile nobody knows.
    #[error("{}: unknown action profile {name:?}", path.display())]
    Profile {
        /// The manifest that was read.
        path: PathBuf,
        /// Its name.
        name: String,
    },
    /// A setting is out of range.
    #[error("{}: {source}", path.display())]
    Config {
        /// The manifest that was read.
        path: PathBuf,
        /// The setting, and its range.
        source: HyperparameterError,
    },
    /// The manifest lists a file that is no part of a checkpoint.
    #[error("{}: lists {name:?}, which is no part of a checkpoint", path.display())]
    UnknownFile {
        /// The manifest that was read.
        path: PathBuf,
        /// The file.
        name: String,
    },
    /// The manifest does not list a file that is needed.
    #[error("{}: does not list {name:?}; a checkpoint to decide with cannot be resumed", path.display())]
    NotListed {
        /// The manifest that was read.
        path: PathBuf,
        /// The file.
        name: String,
    },
    /// Not the JSON it should be.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file that was read.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// Not a safetensors file.
    #[error("{}: {source}", path.display())]
    Safetensors {
        /// The file that was read.
        path: PathBuf,
        /// What is wrong with its bytes.
        source: safetensors::SafeTensorError,
    },
    /// A tensor is missing, superfluous, or of another type or shape.
    #[error("{}: tensor {name} is {found}, must be {expected}", path.display())]
    Tensor {
        /// The file that was read.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// What is there.
        found: String,
        /// What must be.
        expected: String,
    },
    /// A tensor holds an infinity or NaN.
    #[error("{}: tensor {name} holds {value}", path.display())]
    NonFinite {
        /// The file that was read.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// The first such value.
        value: f32,
    },
    /// Parts contradict each other.
    #[error("{}: {what}", path.display())]
    Inconsistent {
        /// The file that was read.
        path: PathBuf,
        /// What contradicts what.
        what: &'static str,
    },
    /// Sound, but not for what it was asked for.
    #[error("{}: {source}", path.display())]
    Agent {
        /// The checkpoint's folder.
        path: PathBuf,
        /// What it is not fit for.
        source: AgentError,
    },
}
