//! `kvtide trace`.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kvtide_envs::trace::rates::RateProfileStats;
use kvtide_envs::trace::servegen::ServeGenStats;
use kvtide_envs::trace::{MAX_SESSIONS_PER_HOUR, SessionArrivals, Trace, TraceReader, TraceStats, jsonl};
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
    Stats {
        /// The trace: Azure LLM CSV, Mooncake JSONL, agentic sessions, ServeGen statistics or kvtide JSONL, plain, gzip or
        /// zstd.
        file: PathBuf,
        #[command(flatten)]
        sessions: SessionArgs,
        /// One JSON line instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Write a trace in kvtide's own form, one JSON object a line.
    Convert {
        /// The trace to read.
        input: PathBuf,
        /// Where to write; .gz and .zst are compressed.
        output: PathBuf,
        #[command(flatten)]
        sessions: SessionArgs,
    },
    /// Write a generated workload as a trace.
    Generate {
        /// What to generate, such as chat:rate=2,duration=600,seed=1.
        spec: String,
        /// Where to write; .gz and .zst are compressed.
        output: PathBuf,
    },
}

/// How a file of agentic sessions, which has no clock of its own, becomes a trace; ignored for others.
#[derive(Debug, Args)]
struct SessionArgs {
    /// Sessions that start an hour, by a Poisson process; for files of agentic sessions, which do not say when.
    #[arg(long, value_name = "PER_HOUR", default_value_t = 20.0, value_parser = session_rate)]
    session_rate: f64,
    /// Only the first N sessions of such a file.
    #[arg(long, value_name = "N")]
    sessions: Option<usize>,
    /// Seed of that process.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    session_seed: u64,
}

impl SessionArgs {
    fn open(&self, file: &Path) -> anyhow::Result<TraceReader> {
        Ok(TraceReader::open_with(file, &self.arrivals())?)
    }

    fn arrivals(&self) -> SessionArrivals {
        let SessionArgs { session_rate: per_hour, sessions: limit, session_seed: seed } = *self;
        SessionArrivals { per_hour, limit, seed }
    }
}

/// A rate there can be, whatever form the trace turns out to have.
fn session_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| *rate > 0.0 && *rate <= MAX_SESSIONS_PER_HOUR);
    rate.ok_or_else(|| format!("expected above 0, at most {MAX_SESSIONS_PER_HOUR} sessions an hour"))
}

pub(super) fn run(args: &TraceArgs) -> anyhow::Result<Exit> {
    match &args.command {
        TraceCommand::Stats { file, sessions, json } => {
            let trace = Trace::open(file, &sessions.arrivals())?;
            let mut output = Output::new();
            match trace {
                Trace::Requests(reader) => show(&mut output, *json, "trace", &TraceStats::of(*reader)?)?,
                Trace::Clients(clients) => show(&mut output, *json, "clients", &ServeGenStats::of(&clients))?,
                Trace::Profile(profile) => show(&mut output, *json, "profile", &RateProfileStats::of(&profile))?,
            }
        }
        TraceCommand::Convert { input, output, sessions } => {
            Outputs::new().reads("INPUT", input.as_path()).file("OUTPUT", output.as_path()).check()?;
            let converted = jsonl::convert(sessions.open(input)?, output)?;
            say!("{} requests written to {}", converted.requests, output.display());
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

/// As text, or as one line of JSON.
fn show(output: &mut Output, json: bool, kind: &str, stats: &(impl Serialize + Display)) -> anyhow::Result<()> {
    if json { output.json(kind, stats) } else { output.line(&stats.to_string()) }
}
