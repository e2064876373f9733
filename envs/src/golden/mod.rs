//! Replays decision logs of real engines and compares every field of every step.
//!
//! A log lists the requests, the settings and what the engine decided in each step; the scheduler under test is driven
//! by the same protocol and must say the same. Logs are one JSON object a file, plain or compressed.

mod v0;
mod v1;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::evict::Eviction;
use crate::files::Unpacked;

/// Larger logs are refused, unpacked.
const MAX_LOG_BYTES: u64 = 1 << 30;

/// Why a log could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// The file or folder cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The folder holds no log.
    #[error("{}: no decision logs (*.json or *.json.gz) here", .0.display())]
    NoLogs(PathBuf),
    /// The log is no JSON, or not of a known form.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, with its place.
        reason: String,
    },
}

/// The first thing theirs and ours disagree on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Divergence {
    /// Step number; `None` where the ends of the runs differ.
    pub step: Option<usize>,
    /// Field of the step or of the end.
    pub field: String,
    /// What the real engine logged.
    pub theirs: Value,
    /// What ours did.
    pub ours: Value,
}

/// One log replayed.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// File name.
    pub run: String,
    /// Engine that wrote the log.
    pub version: String,
    /// Steps in the log.
    pub steps: usize,
    /// Requests in the log.
    pub requests: usize,
    /// How the logged run ended.
    pub end: String,
    /// Where it first differs, if it does.
    pub divergence: Option<Divergence>,
}

/// Logs below `folder`, in name order. `INDEX.json` is not one.
///
/// # Errors
/// The folder cannot be read or holds none.
pub fn find_logs(folder: &Path) -> Result<Vec<PathBuf>, GoldenError> {
    let io = |source| GoldenError::Io { path: folder.to_owned(), source };
    let mut logs = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if [".json", ".json.gz"].iter().any(|ending| name.ends_with(ending)) && name != "INDEX.json" {
            logs.push(path);
        }
    }
    logs.sort();
    if logs.is_empty() { Err(GoldenError::NoLogs(folder.to_owned())) } else { Ok(logs) }
}

/// Replays one log.
///
/// # Errors
/// The file cannot be read or is no decision log. A disagreement is not an error but a [`Divergence`].
pub fn replay_log(path: &Path) -> Result<RunReport, GoldenError> {
    replay_log_under(path, Eviction::Lru)
}

/// The same with another policy of eviction, for those that can be vLLM's.
///
/// # Errors
/// As [`replay_log`].
pub fn replay_log_under(path: &Path, eviction: Eviction) -> Result<RunReport, GoldenError> {
    let malformed = |reason: String| GoldenError::Malformed { path: path.to_owned(), reason };
    let text = read_text(path)?;
    let header: Header = serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    let run = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let end = |end: &Map<String, Value>| end.get("kind").and_then(Value::as_str).unwrap_or("?").to_owned();
    let parsed = |error: serde_json::Error| malformed(error.to_string());
    let report = match header.version.as_str() {
        version if version.starts_with("vllm 0.6") => {
            let log: v0::Log = serde_json::from_str(&text).map_err(parsed)?;
            let divergence = v0::replay(&log).map_err(malformed)?;
            let (steps, requests) = (log.steps.len(), log.requests.len());
            RunReport { run, version: header.version, steps, requests, end: end(&log.end), divergence }
        }
        version if version.starts_with("vllm 0.33") => {
            let log: v1::Log = serde_json::from_str(&text).map_err(parsed)?;
            let divergence = v1::replay(&log, eviction).map_err(malformed)?;
            let (steps, requests) = (log.steps.len(), log.requests.len());
            RunReport { run, version: header.version, steps, requests, end: end(&log.end), divergence }
        }
        other => {
            let known = "this build replays vllm 0.6 (V0) and vllm 0.33 (V1, synchronous and asynchronous)";
            return Err(malformed(format!("logs of {other:?} are not supported; {known}")));
        }
    };
    Ok(report)
}

#[derive(serde::Deserialize)]
struct Header {
    version: String,
}

fn read_text(path: &Path) -> Result<String, GoldenError> {
    let io = |source| GoldenError::Io { path: path.to_owned(), source };
    let mut text = String::new();
    Unpacked::open(path).map_err(io)?.reader.take(MAX_LOG_BYTES).read_to_string(&mut text).map_err(io)?;
    Ok(text)
}

/// The first key, in name order, whose values differ; a key only one side has differs from null.
fn first_difference(step: Option<usize>, theirs: &Map<String, Value>, ours: &Map<String, Value>) -> Option<Divergence> {
    let get = |map: &Map<String, Value>, key: &str| map.get(key).cloned().unwrap_or(Value::Null);
    let mut keys: Vec<&String> = theirs.keys().chain(ours.keys()).collect();
    keys.sort();
    let field = keys.into_iter().find(|key| get(theirs, key) != get(ours, key))?;
    Some(Divergence { step, field: field.clone(), theirs: get(theirs, field), ours: get(ours, field) })
}

/// CRC-32 of the values as little-endian words; 0 for none.
fn crc(values: impl IntoIterator<Item = u32>) -> u32 {
    let bytes: Vec<u8> = values.into_iter().flat_map(u32::to_le_bytes).collect();
    crc32fast::hash(&bytes)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => unreachable!("{other} is not an object"),
    }
}
