//! `kvtide evict`.

mod compare;
mod explain;
mod import;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand, ValueEnum};
use kvtide_envs::reuse::{CachePolicy, HitRule, References};
use kvtide_envs::workload::{SyntheticSpec, Window, Workload};

use super::output::Output;
use super::outputs::Outputs;
use super::progress::Runs;
use super::token_pd::TokenPdArgs;
use super::{Exit, stop};
use crate::evaluate::Watch;
use crate::eviction::{self, Capacity, EvictionReplay, EvictionRow};
use crate::plot::svg::round;
use crate::report;
use crate::text::{self, Column, TextTable, printable, wrapped};
use crate::world::{Draw, WorldSpec, Written};

#[derive(Debug, Args)]
pub(super) struct EvictArgs {
    #[command(subcommand)]
    command: EvictCommand,
}

#[derive(Debug, Subcommand)]
enum EvictCommand {
    /// Replay the blocks that requests ask for under policies of eviction, without an engine: what each finds at some
    /// capacities, and how far it is from the best there can be.
    Replay(ReplayArgs),
    /// Replay a stream of blocks with declared intent (phase, priority, deadline, costs) in HBM and DRAM: which policy loses
    /// what, as the simulator it follows and corrected, each decision explained if asked.
    Compare(compare::CompareArgs),
    /// Turn a log of requests into such a stream, or write a generated one.
    Import(import::ImportArgs),
    /// Ask a log of decisions: why did that block go, which decisions cost a deadline?
    Explain(explain::ExplainArgs),
    /// Token-PD: a price for memory that lets go of blocks within conversations, beside FIFO, LRU and H2O, and whether what was claimed of
    /// it holds.
    TokenPd(TokenPdArgs),
}

#[derive(Debug, Args)]
struct ReplayArgs {
    /// Recorded workload in any form that `kvtide trace convert --help` lists, plain, gzip or zstd; - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    trace: Option<PathBuf>,
    /// Generated workload, such as chat:rate=2,duration=600.
    #[arg(long, value_name = "SPEC")]
    workload: Option<Written<SyntheticSpec>>,
    /// Only arrivals of this part of the traffic, such as 600s..1200s.
    #[arg(long, value_name = "START..END", allow_hyphen_values = true)]
    window: Option<String>,
    /// Sessions that start an hour, for files of agentic sessions, which do not say when [default: 20].
    #[arg(long, value_name = "PER_HOUR")]
    session_rate: Option<f64>,
    /// Tokens of a block [default: that of the trace's hash ids, 16 where there are none].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    block_size: Option<u32>,
    /// Count a prompt's last block also where it is not full, as traces of hash ids do; no engine caches it.
    #[arg(long)]
    partial: bool,
    /// Blocks of the cache, or a share of the different blocks that are asked for; comma-separated.
    #[arg(
        long,
        value_name = "BLOCKS|%,…",
        value_delimiter = ',',
        default_value = "1%,2%,5%,10%",
        allow_hyphen_values = true
    )]
    capacity: Vec<String>,
    /// Policies, comma-separated: lru, radix, fifo, lfu, lfu-da, clock, sieve, s3-fifo, arc, slru, gdsf, w-tinylfu, t-lru,
    /// perfect-lfu, perfect-slru, belady [default: all]. Belady, the bound, is always among them.
    #[arg(long, value_name = "POLICY,…", value_delimiter = ',')]
    policy: Vec<String>,
    /// What hits: prefixes (a request's blocks before the first that is not cached) or objects (each block by itself).
    #[arg(long = "as", value_name = "prefixes|objects", value_enum, default_value_t = HitsOf::Prefixes)]
    hits_of: HitsOf,
    /// Count the requests that have more than so many tokens to compute.
    #[arg(long, value_name = "TOKENS", default_value_t = 4096)]
    uncached: u32,
    /// Write a page with charts, which needs nothing but a browser.
    #[arg(long, value_name = "PAGE")]
    report: Option<PathBuf>,
    /// One JSON object a line on stdout: {"type":"eviction","data":{…}}.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HitsOf {
    Prefixes,
    Objects,
}

/// Tokens of a block where no trace says otherwise: vLLM's.
const BLOCK_TOKENS: u32 = 16;

pub(super) fn run(args: &EvictArgs) -> anyhow::Result<Exit> {
    match &args.command {
        EvictCommand::Replay(args) => replay(args),
        EvictCommand::Compare(args) => compare::run(args),
        EvictCommand::Import(args) => import::run(args),
        EvictCommand::Explain(args) => explain::run(args),
        EvictCommand::TokenPd(args) => super::token_pd::run(args),
    }
}

/// MiB, to three digits where there are any.
fn mib(bytes: u64) -> String {
    round(bytes as f64 / f64::from(1 << 20), 3)
}

