//! `kvtide bench`.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use clap::Args;
use kvtide_envs::deploy::DeploymentName;
use kvtide_envs::workload::Workload;

use super::output::Output;
use super::{Exit, handover, stop};
use crate::agent::Tensors;
use crate::bench::{self, Throughput};
use crate::world::{WorldSpec, Written};

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// Trace to serve: Azure LLM CSV, Mooncake JSONL or kvtide JSONL. Without it generated sessions are served.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Model and hardware that serve it.
    #[arg(long, value_name = "MODEL@HARDWARE", default_value = "llama-3-8b@a100-80g")]
    env: Written<DeploymentName>,
    /// How often each figure is measured.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// One JSON object a line on stdout: {"type":"bench","data":{…}}.
    #[arg(long)]
    json: bool,
}

/// What is served without a trace.
const GENERATED: &str = "agentic:rate=0.2,duration=30m";

pub(super) fn run(args: &BenchArgs, tensors: Option<&'static dyn Tensors>) -> anyhow::Result<Exit> {
    if tensors.is_none() && handover::is_possible() {
        handover::hand_over()?;
    }
    let repeats = args.repeats as usize;
    let stopped = stop::on_interrupt();
    let mut output = Output::new();
    let mut written = Ok(());
    let mut each = |figure: Throughput| {
        let line = if args.json { output.json("bench", &figure) } else { output.line(&render(&figure)) };
        if written.is_ok() {
            written = line;
        }
    };
    bench::steps(repeats, &mut each);
    bench::bytes_per_request(&mut each);
    if stopped.load(Ordering::Relaxed) {
        return written.map(|()| Exit::Interrupted);
    }
    bench::evictions(repeats, &mut each)?;
    if stopped.load(Ordering::Relaxed) {
        return written.map(|()| Exit::Interrupted);
    }
    bench::tiers(repeats, &mut each)?;
    if stopped.load(Ordering::Relaxed) {
        return written.map(|()| Exit::Interrupted);
    }
    bench::stream_steps(repeats, &mut each)?;
    if stopped.load(Ordering::Relaxed) {
        return written.map(|()| Exit::Interrupted);
    }
    let workload = if args.trace.is_none() { Some(GENERATED.parse()?) } else { None };
    let world =
        WorldSpec { trace: args.trace.clone(), workload, env: args.env.clone(), ..WorldSpec::default() }.world()?;
    let traffic: Workload = world.draw(&crate::world::Draw { window: None, load: 1.0, seed: 0 })?;
    bench::requests(&world, &traffic, repeats, &mut each)?;
    if stopped.load(Ordering::Relaxed) {
        return written.map(|()| Exit::Interrupted);
    }
    bench::decisions(repeats, &mut each)?;
    if stopped.load(Ordering::Relaxed) {
        return written.map(|()| Exit::Interrupted);
    }
    match tensors {
        Some(tensors) => bench::training(tensors, repeats, &mut each)?,
        None => say!("training by PPO is not measured: {} is not there", handover::PROGRAM),
    }
    written.map(|()| Exit::Done)
}

/// A figure for people.
fn render(figure: &Throughput) -> String {
    let Throughput { bench, case, unit, min, median, max, each_ns, .. } = figure;
    let each = each_ns.map_or_else(String::new, |each_ns| match each_ns {
        each_ns if each_ns < 1e4 => format!("  {each_ns:.0} ns each"),
        each_ns => format!("  {:.1} us each", each_ns * 1e-3),
    });
    if figure.each_ns.is_none() {
        return format!("{bench:16} {case:44} {median:>12.0} {unit}");
    }
    format!("{bench:16} {case:44} {median:>12.0} {unit} ({min:.0} to {max:.0}){each}")
}
