//! Measured summaries as files: a folder with `runs.jsonl`, a run a line, and `arrivals.jsonl`, when its requests came.
//!
//! A run is one server with one token budget under one sequence of arrivals, every request with the same lengths. Of what came
//! of it only figures are kept, as a client saw them, in seconds. Other fields are passed over.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use kvtide_envs::time::Micros;
use kvtide_envs::trace::{MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS};
use serde::{Deserialize, Serialize};

use crate::calibrate::served::{MeasuredError, MeasuredFault, TextFile, without_position};

/// The two files.
const RUNS: &str = "runs.jsonl";
const ARRIVALS: &str = "arrivals.jsonl";
/// Most runs of a file, and most requests of a run.
const MAX_ROWS: usize = 100_000;
/// Shortest and longest time, seconds: what the simulator's clock resolves, and a year.
const MIN_SECONDS: f64 = 1e-6;
const MAX_SECONDS: f64 = 3.2e7;
/// vLLM's `max_num_seqs`, where a row does not say.
const MAX_NUM_SEQS: u32 = 256;

/// A latency over the requests of a run, seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeanP95 {
    /// Mean.
    pub mean: f64,
    /// 95th percentile, between the two nearest requests.
    pub p95: f64,
}

/// What a client saw of a run, seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latencies {
    /// From sending a request to the end of its answer.
    pub e2e: MeanP95,
    /// From sending a request to its first token.
    pub ttft: MeanP95,
    /// From a request's first token to the end of its answer, for each token after the first.
    pub tpot: MeanP95,
    /// From the first request's sending to the last answer's end.
    pub makespan: f64,
}

/// What chose how many tokens a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SummaryPolicy {
    /// The budget, `max_num_batched_tokens`, and nothing else.
    Fixed,
    /// The budget, and less of it while a request decodes and others have prompt left: P-PAS.
    Ppas,
}

impl SummaryPolicy {
    /// Its name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            SummaryPolicy::Fixed => "fixed",
            SummaryPolicy::Ppas => "ppas",
        }
    }
}

/// A measured run.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryRun {
    /// Its line, counted from 1.
    pub line: usize,
    /// The accelerator, as the row names it.
    pub gpu: String,
    /// The model, as the row names it.
    pub model: String,
    /// Prompt length of every request.
    pub prompt_tokens: u32,
    /// Tokens generated for every request.
    pub output_tokens: u32,
    /// The load: `seconds:rate,…`.
    pub phases: String,
    /// Requests per second of its busiest phase.
    pub peak_rps: f64,
    /// Which draw of arrivals.
    pub seed: u64,
    /// What chose the tokens of a step.
    pub policy: SummaryPolicy,
    /// The token budget.
    pub max_num_batched_tokens: u32,
    /// Most requests running at once.
    pub max_num_seqs: u32,
    /// When requests were sent, in order.
    pub arrivals: Arc<[Micros]>,
    /// What came of them.
    pub measured: Latencies,
}

/// The runs of a folder.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredSummaries {
    /// The folder, without its path.
    pub name: String,
    /// Its `runs.jsonl`, as errors name it.
    pub file: String,
    /// In the order of their lines, at least one.
    pub runs: Vec<SummaryRun>,
    /// Lines of runs in which requests failed: what was measured of the others is no run of all of them.
    pub failed: Vec<usize>,
}

#[derive(Deserialize)]
struct Row {
    gpu: String,
    model: String,
    prompt_tokens: u32,
    output_tokens: u32,
    peak_rps: Option<f64>,
    phases: String,
    seed: u64,
    requests: Option<usize>,
    policy: String,
    max_num_batched_tokens: u32,
    max_num_seqs: Option<u32>,
    e2e_mean_s: f64,
    e2e_p95_s: f64,
    ttft_mean_s: f64,
    ttft_p95_s: f64,
    tpot_mean_s: f64,
    tpot_p95_s: f64,
    makespan_s: f64,
    #[serde(default)]
    failed: u64,
}

#[derive(Deserialize)]
struct ArrivalRow {
    phases: String,
    seed: u64,
    arrival_us: Vec<u64>,
}

