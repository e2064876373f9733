//! Recorded workloads: a sequence of requests with arrival time, prompt tokens, output tokens and, where known, prefix
//! hashes, session, tenant, priority, SLO class and cache salt.
//!
//! [`TraceReader`] streams a file of any known form, plain, gzip or zstd; compression and form are told by content, never by
//! name, and `-` is standard input. [`forms::FORMS`] is the table of forms, [`fields::NAMES`] that of the names of columns and keys.
//! Every form keeps the same contract:
//!
//! - Requests come in order of arrival. A file that is not in order is sorted (`order.rs`), and how many rows stood too low is
//!   counted; rows that arrive together stay in the order of the file.
//! - The first arrival is time 0, whatever the file's own clock says.
//! - Rows with nothing in them (no tokens asked or answered, a request that failed) are skipped and counted
//!   ([`TraceReader::skipped`]). In the traces of Azure, Bailian and Mooncake, and in sessions, an output of 0 tokens is read as 1, because
//!   a request that was served cost at least one step, and counted in [`TraceReader::zero_output_rows`].
//! - Whatever is wrong ends the reading with one [`TraceError`]: file, line, reason. A row that is cut off is wrong,
//!   also the last. (A CSV file cut inside its very last number cannot be told from a whole one.)
//! - Blank lines, a byte-order mark and CRLF are accepted.
//!
//! [`Trace`] opens whatever is a workload: such a file, or statistics of clients to draw requests from ([`ServeGen`]), a
//! folder or a tar archive.
//!
//! A file of sessions ([`Format::Sessions`]) is read to its end first, because sessions overlap; [`SessionArrivals`] says
//! when they start. What else a file may leave open, [`Reading`] says.

mod archive;
mod azure;
mod bailian;
mod bench;
mod clock;
mod entry;
mod error;
pub mod fields;
pub mod forms;
mod hash_ids;
mod items;
pub mod jsonl;
mod kvct;
mod lines;
mod mooncake;
mod objects;
mod order;
pub mod rates;
mod reader;
mod reading;
mod record;
pub mod servegen;
mod sessions;
mod source;
pub mod stats;
mod table;

use std::fmt;
use std::path::Path;

use serde::Serialize;

pub use archive::{MAX_ARCHIVE_BYTES, MAX_HASHES, MAX_SESSION_BYTES, MAX_SESSION_REQUESTS, MAX_SESSIONS};
pub use clock::TimeUnit;
pub use error::{Fault, TraceError, Unknown};
pub use hash_ids::HashIds;
pub use rates::RateProfile;
pub use reader::{Trace, TraceReader};
pub use reading::{CHARS_PER_TOKEN, Reading, Skipped};
pub use record::Request;
pub use servegen::ServeGen;
pub use sessions::{MAX_SESSIONS_PER_HOUR, SessionArrivals};
pub use source::{MAX_LINE_BYTES, MAX_LINES, STDIN};
pub use stats::TraceStats;

pub use crate::files::{Compression, ZSTD_WINDOW_LOG_MAX};

use crate::time::Micros;
use error::excerpt;

/// Longest prompt accepted, tokens.
pub const MAX_PROMPT_TOKENS: u32 = 1 << 24;

/// Longest output accepted, tokens.
pub const MAX_OUTPUT_TOKENS: u32 = 1 << 20;

/// Most prefix hashes of one request.
pub const MAX_HASH_IDS: usize = 1 << 16;

/// Longest session, tenant, SLO class or cache salt, bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// Highest rate of arrivals accepted where there is one, requests per second.
pub const MAX_RATE_RPS: f64 = 1e5;

/// Longest trace accepted: ten years. Longer means that a clock was misread.
pub const MAX_SPAN: Micros = Micros(3_653 * 24 * 3_600 * 1_000_000);

/// What a trace file is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Azure public LLM inference traces, 2023 to 2025.
    Azure,
    /// Qwen-Bailian traces (2025).
    Bailian,
    /// Mooncake traces (FAST'25) and what is derived in their manner.
    Mooncake,
    /// Agentic sessions of `kv-cache-tester`: one JSON file each, alone or in a tar archive.
    Sessions,
    /// Statistics of clients, as `ServeGen` publishes them: no requests, but what they are drawn from.
    ServeGen,
    /// Rates and lengths over time, as a server's counters tell them: no requests, but what they are drawn from.
    Profile,
    /// kvtide's own: one [`Request`] a line.
    Canonical,
    /// What vLLM's client of benchmarks writes of a run.
    VllmBench,
    /// What `LiteLLM` and other proxies in front of an `OpenAI` interface log.
    ProxyLog,
    /// Conversations in the manner of `ShareGPT`.
    Conversations,
    /// Any other JSON objects with usual keys.
    Objects,
    /// `BurstGPT` (2024).
    BurstGpt,
    /// Any other CSV with usual headers.
    Csv,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Azure => "Azure CSV",
            Format::Bailian => "Qwen-Bailian JSONL",
            Format::Mooncake => "Mooncake JSONL",
            Format::Sessions => "agentic sessions",
            Format::ServeGen => "ServeGen statistics",
            Format::Profile => "kvtide rate profile",
            Format::Canonical => "kvtide JSONL",
            Format::VllmBench => "vLLM bench JSON",
            Format::ProxyLog => "proxy log JSON",
            Format::Conversations => "ShareGPT JSON",
            Format::Objects => "JSON objects",
            Format::BurstGpt => "BurstGPT CSV",
            Format::Csv => "CSV",
        })
    }
}

/// Where rows come from: one implementation a way of writing them down.
trait RowSource: Send {
    /// The next row that is a request, in the order of the file; `None` after the last.
    fn next_row(&mut self) -> Result<Option<Row>, TraceError>;

    /// An error of the row read last.
    fn error(&self, fault: Fault) -> TraceError;

    /// Rows so far that are no requests.
    fn skipped(&self) -> Skipped {
        Skipped::default()
    }

    /// How times were read, if that had to be found out.
    fn clock(&self) -> Option<String> {
        None
    }

    /// Rows that stood below one that arrives later, and were sorted.
    fn late(&self) -> u64 {
        0
    }

    /// Requests of sessions that would arrive after the last session has started.
    fn left_out(&self) -> u64 {
        0
    }
}

/// A row as its form's reader returns it: the time is the file's own.
struct Row {
    time_ns: i128,
    zero_output: bool,
    request: Request,
}

/// Reads a whole trace; sessions start as they do by default.
///
/// # Errors
/// The first one met; see [`TraceReader`].
pub fn read_all(path: impl AsRef<Path>) -> Result<Vec<Request>, TraceError> {
    TraceReader::open(path)?.collect()
}

/// A count of tokens within 1 and its limit.
fn tokens(field: &'static str, value: u64, limit: u32) -> Result<u32, Fault> {
    match u32::try_from(value) {
        Ok(0) => Err(Fault::Zero(field)),
        Ok(tokens) if tokens <= limit => Ok(tokens),
        _ => Err(Fault::AboveLimit { field, value: value.to_string(), limit: u64::from(limit) }),
    }
}

/// An output length of a foreign format, and whether it was 0 and is read as 1.
fn output_tokens(field: &'static str, value: u64) -> Result<(u32, bool), Fault> {
    tokens(field, value.max(1), MAX_OUTPUT_TOKENS).map(|tokens| (tokens, value == 0))
}
