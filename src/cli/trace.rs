//! `kvtide trace`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kvtide_envs::trace::{TraceStats, jsonl};
use kvtide_envs::workload::SyntheticSpec;

use super::Exit;
use super::output::Output;

#[derive(Debug, Args)]
pub(super) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    /// Rates, lengths, burstiness and prefix reuse of a recorded workload.
    Stats {
        /// The trace: Azure LLM CSV, Mooncake JSONL or kvtide JSONL, plain, gzip or zstd.
        file: PathBuf,
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
    },
    /// Write a generated workload as a trace.
    Generate {
        /// What to generate, such as chat:rate=2,duration=600,seed=1.
        spec: String,
        /// Where to write; .gz and .zst are compressed.
        output: PathBuf,
    },
}

pub(super) fn run(args: &TraceArgs) -> anyhow::Result<Exit> {
    match &args.command {
        TraceCommand::Stats { file, json } => {
            let stats = TraceStats::read(file)?;
            let mut output = Output::new();
            if *json { output.json("trace", &stats)? } else { output.line(&stats.to_string())? }
        }
        TraceCommand::Convert { input, output } => {
            let converted = jsonl::convert(input, output)?;
            eprintln!("{} requests written to {}", converted.requests, output.display());
        }
        TraceCommand::Generate { spec, output } => {
            let spec: SyntheticSpec = spec.parse()?;
            let workload = spec.generate()?;
            jsonl::save(output, workload.requests())?;
            eprintln!("{} requests written to {}", workload.requests().len(), output.display());
        }
    }
    Ok(Exit::Done)
}
