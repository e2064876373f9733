//! Recorded workloads: a sequence of requests with arrival time, prompt tokens, output tokens and, where known, prefix
//! hashes, session, tenant, priority, SLO class and cache salt.
//!
//! [`TraceReader`] streams a file of any known format, plain, gzip or zstd; compression and format are told by content,
//! never by name. Every reader keeps the same contract:
//!
//! - Rows come in the order of the file, and the file must be in arrival order: a row that arrives before the one above
//!   it, by however little, is an error. Nothing is ever reordered.
//! - The first arrival is time 0, whatever the file's own clock says.
//! - A prompt of 0 tokens is an error. An output of 0 tokens is read as 1 in foreign formats, because a request that
//!   was served cost at least one step, and counted in [`TraceReader::zero_output_rows`]; in the canonical form it is
//!   an error.
//! - Whatever is wrong ends the reading with one [`TraceError`]: file, line, reason. A row that is cut off is wrong,
//!   also the last. (A CSV file cut inside its very last number cannot be told from a whole one.)
//! - Blank lines, a byte-order mark and CRLF are accepted.
//!
//! [`Trace`] opens whatever is a workload: such a file, or statistics of clients to draw requests from ([`ServeGen`]), a
//! folder or a tar archive.
//!
//! A file of sessions ([`Format::Sessions`]) is read to its end first, because sessions overlap; [`SessionArrivals`] says
//! when they start.
//!
//! | format | recognised by | file |
//! |---|---|---|
//! | [`Format::Azure`] | a CSV header with `TIMESTAMP`, `ContextTokens` or `GeneratedTokens` | `azure.rs` |
//! | [`Format::Mooncake`] | a JSON object with `input_length`, `output_length` or `hash_ids` | `mooncake.rs` |
//! | [`Format::Sessions`] | a JSON object with `requests` and `block_size` or `hash_id_scope`; an archive of them (tar) | `kvct.rs`, `archive.rs` |
//! | [`Format::ServeGen`] | a folder; a tar archive of `chunk-N-trace.csv`, `chunk-N-dataset.json` | `servegen/` |
//! | [`Format::Canonical`] | a JSON object with `arrival_us` | `jsonl.rs` |

mod archive;
mod azure;
mod error;
mod hash_ids;
pub mod jsonl;
mod kvct;
mod mooncake;
mod record;
pub mod servegen;
mod sessions;
mod source;
pub mod stats;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use archive::{MAX_ARCHIVE_BYTES, MAX_HASHES, MAX_SESSION_BYTES, MAX_SESSION_REQUESTS, MAX_SESSIONS};
pub use error::{Fault, TraceError};
pub use hash_ids::HashIds;
pub use record::Request;
pub use servegen::ServeGen;
pub use sessions::{MAX_SESSIONS_PER_HOUR, SessionArrivals};
pub use source::{MAX_LINE_BYTES, MAX_LINES};
pub use stats::TraceStats;

pub use crate::files::{Compression, ZSTD_WINDOW_LOG_MAX};

use crate::time::Micros;
use error::excerpt;
use sessions::Sessions;
use source::{LineSource, Opened};

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
    /// Mooncake traces (FAST'25) and what is derived in their manner.
    Mooncake,
    /// Agentic sessions of `kv-cache-tester`: one JSON file each, alone or in a tar archive.
    Sessions,
    /// Statistics of clients, as `ServeGen` publishes them: no requests, but what they are drawn from.
    ServeGen,
    /// kvtide's own: one [`Request`] a line.
    Canonical,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Azure => "Azure CSV",
            Format::Mooncake => "Mooncake JSONL",
            Format::Sessions => "agentic sessions",
            Format::ServeGen => "ServeGen statistics",
            Format::Canonical => "kvtide JSONL",
        })
    }
}

/// What a path holds.
pub enum Trace {
    /// Requests, each with its time.
    Requests(Box<TraceReader>),
    /// Statistics of clients.
    Clients(ServeGen),
}

