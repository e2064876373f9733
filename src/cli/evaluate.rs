//! `kvtide evaluate`.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Window, duration};

use super::args::{DrawArgs, load_policies};
use super::output::Output;
use super::progress::Runs;
use super::{Exit, simulate, stop};
use crate::checkpoint;
use crate::evaluate::{Matrix, PolicySpec, Row, compare, render, run_matrix};
use crate::export;
use crate::world::{World, WorldSpec};

#[derive(Debug, Args)]
pub(super) struct EvaluateArgs {
    #[command(flatten)]
    world: WorldSpec,
    #[command(flatten)]
    draw: DrawArgs,
    /// Policy; repeatable. The first is the reference unless --reference names another. default, fixed:W[,…],
    /// opt-factor:A, avg-blocks:T, checkpoint:PATH, table:PATH, best-fixed, best-static[:PROFILE].
    #[arg(long = "policy", value_name = "POLICY", required = true)]
    policies: Vec<String>,
    /// The policy the others are compared with.
    #[arg(long, value_name = "POLICY")]
    reference: Option<String>,
    /// Also write every run to this file, one JSON object a line, as runs finish.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// JSON Lines on stdout: a `run` line for each run as it finishes, then a `comparison` line for each policy.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &EvaluateArgs) -> anyhow::Result<Exit> {
    let policies = load_policies(&args.policies)?;
    let reference = match &args.reference {
        Some(text) => text.parse::<PolicySpec>()?.to_string(),
        None => policies[0].0.clone(),
    };
    if policies.iter().all(|(name, _)| *name != reference) {
        bail!("--reference {reference} is not one of the policies");
    }
    let world = args.world.world()?;
    let matrix = Matrix {
        policies,
        windows: args.draw.windows(&world, None)?,
        loads: args.draw.loads()?,
        seeds: args.draw.seeds()?,
    };
    simulate::warn_of_idle_seeds(&world, &matrix);
    warn_of_training(&world, &matrix, &args.policies)?;
    let mut file = match &args.out {
        Some(path) => Some(File::create(path).with_context(|| format!("cannot write {}", path.display()))?),
        None => None,
    };
    let mut output = Output::new();
    let mut rows: Vec<Row> = Vec::new();
    let mut written = Ok(());
    let bar = Runs::new();
    let cells = run_matrix(&world, &matrix, &bar, stop::on_interrupt(), &mut |finished| {
        rows.extend_from_slice(finished);
        written = finished.iter().try_for_each(|row| {
            if let Some(file) = &mut file {
                writeln!(file, "{}", serde_json::to_string(row)?)?;
            }
            if args.json { output.json("run", row) } else { Ok(()) }
        });
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    bar.finish();
    written?;
    // Whatever ended the runs, what is finished is compared.
    let comparisons = compare(&rows, &reference);
    if args.json {
        comparisons.iter().try_for_each(|comparison| output.json("comparison", comparison))?;
    } else if !comparisons.is_empty() {
        output.line(&format!(
            "{} on {}, {}, {} windows x {} loads x {} seeds",
            world.trace,
            world.deployment.name(),
            world.node.slo,
            matrix.windows.len(),
            matrix.loads.len(),
            matrix.seeds.len()
        ))?;
        output.text(&render(&comparisons))?;
    }
    let (cells, all) = (cells?, matrix.windows.len() * matrix.loads.len());
    if cells < all {
        eprintln!("interrupted: {cells} of {all} cells are finished; the comparison is of those");
        return Ok(Exit::Interrupted);
    }
    Ok(Exit::Done)
}

/// A policy judged on what it was trained on proves nothing, and one judged in another world may prove little.
fn warn_of_training(world: &World, matrix: &Matrix, policies: &[String]) -> anyhow::Result<()> {
    for name in policies {
        let trained = match name.parse()? {
            PolicySpec::Checkpoint(path) => checkpoint::inspect(&path)?.metadata,
            PolicySpec::Table(path) => {
                let table = export::load_table(&path)?;
                table.metadata().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
            }
            _ => continue,
        };
        for (key, here) in world.conditions() {
            if let Some(there) = trained.get(key).filter(|there| **there != here) {
                eprintln!("warning: {name} was trained with {key} {there} and is judged with {here}");
            }
        }
        let same_trace = world.fingerprint().is_some_and(|fingerprint| trained.get("traffic") == Some(&fingerprint));
        let Some(Ok(seen)) = trained.get("fit_range").filter(|_| same_trace).map(|text| text.parse::<Window>()) else {
            continue;
        };
        let overlaps =
            |window: &Option<Window>| window.is_none_or(|window| window.start < seen.end && seen.start < window.end);
        if matrix.windows.iter().any(overlaps) {
            eprintln!(
                "warning: {name} was trained on {seen} of this trace, and a window judged overlaps it; judge what \
                 comes after with --window {}..{}",
                duration::format(seen.end),
                duration::format(Micros(world.span()?.0.next_multiple_of(1_000_000)))
            );
        }
    }
    Ok(())
}
