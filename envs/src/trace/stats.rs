//! What a trace looks like: `kvtide trace stats`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Compression, Format, HashIds, Request, Skipped, TraceError, TraceReader};
use crate::percentile::percentile;
use crate::time::Micros;

/// Shortest timestamp quantum looked for: finer ones hardly shape a queue.
const MIN_QUANTUM: Micros = Micros::from_millis(100);

/// How far from a multiple of the quantum a gap may be: files in milliseconds round each end of it.
const QUANTUM_TOLERANCE: Micros = Micros::from_millis(2);

/// Share of gaps that must be multiples of the quantum.
const QUANTUM_SHARE: f64 = 0.95;

/// Fewest gaps a quantum is told from.
const QUANTUM_MIN_GAPS: usize = 20;

/// Widest sparkline, characters.
const SPARKLINE_CHARS: usize = 60;

/// Figures of a whole trace. Percentiles are those of [`percentile`]; figures a trace cannot have are `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceStats {
    /// The file.
    pub path: PathBuf,
    /// What it is written in.
    pub format: Format,
    /// How it is compressed.
    pub compression: Compression,
    /// Requests in the trace.
    pub requests: u64,
    /// From the first arrival to the last, seconds.
    pub duration_s: f64,
    /// Requests over duration.
    pub rate_rps: Option<f64>,
    /// Mean time between arrivals, seconds.
    pub inter_arrival_mean_s: Option<f64>,
    /// Its coefficient of variation: standard deviation (of the population) over mean. 1 for a Poisson process.
    pub inter_arrival_cv: Option<f64>,
    /// The step the recording clock moved in, seconds; `None` if it is below 0.1 s.
    pub quantum_s: Option<f64>,
    /// Prompt lengths.
    pub prompt_tokens: LengthSummary,
    /// Output lengths.
    pub output_tokens: LengthSummary,
    /// Prompt and output tokens together.
    pub total_tokens: u64,
    /// Share of prompt tokens in full hash blocks that were seen before in the trace, under the same cache salt: what a
    /// prefix cache without limit would save, tenants sharing. `None` if no request has hashes.
    pub prefix_reuse: Option<f64>,
    /// Prompt tokens in full hash blocks that differ: what that cache would hold in the end, answers not counted. `None`
    /// if no request has hashes.
    pub prefix_tokens: Option<u64>,
    /// Distinct sessions; 0 if none are named.
    pub sessions: u64,
    /// Distinct tenants; 0 if none are named.
    pub tenants: u64,
    /// Distinct cache salts; 0 if none are given.
    pub cache_salts: u64,
    /// Requests whose output of 0 tokens was read as 1.
    pub zero_output_rows: u64,
    /// Requests of sessions that would arrive after the last session has started, and are left out.
    pub left_out_rows: u64,
    /// Rows that are no requests, and why.
    #[serde(skip_serializing_if = "Skipped::is_none")]
    pub skipped: Skipped,
    /// Rows that stood below one that arrives later, and were sorted.
    #[serde(skip_serializing_if = "is_zero")]
    pub late_rows: u64,
    /// How times were read, where that had to be found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<String>,
    /// Arrivals in each minute.
    pub arrivals_per_minute: Vec<u64>,
    /// What to mind when replaying, one sentence each.
    pub warnings: Vec<String>,
}

/// Distribution of a length in tokens.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LengthSummary {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: u64,
    /// Sum.
    pub total: u64,
}

impl TraceStats {
    /// Reads a trace to its end and describes it. Sessions start as [`super::SessionArrivals`] does by default.
    ///
    /// # Errors
    /// Those of [`TraceReader`].
    pub fn read(path: impl AsRef<Path>) -> Result<TraceStats, TraceError> {
        TraceStats::of(TraceReader::open(path)?)
    }

    /// Describes the trace of a reader that was just opened.
    ///
    /// # Errors
    /// Those of [`TraceReader`].
    pub fn of(mut reader: TraceReader) -> Result<TraceStats, TraceError> {
        let mut seen = Tally::default();
        for request in reader.by_ref() {
            seen.add(&request?);
        }
        Ok(seen.describe(&reader))
    }
}

/// What is kept of each request: 16 bytes, and 16 more for each of its hashes that its session did not just have.
#[derive(Default)]
struct Tally {
    arrivals_us: Vec<u64>,
    prompts: Vec<u32>,
    outputs: Vec<u32>,
    prefixes: Prefixes,
    sessions: BTreeSet<String>,
    tenants: BTreeSet<String>,
}

