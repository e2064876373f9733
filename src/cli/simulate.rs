//! `kvtide simulate`.

use std::fmt::Write;
use std::ops::ControlFlow;

use clap::Args;
use kvtide_envs::metrics::Percentiles;

use super::args::{DrawArgs, GuardSwitch, Loads, check_policies, check_served, found_text, load_policies};
use super::output::Output;
use super::progress::Runs;
use super::{Exit, stop};
use crate::evaluate::{Matrix, RunRow, doubts, run_matrix};
use crate::policy::PolicySpec;
use crate::world::{World, WorldSpec};

#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    #[command(flatten)]
    world: WorldSpec,
    #[command(flatten)]
    draw: DrawArgs,
    /// Policy; repeatable. default, fixed:W[,victim=…,mode=…,admission=…], opt-factor:A, avg-blocks:T,
    /// past-future[:QUANTILE][,…], oracle[,…], checkpoint:PATH, table:PATH, best-fixed, best-static[:PROFILE].
    #[arg(long = "policy", value_name = "POLICY", default_value = "default")]
    policies: Vec<PolicySpec>,
    /// Judge tables behind the guard a node runs them behind, or without it, which no node does.
    #[arg(long, value_name = "on|off", value_enum, default_value_t = GuardSwitch::On)]
    guard: GuardSwitch,
    /// One JSON object a line on stdout: {"type":"run","data":{…}}; before them a `load` line for each load found.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &SimulateArgs) -> anyhow::Result<Exit> {
    let policies = load_policies(&args.policies, args.guard)?;
    let world = args.world.world()?;
    check_policies(&policies, &world)?;
    let (windows, seeds) = (args.draw.windows(&world, None)?, args.draw.seeds()?);
    let bar = Runs::new();
    let stop = stop::on_interrupt();
    let Some(Loads { loads, found }) = args.draw.loads(&world, (&windows, &seeds), None, &bar, stop)? else {
        bar.finish();
        return Ok(Exit::Interrupted);
    };
    let matrix = Matrix { policies, windows, loads, seeds };
    warn_of_idle_seeds(&world, &matrix);
    for doubt in doubts(&world, &matrix, &args.policies)? {
        warn!("{doubt}");
    }
    let mut output = Output::new();
    if args.json {
        found.iter().try_for_each(|found| output.json("load", found))?;
    } else if !found.is_empty() {
        output.line(&found_text(&found))?;
    }
    let (mut written, mut all) = (Ok(()), Vec::new());
    let cells = run_matrix(&world, &matrix, &bar, stop, &mut |rows| {
        all.extend_from_slice(rows);
        written = rows.iter().try_for_each(|row| print(&mut output, row, args.json));
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    bar.finish();
    written?;
    let cells = cells?;
    if cells < matrix.cells() {
        return Ok(Exit::Interrupted);
    }
    check_served(&world, &matrix, &all)
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

fn print(output: &mut Output, row: &RunRow, json: bool) -> anyhow::Result<()> {
    if json { output.json("run", row) } else { output.text(&render(row)) }
}

/// A run for people.
fn render(row: &RunRow) -> String {
    let summary = &row.summary;
    let mut text = String::new();
    let chosen = row.chosen.as_ref().map_or_else(String::new, |chosen| format!(" = {chosen}"));
    let _ = writeln!(text, "{}{chosen}", row.policy);
    let _ =
        writeln!(text, "  {} on {}, window {}, load {}, seed {}", row.trace, row.env, row.window, row.load, row.seed);
    let _ = writeln!(
        text,
        "  attained {:.1} % of {} requests ({}), {} completed, {} rejected, goodput {:.2} req/s",
        summary.slo_attainment * 100.0,
        summary.requests,
        row.slo,
        summary.completed,
        summary.rejected,
        summary.goodput_rps
    );
    let _ = writeln!(
        text,
        "  {:.0} output tokens/s over {:.1} s in {} steps, KV usage {:.1} %",
        summary.output_tok_s,
        summary.makespan_s,
        summary.scheduler_steps,
        summary.kv_usage_mean * 100.0
    );
    let times =
        [("TTFT", summary.ttft_ms), ("TPOT", summary.tpot_ms), ("ITL", summary.itl_ms), ("E2E", summary.e2e_ms)];
    for (name, time) in times {
        if let Some(Percentiles { p50, p90, p95, p99 }) = time {
            let _ = writeln!(text, "  {name:4} p50 {p50:>9.1}  p90 {p90:>9.1}  p95 {p95:>9.1}  p99 {p99:>9.1} ms");
        }
    }
    if let Some(guard) = &summary.guard {
        let _ = writeln!(text, "  {guard}");
    }
    if summary.prefix_hit_tokens > 0 {
        let _ = writeln!(
            text,
            "  {} prompt tokens from the prefix cache, {:.1} % of those admitted",
            summary.prefix_hit_tokens,
            summary.prefix_hit_ratio * 100.0
        );
    }
    let _ = writeln!(
        text,
        "  {} preemptions, {} blocks swapped out, {} in, {} tokens recomputed, hash {}",
        summary.preemptions, summary.swap_out_blocks, summary.swap_in_blocks, summary.recomputed_tokens, summary.hash
    );
    if let Some(memory) = &summary.memory {
        let _ = writeln!(
            text,
            "  {}: {} tokens written, {} blocks out, {} back; {} blocks checked, {} of them back from the host, all hold \
             what was written; checksum {}",
            memory.backend,
            memory.written_tokens,
            memory.blocks_out,
            memory.blocks_in,
            memory.blocks_checked,
            memory.round_trips_checked,
            memory.checksum
        );
    }
    text
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