/// Arrivals by phases and seed.
type Arrivals = BTreeMap<(String, u64), Arc<[Micros]>>;

impl MeasuredSummaries {
    /// Whether `path` is a folder of summaries, and not a run that a server recorded.
    pub fn is_at(path: &Path) -> bool {
        path.join(RUNS).is_file()
    }

    /// Reads the folder `path`.
    ///
    /// # Errors
    /// A file is missing or damaged, or a row makes no sense.
    pub fn read(path: &Path) -> Result<MeasuredSummaries, MeasuredError> {
        let arrivals = read_arrivals(&TextFile::read(&path.join(ARRIVALS))?)?;
        let file = TextFile::read(&path.join(RUNS))?;
        let (mut runs, mut failed) = (Vec::new(), Vec::new());
        for (line, text) in lines(&file) {
            let wrong = |fault| MeasuredError::line(&file.name, line, fault);
            let row: Row =
                serde_json::from_str(text).map_err(|error| wrong(MeasuredFault::Json(without_position(&error))))?;
            if row.failed > 0 {
                failed.push(line);
                continue;
            }
            runs.push(run(row, line, &arrivals).map_err(wrong)?);
            if runs.len() > MAX_ROWS {
                return Err(wrong(MeasuredFault::TooMany(MAX_ROWS)));
            }
        }
        if runs.is_empty() {
            let what = if failed.is_empty() { "runs" } else { "runs in which no request failed" };
            return Err(MeasuredError::file(&file.name, MeasuredFault::Empty(what)));
        }
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(MeasuredSummaries { name, file: file.name, runs, failed })
    }
}

/// Lines that hold something, with their numbers.
fn lines(file: &TextFile) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(file.text.lines()).filter(|(_, line)| !line.trim().is_empty())
}

fn read_arrivals(file: &TextFile) -> Result<Arrivals, MeasuredError> {
    let mut arrivals = Arrivals::new();
    for (line, text) in lines(file) {
        let wrong = |fault| MeasuredError::line(&file.name, line, fault);
        let ArrivalRow { phases, seed, arrival_us } =
            serde_json::from_str(text).map_err(|error| wrong(MeasuredFault::Json(without_position(&error))))?;
        if arrival_us.is_empty() {
            return Err(wrong(MeasuredFault::Empty("arrivals")));
        }
        if arrival_us.len() > MAX_ROWS {
            return Err(wrong(MeasuredFault::TooMany(MAX_ROWS)));
        }
        if let Some([earlier, value]) = arrival_us.array_windows().find(|[earlier, later]| later < earlier) {
            let [earlier, value] = [*earlier, *value].map(|us| us as f64);
            let (field, before) = ("arrival_us", "the one before it,");
            return Err(wrong(MeasuredFault::Backwards { field, value, before, earlier }));
        }
        let last = arrival_us[arrival_us.len() - 1];
        if last as f64 > MAX_SECONDS * 1e6 {
            let (field, expected) = ("arrival_us", "microseconds of at most a year");
            return Err(wrong(MeasuredFault::Value { field, value: last.to_string(), expected }));
        }
        let key = (phases, seed);
        if arrivals.contains_key(&key) {
            let (phases, seed) = key;
            return Err(wrong(MeasuredFault::Twice(format!("arrivals of seed {seed} at {phases}"))));
        }
        arrivals.insert(key, arrival_us.into_iter().map(Micros).collect());
    }
    Ok(arrivals)
}

