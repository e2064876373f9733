//! `kvtide evict compare`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use kvtide_envs::files::Packed;
use kvtide_envs::intent::{EventReader, Latencies, LogLine, Mode, PolicyName, ProfileSpec, TierCapacity, TierSetup};

use super::super::output::Output;
use super::super::outputs::Outputs;
use super::super::{Exit, evaluate, stop};
use super::mib;
use crate::eviction::{self, TierRow};
use crate::report;
use crate::text::{self, Column, TextTable, printable, wrapped};

#[derive(Debug, Args)]
pub(super) struct CompareArgs {
    /// Stream of events, one JSON object a line, plain, gzip or zstd; - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    events: Option<PathBuf>,
    #[arg(
        long,
        value_name = "PROFILE",
        help = "Generated stream: balanced, deadline_pressure, rag_mixed_priority, speculative_decode or long_context_extreme, with \
                settings if wanted, such as balanced:requests=24,blocks=12,block_kib=16,turns=180,seed=42"
    )]
    profile: Option<ProfileSpec>,
    /// MiB of HBM, comma-separated [default, of a profile: a quarter, a third and a half of its blocks].
    #[arg(long, value_name = "MIB,…", value_delimiter = ',', allow_hyphen_values = true)]
    hbm_mb: Vec<String>,
    /// MiB of DRAM, comma-separated.
    #[arg(long, value_name = "MIB,…", value_delimiter = ',', default_value = "64", allow_hyphen_values = true)]
    dram_mb: Vec<String>,
    /// Policies, comma-separated: lru, hotcold, predictive, intent, deadline [default: all].
    #[arg(long, value_name = "POLICY,…", value_delimiter = ',')]
    policies: Vec<String>,
    /// As the simulator that is followed, to the last integer (faithful), with what is questionable there repaired (corrected), or
    /// both, side by side.
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Modes::Both)]
    mode: Modes,
    /// Microseconds that an event, or a decode step, takes.
    #[arg(long, value_name = "US", default_value_t = Latencies::default().base_us, value_parser = microseconds())]
    base_us: u64,
    /// Microseconds that an access to a block outside HBM takes.
    #[arg(long, value_name = "US", default_value_t = Latencies::default().miss_us, value_parser = microseconds())]
    miss_us: u64,
    /// Microseconds to move a block to DRAM.
    #[arg(long, value_name = "US", default_value_t = Latencies::default().spill_us, value_parser = microseconds())]
    spill_us: u64,
    /// Microseconds to move a block from DRAM.
    #[arg(long, value_name = "US", default_value_t = Latencies::default().prefetch_us, value_parser = microseconds())]
    prefetch_us: u64,
    /// Write down every decision and why, one JSON object a line; .gz and .zst are compressed. Ask it with evict explain.
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
    /// Write a page with charts, which needs nothing but a browser.
    #[arg(long, value_name = "PAGE")]
    report: Option<PathBuf>,
    /// One JSON object a line on stdout: {"type":"tier","data":{…}}.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Modes {
    Faithful,
    Corrected,
    Both,
}

fn microseconds() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(0..=1_000_000_000)
}

pub(super) fn run(args: &CompareArgs) -> anyhow::Result<Exit> {
    ensure!(args.events.is_some() || args.profile.is_some(), "no stream: give --events FILE or --profile PROFILE");
    let setups = setups(args)?;
    let outputs = Outputs::new().reads("--events", args.events.as_deref());
    outputs.file("--decisions", args.decisions.as_deref()).file("--report", args.report.as_deref()).check()?;
    let made_on = report::today()?;
    let stop = stop::on_interrupt();
    let (trace, events) = stream(args)?;
    let mut log = args.decisions.as_deref().map(Log::create).transpose()?;
    let mut write = |line: LogLine| log.as_mut().map_or(Ok(()), |log| log.write(&line));
    let Some(rows) = eviction::compare(&trace, events, &setups, stop, &mut write)? else {
        return Ok(Exit::Interrupted);
    };
    if let Some(log) = log {
        log.finish()?;
    }
    let mut output = Output::new();
    let written = if args.json {
        rows.iter().try_for_each(|row| output.json("tier", row))
    } else {
        output.text(&render(&rows, text::width()))
    };
    if let Some(path) = &args.report {
        report::write_page(path, &eviction::tier_page(&rows, &evaluate::command_line(), &made_on))?;
        say!("the report is in {}", path.display());
    }
    written?;
    Ok(Exit::Done)
}

/// The stream, and what it is called.
fn stream(args: &CompareArgs) -> anyhow::Result<(String, EventReader)> {
    if let Some(profile) = args.profile {
        return Ok((profile.to_string(), EventReader::made(profile.events())));
    }
    let path = args.events.as_deref().unwrap_or(Path::new("-"));
    Ok((path.display().to_string(), EventReader::open(path)?))
}

