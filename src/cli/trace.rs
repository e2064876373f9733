//! `kvtide trace`.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kvtide_envs::trace::rates::RateProfileStats;
use kvtide_envs::trace::servegen::ServeGenStats;
use kvtide_envs::trace::{
    MAX_SESSIONS_PER_HOUR, Reading, STDIN, SessionArrivals, TimeUnit, Trace, TraceReader, TraceStats, forms, jsonl,
};
use kvtide_envs::workload::SyntheticSpec;
use serde::Serialize;

use super::Exit;
use super::output::Output;
use super::outputs::Outputs;

#[derive(Debug, Args)]
pub(super) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    /// Rates, lengths, burstiness and prefix reuse of a recorded workload.
    #[command(after_help = forms_help())]
    Stats {
        /// The trace, in any of the forms below, plain, gzip or zstd; - is standard input.
        file: PathBuf,
        #[command(flatten)]
        reading: ReadingArgs,
        /// One JSON line instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Write a trace in kvtide's own form, one JSON object a line.
    #[command(after_help = forms_help())]
    Convert {
        /// The trace, in any of the forms below, plain, gzip or zstd; - is standard input.
        input: PathBuf,
        /// Where to write; .gz and .zst are compressed, - is standard output.
        output: PathBuf,
        #[command(flatten)]
        reading: ReadingArgs,
    },
    /// Write a generated workload as a trace.
    Generate {
        /// What to generate, such as chat:rate=2,duration=600,seed=1.
        spec: String,
        /// Where to write; .gz and .zst are compressed.
        output: PathBuf,
    },
}

/// The forms a trace may have.
fn forms_help() -> String {
    format!("Forms, told by content:\n{}docs/TRACES.md shows each, with the names that are known.", forms::listed())
}

/// What a file may leave open.
#[derive(Debug, Args)]
struct ReadingArgs {
    /// Read the rows once, and sort them in bounded memory (and temporary files, in TMPDIR). Without it a file is looked through
    /// first: one that is in order is read as it is, another is sorted as with this option, as is standard input.
    #[arg(long)]
    unsorted: bool,
    /// Where there is text and no count of tokens: take so many characters for a token.
    #[arg(long, value_name = "CHARS")]
    chars_per_token: Option<f64>,
    /// For files that do not say when requests arrive: draw it, so many a second, by a Poisson process.
    #[arg(long, value_name = "REQ/S")]
    arrival_rate: Option<f64>,
    /// What times count that are numbers: s, ms, us or ns; else their name or size says so.
    #[arg(long, value_name = "UNIT")]
    time_unit: Option<TimeUnit>,
    /// Sessions that start an hour, by a Poisson process; for files of agentic sessions, which do not say when.
    #[arg(long, value_name = "PER_HOUR", default_value_t = 20.0, value_parser = session_rate)]
    session_rate: f64,
    /// Only the first N sessions of such a file.
    #[arg(long, value_name = "N")]
    sessions: Option<usize>,
    /// Seed of either process.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    session_seed: u64,
}

impl ReadingArgs {
    fn reading(&self) -> Reading {
        let ReadingArgs { unsorted, chars_per_token, arrival_rate, time_unit, .. } = *self;
        let ReadingArgs { session_rate: per_hour, sessions: limit, session_seed: seed, .. } = *self;
        let sessions = SessionArrivals { per_hour, limit, seed };
        Reading { sessions, is_unsorted: unsorted, chars_per_token, arrival_rate, time_unit }
    }
}

/// A rate there can be, whatever form the trace turns out to have.
fn session_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| *rate > 0.0 && *rate <= MAX_SESSIONS_PER_HOUR);
    rate.ok_or_else(|| format!("expected above 0, at most {MAX_SESSIONS_PER_HOUR} sessions an hour"))
}

pub(super) fn run(args: &TraceArgs) -> anyhow::Result<Exit> {
    match &args.command {
        TraceCommand::Stats { file, reading, json } => {
            let trace = Trace::open(file, reading.reading())?;
            let mut output = Output::new();
            match trace {
                Trace::Requests(reader) => show(&mut output, *json, "trace", &TraceStats::of(*reader)?)?,
                Trace::Clients(clients) => show(&mut output, *json, "clients", &ServeGenStats::of(&clients))?,
                Trace::Profile(profile) => show(&mut output, *json, "profile", &RateProfileStats::of(&profile))?,
            }
        }
        TraceCommand::Convert { input, output, reading } => {
            let file = Some(output.as_path()).filter(|path| *path != Path::new(STDIN));
            Outputs::new().reads("INPUT", input.as_path()).file("OUTPUT", file).check()?;
            convert(input, output, &reading.reading())?;
        }
        TraceCommand::Generate { spec, output } => {
            let spec: SyntheticSpec = spec.parse()?;
            Outputs::new().file("OUTPUT", output.as_path()).check()?;
            let workload = spec.generate()?;
            jsonl::save(output, workload.requests())?;
            say!("{} requests written to {}", workload.requests().len(), output.display());
        }
    }
    Ok(Exit::Done)
}

fn convert(input: &Path, output: &Path, reading: &Reading) -> anyhow::Result<()> {
    let mut reader = TraceReader::open_with(input, reading)?;
    let requests = if output == Path::new(STDIN) {
        let mut stdout = Output::new();
        let written = jsonl::convert_to(&mut reader, &mut stdout, Path::new("standard output"));
        // Whoever reads it may have seen enough, which is told by the kind of the error.
        std::io::Write::flush(&mut stdout)?;
        written?
    } else {
        jsonl::convert(&mut reader, output)?
    };
    say!("{}", found(&reader));
    say!(
        "{requests} requests written to {}",
        if output == Path::new(STDIN) { "standard output".into() } else { output.display().to_string() }
    );
    Ok(())
}

/// What was recognised, and what became of its rows, in a line.
fn found(reader: &TraceReader) -> String {
    let skipped = reader.skipped();
    let mut parts = vec![format!("{}, {}", reader.format(), reader.compression())];
    parts.extend(reader.clock().map(|clock| format!("times: {clock}")));
    parts.push(format!("{} rows read", reader.requests() + skipped.total() + reader.left_out_rows()));
    if !skipped.is_none() {
        parts.push(format!("{} skipped ({skipped})", skipped.total()));
    }
    if reader.late_rows() > 0 {
        parts.push(format!("{} not in order of arrival, sorted", reader.late_rows()));
    }
    if reader.zero_output_rows() > 0 {
        parts.push(format!("{} that generated 0 tokens, read as 1", reader.zero_output_rows()));
    }
    if reader.left_out_rows() > 0 {
        parts.push(format!("{} after the last session has started, left out", reader.left_out_rows()));
    }
    format!("{}: {}", reader.path().display(), parts.join("; "))
}

/// As text, or as one line of JSON.
fn show(output: &mut Output, json: bool, kind: &str, stats: &(impl Serialize + Display)) -> anyhow::Result<()> {
    if json { output.json(kind, stats) } else { output.line(&stats.to_string()) }
}
