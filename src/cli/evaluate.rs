//! `kvtide evaluate`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, ensure};
use clap::Args;
use kvtide_envs::files::Lock;
use kvtide_envs::workload::Window;

use super::args::{
    DrawArgs, GuardSwitch, Loads, check_policies, check_served, clocks_can_be_drawn, found_text, load_policies,
};
use super::best_train::Sought;
use super::output::Output;
use super::outputs::Outputs;
use super::progress::Runs;
use super::{Exit, best_train, simulate, stop};
use crate::crew::Ray;
use crate::evaluate::{
    ClockError, Finished, FoundLoad, Kept, Matrix, MatrixError, RunFile, RunRow, bisect_capacities, clock_gains,
    compare, doubts, go_on_with_clocks, go_on_with_matrix, identity, render, render_clocks,
};
use crate::policy::{PolicyName, PolicySpec, Subject};
use crate::report::{self, ReportInput};
use crate::text::{self, printable, wrapped};
use crate::workshop::MatrixWork;
use crate::world::{Elsewhere, MAX_CLOCK_DRAWS, World, WorldSpec};

#[derive(Debug, Args)]
pub(super) struct EvaluateArgs {
    #[command(flatten)]
    world: WorldSpec,
    #[command(flatten)]
    draw: DrawArgs,
    /// Policy; repeatable. The first is the reference unless --reference names another. default, fixed:W[,…],
    /// opt-factor:A, avg-blocks:T, past-future[:QUANTILE][,…], primal-dual[:RISK,RATE][,…], oracle[,…], ppas[:N,CAP], checkpoint:PATH, table:PATH,
    /// best-fixed, best-static[:PROFILE], best-static-once[:PROFILE], best-train[:PATH].
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
    /// Also write to this file what --json writes to stdout, each run as it finishes, and what --resume needs: nothing is lost
    /// however this ends.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Go on with the runs that --out holds: what is there is not run again, and the result is the one of an evaluation that
    /// never stopped.
    #[arg(long, requires = "out")]
    resume: bool,
    /// Repeat the judgement by N clocks drawn within the spread of the profile's constants, N times the runs: gains are then
    /// also stated with what the clock may get wrong.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CLOCK_DRAWS)))]
    clock_spread: Option<u32>,
    /// Judge tables behind the guard a node runs them behind, or without it, which no node does.
    #[arg(long, value_name = "on|off", value_enum, default_value_t = GuardSwitch::On)]
    guard: GuardSwitch,
    /// Have runs served by the workers of the Ray cluster at this address, such as 10.0.0.1:6379, auto, or local for one of this
    /// machine's own: the same bytes, sooner. Needs python3 with kvtide[ray]; KVTIDE_PYTHON names another.
    #[arg(long, value_name = "ADDRESS")]
    ray: Option<String>,
    /// JSON Lines on stdout: a `load` line for each load found, a `run` line for each run as it finishes, then a
    /// `comparison` line for each policy and, with --clock-spread, a `clock_gain` line for each and whom it is compared with.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &EvaluateArgs) -> anyhow::Result<Exit> {
    let mut policies = load_policies(&args.policies, args.guard)?;
    let sought = best_train::sought(&policies)?;
    let Compared { reference, versus } = compared(args, &policies)?;
    outputs(args).check()?;
    // What is no file, such as a pipe, nobody else writes to by that name.
    let kept_file = args.out.as_deref().filter(|path| path.is_file() || !path.exists());
    let _lock = kept_file.map(Lock::of_file).transpose()?;
    let stop = stop::on_interrupt();
    if let Some(address) = &args.ray {
        args.world.can_be_sent().with_context(|| format!("--ray {address}"))?;
    }
    let mut world = args.world.world()?;
    check_policies(&policies, &world)?;
    clocks_can_be_drawn(args.clock_spread, &world)?;
    let (windows, seeds) = (args.draw.windows(&world, None)?, args.draw.seeds()?);
    let made_on = report::today()?;
    let (mut file, kept) = runs_file(args, &world, (&policies, &sought), (&windows, &seeds))?;
    if let Some(address) = &args.ray {
        let Some(elsewhere) = elsewhere(args, &world, address, stop)? else { return Ok(Exit::Interrupted) };
        world.elsewhere = Some(elsewhere);
    }
    let bar = Runs::new();
    if !best_train::choose(sought, &mut policies, &world, &kept, (&bar, stop))? {
        return Ok(Exit::Interrupted);
    }
    bar.phase("looking for loads");
    let asked = (&windows[..], &seeds[..]);
    let Some(Loads { loads, found }) = args.draw.loads(&world, asked, kept.found(), &bar, stop)? else {
        return Ok(Exit::Interrupted);
    };
    bar.phase("runs");
    let matrix = Matrix { policies, windows, loads, seeds };
    simulate::warn_of_idle_seeds(&world, &matrix);
    simulate::warn_of_doubts(&doubts(&world, &matrix, &args.policies)?);
    if args.clock_spread.is_some() && args.policies.len() < 2 {
        warn!("--clock-spread with one policy: there is no gain to state, only the runs by each clock (--json, --out)");
    }
    if let Some(file) = &mut file {
        file.begin(&kept, &found)?;
    }
    let mut shown = Shown::new(args);
    let clocks = args.clock_spread.unwrap_or(0);
    let job = Job { world: &world, matrix: &matrix, found: &found, clocks };
    let Served { rows, drawn, cells, by_clocks } = job.run((&kept, file.as_mut()), &mut shown, (&bar, stop))?;
    // Whatever ended the runs, what is finished is compared.
    let mut comparisons = compare(&rows, &reference, &versus);
    let finished_clocks = by_clocks.as_ref().map_or(0, |finished| *finished);
    let gains = clock_gains(&world, &comparisons, &drawn, finished_clocks);
    let mut is_whole = matches!(cells, Ok(cells) if cells == matrix.cells()) && finished_clocks == clocks;
    if args.capacity && is_whole {
        bar.phase("looking for capacity");
        is_whole = bisect_capacities(&world, &matrix, &mut comparisons, (&kept, file.as_mut()), &bar, stop)?;
    }
    if let (Some(file), true) = (&mut file, is_whole) {
        file.finish(&kept, rows.len() + drawn.len(), &comparisons, &gains)?;
    }
    drop(bar);
    let command = command_line();
    let (world, matrix, found) = (&world, &matrix, &found[..]);
    let (rows, versus, comparisons, clocks) = (&rows[..], &versus[..], &comparisons[..], &gains[..]);
    let material = ReportInput { command, made_on, world, matrix, found, rows, versus, comparisons, clocks };
    let _ = shown.write(|output| show(output, args.json, &material));
    let cells = cells?;
    by_clocks?;
    if let (Some(path), false) = (&args.report, comparisons.is_empty()) {
        report::write(path, &material)?;
        say!("the report is in {}", path.display());
    }
    let told = shown.end();
    if !is_whole {
        told?;
        let clocks =
            args.clock_spread.map_or_else(String::new, |all| format!(" and {finished_clocks} of {all} drawn clocks"));
        say!("interrupted: {cells} of {} cells{clocks} are finished; the comparison is of those", matrix.cells());
        if let Some(path) = &args.out {
            let runs = rows.len() + drawn.len();
            say!("{runs} runs are kept in {}; the same command with --resume goes on", path.display());
        }
        return Ok(Exit::Interrupted);
    }
    super::judged(told, check_served(world, matrix, rows)?)
}