impl Tally {
    fn add(&mut self, request: &Request) {
        self.arrivals_us.push(request.arrival.0);
        self.prompts.push(request.prompt_tokens);
        self.outputs.push(request.output_tokens);
        self.prefixes.add(request);
        for (names, name) in [(&mut self.sessions, &request.session), (&mut self.tenants, &request.tenant)] {
            if let Some(name) = name.as_ref().filter(|name| !names.contains(*name)) {
                names.insert(name.clone());
            }
        }
    }

    fn describe(self, reader: &TraceReader) -> TraceStats {
        let requests = self.arrivals_us.len() as u64;
        let duration_s = self.arrivals_us.last().map_or(0.0, |last| Micros(*last).as_secs_f64());
        let gaps_us: Vec<u64> = self.arrivals_us.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let quantum = quantum(&gaps_us);
        let arrivals_per_minute = per_minute(&self.arrivals_us);
        let (prompt_tokens, output_tokens) = (LengthSummary::of(&self.prompts), LengthSummary::of(&self.outputs));
        let cache_salts = self.prefixes.salts.keys().filter(|salt| salt.is_some()).count() as u64;
        let prefixes = self.prefixes.count();
        TraceStats {
            path: reader.path().to_path_buf(),
            format: reader.format(),
            compression: reader.compression(),
            requests,
            duration_s,
            rate_rps: (duration_s > 0.0).then(|| requests as f64 / duration_s),
            inter_arrival_mean_s: (!gaps_us.is_empty()).then(|| duration_s / gaps_us.len() as f64),
            inter_arrival_cv: coefficient_of_variation(&gaps_us),
            quantum_s: quantum.map(Micros::as_secs_f64),
            total_tokens: prompt_tokens.total + output_tokens.total,
            prefix_reuse: prefixes.map(|(all, distinct)| (all - distinct) as f64 / prompt_tokens.total as f64),
            prefix_tokens: prefixes.map(|(_, distinct)| distinct),
            prompt_tokens,
            output_tokens,
            sessions: self.sessions.len() as u64,
            tenants: self.tenants.len() as u64,
            cache_salts,
            zero_output_rows: reader.zero_output_rows(),
            left_out_rows: reader.left_out_rows(),
            skipped: reader.skipped(),
            late_rows: reader.late_rows(),
            clock: reader.clock(),
            arrivals_per_minute,
            warnings: warnings(quantum, self.sessions.len(), reader),
        }
    }
}

/// Prefix blocks: all, and those that differ. With a cache that forgets nothing, every occurrence of a block but its
/// first is a hit.
#[derive(Default)]
struct Prefixes {
    /// Tokens of all blocks.
    tokens: u64,
    /// Blocks, each at least once. A block of another size, or under another salt, is another block.
    blocks: Vec<BlockKey>,
    /// Salts, numbered as they come.
    salts: BTreeMap<Option<String>, u32>,
    /// The prefix that each session had last.
    last: BTreeMap<String, (u32, u32, HashIds)>,
}

/// Salt, tokens, hash.
type BlockKey = (u32, u32, u64);

impl Prefixes {
    fn add(&mut self, request: &Request) {
        let next_salt = self.salts.len() as u32;
        let salt = *self.salts.entry(request.cache_salt.clone()).or_insert(next_salt);
        let (block_tokens, hash_ids) = (request.hash_block_tokens, &request.hash_ids);
        self.tokens += u64::from(block_tokens) * hash_ids.len() as u64;
        // Most of a turn's prompt is the prompt of the turn before.
        let mut known = 0;
        if let Some(session) = &request.session {
            let last = self.last.insert(session.clone(), (salt, block_tokens, hash_ids.clone()));
            if let Some((_, _, last)) = last.filter(|last| (last.0, last.1) == (salt, block_tokens)) {
                known = last.iter().zip(hash_ids).take_while(|(last, now)| last == now).count();
            }
        }
        self.blocks.extend(hash_ids[known..].iter().map(|hash| (salt, block_tokens, *hash)));
    }

    /// Tokens of all blocks, and of those that differ; `None` if there are none.
    fn count(mut self) -> Option<(u64, u64)> {
        self.blocks.sort_unstable();
        self.blocks.dedup();
        let distinct = self.blocks.iter().map(|(_, block_tokens, _)| u64::from(*block_tokens)).sum();
        (!self.blocks.is_empty()).then_some((self.tokens, distinct))
    }
}