impl Trace {
    /// Opens a file or a folder and recognises it; statistics are read to their end. In a file of sessions, they start by
    /// `arrivals`.
    ///
    /// # Errors
    /// Those of [`TraceReader::open_with`] and [`ServeGen::read_folder`].
    pub fn open(path: impl AsRef<Path>, arrivals: &SessionArrivals) -> Result<Trace, TraceError> {
        let path = path.as_ref();
        if path.is_dir() {
            return ServeGen::read_folder(path).map(Trace::Clients);
        }
        let opened = Opened::open(path)?;
        if archive::recognise(&opened.start) && servegen::recognise(&opened.start) {
            return ServeGen::read_archive(opened).map(Trace::Clients);
        }
        TraceReader::of(opened, arrivals).map(Box::new).map(Trace::Requests)
    }
}

/// A trace file read from start to end: an iterator that ends after the first error.
pub struct TraceReader {
    path: PathBuf,
    compression: Compression,
    rows: Rows,
    first_ns: Option<i128>,
    last_ns: i128,
    requests: u64,
    zero_output_rows: u64,
    ended: bool,
}

/// Where rows come from.
enum Rows {
    Lines(Lines),
    Sessions(Sessions),
}

/// A row a line.
struct Lines {
    source: LineSource,
    parser: Parser,
    line: String,
    /// `line` holds a row that has not been parsed.
    row_waits: bool,
}

/// How a row is read, one variant a format.
enum Parser {
    Azure(azure::Columns),
    Mooncake,
    Canonical,
}

/// A row as its format's parser returns it: the time is the file's own.
struct Row {
    time_ns: i128,
    zero_output: bool,
    request: Request,
}

impl TraceReader {
    /// Opens a trace and recognises it. Sessions start as [`SessionArrivals`] does by default.
    ///
    /// # Errors
    /// If the file cannot be read, is empty, is an archive of anything but sessions, or its first line is of no known
    /// format; and whatever is wrong with a file of sessions.
    pub fn open(path: impl AsRef<Path>) -> Result<TraceReader, TraceError> {
        TraceReader::open_with(path, &SessionArrivals::default())
    }

    /// Opens a trace and recognises it; in a file of sessions, they start by `arrivals`. Others have a clock already.
    ///
    /// # Errors
    /// Those of [`open`](TraceReader::open), if it holds statistics and no requests, and if no session can start at the rate of `arrivals`.
    pub fn open_with(path: impl AsRef<Path>, arrivals: &SessionArrivals) -> Result<TraceReader, TraceError> {
        match Trace::open(path, arrivals)? {
            Trace::Requests(reader) => Ok(*reader),
            Trace::Clients(clients) => Err(TraceError::of_file(clients.path(), Fault::Statistics)),
        }
    }