fn replay(args: &ReplayArgs) -> anyhow::Result<Exit> {
    let policies = policies(&args.policy)?;
    let capacities: Vec<Capacity> =
        args.capacity.iter().map(|text| text.parse()).collect::<Result<_, _>>().context("--capacity")?;
    let window: Option<Window> = args.window.as_deref().map(str::parse).transpose().context("--window")?;
    Outputs::new().reads("--trace", args.trace.as_deref()).file("--report", args.report.as_deref()).check()?;
    let made_on = report::today()?;
    let (trace, workload) = traffic(args, window)?;
    let references = references(args, &workload)?;
    let capacities = in_blocks(&capacities, &references)?;
    // Not before: while traffic is read nothing is finished, and Ctrl-C ends the process at once.
    let stop = stop::on_interrupt();
    let (bar, mut output) = (Runs::new(), Output::new());
    bar.phase("replays");
    bar.planned(policies.len() * capacities.len());
    let rule = if args.hits_of == HitsOf::Prefixes { HitRule::Prefixes } else { HitRule::Objects };
    let replay = EvictionReplay {
        trace: &trace,
        references: &references,
        policies: &policies,
        capacities: &capacities,
        rule,
        uncached: args.uncached,
    };
    let (mut written, mut rows) = (Ok(()), Vec::new());
    let is_finished = replay.run(stop, &|| bar.done(), &mut |finished| {
        rows.extend_from_slice(finished);
        if written.is_ok() {
            written = show(&mut output, finished, args.json);
        }
        // A page is wanted whether or not anybody reads the text.
        written.is_ok() || args.report.is_some()
    });
    bar.finish();
    if let (Some(path), false) = (&args.report, rows.is_empty()) {
        report::write_page(path, &eviction::page(&rows, &super::evaluate::command_line(), &made_on))?;
        say!("the report is in {}", path.display());
    }
    written?;
    Ok(if is_finished { Exit::Done } else { Exit::Interrupted })
}

/// Those asked for, the bound behind them; all if none was.
fn policies(asked: &[String]) -> anyhow::Result<Vec<CachePolicy>> {
    let mut policies: Vec<CachePolicy> = Vec::new();
    for text in asked {
        let policy = text.trim().parse().context("--policy")?;
        ensure!(!policies.contains(&policy), "--policy: {policy} is given twice");
        policies.push(policy);
    }
    if policies.is_empty() {
        policies = CachePolicy::all().collect();
    }
    policies.retain(|&policy| policy != CachePolicy::Belady);
    policies.push(CachePolicy::Belady);
    Ok(policies)
}

/// The traffic, and what it is called.
fn traffic(args: &ReplayArgs, window: Option<Window>) -> anyhow::Result<(String, Workload)> {
    let ReplayArgs { trace, workload, session_rate, .. } = args;
    let spec = WorldSpec {
        trace: trace.clone(),
        workload: workload.clone(),
        session_rate: *session_rate,
        ..WorldSpec::default()
    };
    let world = spec.world()?;
    let workload = world.draw(&Draw { window, load: 1.0, seed: 1 })?;
    Ok((world.trace, workload))
}

fn references(args: &ReplayArgs, workload: &Workload) -> anyhow::Result<References> {
    let of_trace = workload.requests().iter().map(|request| request.hash_block_tokens).find(|&tokens| tokens > 0);
    let block_tokens = args.block_size.or(of_trace).unwrap_or(BLOCK_TOKENS);
    let references =
        References::of(workload, block_tokens, args.partial).with_context(|| format!("--block-size {block_tokens}"))?;
    ensure!(!references.is_empty(), "no prompt has a full block of {block_tokens} tokens: a smaller --block-size?");
    detail!(
        "{} requests ask for {} blocks of {block_tokens} tokens, {} different ones",
        references.requests().len(),
        references.len(),
        references.distinct()
    );
    if references.distinct() as usize == references.len() {
        warn!("no block is asked for twice: the traffic does not say what prompts share, or they share nothing");
    }
    Ok(references)
}

/// Each once, in the order in which they were asked for.
fn in_blocks(capacities: &[Capacity], references: &References) -> anyhow::Result<Vec<u32>> {
    let mut blocks: Vec<u32> = Vec::new();
    for capacity in capacities {
        let capacity = capacity.blocks(references.distinct());
        ensure!(!blocks.contains(&capacity), "--capacity: {capacity} blocks are given twice");
        blocks.push(capacity);
    }
    Ok(blocks)
}

fn show(output: &mut Output, rows: &[EvictionRow], json: bool) -> anyhow::Result<()> {
    if json {
        return rows.iter().try_for_each(|row| output.json("eviction", row));
    }
    output.text(&render(rows, text::width()))
}

/// A capacity for people.
fn render(rows: &[EvictionRow], width: usize) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let heading = format!(
        "{}: {} blocks of {} tokens, {:.1} % of {} different ones; {} asked for by {} requests, {} ideal {:.1} %",
        printable(&first.trace),
        first.capacity,
        first.block_tokens,
        first.capacity_share * 100.0,
        first.distinct,
        first.references,
        first.requests,
        first.hits_of,
        first.ideal_hit_ratio * 100.0
    );
    let late = format!(">{} tok", first.uncached);
    let mut table = TextTable::new(vec![
        Column::new("", "policy"),
        Column::new("blocks", "hit"),
        Column::new("of", "Belady"),
        Column::new("tokens", "hit"),
        Column::new("uncached", &late),
        Column::new("million", "blocks/s"),
    ]);
    let bound = rows.last().map_or(0, |row| row.hits);
    for row in rows {
        let of_bound =
            if bound > 0 { format!("{:.0} %", row.hits as f64 / bound as f64 * 100.0) } else { "-".to_owned() };
        table.row(vec![
            row.policy.to_owned(),
            format!("{:.1} %", row.hit_ratio * 100.0),
            of_bound,
            format!("{:.1} %", row.token_hit_ratio * 100.0),
            row.late_requests.to_string(),
            format!("{:.1}", row.references_per_s * 1e-6),
        ]);
    }
    wrapped(&heading, width, 2) + &table.render(width) + "\n"
}
