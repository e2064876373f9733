//! `kvtide simulate`.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail, ensure};
use clap::Args;
use kvtide_envs::metrics::{Percentiles, Summary};

use super::args::{DrawArgs, GuardSwitch, Loads, check_policies, check_served, found_text, load_policies};
use super::output::Output;
use super::outputs::Outputs;
use super::progress::Runs;
use super::{Exit, best_train, judged, stop};
use crate::evaluate::{Doubt, Kept, Matrix, NotedRun, RunRow, Watch, dash, doubts, note_releases, rps, run_matrix};
use crate::policy::{PolicyName, PolicySpec, Subject};
use crate::record::JsonLines;
use crate::text::{self, Column, TextTable, printable, wrapped};
use crate::world::{World, WorldSpec};

#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    #[command(flatten)]
    world: WorldSpec,
    #[command(flatten)]
    draw: DrawArgs,
    /// Policy; repeatable. default, fixed:W[,victim=…,mode=…,admission=…,budget=…,eviction=…], opt-factor:A,
    /// avg-blocks:T, past-future[:QUANTILE][,…], primal-dual[:RISK,RATE][,…], oracle[,…], ppas[:N,CAP], checkpoint:PATH, table:PATH, best-fixed,
    /// best-static[:PROFILE], best-static-once[:PROFILE], best-train[:PATH].
    #[arg(long = "policy", value_name = "POLICY", default_value = "default")]
    policies: Vec<PolicySpec>,
    /// Judge tables behind the guard a node runs them behind, or without it, which no node does.
    #[arg(long, value_name = "on|off", value_enum, default_value_t = GuardSwitch::On)]
    guard: GuardSwitch,
    /// Write what became of the blocks that requests gave back, a line for each of their parts: what was seen, which class was
    /// chosen, and how many were asked for again. Takes a pool with classes, --set eviction=classes; one run after the other.
    #[arg(long, value_name = "FILE")]
    releases: Option<PathBuf>,
    /// One JSON object a line on stdout: {"type":"run","data":{…}}; before them a `load` line for each load found.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &SimulateArgs) -> anyhow::Result<Exit> {
    let outputs = Outputs::new().reads_world(&args.world).reads_policies(&args.policies);
    outputs.log("--releases", args.releases.as_deref()).check()?;
    let mut policies = load_policies(&args.policies, args.guard)?;
    let sought = best_train::sought(&policies)?;
    let world = args.world.world()?;
    check_policies(&policies, &world)?;
    if args.releases.is_some() {
        can_note(&policies, &world)?;
    }
    let (windows, seeds) = (args.draw.windows(&world, None)?, args.draw.seeds()?);
    let (bar, stop) = (Runs::new(), stop::on_interrupt());
    if !best_train::choose(sought, &mut policies, &world, &Kept::default(), (&bar, stop))? {
        bar.finish();
        return Ok(Exit::Interrupted);
    }
    bar.phase("looking for loads");
    let Some(Loads { loads, found }) = args.draw.loads(&world, (&windows, &seeds), None, &bar, stop)? else {
        bar.finish();
        return Ok(Exit::Interrupted);
    };
    bar.phase("runs");
    let matrix = Matrix { policies, windows, loads, seeds };
    warn_of_idle_seeds(&world, &matrix);
    warn_of_doubts(&doubts(&world, &matrix, &args.policies)?);
    let mut output = Output::new();
    if args.json {
        found.iter().try_for_each(|found| output.json("load", found))?;
    } else if !found.is_empty() {
        output.text(&wrapped(&found_text(&found), text::width(), 2))?;
    }
    if let Some(path) = &args.releases {
        return note_all(&world, &matrix, (path, args.json), &mut output, &bar, stop);
    }
    let (mut written, mut all) = (Ok(()), Vec::new());
    let cells = run_matrix(&world, &matrix, &bar, stop, &mut |rows| {
        all.extend_from_slice(rows);
        written = rows.iter().try_for_each(|row| print(&mut output, row, args.json));
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    bar.finish();
    let cells = cells?;
    if cells < matrix.cells() {
        written?;
        return Ok(Exit::Interrupted);
    }
    judged(written, check_served(&world, &matrix, &all)?)
}

/// Refuses to note what nobody knows.
fn can_note(policies: &[(PolicyName, Subject)], world: &World) -> anyhow::Result<()> {
    ensure!(
        world.node.engine.has_eviction_classes(),
        "--releases: this pool has no classes, so nobody looks at what is given back; --set eviction=classes"
    );
    let many = policies.iter().find(|(_, subject)| subject.controller().is_none());
    many.map_or(Ok(()), |(name, _)| bail!("--releases: {name} is many runs; name the constant it finds"))
}

/// Runs all of `matrix`, and notes what is given back in the file at `path`.
fn note_all(
    world: &World,
    matrix: &Matrix,
    (path, json): (&Path, bool),
    output: &mut Output,
    bar: &Runs,
    stop: &AtomicBool,
) -> anyhow::Result<Exit> {
    let mut lines = JsonLines::new(File::create(path).with_context(|| path.display().to_string())?);
    let mut all = Vec::new();
    let draws: usize = matrix.each_cell().map(|cell| matrix.seeds_at(world, cell.load).len()).sum();
    bar.planned(draws * matrix.policies.len());
    for cell in matrix.each_cell() {
        for policy in &matrix.policies {
            for &seed in matrix.seeds_at(world, cell.load) {
                if stop.load(Ordering::Relaxed) {
                    bar.finish();
                    return Ok(Exit::Interrupted);
                }
                let Some(NotedRun { row, releases }) = note_releases(world, policy, cell, seed)? else { continue };
                bar.done();
                let mut written = releases.iter().map(|release| lines.write("release", release));
                written.try_for_each(|line| line).with_context(|| path.display().to_string())?;
                print(output, &row, json)?;
                all.push(row);
            }
        }
    }
    bar.finish();
    say!("what was given back is in {}", path.display());
    check_served(world, matrix, &all)
}

/// Several seeds of traffic that does not depend on the seed would be one run counted several times.
pub(super) fn warn_of_idle_seeds(world: &World, matrix: &Matrix) {
    for load in matrix.idle_loads(world) {
        warn!(
            "at load {load} the traffic is the same for every seed, so only the first is run; for more draws use \
             another load with --scale thin, --jitter, or more --windows"
        );
    }
}

/// Says every reason to doubt, and what is no more than a detail to those who ask for them.
pub(super) fn warn_of_doubts(doubts: &[Doubt]) {
    for doubt in doubts {
        if doubt.is_slight() {
            detail!("{doubt}");
        } else {
            warn!("{doubt}");
        }
    }
}

fn print(output: &mut Output, row: &RunRow, json: bool) -> anyhow::Result<()> {
    if json { output.json("run", row) } else { output.text(&render(row, text::width())) }
}

/// A run for people, at most `width` columns wide.
fn render(row: &RunRow, width: usize) -> String {
    let summary = &row.summary;
    let chosen = row.chosen.as_ref().map_or_else(String::new, |chosen| format!(" = {chosen}"));
    let rate = row.offered_rps.map_or_else(String::new, |rate| format!(" ({} req/s offered)", rps(rate)));
    let clients = row.clients.map_or_else(String::new, |clients| format!(" ({clients} clients)"));
    let mut lines = vec![
        format!("{}{chosen}", printable(row.policy.as_str())),
        format!(
            "  {} on {}, window {}, load {}{rate}{clients}, seed {}",
            printable(&row.trace),
            row.env,
            row.window,
            row.load,
            row.seed
        ),
        format!(
            "  attained {:.1} % of {} requests ({}), {} completed, {} rejected, goodput {:.2} req/s",
            summary.slo_attainment * 100.0,
            summary.requests,
            row.slo,
            summary.completed,
            summary.rejected,
            summary.goodput_rps
        ),
        format!(
            "  {:.0} output tokens/s over {:.1} s in {} steps, KV usage {:.1} %",
            summary.output_tok_s,
            summary.makespan_s,
            summary.scheduler_steps,
            summary.kv_usage_mean * 100.0
        ),
    ];
    lines.extend(summary.guard.as_ref().map(|guard| format!("  {guard}")));
    if summary.prefix_hit_tokens > 0 {
        lines.push(format!(
            "  {} prompt tokens from the prefix cache, {:.1} % of those admitted",
            summary.prefix_hit_tokens,
            summary.prefix_hit_ratio * 100.0
        ));
    }
    lines.extend(summary.host_cache.map(|cache| {
        format!(
            "  {} prompt tokens from the host cache, {:.1} % of those admitted; {} blocks stored, {} brought back",
            cache.hit_tokens,
            cache.hit_ratio * 100.0,
            cache.stored_blocks,
            cache.fetched_blocks
        )
    }));
    lines.push(format!(
        "  {} preemptions, {} blocks swapped out, {} in, {} tokens recomputed",
        summary.preemptions, summary.swap_out_blocks, summary.swap_in_blocks, summary.recomputed_tokens
    ));
    lines.extend(summary.memory.as_ref().map(|memory| {
        format!(
            "  {}: {} tokens written, {} blocks out, {} back; {} blocks checked, {} of them back from the host, all hold \
             what was written; checksum {}",
            memory.backend,
            memory.written_tokens,
            memory.blocks_out,
            memory.blocks_in,
            memory.blocks_checked,
            memory.round_trips_checked,
            memory.checksum
        )
    }));
    let hash = format!("  hash {}\n", summary.hash);
    wrapped(&lines.join("\n"), width, 2) + &times_text(summary, width) + &hash
}

/// Mean and percentiles of times, each in the unit that its targets are thought of in.
fn times_text(summary: &Summary, width: usize) -> String {
    let times = [
        ("TTFT s", 1e-3, summary.ttft_ms),
        ("TPOT ms", 1.0, summary.tpot_ms),
        ("ITL ms", 1.0, summary.itl_ms),
        ("E2E s", 1e-3, summary.e2e_ms),
    ];
    let mut columns = vec![Column::new("", "")];
    let mut rows: [Vec<String>; 5] = ["mean", "p50", "p90", "p95", "p99"].map(|name| vec![format!("  {name}")]);
    for (name, unit, Percentiles { mean, p50, p90, p95, p99 }) in
        times.into_iter().filter_map(|(name, unit, time)| Some((name, unit, time?)))
    {
        columns.push(Column::new("", name));
        let decimals = if unit < 1.0 { 2 } else { 1 };
        for (row, value) in rows.iter_mut().zip([mean, Some(p50), Some(p90), Some(p95), Some(p99)]) {
            // A row of before means were counted has none.
            row.push(value.map_or_else(dash, |value| format!("{:>8.decimals$}", value * unit)));
        }
    }
    if columns.len() == 1 {
        return String::new();
    }
    let mut table = TextTable::new(columns);
    for row in rows {
        table.row(row);
    }
    table.render(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_head() {
        let help = SimulateArgs::augment_args(clap::Command::new("simulate")).render_long_help().to_string();
        let keys = kvtide_runtime::Head::ALL.into_iter().skip(1).map(|head| format!("{}=…", head.key()));
        assert!(help.contains(&format!("fixed:W[,{}]", keys.collect::<Vec<String>>().join(","))), "{help}");
    }
}