/// The workers at `address`, who know what is evaluated; `None` if interrupted.
fn elsewhere(
    args: &EvaluateArgs,
    world: &World,
    address: &str,
    stop: &AtomicBool,
) -> anyhow::Result<Option<Elsewhere>> {
    ensure!(
        !world.memory.is_exclusive(),
        "--ray {address}: a device's steps take what they take, on each machine another time; leave out --memory"
    );
    let of_ray = || format!("--ray {address}");
    let is_guarded = args.guard == GuardSwitch::On;
    let setting = MatrixWork::setting(&args.world, world, &args.policies, is_guarded).with_context(of_ray)?;
    let ray = Ray::start(address, stop).with_context(of_ray)?;
    Ok(ray.map(|ray| Elsewhere::new(Arc::new(ray), setting)))
}

/// What is read, and what is written.
fn outputs(args: &EvaluateArgs) -> Outputs {
    let outputs = Outputs::new().reads_world(&args.world).reads_policies(&args.policies);
    outputs.log("--out", args.out.as_deref()).file("--report", args.report.as_deref())
}

/// The file runs are kept in, if they are, and what it holds of these already.
fn runs_file(
    args: &EvaluateArgs,
    world: &World,
    (policies, sought): (&[(PolicyName, Subject)], &[Sought]),
    (windows, seeds): (&[Option<Window>], &[u64]),
) -> anyhow::Result<(Option<RunFile>, Kept)> {
    let Some(path) = &args.out else { return Ok((None, Kept::default())) };
    let names: Vec<PolicyName> = policies.iter().map(|(name, _)| name.clone()).collect();
    let mut of = identity(world, &names, windows, seeds)?;
    of.extend(best_train::identity(policies, sought));
    of.insert("loads".to_owned(), args.draw.load_text());
    of.insert("guard".to_owned(), if args.guard == GuardSwitch::On { "on" } else { "off" }.to_owned());
    if let Some(draws) = args.clock_spread {
        of.insert("clock draws".to_owned(), draws.to_string());
    }
    if !args.resume {
        return Ok((Some(RunFile::create(path, of)?), Kept::default()));
    }
    let (file, kept) = RunFile::resume(path, of)?;
    match kept.runs() {
        0 => say!("{} holds no runs yet", path.display()),
        runs => say!("{runs} runs are in {} already", path.display()),
    }
    Ok((Some(file), kept))
}