    /// A file that was opened, and is not statistics.
    fn of(opened: Opened, arrivals: &SessionArrivals) -> Result<TraceReader, TraceError> {
        let (path, compression) = (opened.path.clone(), opened.compression);
        let rows = if archive::recognise(&opened.start) || kvct::recognise(&opened.start) {
            Rows::Sessions(Sessions::read(opened, arrivals)?)
        } else {
            Rows::Lines(Lines::recognise(LineSource::new(opened))?)
        };
        Ok(TraceReader {
            path,
            compression,
            rows,
            first_ns: None,
            last_ns: 0,
            requests: 0,
            zero_output_rows: 0,
            ended: false,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file is written in.
    pub fn format(&self) -> Format {
        match &self.rows {
            Rows::Sessions(_) => Format::Sessions,
            Rows::Lines(lines) => match lines.parser {
                Parser::Azure(_) => Format::Azure,
                Parser::Mooncake => Format::Mooncake,
                Parser::Canonical => Format::Canonical,
            },
        }
    }

    /// How the file is compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Requests read so far.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Rows read so far whose output of 0 tokens was read as 1.
    pub fn zero_output_rows(&self) -> u64 {
        self.zero_output_rows
    }

    /// Requests of sessions that would arrive after the last session has started, and are left out.
    pub fn left_out_rows(&self) -> u64 {
        if let Rows::Sessions(sessions) = &self.rows { sessions.left_out } else { 0 }
    }

    fn read_request(&mut self) -> Result<Option<Request>, TraceError> {
        let row = match &mut self.rows {
            Rows::Lines(lines) => lines.next_row()?,
            Rows::Sessions(sessions) => sessions.rows.next(),
        };
        let Some(row) = row else {
            return if self.requests == 0 { Err(self.error(Fault::Empty)) } else { Ok(None) };
        };
        let arrival = self.rebase(row.time_ns).map_err(|fault| match &self.rows {
            Rows::Lines(lines) => lines.source.error(fault),
            Rows::Sessions(_) => self.error(fault),
        })?;
        self.requests += 1;
        self.zero_output_rows += u64::from(row.zero_output);
        Ok(Some(Request { arrival, ..row.request }))
    }

    /// An error of the file as a whole.
    fn error(&self, fault: Fault) -> TraceError {
        TraceError::of_file(&self.path, fault)
    }

    /// The file's own time as time since its first row, cut to whole microseconds.
    fn rebase(&mut self, time_ns: i128) -> Result<Micros, Fault> {
        let first_ns = *self.first_ns.get_or_insert(time_ns);
        if self.requests > 0 && time_ns < self.last_ns {
            let earlier_by_ms = format!("{}", (self.last_ns - time_ns) as f64 * 1e-6);
            return Err(Fault::Backwards { earlier_by_ms });
        }
        self.last_ns = time_ns;
        let arrival_us = ((time_ns - first_ns) / 1_000) as u64;
        if arrival_us > MAX_SPAN.0 {
            let value = arrival_us.to_string();
            return Err(Fault::AboveLimit { field: "arrival, µs after the first,", value, limit: MAX_SPAN.0 });
        }
        Ok(Micros(arrival_us))
    }
}

impl Iterator for TraceReader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.read_request().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

impl Lines {
    fn recognise(mut source: LineSource) -> Result<Lines, TraceError> {
        let mut line = String::new();
        if !source.next_line(&mut line)? {
            return Err(source.file_error(Fault::Empty));
        }
        let parser = Parser::recognise(&line).map_err(|fault| source.error(fault))?;
        let row_waits = !parser.begins_with_a_header();
        Ok(Lines { source, parser, line, row_waits })
    }

    fn next_row(&mut self) -> Result<Option<Row>, TraceError> {
        if !self.row_waits && !self.source.next_line(&mut self.line)? {
            return Ok(None);
        }
        self.row_waits = false;
        self.parser.parse(&self.line).map(Some).map_err(|fault| self.source.error(fault))
    }
}

impl Parser {
    fn recognise(first_line: &str) -> Result<Parser, Fault> {
        let has = |key: &str| first_line.contains(&format!("\"{key}\""));
        if !first_line.starts_with('{') {
            return azure::Columns::of(first_line).map(Parser::Azure);
        }
        if has("arrival_us") {
            Ok(Parser::Canonical)
        } else if has("input_length") || has("output_length") || has("hash_ids") {
            Ok(Parser::Mooncake)
        } else {
            Err(Fault::UnknownFormat(excerpt(first_line)))
        }
    }

    /// Whether the first line names columns and is no row.
    fn begins_with_a_header(&self) -> bool {
        match self {
            Parser::Azure(_) => true,
            Parser::Mooncake | Parser::Canonical => false,
        }
    }

    fn parse(&self, line: &str) -> Result<Row, Fault> {
        match self {
            Parser::Azure(columns) => columns.parse(line),
            Parser::Mooncake => mooncake::parse(line),
            Parser::Canonical => jsonl::parse(line),
        }
    }
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
