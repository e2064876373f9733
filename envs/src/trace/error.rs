//! What can be wrong with a trace, told in one line: file, line, reason.

use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A trace that could not be read or written, and where it went wrong.
#[derive(Debug, Error)]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// The line, counted from 1; `None` where the whole file is meant.
    pub line: Option<u64>,
    /// Where in an archive or a file of sessions: the file in the archive, and the place in it.
    pub entry: Option<String>,
    /// The reason.
    pub fault: Fault,
}

impl TraceError {
    /// An error of a file as a whole.
    pub(super) fn of_file(path: &Path, fault: Fault) -> TraceError {
        TraceError { path: path.to_path_buf(), line: None, entry: None, fault }
    }

    /// An error of a line, counted from 1.
    pub(super) fn of_line(path: &Path, line: u64, fault: Fault) -> TraceError {
        TraceError { line: Some(line), ..TraceError::of_file(path, fault) }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        if let Some(entry) = &self.entry {
            write!(f, " {entry}:")?;
        }
        write!(f, " {}", self.fault)
    }
}

/// What is wrong. Values from the file are shown escaped and cut to a readable length.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Fault {
    /// The file cannot be opened.
    #[error("cannot open: {0}")]
    Open(String),
    /// Reading failed part of the way.
    #[error("cannot read: {0}")]
    Read(String),
    /// Writing failed.
    #[error("cannot write: {0}")]
    Write(String),
    /// A compressed stream stops before its end.
    #[error("the {0} stream ends early: the file is cut off")]
    EndsEarly(super::Compression),
    /// There is not one request.
    #[error("no requests")]
    Empty,
    /// A tar archive of something else.
    #[error(
        "a tar archive without agentic sessions or ServeGen statistics: unpack it and give one of the files inside"
    )]
    Archive,
    /// A tar archive that stops before its end.
    #[error("the tar archive ends early: it is cut off")]
    ArchiveEndsEarly,
    /// A JSON file in an archive of sessions that is not one.
    #[error("not an agentic session of kv-cache-tester, starts with `{0}`")]
    NotASession(String),
    /// Two sessions of one name.
    #[error("a second session named `{0}`")]
    SessionTwice(String),
    /// A session longer than any needs to be.
    #[error("a session longer than {0} bytes")]
    SessionTooLong(u64),
    /// A client's file longer than any needs to be.
    #[error("a file of a client longer than {0} bytes")]
    ChunkTooLong(u64),
    /// A second file of one kind and client.
    #[error("a second file of that kind for client {0}: give one folder of clients at a time")]
    ChunkTwice(u64),
    /// A folder of anything but statistics.
    #[error(
        "a folder without ServeGen statistics (chunk-N-trace.csv and chunk-N-dataset.json): give one file, or put several together \
         on standard input (-)"
    )]
    Folder,
    /// Statistics of nobody.
    #[error("no client of whom rates (chunk-N-trace.csv) and lengths (chunk-N-dataset.json) are known")]
    NoClients,
    /// Statistics where requests are needed.
    #[error(
        "holds statistics of clients, not requests: serve them as a trace, or look at them with kvtide trace stats"
    )]
    Statistics,
    /// Rates and lengths where requests are needed.
    #[error(
        "holds rates and lengths over time, not requests: serve it as a trace, or look at it with kvtide trace stats"
    )]
    Rates,
    /// A value that is not what it should be.
    #[error("{field} `{value}` is not {expected}")]
    NotA {
        /// The column or field.
        field: &'static str,
        /// What is there.
        value: String,
        /// What would do.
        expected: &'static str,
    },
    /// A rate at which no sessions can start.
    #[error("{0} sessions per hour: must be above 0 and at most {max}", max = super::sessions::MAX_SESSIONS_PER_HOUR)]
    SessionRate(f64),
    /// The first row is of no known form.
    #[error("{0}")]
    Unknown(Box<Unknown>),
    /// Two fields that could be the same.
    #[error("`{first}` and `{second}` could both be the {meaning}: take one of them out")]
    Ambiguous {
        /// One of them.
        first: Box<str>,
        /// The other.
        second: Box<str>,
        /// What they would be.
        meaning: &'static str,
    },
    /// A row that does not say when.
    #[error("no {0}: kvtide trace convert --arrival-rate 2 would draw arrivals, two a second")]
    NoTime(String),
    /// Text whose tokens nobody counted.
    #[error(
        "text, but no counts of tokens: kvtide trace convert --chars-per-token 4 would take four characters for a token"
    )]
    TextOnly,
    /// Rows, and not a request among them.
    #[error("no requests: {0}")]
    AllSkipped(String),
    /// Rows that are sorted do not fit in memory, and there is no room for them elsewhere.
    #[error("cannot sort: temporary files (in TMPDIR): {0}")]
    Sort(String),
    /// The results of several runs.
    #[error("a second result after the first: give one run at a time")]
    SecondResult,
    /// Lists of one run that are of different lengths.
    #[error("{first} has {first_len} entries and {second} {second_len}")]
    Lists {
        /// One of them.
        first: &'static str,
        /// How long it is.
        first_len: usize,
        /// The other.
        second: &'static str,
        /// How long that is.
        second_len: usize,
    },
    /// Text of two bytes a letter, as some programs on Windows write it.
    #[error("UTF-16, and UTF-8 is read: iconv -f UTF-16 -t UTF-8 would do (without a byte-order mark: -f UTF-16LE)")]
    Utf16,
    /// Bytes that are not text.
    #[error("not UTF-8: `{0}`")]
    NotText(String),
    /// A line longer than any request needs.
    #[error("longer than {0} bytes")]
    LineTooLong(usize),
    /// More lines than the limit.
    #[error("more than {0} lines")]
    TooManyLines(u64),
    /// A CSV row with the wrong number of columns.
    #[error("{got} columns instead of {expected}: `{row}`")]
    Columns {
        /// Columns in the header.
        expected: usize,
        /// Columns in the row.
        got: usize,
        /// The row.
        row: String,
    },
    /// A row that stops before its end.
    #[error("cut off: `{0}`")]
    CutOff(String),
    /// A row that is not a JSON object.
    #[error("not a JSON object, at column {column}: `{row}`")]
    NotJson {
        /// Where, counted from 1.
        column: usize,
        /// The row.
        row: String,
    },
    /// A row whose fields are not what the format says.
    #[error("{0}")]
    Row(String),
    /// A count that is not a whole number.
    #[error("{field} `{value}` is not a whole number")]
    NotANumber {
        /// The column or field.
        field: &'static str,
        /// What is there.
        value: String,
    },
    /// A negative count or time.
    #[error("{field} `{value}` is negative")]
    Negative {
        /// The column or field.
        field: &'static str,
        /// What is there.
        value: String,
    },
    /// A count of zero where there must be one at least.
    #[error("{0} is 0")]
    Zero(&'static str),
    /// A value above its limit.
    #[error("{field} `{value}` is above the limit of {limit}")]
    AboveLimit {
        /// The column or field.
        field: &'static str,
        /// What is there.
        value: String,
        /// The largest value taken.
        limit: u64,
    },
    /// A time in no known form.
    #[error("{field} `{value}` is not a time: expected 2023-11-16 18:15:46.6805900")]
    NotATime {
        /// The column.
        field: &'static str,
        /// What is there.
        value: String,
    },
    /// An arrival before the one above it.
    #[error("arrives {earlier_by_ms} ms before the row above: rows must be in arrival order")]
    Backwards {
        /// How much before, in milliseconds, with its digits.
        earlier_by_ms: String,
    },
    /// Prefix hashes that do not fit the prompt.
    #[error("{hash_ids} hash_ids of {block_tokens} tokens do not fit a prompt of {prompt_tokens} tokens")]
    HashIds {
        /// How many hashes.
        hash_ids: usize,
        /// Tokens per hash.
        block_tokens: u32,
        /// Prompt length, tokens.
        prompt_tokens: u32,
    },
}