/// stdout, which ends the work when nobody reads it any more, unless there are files that want it done.
struct Shown {
    output: Output,
    is_json: bool,
    has_files: bool,
    failed: Option<anyhow::Error>,
}

impl Shown {
    fn new(args: &EvaluateArgs) -> Shown {
        let has_files = args.out.is_some() || args.report.is_some();
        Shown { output: Output::new(), is_json: args.json, has_files, failed: None }
    }

    /// Writes, as long as that works; whether to go on.
    fn write(&mut self, write: impl FnOnce(&mut Output) -> anyhow::Result<()>) -> ControlFlow<()> {
        if self.failed.is_none() {
            self.failed = write(&mut self.output).err();
        }
        if self.failed.is_none() || self.has_files { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// What came in the way of writing.
    fn end(self) -> anyhow::Result<()> {
        self.failed.map_or(Ok(()), Err)
    }
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

/// What is run.
struct Job<'a> {
    world: &'a World,
    matrix: &'a Matrix,
    found: &'a [FoundLoad],
    /// Drawn clocks by which it is run once more.
    clocks: u32,
}

/// What came of it.
struct Served {
    /// By the clock of the profile.
    rows: Vec<RunRow>,
    /// By drawn clocks.
    drawn: Vec<RunRow>,
    /// How many cells were finished, or why not all.
    cells: Result<usize, MatrixError>,
    /// How many drawn clocks.
    by_clocks: Result<u32, ClockError>,
}

impl Job<'_> {
    /// Every run, kept and printed as it finishes.
    fn run(
        &self,
        (kept, mut file): (&Kept, Option<&mut RunFile>),
        shown: &mut Shown,
        (bar, stop): (&Runs, &AtomicBool),
    ) -> anyhow::Result<Served> {
        let Job { world, matrix, found, clocks } = *self;
        let (mut rows, mut written) = (Vec::new(), Ok(()));
        if shown.is_json {
            let _ = shown.write(|output| found.iter().try_for_each(|found| output.json("load", found)));
        }
        let mut keep = |finished: Finished<'_>| match (&mut file, finished) {
            (Some(file), Finished::Run { row, is_kept: false }) => file.run(row),
            (Some(file), Finished::Tried(row)) => file.tried(row),
            _ => Ok(()),
        };
        let mut take = |finished: Finished<'_>| {
            written = keep(finished);
            if written.is_err() {
                return ControlFlow::Break(());
            }
            let Finished::Run { row, .. } = finished else { return ControlFlow::Continue(()) };
            rows.push(row.clone());
            if shown.is_json { shown.write(|output| output.json("run", row)) } else { ControlFlow::Continue(()) }
        };
        let cells = go_on_with_matrix(world, matrix, kept, bar, stop, &mut take);
        let is_whole = cells.as_ref().is_ok_and(|cells| *cells == matrix.cells());
        let by_clocks = if is_whole && clocks > 0 {
            bar.phase("runs by drawn clocks");
            go_on_with_clocks((world, matrix), clocks, kept, bar, stop, &mut take)
        } else {
            Ok(0)
        };
        written?;
        let is_stopped = !is_whole && cells.is_ok() || by_clocks.as_ref().is_ok_and(|finished| *finished < clocks);
        if is_stopped
            && !shown.has_files
            && let Some(failed) = shown.failed.take()
        {
            return Err(failed);
        }
        let (rows, drawn) = rows.into_iter().partition(|row| row.clock_draw.is_none());
        Ok(Served { rows, drawn, cells, by_clocks })
    }
}

