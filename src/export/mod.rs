//! From a checkpoint to a student ([`ExportJob`]), and from a student to what a serving node takes: a `.kvt` file
//! ([`encode`], [`save`]) or Rust source ([`rust_source`]), and back for people ([`Inspection`], [`Explanation`]) and for
//! evaluation ([`load_table`]).
//!
//! What is loaded is a [`Table`], the same code a node runs; nothing here decides by itself.

mod choose;
mod deployed;
mod engine_rules;
mod explain;
mod frontier;
mod gate;
mod inspect;
mod make;
mod picture;
mod retention;
mod rules;
mod rust;
mod summary;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use kvtide_envs::files;
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{EncodeError, FormatError, MAX_FILE_BYTES, TableSpec, encoded_len};
use kvtide_runtime::{ACTION_SET_HASH, FEATURES, RetentionTable, SCHEMA_HASH, Table};
use thiserror::Error;

pub use choose::{ChooseError, Chosen, add_margin, choose, deploy};
pub use deployed::Deployed;
pub use engine_rules::{RetentionRules, Turnover, TurnoverError};
pub use explain::{ExplainError, Explanation};
pub use frontier::Frontier;
pub use gate::{Gate, interval_text, loss_text, unfit};
pub use inspect::Inspection;
pub use make::{DistilledStudent, ExportJob, MakeError, TableLoss, TableSummary, Trial, write};
pub use retention::add_retention;
pub use rust::rust_source;

use crate::distil::{Student, Tree};

/// Why a table was not written or not loaded. One line, with the path where there is one.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is not a table for this build.
    #[error("{}: {source}", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// What is wrong with its bytes.
        source: FormatError,
    },
    /// The table says nothing of retention.
    #[error("{}: it has no retention tree; `kvtide inspect` shows what it has", .0.display())]
    NoRetention(PathBuf),
    /// What the table says of retention is for another build.
    #[error("{}: its retention tree: {source}", path.display())]
    Retention {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: FormatError,
    },
    /// The table cannot be written down.
    #[error("{}", match .0 { EncodeError::Format(error) => error.to_string(), error => error.to_string() })]
    Encode(#[source] EncodeError),
}

/// Where a table comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableProvenance {
    /// Name of the experiment.
    pub experiment: String,
    /// Commit of kvtide.
    pub commit: String,
    /// Seed of the experiment.
    pub seed: u64,
    /// Hash of the checkpoint.
    pub checkpoint: String,
    /// What was distilled, in words: `ppo, 1000000 decisions`.
    pub teacher: String,
    /// What it was trained on and for, by name; taken into the metadata as it is.
    pub training: BTreeMap<String, String>,
}

/// The student as a `.kvt` file, which a reader of this build accepts.
///
/// Metadata says where it comes from, what it was measured at, and how large it is:
///
/// | key | value |
/// |---|---|
/// | those of [`TableProvenance::training`] | as they are |
/// | `checkpoint`, `commit`, `experiment`, `seed`, `teacher` | as in [`TableProvenance`] |
/// | `features` | the features it decides by |
/// | `fidelity` | share of decisions in which every head agrees with the teacher |
/// | `fidelity.HEAD.regret`, `fidelity.HEAD.visits` | agreement of one head |
/// | `fidelity.samples` | decisions these were measured on |
/// | `importance` | features by how much their comparisons tell apart, the most important first, with their shares |
/// | `kvtide` | version that wrote it |
/// | `leaves`, `samples` | leaves, and decisions it was grown from |
///
/// # Errors
/// [`ExportError::Encode`] if the metadata is too long.
pub fn encode(student: &Student, provenance: &TableProvenance) -> Result<Vec<u8>, ExportError> {
    let metadata = metadata(student, provenance);
    let pairs: Vec<(&str, &str)> = metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let spec = TableSpec {
        profile: student.profile,
        heads: NUM_HEADS as u8,
        schema_hash: SCHEMA_HASH,
        action_set_hash: ACTION_SET_HASH,
        ranges: &student.ranges,
        nodes: &student.tree.nodes,
        metadata: &pairs,
        extensions: &[],
    };
    let mut bytes = vec![0; encoded_len(&spec)];
    kvtide_runtime::format::encode(&spec, &mut bytes).map_err(ExportError::Encode)?;
    Ok(bytes)
}

