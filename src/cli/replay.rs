//! `kvtide replay`.

use std::path::PathBuf;

use clap::Args;
use kvtide_envs::golden::{RunReport, find_logs, replay_log};
use rayon::prelude::*;
use serde::Serialize;

use super::Exit;
use super::output::Output;

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Folder of decision logs (*.json, *.json.gz) of a real engine's scheduler.
    #[arg(long, value_name = "DIR")]
    golden: PathBuf,
    /// JSON Lines: a `replay` line for each log, then a `summary` line.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ReplaySummary {
    runs: usize,
    agree: usize,
    steps: usize,
}

pub(super) fn run(args: &ReplayArgs) -> anyhow::Result<Exit> {
    let logs = find_logs(&args.golden)?;
    let mut output = Output::new();
    let (mut agree, mut steps) = (0, 0);
    // A few at a time, so that lines come in order and soon.
    for chunk in logs.chunks(16) {
        let reports: Vec<_> = chunk.par_iter().map(|log| replay_log(log)).collect();
        for report in reports {
            let report = report?;
            agree += usize::from(report.divergence.is_none());
            steps += report.steps;
            let told = if args.json { output.json("replay", &report) } else { output.line(&render(&report)) };
            // Who has seen enough shall still be told by the exit code that one did not agree.
            if let Err(error) = told {
                return super::judged(
                    Err(error),
                    if report.divergence.is_none() { Exit::Done } else { Exit::GateFailed },
                );
            }
        }
    }
    let told = if args.json {
        output.json("summary", &ReplaySummary { runs: logs.len(), agree, steps })
    } else {
        output.line(&format!("{agree} of {} agree ({steps} steps)", logs.len()))
    };
    super::judged(told, if agree == logs.len() { Exit::Done } else { Exit::GateFailed })
}

fn render(report: &RunReport) -> String {
    let run = format!("{:28} {:>6} steps  {:>5} requests  {:8}", report.run, report.steps, report.requests, report.end);
    match &report.divergence {
        None => format!("{run} agrees"),
        Some(at) => {
            let step = at.step.map_or_else(|| "at the end".to_owned(), |step| format!("in step {step}"));
            format!("{run} DIFFERS {step}: {} theirs {} ours {}", at.field, at.theirs, at.ours)
        }
    }
}
