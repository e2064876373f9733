//! A measured run: what a real server recorded of every request, and of itself once a second.
//!
//! `requests.jsonl` has an object a line: `input_toks`, `output_toks`, `arrival_time` on the client's wall clock, and
//! on the engine's monotonic clock, in seconds, `queued_ts`, `first_token_ts` and `last_token_ts`. `timeseries.csv` has
//! a row a tick: `t` (seconds since its recorder started), `prompt_throughput` and `gen_throughput` (tokens/s since the
//! tick before; a prompt counts as a whole at its first token), `running`, `waiting`, `kv_cache_pct`. Other fields are
//! passed over. `meta.json` is read by [`MeasuredEngine`]. This is how the `LLMServingSim` bench records vLLM.

use std::path::{Path, PathBuf};

use kvtide_envs::trace::{MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS};
use serde::Deserialize;

use super::engine::MeasuredEngine;
use super::error::{MeasuredError, MeasuredFault};
use super::files::{Files, TextFile};
use super::load;
use super::replicas;

/// Most requests of a run, and most ticks.
pub(super) const MAX_ROWS: usize = 1 << 21;
/// Longest time a clock may show, seconds: ten thousand years, so that sums stay exact to a millisecond.
const MAX_SECONDS: f64 = 3e11;

/// A run of a real server.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredRun {
    /// File or folder it was read from, without its path.
    pub name: String,
    /// What was measured.
    pub engine: MeasuredEngine,
    /// In order of arrival, at least one.
    pub requests: Vec<MeasuredRequest>,
    /// In order.
    pub ticks: Vec<MeasuredTick>,
}

/// One request. Times are seconds: `arrival` on the client's wall clock, the others on the engine's.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredRequest {
    /// Prompt length.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// When the client sent it.
    pub arrival: f64,
    /// When the engine queued it.
    pub queued: f64,
    /// When the engine had its first token.
    pub first_token: f64,
    /// When the engine had its last token.
    pub last_token: f64,
    /// Hash of each full block of the prompt, binding all before it; empty where the tokens are not known.
    pub block_hashes: Vec<u64>,
    /// Which of the engines beside each other served it.
    pub replica: u32,
}

/// What the server said of itself at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredTick {
    /// Seconds on the recorder's clock.
    pub t: f64,
    /// Prompt tokens of first tokens since the tick before.
    pub prompt_tokens: f64,
    /// Tokens generated since the tick before.
    pub output_tokens: f64,
    /// Requests running.
    pub running: f64,
    /// Requests waiting.
    pub waiting: f64,
    /// Share of KV blocks in use.
    pub kv_usage: f64,
}

#[derive(Deserialize)]
struct Row {
    input_toks: u32,
    output_toks: u32,
    arrival_time: f64,
    queued_ts: f64,
    first_token_ts: f64,
    last_token_ts: f64,
    #[serde(default)]
    dp_rank: Option<u32>,
}

impl MeasuredRun {
    /// Reads a folder or an archive, and where given the load, which knows the prompts' tokens.
    ///
    /// # Errors
    /// A file is missing or damaged, or a row makes no sense.
    pub fn read(path: &Path, load: Option<&Path>) -> Result<MeasuredRun, MeasuredError> {
        let files = Files::read(path)?;
        let engine = MeasuredEngine::parse(&files.meta)?;
        let (mut requests, say_replicas) = parse_requests(&files.requests, engine.replicas)?;
        if let Some(load) = load {
            load::identify(&mut requests, load, engine.tokens_per_block())?;
        }
        // A client may write its rows as requests end.
        requests.sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
        if !say_replicas {
            replicas::assign(&mut requests, engine.replicas);
        }
        let ticks = parse_ticks(&files.series)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(MeasuredRun { name, engine, requests, ticks })
    }

    /// Reads a folder or an archive, and the load of a file beside it that names as many prompts of the same lengths, if there
    /// is one: which, is told.
    ///
    /// # Errors
    /// A file of the run is missing or damaged, or a row makes no sense.
    pub fn read_with_load_beside(path: &Path) -> Result<(MeasuredRun, Option<PathBuf>), MeasuredError> {
        let run = MeasuredRun::read(path, None)?;
        // Any other file is refused, most at their first line.
        let with = |load: PathBuf| Some((MeasuredRun::read(path, Some(&load)).ok()?, Some(load)));
        Ok(load::beside(path).into_iter().find_map(with).unwrap_or((run, None)))
    }

    /// When the first request was queued, on the engine's clock.
    pub fn start(&self) -> f64 {
        self.requests.iter().map(|request| request.queued).fold(f64::INFINITY, f64::min)
    }

    /// When the last token appeared, on the engine's clock.
    pub fn end(&self) -> f64 {
        self.requests.iter().map(|request| request.last_token).fold(f64::NEG_INFINITY, f64::max)
    }
}

/// The requests, and whether every one of them says which engine served it.
fn parse_requests(file: &TextFile, replicas: u32) -> Result<(Vec<MeasuredRequest>, bool), MeasuredError> {
    let mut requests = Vec::new();
    let mut say_replicas = true;
    for (index, line) in file.text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |fault| MeasuredError::line(&file.name, index + 1, fault);
        let row: Row =
            serde_json::from_str(line).map_err(|error| wrong(MeasuredFault::Json(without_position(&error))))?;
        requests.push(request(&row, replicas).map_err(wrong)?);
        say_replicas &= row.dp_rank.is_some();
        if requests.len() > MAX_ROWS {
            return Err(wrong(MeasuredFault::TooMany(MAX_ROWS)));
        }
    }
    if requests.is_empty() {
        Err(MeasuredError::file(&file.name, MeasuredFault::Empty("requests")))
    } else {
        Ok((requests, say_replicas))
    }
}