/// In the order of a file: by the bytes of the key.
fn metadata(student: &Student, provenance: &TableProvenance) -> BTreeMap<String, String> {
    let fidelity = &student.fidelity;
    let mut pairs = provenance.training.clone();
    pairs.extend(
        [
            ("checkpoint", provenance.checkpoint.clone()),
            ("commit", provenance.commit.clone()),
            ("experiment", provenance.experiment.clone()),
            ("features", features(&student.tree)),
            ("fidelity", format!("{:.4}", fidelity.joint)),
            ("fidelity.samples", fidelity.samples.to_string()),
            ("importance", importance(&student.tree)),
            ("kvtide", env!("CARGO_PKG_VERSION").to_owned()),
            ("leaves", student.tree.leaves().to_string()),
            ("samples", student.samples.to_string()),
            ("seed", provenance.seed.to_string()),
            ("teacher", provenance.teacher.clone()),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    for head in &fidelity.heads {
        pairs.insert(format!("fidelity.{}.regret", head.head), format!("{:.4}", head.by_regret));
        pairs.insert(format!("fidelity.{}.visits", head.head), format!("{:.4}", head.by_visits));
    }
    pairs
}

/// `free_fraction, waiting`: the features the tree decides by.
fn features(tree: &Tree) -> String {
    tree.uses().iter().map(|feature| FEATURES[feature as usize].name).collect::<Vec<&str>>().join(", ")
}

/// `free_fraction 0.612, waiting 0.201`: the features that are worth a percent.
fn importance(tree: &Tree) -> String {
    let mut shares: Vec<(f64, &str)> = tree.importance.into_iter().zip(FEATURES.map(|spec| spec.name)).collect();
    shares.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let worth = shares.into_iter().filter(|(share, _)| *share >= 0.01);
    worth.map(|(share, name)| format!("{name} {share:.3}")).collect::<Vec<String>>().join(", ")
}

/// Writes `bytes` beside `path` and renames: whoever reads `path` meanwhile finds the old file or the new one, whole.
///
/// # Errors
/// The folder does not exist or cannot be written to; `path` is then as it was.
pub fn save(path: &Path, bytes: &[u8]) -> Result<(), ExportError> {
    files::replace(path, bytes).map_err(|source| ExportError::Io { path: path.to_owned(), source })
}

/// The bytes of a file, not more than a table can have and one.
///
/// # Errors
/// The file cannot be read.
pub fn load(path: &Path) -> Result<Vec<u8>, ExportError> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|source| ExportError::Io { path: path.to_owned(), source })
}

/// The table in a file. Its bytes, at most 256 KiB, live as long as the process: a table borrows them, and a program loads
/// few.
///
/// # Errors
/// The file cannot be read, or is not a table for this build.
pub fn load_table(path: &Path) -> Result<Table<'static>, ExportError> {
    let bytes = load(path)?;
    let refused = |source| ExportError::Format { path: path.to_owned(), source };
    // Refused bytes are freed, only accepted ones stay.
    Table::parse(&bytes).map_err(refused)?;
    Table::parse(bytes.leak()).map_err(refused)
}

/// The second tree of the `table` in a file.
///
/// # Errors
/// It has none, or one for another build.
pub fn retention_tree<'a>(path: &Path, table: &Table<'a>) -> Result<RetentionTable<'a>, ExportError> {
    let section = table.file().retention().ok_or_else(|| ExportError::NoRetention(path.to_owned()))?;
    RetentionTable::from_section(section).map_err(|source| ExportError::Retention { path: path.to_owned(), source })
}
