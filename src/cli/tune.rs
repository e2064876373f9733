//! `kvtide demo`: the whole way from a workload to a decision, small.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use clap::Args;
use kvtide_envs::files;

use super::export::{tell, tell_choice};
use super::output::Output;
use super::progress::Runs;
use super::talk::Talk;
use super::{Exit, handover, stop};
use crate::agent::{RunOutcome, Tensors};
use crate::demo::{self, Demo, LOADS, SEEDS, TARGET, in_words};
use crate::distil::DistilConfig;
use crate::evaluate::{Matrix, RunRow, compare, render, run_matrix};
use crate::export::ExportJob;
use crate::policy::PolicySpec;
use crate::train::{self, Run};
use crate::world::{World, WorldSpec};

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    #[command(flatten)]
    world: WorldSpec,
    /// Folder for the checkpoint, the table and the results; those of an earlier demo are replaced.
    #[arg(long, value_name = "DIR", default_value = "runs/demo")]
    out: PathBuf,
    /// Decisions to learn from.
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    decisions: u64,
    /// Seed of the training run.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

pub(super) fn run(args: &DemoArgs, tensors: Option<&'static dyn Tensors>) -> anyhow::Result<Exit> {
    let spec = demo::with_traffic(args.world.clone());
    let world = spec.world()?;
    demo::check(&world, args.decisions)?;
    demo::check_folder(&args.out)?;
    // Before an earlier demo's results go, in case it cannot; and before Ctrl-C is listened to, which it would forget.
    if tensors.is_none() {
        handover::hand_over()?;
    }
    let stop = stop::on_interrupt();
    demo::make_folder(&args.out)?;
    say!(
        "kvtide demo: {} on {}, a pool of {} blocks of {} tokens, targets {}",
        world.trace,
        world.deployment.name(),
        world.node.engine.num_gpu_blocks,
        world.node.engine.block_size,
        world.node.slo
    );
    let demo = Demo::plan(spec, &world, args.decisions, args.seed)?;
    let Demo { fit, test, load, .. } = &demo;
    say!("1. at load {load:.2} the engine's default attains about {:.0} % of {fit}", TARGET * 100.0);

    let (low, high) = demo.experiment.episodes.load;
    say!("2. training on {fit} at loads {low:.2} to {high:.2}");
    let run = Run { world: &world, out: &args.out, checkpoint_every: u64::MAX, tensors, listener: &Talk, stop };
    if run.start(demo.experiment.clone())? != Some(RunOutcome::Finished) {
        return Ok(Exit::Interrupted);
    }

    say!("3. distilling into a decision table");
    let (checkpoint, table) = (train::policy_of(&args.out), args.out.join("policy.kvt"));
    if !distil(&world, &checkpoint, &table, stop)? {
        return Ok(Exit::Interrupted);
    }

    let (loads, seeds) = (LOADS.len(), SEEDS.len());
    say!("4. judging on {test}, which nobody has seen, at {loads} loads with {seeds} seeds");
    let matrix = demo.matrix(&checkpoint, &table, world.node.host.profile())?;
    let Some(rows) = judge(&world, &matrix, stop)? else { return Ok(Exit::Interrupted) };
    show(args, &demo, &world, &rows, &table)
}

/// Makes the table; false if interrupted.
fn distil(world: &World, checkpoint: &Path, table: &Path, stop: &AtomicBool) -> anyhow::Result<bool> {
    let (experiment, config) = (train::experiment_of(checkpoint)?, DistilConfig::default());
    let making = ExportJob { checkpoint, experiment: &experiment, world, config: &config, stop };
    let Some((chosen, summary)) = making.written(table, &mut tell)? else { return Ok(false) };
    tell_choice(&making, &chosen);
    say!("   {summary}");
    Ok(true)
}

/// Every run of the matrix; `None` if interrupted.
fn judge(world: &World, matrix: &Matrix, stop: &AtomicBool) -> anyhow::Result<Option<Vec<RunRow>>> {
    let (bar, mut rows) = (Runs::new(), Vec::new());
    let cells = run_matrix(world, matrix, &bar, stop, &mut |finished| {
        rows.extend_from_slice(finished);
        ControlFlow::Continue(())
    })?;
    Ok((cells == matrix.loads.len()).then_some(rows))
}

/// Prints what came of it, and keeps the runs.
fn show(args: &DemoArgs, demo: &Demo, world: &World, rows: &[RunRow], table: &Path) -> anyhow::Result<Exit> {
    let lines: Result<Vec<String>, _> = rows.iter().map(serde_json::to_string).collect();
    let results = args.out.join("results.jsonl");
    let lines = lines?.join("\n") + "\n";
    files::replace(&results, lines.as_bytes()).with_context(|| format!("cannot write {}", results.display()))?;
    let comparisons = compare(rows, &PolicySpec::BestFixed.into(), &[]);
    let mut output = Output::new();
    output.text(&render(&comparisons, &[]))?;
    output.text(&in_words(&comparisons))?;
    output.text(&demo.decide(world, table)?)?;
    output.line(&format!(
        "\nKept in {}: checkpoint/ to go on from, policy/ to decide with, policy.kvt to ship, results.jsonl. Next: kvtide inspect {}",
        args.out.display(),
        table.display()
    ))?;
    Ok(Exit::Done)
}