/// The run of a row.
fn run(row: Row, line: usize, arrivals: &Arrivals) -> Result<SummaryRun, MeasuredFault> {
    let max_num_seqs = row.max_num_seqs.unwrap_or(MAX_NUM_SEQS);
    for (field, count, limit, expected) in [
        ("prompt_tokens", row.prompt_tokens, MAX_PROMPT_TOKENS, "1 to 16777216"),
        ("output_tokens", row.output_tokens, MAX_OUTPUT_TOKENS, "1 to 1048576"),
        ("max_num_batched_tokens", row.max_num_batched_tokens, 1 << 26, "1 to 67108864"),
        ("max_num_seqs", max_num_seqs, 1 << 16, "1 to 65536"),
    ] {
        if !(1..=limit).contains(&count) {
            return Err(MeasuredFault::Value { field, value: count.to_string(), expected });
        }
    }
    let policy = match row.policy.as_str() {
        "fixed" => SummaryPolicy::Fixed,
        "ppas" => SummaryPolicy::Ppas,
        other => return Err(value("policy", &other, "fixed or ppas")),
    };
    let measured = latencies(&row)?;
    let peak_rps = match row.peak_rps {
        Some(rate) if rate > 0.0 && rate <= 1e6 => rate,
        Some(rate) => return Err(value("peak_rps", &rate, "requests a second, above 0")),
        None => peak(&row.phases)?,
    };
    let key = (row.phases, row.seed);
    let Some(arrivals) = arrivals.get(&key) else {
        let (phases, seed) = key;
        return Err(MeasuredFault::NoArrivals { phases, seed });
    };
    if row.requests.is_some_and(|requests| requests != arrivals.len()) {
        let requests = row.requests.unwrap_or_default();
        return Err(MeasuredFault::OtherLoad(format!(
            "requests is {requests}, and {ARRIVALS} has {} for seed {} at {}",
            arrivals.len(),
            key.1,
            key.0
        )));
    }
    Ok(SummaryRun {
        line,
        gpu: row.gpu,
        model: row.model,
        prompt_tokens: row.prompt_tokens,
        output_tokens: row.output_tokens,
        phases: key.0,
        peak_rps,
        seed: key.1,
        policy,
        max_num_batched_tokens: row.max_num_batched_tokens,
        max_num_seqs,
        arrivals: Arc::clone(arrivals),
        measured,
    })
}

fn value(field: &'static str, value: &dyn ToString, expected: &'static str) -> MeasuredFault {
    MeasuredFault::Value { field, value: value.to_string(), expected }
}

fn latencies(row: &Row) -> Result<Latencies, MeasuredFault> {
    let has_gaps = row.output_tokens > 1;
    let times = [
        ("e2e_mean_s", row.e2e_mean_s, true),
        ("e2e_p95_s", row.e2e_p95_s, true),
        ("ttft_mean_s", row.ttft_mean_s, true),
        ("ttft_p95_s", row.ttft_p95_s, true),
        ("tpot_mean_s", row.tpot_mean_s, has_gaps),
        ("tpot_p95_s", row.tpot_p95_s, has_gaps),
        ("makespan_s", row.makespan_s, true),
    ];
    for (field, seconds, is_some_time) in times {
        let least = if is_some_time { MIN_SECONDS } else { 0.0 };
        if !(least..=MAX_SECONDS).contains(&seconds) {
            return Err(value(field, &format!("{seconds:?}"), "seconds, from 0.000001 to a year"));
        }
    }
    if row.ttft_mean_s > row.e2e_mean_s {
        return Err(value("ttft_mean_s", &row.ttft_mean_s, "at most e2e_mean_s"));
    }
    Ok(Latencies {
        e2e: MeanP95 { mean: row.e2e_mean_s, p95: row.e2e_p95_s },
        ttft: MeanP95 { mean: row.ttft_mean_s, p95: row.ttft_p95_s },
        tpot: MeanP95 { mean: row.tpot_mean_s, p95: row.tpot_p95_s },
        makespan: row.makespan_s,
    })
}

/// The greatest rate of `seconds:rate,…`.
fn peak(phases: &str) -> Result<f64, MeasuredFault> {
    let rate = |phase: &str| phase.split_once(':')?.1.trim().parse::<f64>().ok().filter(|rate| rate.is_finite());
    let rates: Option<Vec<f64>> = phases.split(',').map(rate).collect();
    let peak = rates.unwrap_or_default().into_iter().fold(0.0, f64::max);
    if peak > 0.0 { Ok(peak) } else { Err(value("phases", &phases, "seconds:rate,…, or peak_rps beside it")) }
}
