//! The command line. stdout is data, stderr is talk; exit codes: 0 done, 1 a gate failed, 2 error, 130 interrupted.

mod bench;
mod calibrate;
mod common;
mod evaluate;
mod explain;
mod export;
mod inspect;
mod replay;
mod simulate;
mod trace;
mod train;
mod tune;
mod usage;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use common::{args, handover, output, progress, stop, talk};

use crate::agent::Tensors;
use crate::say::{self, Level};

/// Learns how a paged KV cache should behave under memory pressure, and ships it as a decision table.
#[derive(Debug, Parser)]
#[command(name = "kvtide", version, max_term_width = 110)]
struct Cli {
    /// Say nothing on stderr but warnings and errors.
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Say more on stderr: what is done, with what.
    #[arg(long, short, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// From recorded traffic to a table and a verdict: train on it, judge on the part nobody looked at, say whether deploying is
    /// worth it. Exit code 1 if it is not.
    Tune(tune::TuneArgs),
    /// Look at a recorded workload, convert it, or generate one.
    Trace(trace::TraceArgs),
    /// Serve a workload under one or more policies and print what came of it.
    Simulate(simulate::SimulateArgs),
    /// Train an agent from an experiment file.
    Train(train::TrainArgs),
    /// Judge policies against each other: the same windows, loads and seeds for each.
    Evaluate(evaluate::EvaluateArgs),
    /// Distil a checkpoint into a decision table.
    Export(export::ExportArgs),
    /// Show what a decision table or a checkpoint holds.
    Inspect(inspect::InspectArgs),
    /// Decide one observation with a table, and say why.
    Explain(explain::ExplainArgs),
    /// Replay decision logs of real engines and compare every field of every step.
    Replay(replay::ReplayArgs),
    /// Fit the simulator to a measured run of a real server, and judge it on what it was not fitted to.
    Calibrate(calibrate::CalibrateArgs),
    /// Measure how fast simulator and training are on this machine, with the spread over repeats.
    Bench(bench::BenchArgs),
}

impl Cli {
    fn level(&self) -> Level {
        match (self.quiet, self.verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        }
    }
}

/// How a command ended, if not by an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    /// What was asked for is done.
    Done,
    /// Done, and the answer is no.
    GateFailed,
    /// Ctrl-C; what was finished is kept.
    Interrupted,
}

/// Runs the command line of this process. Training by PPO multiplies with `tensors`; without it, it is handed over to
/// `kvtide-train`, which is this tool with it.
pub fn run(tensors: Option<&'static dyn Tensors>) -> ExitCode {
    let result = match Cli::try_parse() {
        Ok(cli) => {
            say::set_level(cli.level());
            detail!("kvtide {}", env!("CARGO_PKG_VERSION"));
            command(cli.command, tensors)
        }
        Err(error) => usage::end(&error),
    };
    match result {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::GateFailed) => ExitCode::from(1),
        Ok(Exit::Interrupted) => ExitCode::from(130),
        // Whoever reads stdout has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say::line(Level::Quiet, format_args!("error: {}", one_line(&error)));
            ExitCode::from(2)
        }
    }
}

fn command(command: Command, tensors: Option<&'static dyn Tensors>) -> anyhow::Result<Exit> {
    match command {
        Command::Tune(args) => tune::run(&args, tensors),
        Command::Trace(args) => trace::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Train(args) => train::run(&args, tensors),
        Command::Evaluate(args) => evaluate::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Bench(args) => bench::run(&args, tensors),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The error and its causes in one line; a cause that the error before it already tells is not told again.
fn one_line(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string().lines().map(str::trim).collect::<Vec<_>>().join(" ");
        if parts.last().is_none_or(|before| !before.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn an_error_is_one_line_that_says_everything_once() {
        let error = anyhow!("ends\n  early").context("a.kvt: ends early").context("cannot export");
        assert_eq!(one_line(&error), "cannot export: a.kvt: ends early");
    }
}
