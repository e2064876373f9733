//! `kvtide evaluate`.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, ensure};
use clap::Args;

use super::args::{DrawArgs, GuardSwitch, Loads, check_policies, found_text, load_policies};
use super::output::Output;
use super::progress::Runs;
use super::{Exit, simulate, stop};
use crate::evaluate::{
    Comparison, FoundLoad, Matrix, MatrixError, RunRow, bisect_capacities, compare, doubts, render, run_matrix,
};
use crate::policy::{PolicyName, PolicySpec, Subject};
use crate::report::{self, ReportInput};
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
    let Compared { reference, versus } = compared(args, &policies)?;
    let stop = stop::on_interrupt();
    let world = args.world.world()?;
    check_policies(&policies, &world)?;
    let (windows, seeds) = (args.draw.windows(&world, None)?, args.draw.seeds()?);
    args.report.as_deref().map(report::check_folder).transpose()?;
    let bar = Runs::new();
    let Some(Loads { loads, found }) = args.draw.loads(&world, &windows, &seeds, &bar, stop)? else {
        return Ok(Exit::Interrupted);
    };
    let matrix = Matrix { policies, windows, loads, seeds };
    simulate::warn_of_idle_seeds(&world, &matrix);
    for doubt in doubts(&world, &matrix, &args.policies)? {
        warn!("{doubt}");
    }
    let (rows, cells) = served(args, &world, &matrix, &found, &bar, stop)?;
    // Whatever ended the runs, what is finished is compared.
    let mut comparisons = compare(&rows, &reference, &versus);
    let mut is_whole = matches!(cells, Ok(cells) if cells == matrix.cells());
    if args.capacity && is_whole {
        is_whole = bisect_capacities(&world, &matrix, &mut comparisons, &bar, stop)?;
    }
    drop(bar);
    let command = command_line();
    let (world, matrix, found) = (&world, &matrix, &found[..]);
    let material =
        ReportInput { command, world, matrix, found, rows: &rows, versus: &versus, comparisons: &comparisons };
    show(args.json, &material)?;
    let cells = cells?;
    if let (Some(path), false) = (&args.report, comparisons.is_empty()) {
        report::write(path, &material)?;
        say!("the report is in {}", path.display());
    }
    if !is_whole {
        say!("interrupted: {cells} of {} cells are finished; the comparison is of those", matrix.cells());
        return Ok(Exit::Interrupted);
    }
    Ok(Exit::Done)
}

/// Whom everybody is compared with.
struct Compared {
    reference: PolicyName,
    versus: Vec<PolicyName>,
}

fn compared(args: &EvaluateArgs, policies: &[(PolicyName, Subject)]) -> anyhow::Result<Compared> {
    let reference = args.reference.clone().map_or_else(|| policies[0].0.clone(), PolicyName::from);
    let versus: Vec<PolicyName> = args.versus.iter().cloned().map(PolicyName::from).collect();
    let named = std::iter::once(("reference", &reference)).chain(versus.iter().map(|name| ("versus", name)));
    for (option, name) in named {
        ensure!(policies.iter().any(|(known, _)| known == name), "--{option} {name} is not one of the policies");
    }
    Ok(Compared { reference, versus })
}

/// Every run, written and printed as it finishes, and how many cells were finished, or why not all.
fn served(
    args: &EvaluateArgs,
    world: &World,
    matrix: &Matrix,
    found: &[FoundLoad],
    bar: &Runs,
    stop: &AtomicBool,
) -> anyhow::Result<(Vec<RunRow>, Result<usize, MatrixError>)> {
    let create = |path: &Path| File::create(path).with_context(|| format!("cannot write {}", path.display()));
    let mut file = args.out.as_deref().map(create).transpose()?;
    let mut output = Output::new();
    if args.json {
        found.iter().try_for_each(|found| output.json("load", found))?;
    }
    let (mut rows, mut written) = (Vec::new(), Ok(()));
    let cells = run_matrix(world, matrix, bar, stop, &mut |finished| {
        rows.extend_from_slice(finished);
        written = finished.iter().try_for_each(|row| {
            if let Some(file) = &mut file {
                writeln!(file, "{}", serde_json::to_string(row)?)?;
            }
            if args.json { output.json("run", row) } else { Ok(()) }
        });
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    written.map(|()| (rows, cells))
}

/// Prints the comparison.
fn show(json: bool, material: &ReportInput<'_>) -> anyhow::Result<()> {
    let ReportInput { world, matrix, found, versus, comparisons, .. } = material;
    let mut output = Output::new();
    if json {
        return comparisons.iter().try_for_each(|comparison: &Comparison| output.json("comparison", comparison));
    }
    if comparisons.is_empty() {
        return Ok(());
    }
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
        output.line(&found_text(found))?;
    }
    output.text(&render(comparisons, versus))
}

/// This process's command line, as a shell would take it.
pub(super) fn command_line() -> String {
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