impl LengthSummary {
    fn of(tokens: &[u32]) -> LengthSummary {
        let mut sorted: Vec<f64> = tokens.iter().map(|tokens| f64::from(*tokens)).collect();
        sorted.sort_by(f64::total_cmp);
        let total = tokens.iter().map(|tokens| u64::from(*tokens)).sum();
        let at = |p| percentile(&sorted, p);
        LengthSummary {
            mean: total as f64 / tokens.len() as f64,
            p50: at(50.0),
            p90: at(90.0),
            p95: at(95.0),
            p99: at(99.0),
            max: at(100.0) as u64,
            total,
        }
    }
}

fn coefficient_of_variation(gaps_us: &[u64]) -> Option<f64> {
    let mean = gaps_us.iter().sum::<u64>() as f64 / gaps_us.len() as f64;
    let squares: f64 = gaps_us.iter().map(|gap| (*gap as f64 - mean).powi(2)).sum();
    // No gaps, or all of them zero: there is no variation to speak of.
    (mean > 0.0).then(|| (squares / gaps_us.len() as f64).sqrt() / mean)
}

/// The longest step that (nearly) all gaps between different arrival times are multiples of. Candidates are the
/// greatest common divisor, which finds an exact clock at any rate, and the most common gap, which finds one that was
/// rounded.
fn quantum(gaps_us: &[u64]) -> Option<Micros> {
    let mut gaps: Vec<u64> = gaps_us.iter().copied().filter(|gap| *gap > 0).collect();
    gaps.sort_unstable();
    let divisor = gaps.iter().copied().reduce(greatest_common_divisor)?;
    let most_common = gaps.chunk_by(|a, b| a == b).max_by_key(|same| same.len()).map(|same| same[0])?;
    let is_quantum = |quantum: u64| {
        let is_multiple = |gap: &&u64| {
            let multiple = (**gap + quantum / 2) / quantum;
            multiple >= 1 && gap.abs_diff(multiple * quantum) <= QUANTUM_TOLERANCE.0
        };
        gaps.iter().filter(is_multiple).count() as f64 >= QUANTUM_SHARE * gaps.len() as f64
    };
    let candidates = [most_common, divisor];
    let found = candidates.into_iter().filter(|quantum| *quantum >= MIN_QUANTUM.0 && is_quantum(*quantum)).max();
    found.filter(|_| gaps.len() >= QUANTUM_MIN_GAPS).map(Micros)
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

fn per_minute(arrivals_us: &[u64]) -> Vec<u64> {
    let minute = |arrival_us: u64| (arrival_us / 60_000_000) as usize;
    let mut counts = vec![0; arrivals_us.last().map_or(0, |last| minute(*last) + 1)];
    for arrival_us in arrivals_us {
        counts[minute(*arrival_us)] += 1;
    }
    counts
}

fn warnings(quantum: Option<Micros>, sessions: usize, reader: &TraceReader) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(quantum) = quantum {
        let step = seconds(quantum.as_secs_f64());
        warnings.push(format!("arrivals are quantised to {step}: use --jitter {step}"));
    }
    if reader.zero_output_rows() > 0 {
        warnings.push(format!("requests that generated 0 tokens, read as 1: {}", reader.zero_output_rows()));
    }
    if reader.format() == Format::Sessions && sessions > 1 {
        warnings.push("when sessions start is not recorded: a Poisson process starts them".to_owned());
    }
    if !reader.skipped().is_none() {
        warnings.push(format!("rows skipped: {}", reader.skipped()));
    }
    if reader.late_rows() > 0 {
        warnings.push(format!("rows that were not in order of arrival, sorted: {}", reader.late_rows()));
    }
    if reader.left_out_rows() > 0 {
        warnings.push(format!("requests after the last session has started, left out: {}", reader.left_out_rows()));
    }
    warnings
}

// serde's `skip_serializing_if` passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// `3s`, `0.5s`.
fn seconds(seconds: f64) -> String {
    format!("{seconds}s")
}