/// Every capacity, under it every mode, under that every policy.
fn setups(args: &CompareArgs) -> anyhow::Result<Vec<TierSetup>> {
    let mut policies: Vec<PolicyName> = Vec::new();
    for text in &args.policies {
        let policy = text.parse().context("--policies")?;
        ensure!(!policies.contains(&policy), "--policies: {policy} is given twice");
        policies.push(policy);
    }
    if policies.is_empty() {
        policies = PolicyName::ALL.to_vec();
    }
    let modes = match args.mode {
        Modes::Faithful => vec![Mode::Faithful],
        Modes::Corrected => vec![Mode::Corrected],
        Modes::Both => Mode::ALL.to_vec(),
    };
    let hbm = match (args.profile, args.hbm_mb.as_slice()) {
        (Some(profile), []) => {
            let blocks = profile.block_count();
            [4, 3, 2].map(|part| (blocks / part).max(1) * profile.block_bytes).to_vec()
        }
        (None, []) => anyhow::bail!("--hbm-mb: give the MiB of HBM, such as --hbm-mb 2,4"),
        (_, given) => sizes("--hbm-mb", given)?,
    };
    let dram = sizes("--dram-mb", &args.dram_mb)?;
    let latencies = Latencies {
        base_us: args.base_us,
        miss_us: args.miss_us,
        spill_us: args.spill_us,
        prefetch_us: args.prefetch_us,
    };
    let mut setups = Vec::new();
    for hbm_bytes in hbm {
        for &dram_bytes in &dram {
            let capacity = TierCapacity { hbm_bytes, dram_bytes };
            let of = |mode: Mode, policy| {
                let explains = args.decisions.is_some();
                TierSetup { policy, mode, capacity, latencies, explains }
            };
            setups.extend(modes.iter().flat_map(|&mode| policies.iter().map(move |&policy| of(mode, policy))));
        }
    }
    Ok(setups)
}

/// Bytes, from MiB as they are written.
fn sizes(option: &str, given: &[String]) -> anyhow::Result<Vec<u64>> {
    const MOST: f64 = (1_u64 << 30) as f64;
    let mut sizes = Vec::new();
    for text in given {
        let mib = text.trim().parse::<f64>().ok().filter(|mib| *mib > 0.0 && *mib <= MOST);
        let mib = mib.with_context(|| format!("{option} {text:?}: expected MiB, above 0 and at most {MOST}"))?;
        let bytes = (mib * f64::from(1 << 20)).round() as u64;
        ensure!(!sizes.contains(&bytes), "{option}: {text} is given twice");
        sizes.push(bytes);
    }
    Ok(sizes)
}

/// The log of decisions as it is written.
struct Log {
    file: Packed,
    path: PathBuf,
}

impl Log {
    fn create(path: &Path) -> anyhow::Result<Log> {
        let file = Packed::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Log { file, path: path.to_owned() })
    }

    fn write(&mut self, line: &LogLine) -> std::io::Result<()> {
        serde_json::to_writer(&mut self.file, line)?;
        self.file.write_all(b"\n")
    }

    fn finish(self) -> anyhow::Result<()> {
        self.file.finish().with_context(|| format!("cannot write {}", self.path.display()))?;
        say!("the decisions are in {}", self.path.display());
        Ok(())
    }
}

/// Every capacity for people.
fn render(rows: &[TierRow], width: usize) -> String {
    let same = |a: &TierRow, b: &TierRow| {
        let of = |row: &TierRow| (row.result.hbm_capacity_bytes, row.result.dram_capacity_bytes);
        of(a) == of(b)
    };
    rows.chunk_by(same).map(|rows| of_capacity(rows, width)).collect()
}

fn of_capacity(rows: &[TierRow], width: usize) -> String {
    let first = &rows[0];
    let result = &first.result;
    let heading = format!(
        "{}: {} events on {} blocks; HBM {} MiB, DRAM {} MiB",
        printable(&first.trace),
        result.total_steps,
        result.total_blocks,
        mib(result.hbm_capacity_bytes),
        mib(result.dram_capacity_bytes)
    );
    let mut table = TextTable::new(vec![
        Column::new("", "policy"),
        Column::new("", "mode"),
        Column::new("", "misses"),
        Column::new("decode-", "critical"),
        Column::new("late", "steps"),
        Column::new("", "evicted"),
        Column::new("p99", "us"),
        Column::new("peak of", "HBM"),
        Column::new("million", "ev/s"),
    ]);
    for row in rows {
        let result = &row.result;
        let peak = result.actual_peak_hbm_used_bytes as f64 / result.hbm_capacity_bytes.max(1) as f64;
        table.row(vec![
            result.policy.to_owned(),
            result.mode.to_owned(),
            result.miss_count.to_string(),
            result.decode_critical_misses.to_string(),
            format!("{:.1} %", result.deadline_miss_rate * 100.0),
            result.eviction_count.to_string(),
            format!("{:.0}", result.p99_latency_us),
            format!("{:.0} %", peak * 100.0),
            format!("{:.1}", row.events_per_s * 1e-6),
        ]);
    }
    wrapped(&heading, width, 2) + &table.render(width) + "\n"
}