/// Prints the comparison.
fn show(output: &mut Output, json: bool, material: &ReportInput<'_>) -> anyhow::Result<()> {
    let ReportInput { world, matrix, found, versus, comparisons, clocks, .. } = material;
    if json {
        comparisons.iter().try_for_each(|comparison| output.json("comparison", comparison))?;
        return clocks.iter().try_for_each(|gain| output.json("clock_gain", gain));
    }
    if comparisons.is_empty() {
        return Ok(());
    }
    let several = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut head = format!(
        "{} on {}, {}, {}, {}, {}\n",
        printable(&world.trace),
        world.deployment.name(),
        world.node.slo,
        several(matrix.windows.len(), "window"),
        several(matrix.loads.len(), "load"),
        several(matrix.seeds.len(), "seed")
    );
    if !found.is_empty() {
        head.push_str(&found_text(found));
        head.push('\n');
    }
    head.push('\n');
    output.text(&wrapped(&head, text::width(), 2))?;
    output.text(&render(comparisons, versus, text::width()))?;
    let names: Vec<&PolicyName> = comparisons.iter().map(|line| &line.policy).collect();
    output.text(&render_clocks(world, &names, clocks, text::width()))
}

/// This process's command line, as a shell would take it, without what makes no difference to what comes out.
pub(super) fn command_line() -> String {
    let given = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let words = std::iter::once("kvtide".to_owned()).chain(without_place(given).into_iter().map(|word| quoted(&word)));
    words.collect::<Vec<String>>().join(" ")
}

/// Words without those that only say where the work is done, and how much of it is done already.
fn without_place(given: impl Iterator<Item = String>) -> Vec<String> {
    let mut is_address = false;
    let counts = |word: &String| {
        let skipped = is_address || word == "--resume" || word == "--ray" || word.starts_with("--ray=");
        is_address = !is_address && word == "--ray";
        !skipped
    };
    given.filter(counts).collect()
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
    fn where_it_was_done_makes_no_difference() {
        let words = "evaluate --ray auto --resume --policy default --ray=10.0.0.1:6379 --json";
        let left = without_place(words.split(' ').map(str::to_owned));
        assert_eq!(left.join(" "), "evaluate --policy default --json");
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(
            ["a", "x=1,y:2", "", "a b", "it's", "$HOME", "~"].map(quoted).join(" "),
            "a x=1,y:2 '' 'a b' 'it'\\''s' '$HOME' '~'"
        );
    }
}