impl fmt::Display for TraceStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |value: Option<f64>, decimals: usize, unit: &str| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}{unit}"))
        };
        writeln!(f, "{}", self.path.display())?;
        writeln!(f, "format         {}, {}", self.format, self.compression)?;
        if let Some(clock) = &self.clock {
            writeln!(f, "times          {clock}")?;
        }
        writeln!(f, "requests       {}", self.requests)?;
        writeln!(f, "duration       {:.1} s", self.duration_s)?;
        writeln!(f, "rate           {}", or_none(self.rate_rps, 3, " req/s"))?;
        let mean = or_none(self.inter_arrival_mean_s, 4, " s");
        writeln!(f, "inter-arrival  mean {mean}, CV {}", or_none(self.inter_arrival_cv, 2, ""))?;
        writeln!(f, "tokens         {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}", "mean", "p50", "p90", "p95", "p99", "max")?;
        for (name, lengths) in [("prompt", &self.prompt_tokens), ("output", &self.output_tokens)] {
            let LengthSummary { mean, p50, p90, p95, p99, max, .. } = lengths;
            writeln!(f, "  {name:<12} {mean:>10.1} {p50:>8.0} {p90:>8.0} {p95:>8.0} {p99:>8.0} {max:>8}")?;
        }
        writeln!(f, "total tokens   {}", self.total_tokens)?;
        let reuse = or_none(self.prefix_reuse.map(|share| share * 100.0), 1, " % of prompt tokens");
        let held = self.prefix_tokens.map_or_else(String::new, |tokens| format!(", a cache of {tokens} tokens"));
        writeln!(f, "prefix reuse   {reuse}{held}")?;
        writeln!(f, "sessions       {}", self.sessions)?;
        writeln!(f, "tenants        {}", self.tenants)?;
        if self.cache_salts > 0 {
            writeln!(f, "cache salts    {}", self.cache_salts)?;
        }
        let (bars, minutes) = sparkline(&self.arrivals_per_minute);
        writeln!(f, "arrivals       {bars}")?;
        write!(
            f,
            "               {minutes} min a bar, at most {:.0} a minute",
            peak(&self.arrivals_per_minute, minutes)
        )?;
        for warning in &self.warnings {
            write!(f, "\nwarning: {warning}")?;
        }
        Ok(())
    }
}

/// One bar for every so many minutes, and how many.
fn sparkline(per_minute: &[u64]) -> (String, usize) {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let minutes = per_minute.len().div_ceil(SPARKLINE_CHARS).max(1);
    let peak = peak(per_minute, minutes);
    let mut bars = String::new();
    for group in per_minute.chunks(minutes) {
        let level = if peak > 0.0 { mean(group) / peak * (BARS.len() - 1) as f64 } else { 0.0 };
        // A minute without any arrival is left blank.
        let empty = group.iter().all(|count| *count == 0);
        let _ = bars.write_char(if empty { ' ' } else { BARS[level.round() as usize] });
    }
    (bars, minutes)
}

fn peak(per_minute: &[u64], minutes: usize) -> f64 {
    per_minute.chunks(minutes).map(mean).fold(0.0, f64::max)
}

fn mean(counts: &[u64]) -> f64 {
    counts.iter().sum::<u64>() as f64 / counts.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rounded_clock_and_an_exact_one() {
        let rounded: Vec<u64> =
            (0..60).map(|index| [3_000_000, 0, 2_999_000, 3_000_000, 3_001_000, 6_000_000][index % 6]).collect();
        assert_eq!(quantum(&rounded), Some(Micros(3_000_000)));
        let exact: Vec<u64> = (0..60).map(|index| [7_000_000, 12_000_000, 5_000_000][index % 3]).collect();
        assert_eq!(quantum(&exact), Some(Micros(1_000_000)));
    }

    #[test]
    fn a_continuous_clock_has_no_quantum() {
        let gaps: Vec<u64> = (1..2_000_u64).map(|index| index * index * 7_919 % 1_000_003).collect();
        assert_eq!(quantum(&gaps), None);
        assert_eq!(quantum(&[1_000_000; QUANTUM_MIN_GAPS - 1]), None);
        assert_eq!(quantum(&[]), None);
    }

    #[test]
    fn a_poisson_like_and_a_regular_stream() {
        assert_eq!(coefficient_of_variation(&[5, 5, 5]), Some(0.0));
        assert_eq!(coefficient_of_variation(&[0, 10]), Some(1.0));
        assert_eq!(coefficient_of_variation(&[]), None);
        assert_eq!(coefficient_of_variation(&[0, 0]), None);
    }

    #[test]
    fn bars_are_scaled_to_the_peak() {
        assert_eq!(sparkline(&[8, 0, 4, 1]), ("█ ▅▂".to_owned(), 1));
        assert_eq!(sparkline(&[2; 120]), ("█".repeat(60), 2));
    }
}
