//! What can be wrong with a stream of events or a log of requests: file, line, field.

use std::path::{Path, PathBuf};

use crate::files::Compression;

/// A file that cannot be read as what it should be, and where.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct IntentError {
    /// The file, and the line in it.
    place: String,
    /// The reason.
    pub fault: Box<IntentFault>,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntentFault {
    /// It cannot be opened.
    #[error("cannot open: {0}")]
    Open(String),
    /// It cannot be read on.
    #[error("cannot read: {0}")]
    Read(String),
    /// It cannot be written.
    #[error("cannot write: {0}")]
    Write(String),
    /// Compressed, and not whole.
    #[error("the {0} stream ends early: the file is cut off")]
    EndsEarly(Compression),
    /// There is nothing in it.
    #[error("no {0}")]
    Empty(&'static str),
    /// A line is longer than any needs to be.
    #[error("a line longer than {0} bytes")]
    TooLong(usize),
    /// It is no text.
    #[error("not UTF-8")]
    NotText,
    /// It is no JSON object.
    #[error("not a JSON object: {0}")]
    NotJson(String),
    /// It is no line of a log of decisions.
    #[error("not a decision that `evict compare --decisions` writes: {0}")]
    NotADecision(String),
    /// A field that is needed is not there.
    #[error("no field `{0}`")]
    Missing(String),
    /// A field is not what it should be.
    #[error("{field} `{value}` is not {expected}")]
    NotA {
        /// Its name, within `intent` with that before it.
        field: String,
        /// What is there, cut to a readable length.
        value: String,
        /// What would do.
        expected: String,
    },
    /// Something that is once per file is there twice.
    #[error("{field} `{value}` is there a second time")]
    Twice {
        /// Its name.
        field: &'static str,
        /// What is there.
        value: String,
    },
    /// More blocks than can be told apart.
    #[error("more than {0} blocks are known at one time")]
    TooMany(u32),
}

impl IntentError {
    /// Of a file, or of a line of it.
    pub(super) fn new(path: &Path, line: Option<u64>, fault: IntentFault) -> IntentError {
        let path = PathBuf::from(path);
        let place = line.map_or_else(|| path.display().to_string(), |line| format!("{}:{line}", path.display()));
        IntentError { place, fault: Box::new(fault) }
    }
}

/// What a file has in a field, for people.
pub(super) fn shown(value: &serde_json::Value) -> String {
    const MOST: usize = 60;
    let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let mut text: String = text.chars().take(MOST + 1).flat_map(char::escape_debug).collect();
    if text.chars().count() > MOST {
        text = text.chars().take(MOST).collect::<String>() + "…";
    }
    text
}