fn request(row: &Row, replicas: u32) -> Result<MeasuredRequest, MeasuredFault> {
    for (field, tokens, limit, expected) in [
        ("input_toks", row.input_toks, MAX_PROMPT_TOKENS, "1 to 16777216"),
        ("output_toks", row.output_toks, MAX_OUTPUT_TOKENS, "1 to 1048576"),
    ] {
        if !(1..=limit).contains(&tokens) {
            return Err(MeasuredFault::Value { field, value: tokens.to_string(), expected });
        }
    }
    let stamps = [
        ("arrival_time", row.arrival_time),
        ("queued_ts", row.queued_ts),
        ("first_token_ts", row.first_token_ts),
        ("last_token_ts", row.last_token_ts),
    ];
    for (field, value) in stamps {
        in_range(field, value, MAX_SECONDS, "seconds, not negative")?;
    }
    // The first is on another clock.
    for pair in stamps[1..].windows(2) {
        follows(pair[1], pair[0])?;
    }
    Ok(MeasuredRequest {
        prompt_tokens: row.input_toks,
        output_tokens: row.output_toks,
        arrival: row.arrival_time,
        queued: row.queued_ts,
        first_token: row.first_token_ts,
        last_token: row.last_token_ts,
        block_hashes: Vec::new(),
        replica: replica(row.dp_rank, replicas)?,
    })
}

/// One of so many.
fn replica(rank: Option<u32>, replicas: u32) -> Result<u32, MeasuredFault> {
    let rank = rank.unwrap_or(0);
    let wrong =
        || MeasuredFault::Value { field: "dp_rank", value: rank.to_string(), expected: "less than data_parallel_size" };
    (rank < replicas).then_some(rank).ok_or_else(wrong)
}

const COLUMNS: [&str; 6] = ["t", "prompt_throughput", "gen_throughput", "running", "waiting", "kv_cache_pct"];

fn parse_ticks(file: &TextFile) -> Result<Vec<MeasuredTick>, MeasuredError> {
    let empty = || MeasuredError::file(&file.name, MeasuredFault::Empty("ticks"));
    let mut rows = file.text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (index, header) = rows.next().ok_or_else(empty)?;
    let header: Vec<&str> = header.trim_start_matches('\u{feff}').split(',').map(str::trim).collect();
    let position = |name: &'static str| {
        let found = header.iter().position(|column| *column == name);
        found.ok_or_else(|| MeasuredError::line(&file.name, index + 1, MeasuredFault::Column(name)))
    };
    let mut positions = [0; COLUMNS.len()];
    for (place, name) in positions.iter_mut().zip(COLUMNS) {
        *place = position(name)?;
    }
    let mut ticks: Vec<MeasuredTick> = Vec::new();
    for (index, line) in rows {
        let wrong = |fault| MeasuredError::line(&file.name, index + 1, fault);
        let values: Vec<&str> = line.split(',').map(str::trim).collect();
        if values.len() != header.len() {
            return Err(wrong(MeasuredFault::Columns { expected: header.len(), got: values.len() }));
        }
        let before = ticks.last().map_or(0.0, |tick| tick.t);
        ticks.push(tick(positions.map(|place| values[place]), before).map_err(wrong)?);
        if ticks.len() > MAX_ROWS {
            return Err(wrong(MeasuredFault::TooMany(MAX_ROWS)));
        }
    }
    if ticks.is_empty() { Err(empty()) } else { Ok(ticks) }
}

/// The tick of a row, the one before it having been taken at `before`.
fn tick(values: [&str; COLUMNS.len()], before: f64) -> Result<MeasuredTick, MeasuredFault> {
    let mut numbers = [0.0; COLUMNS.len()];
    for ((number, text), field) in numbers.iter_mut().zip(values).zip(COLUMNS) {
        let limit = if field == "kv_cache_pct" { 100.0 } else { MAX_SECONDS };
        let expected = if field == "kv_cache_pct" { "per cent" } else { "a number, not negative" };
        *number = text.parse().map_err(|_| MeasuredFault::Value { field, value: format!("`{text}`"), expected })?;
        in_range(field, *number, limit, expected)?;
    }
    let [t, prompt_throughput, gen_throughput, running, waiting, kv_cache_pct] = numbers;
    if t <= before {
        return Err(MeasuredFault::Backwards { field: "t", value: t, before: "t of the row above", earlier: before });
    }
    let length = t - before;
    Ok(MeasuredTick {
        t,
        prompt_tokens: prompt_throughput * length,
        output_tokens: gen_throughput * length,
        running,
        waiting,
        kv_usage: kv_cache_pct / 100.0,
    })
}

fn in_range(field: &'static str, value: f64, limit: f64, expected: &'static str) -> Result<(), MeasuredFault> {
    if (0.0..=limit).contains(&value) {
        return Ok(());
    }
    Err(MeasuredFault::Value { field, value: value.to_string(), expected })
}

fn follows((field, value): (&'static str, f64), (before, earlier): (&'static str, f64)) -> Result<(), MeasuredFault> {
    if value >= earlier { Ok(()) } else { Err(MeasuredFault::Backwards { field, value, before, earlier }) }
}

/// What serde says, without its own count of lines, which is always 1.
pub(in crate::calibrate) fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => format!("{} (column {})", &text[..end], error.column()),
        None => text,
    }
}
