//! `kvtide evaluate`.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, ensure};
use clap::Args;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Duration, Window};

use super::args::{DrawArgs, GuardSwitch, Loads, check_policies, found_text, load_policies};
use super::output::Output;
use super::progress::Runs;
use super::{Exit, simulate, stop};
use crate::checkpoint;
use crate::evaluate::{Comparison, Matrix, Row, bisect_capacity, compare, render, run_matrix};
use crate::experiment::met_in_training;
use crate::export;
use crate::policy::{PolicyName, PolicySpec};
use crate::report::{self, Material};
use crate::world::{World, WorldSpec};

#[derive(Debug, Args)]
pub(super) struct EvaluateArgs {
    #[command(flatten)]
    world: WorldSpec,
    #[command(flatten)]
    draw: DrawArgs,
    /// Policy; repeatable. The first is the reference unless --reference names another. default, fixed:W[,…],
    /// opt-factor:A, avg-blocks:T, past-future[:QUANTILE][,…], oracle[,…], checkpoint:PATH, table:PATH, best-fixed,
    /// best-static[:PROFILE].
    #[arg(long = "policy", value_name = "POLICY", required = true)]
    policies: Vec<PolicySpec>,
    /// The policy the others are compared with.
    #[arg(long, value_name = "POLICY")]
    reference: Option<PolicySpec>,
    /// Also print what everybody gains over this policy, where it gains least, and its longest wait as a multiple of this
    /// one's; one of those evaluated, such as fixed:0.03. Repeatable.
    #[arg(long, value_name = "POLICY")]
    versus: Vec<PolicySpec>,
    /// Look for the load at which each policy attains 90 %, instead of interpolating between the loads run.
    #[arg(long)]
    capacity: bool,
    /// Also write a page with tables, charts and a timeline to this file: one file of HTML, nothing is fetched.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Also write every run to this file, one JSON object a line, as runs finish.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Judge tables behind the guard a node runs them behind, or without it, which no node does.
    #[arg(long, value_name = "on|off", value_enum, default_value_t = GuardSwitch::On)]
    guard: GuardSwitch,
    /// JSON Lines on stdout: a `load` line for each load found, a `run` line for each run as it finishes, then a
    /// `comparison` line for each policy.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &EvaluateArgs) -> anyhow::Result<Exit> {
    let policies = load_policies(&args.policies, args.guard)?;
    let reference = args.reference.clone().map_or_else(|| policies[0].0.clone(), PolicyName::from);
    let versus: Vec<PolicyName> = args.versus.iter().cloned().map(PolicyName::from).collect();
    let named = std::iter::once(("reference", &reference)).chain(versus.iter().map(|name| ("versus", name)));
    for (option, name) in named {
        ensure!(policies.iter().any(|(known, _)| known == name), "--{option} {name} is not one of the policies");
    }
    let stop = stop::on_interrupt();
    let world = args.world.world()?;
    check_policies(&policies, &world)?;
    let (windows, seeds) = (args.draw.windows(&world, None)?, args.draw.seeds()?);
    if let Some(path) = &args.report {
        report::check_folder(path)?;
    }
    let bar = Runs::new();
    let Some(Loads { loads, found }) = args.draw.loads(&world, &windows, &seeds, &bar, stop)? else {
        bar.finish();
        return Ok(Exit::Interrupted);
    };
    let matrix = Matrix { policies, windows, loads, seeds };
    simulate::warn_of_idle_seeds(&world, &matrix);
    warn_of_training(&world, &matrix, &args.policies)?;
    let mut file = match &args.out {
        Some(path) => Some(File::create(path).with_context(|| format!("cannot write {}", path.display()))?),
        None => None,
    };
    let mut output = Output::new();
    if args.json {
        found.iter().try_for_each(|found| output.json("load", found))?;
    }
    let mut rows: Vec<Row> = Vec::new();
    let mut written = Ok(());
    let cells = run_matrix(&world, &matrix, &bar, stop, &mut |finished| {
        rows.extend_from_slice(finished);
        written = finished.iter().try_for_each(|row| {
            if let Some(file) = &mut file {
                writeln!(file, "{}", serde_json::to_string(row)?)?;
            }
            if args.json { output.json("run", row) } else { Ok(()) }
        });
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    written?;
    // Whatever ended the runs, what is finished is compared.
    let mut comparisons = compare(&rows, &reference, &versus);
    let all = matrix.windows.len() * matrix.loads.len();
    let mut is_whole = matches!(cells, Ok(cells) if cells == all);
    if args.capacity && is_whole {
        is_whole = bisect(&world, &matrix, &mut comparisons, &bar, stop)?;
    }
    bar.finish();
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
        if !found.is_empty() {
            output.line(&found_text(&found))?;
        }
        output.text(&render(&comparisons, &versus))?;
    }
    let cells = cells?;
    if let (Some(path), false) = (&args.report, comparisons.is_empty()) {
        let material = Material {
            command: command_line(),
            world: &world,
            matrix: &matrix,
            found: &found,
            rows: &rows,
            versus: &versus,
            comparisons: &comparisons,
        };
        report::write(path, &material)?;
        eprintln!("the report is in {}", path.display());
    }
    if !is_whole {
        eprintln!("interrupted: {cells} of {all} cells are finished; the comparison is of those");
        return Ok(Exit::Interrupted);
    }
    Ok(Exit::Done)
}

/// Finds each policy's capacity. False if interrupted; those found are kept.
fn bisect(
    world: &World,
    matrix: &Matrix,
    comparisons: &mut [Comparison],
    bar: &Runs,
    stop: &AtomicBool,
) -> anyhow::Result<bool> {
    for comparison in comparisons {
        let Some(policy) = matrix.policies.iter().find(|(name, _)| *name == comparison.policy) else { continue };
        let Some(capacity) = bisect_capacity(world, matrix, policy, bar, stop)? else { return Ok(false) };
        comparison.capacity = Some(capacity);
    }
    Ok(true)
}

/// This process's command line, as a shell would take it.
fn command_line() -> String {
    let mut words = vec!["kvtide".to_owned()];
    words.extend(std::env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy())));
    words.join(" ")
}

/// A word in single quotes, unless it needs none.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@+%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// A policy judged on what it was trained on proves nothing, and one judged in another world may prove little.
fn warn_of_training(world: &World, matrix: &Matrix, policies: &[PolicySpec]) -> anyhow::Result<()> {
    for name in policies {
        let trained = match name {
            PolicySpec::Checkpoint(path) => checkpoint::inspect(path)?.metadata,
            PolicySpec::Table(path) => {
                let table = export::load_table(path)?;
                table.metadata().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
            }
            _ => continue,
        };
        for (key, here) in world.conditions() {
            if let Some(there) = trained.get(key).filter(|there| !met_in_training(there, &here)) {
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
                Duration(seen.end),
                Duration(Micros(world.span()?.0.next_multiple_of(1_000_000)))
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(
            ["a", "x=1,y:2", "", "a b", "it's", "$HOME", "~"].map(quoted).join(" "),
            "a x=1,y:2 '' 'a b' 'it'\\''s' '$HOME' '~'"
        );
    }
}
