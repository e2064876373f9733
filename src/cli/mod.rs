//! The command line. stdout is data, stderr is talk; exit codes: 0 done, 1 a gate failed, 2 error, 130 interrupted (143 by
//! SIGTERM, 129 by SIGHUP).

mod bench;
mod calibrate;
mod common;
mod completions;
mod evaluate;
mod evict;
mod examples;
mod explain;
mod export;
mod import_policy;
mod inspect;
mod man;
mod perf_db;
mod record;
mod replay;
mod retain;
mod run_folder;
mod simulate;
mod token_pd;
mod topics;
mod trace;
mod train;
mod tune;
mod usage;
mod variance;

use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use common::{args, best_train, handover, output, outputs, progress, stop, talk};

use crate::agent::Tensors;
use crate::say::{self, Level};
use crate::text;

/// Learns how a paged KV cache should behave under memory pressure, and ships it as a decision table.
#[derive(Debug, Parser)]
#[command(name = "kvtide", version = handover::version(), max_term_width = 110)]
struct Cli {
    /// Say nothing on stderr but warnings and errors.
    #[arg(long, short, global = true, conflicts_with = "verbose", display_order = 900)]
    quiet: bool,
    /// Say more on stderr: what is done, with what.
    #[arg(long, short, global = true, display_order = 901)]
    verbose: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What stands beneath the tool's help.
const AFTER_HELP: &str = "\
Values: kvtide help env|host|policy|set|slo|workload

stdout is data, stderr is talk; --json gives JSON Lines, {\"type\":…,\"data\":…}.
Exit codes: 0 done; 1 a check failed, the answer is no; 2 an error; 130 interrupted, what was finished is kept.";

/// What is said to who asks for nothing: the commands most of those who know nothing yet want.
fn nothing_asked() -> String {
    let whole_way = if command_line().find_subcommand("tune").is_some() { "tune trace.csv" } else { "demo" };
    let first = [
        ("trace stats trace.csv", "what is in your traffic"),
        ("simulate --workload chat:rate=2,duration=600", "serve traffic"),
        (whole_way, "make a policy of it"),
    ];
    let lines =
        first.map(|(command, what)| text::labelled(&format!("  kvtide {command}"), what, 55, text::PIPED_WIDTH));
    format!(
        "kvtide simulates an LLM serving engine on your traffic and makes a policy that\n\
         beats its fixed watermark.\n\n{}\n\
         kvtide --help lists every command, kvtide COMMAND --help its options.",
        lines.concat()
    )
}

#[derive(Debug, Subcommand)]
enum Command {
    /// From recorded traffic to a table and a verdict: train on it, judge on the part nobody looked at, say whether deploying is
    /// worth it. Exit code 1 if it is not.
    Tune(tune::TuneArgs),
    /// Look at a recorded workload, convert it, or generate one.
    Trace(trace::TraceArgs),
    /// Record rates and lengths of a server by the counters it shows, as a profile to draw traffic from.
    Record(record::RecordArgs),
    /// Serve a workload under one or more policies and print what came of it.
    Simulate(simulate::SimulateArgs),
    /// Train an agent from an experiment file.
    Train(train::TrainArgs),
    /// Decompose the variance of an experiment's returns, and hold the advantage of a choice against the noise it is found in: what
    /// there is to be learned by a gradient, before it is tried.
    Variance(variance::VarianceArgs),
    /// Judge policies against each other: the same windows, loads and seeds for each.
    Evaluate(evaluate::EvaluateArgs),
    /// Make a policy that was trained elsewhere (RLlib, stable-baselines3, cleanrl; safetensors or ONNX) a checkpoint like our own.
    ImportPolicy(import_policy::ImportPolicyArgs),
    /// Distil a checkpoint into a decision table.
    Export(export::ExportArgs),
    /// Teach a table which cached blocks survive: a second tree, learned from reuse and by what serving attains. Exit code 1 if
    /// none gains over LRU.
    Retain(retain::RetainArgs),
    /// Show what a decision table or a checkpoint holds.
    Inspect(inspect::InspectArgs),
    /// Decide one observation with a table, and say why.
    Explain(explain::ExplainArgs),
    /// Replay decision logs of real engines and compare every field of every step.
    Replay(replay::ReplayArgs),
    /// Judge policies of eviction on the blocks that requests ask for, without an engine.
    Evict(evict::EvictArgs),
    /// Fit the simulator to a measured run of a real server, and judge it on what it was not fitted to.
    Calibrate(calibrate::CalibrateArgs),
    /// Measure how fast simulator and training are on this machine, with the spread over repeats.
    Bench(bench::BenchArgs),
    /// Write completions for a shell to stdout.
    Completions(completions::CompletionsArgs),
    /// Write pages of the manual.
    Man(man::ManArgs),
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
    /// Nothing was done: that is no command line, and why has been said.
    Misused,
    /// Ctrl-C, SIGTERM or SIGHUP; what was finished is kept.
    Interrupted,
}

/// Runs the command line of this process. Training by PPO multiplies with `tensors`; without it, it is handed over to
/// `kvtide-train`, which is this tool with it.
pub fn run(tensors: Option<&'static dyn Tensors>) -> ExitCode {
    let result = match asked() {
        Ok(cli) => {
            say::set_level(cli.level());
            detail!("kvtide {}; {} threads", handover::version(), rayon::current_num_threads());
            command(cli.command, tensors)
        }
        Err(error) => usage::end(&error),
    };
    match result {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::GateFailed) => ExitCode::from(1),
        Ok(Exit::Misused) => ExitCode::from(2),
        Ok(Exit::Interrupted) => ExitCode::from(stop::exit_code()),
        // Whoever reads stdout has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<usage::Said>() => ExitCode::from(2),
        Err(error) => {
            say::line(Level::Quiet, format_args!("error: {}", one_line(&error)));
            ExitCode::from(2)
        }
    }
}

/// The command line of this tool, whole.
fn command_line() -> clap::Command {
    examples::with_examples(takes_negative_numbers(Cli::command()).after_help(AFTER_HELP))
}

/// What this process is asked for.
fn asked() -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&command_line().try_get_matches()?)
}

/// A negative number is a value, and most often one out of range: then that is what is said, not that there is no such option.
fn takes_negative_numbers(command: clap::Command) -> clap::Command {
    let taking = |arg: clap::Arg| {
        let takes_values = arg.get_action().takes_values();
        if takes_values { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(taking).mut_subcommands(takes_negative_numbers)
}

fn command(command: Option<Command>, tensors: Option<&'static dyn Tensors>) -> anyhow::Result<Exit> {
    let Some(command) = command else {
        // As after any command line that cannot be done.
        say::line(Level::Quiet, format_args!("{}", nothing_asked()));
        return Err(usage::Said.into());
    };
    match command {
        Command::Tune(args) => tune::run(&args, tensors),
        Command::Trace(args) => trace::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Train(args) => train::run(&args, tensors),
        Command::Variance(args) => variance::run(&args),
        Command::Evaluate(args) => evaluate::run(&args),
        Command::ImportPolicy(args) => import_policy::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Retain(args) => retain::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Evict(args) => evict::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Bench(args) => bench::run(&args, tensors),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

/// What a check came to, also where nobody read to the end what was told of it: that somebody stopped reading does not make a no
/// a yes.
fn judged(told: anyhow::Result<()>, exit: Exit) -> anyhow::Result<Exit> {
    match told {
        Err(error) if !is_broken_pipe(&error) => Err(error),
        _ => Ok(exit),
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