/// A file of no known form, and what it is nearest to.
#[derive(Debug, Clone, PartialEq)]
pub struct Unknown {
    /// How the file starts.
    pub start: String,
    /// The form that it has most in common with.
    pub nearest: super::Format,
    /// What that form has and the file does not.
    pub missing: String,
    /// Two rows that would be read.
    pub sample: String,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unknown { start, nearest, missing, sample } = self;
        write!(f, "unknown form, starts with `{start}`: nearest is {nearest}, for which it lacks {missing}; ")?;
        write!(f, "this would work: {sample}")
    }
}

/// Longest excerpt shown, in characters.
const EXCERPT_CHARS: usize = 80;

/// Text from a file as it can be shown in one line.
pub(super) fn excerpt(text: &str) -> String {
    let mut shown: String = text.trim().chars().take(EXCERPT_CHARS).flat_map(escaped).collect();
    if text.trim().chars().nth(EXCERPT_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// The end of a text, for a row that stops too soon.
pub(super) fn excerpt_of_end(text: &str) -> String {
    let text = text.trim();
    let skipped = text.chars().count().saturating_sub(EXCERPT_CHARS);
    let shown: String = text.chars().skip(skipped).flat_map(escaped).collect();
    if skipped > 0 { format!("…{shown}") } else { shown }
}

/// Quotes stay as they are; what would break or hide in a terminal does not.
fn escaped(character: char) -> Vec<char> {
    if matches!(character, '"' | '\'' | '\\') { vec![character] } else { character.escape_debug().collect() }
}
