//! `kvtide evict explain`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use clap::Args;
use kvtide_envs::intent::{DeadlineMiss, DecisionKind, LogLine, LogReader, PolicyName, TierDecision};

use super::super::output::Output;
use super::super::{Exit, stop};
use super::mib;
use crate::text::{self, printable, wrapped};

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// Log that evict compare --decisions wrote, plain, gzip or zstd.
    decisions: PathBuf,
    /// Why did this block go, or come in? Every decision about it, and the deadlines that waited for it.
    #[arg(long, value_name = "NAME")]
    block: Option<String>,
    /// Which decisions cost a deadline? Every missed deadline, and the decisions by which its blocks had left.
    #[arg(long)]
    deadlines: bool,
    /// Only of this policy.
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Only of this mode: faithful or corrected.
    #[arg(long, value_name = "MODE", value_parser = ["faithful", "corrected"])]
    mode: Option<String>,
    /// Only of steps in this range, both included, such as 500..600.
    #[arg(long, value_name = "FIRST..LAST")]
    steps: Option<String>,
    /// Most decisions and deadlines that are shown, without --json.
    #[arg(long, value_name = "N", default_value_t = 10)]
    limit: usize,
    /// What is asked for as it stands in the log, one JSON object a line on stdout.
    #[arg(long)]
    json: bool,
}

/// Of which replay a line is.
type Replay = (String, String, u64, u64);

/// What is asked for.
struct Asked<'a> {
    args: &'a ExplainArgs,
    policy: Option<PolicyName>,
    steps: Option<(u64, u64)>,
    /// By replay, the decisions that cost a deadline.
    costly: BTreeMap<Replay, BTreeSet<u64>>,
}

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<Exit> {
    ensure!(args.decisions.as_os_str() != "-", "the log is read twice: give a file, not standard input");
    let policy = args.policy.as_deref().map(str::parse).transpose().context("--policy")?;
    let steps = args.steps.as_deref().map(range).transpose()?;
    let stop = stop::on_interrupt();
    let mut asked = Asked { args, policy, steps, costly: BTreeMap::new() };
    let Some(summary) = asked.look_through(stop)? else { return Ok(Exit::Interrupted) };
    let mut output = Output::new();
    if !args.json {
        output.text(&summary.render(args, text::width()))?;
    }
    let mut shown = 0_usize;
    let mut log = LogReader::open(&args.decisions)?;
    while let Some(line) = log.next_line()? {
        if stop.load(Ordering::Relaxed) {
            return Ok(Exit::Interrupted);
        }
        if !asked.wants(&line) {
            continue;
        }
        match &line {
            LogLine::TierDecision(decision) if args.json => output.json("tier_decision", decision)?,
            LogLine::TierDeadlineMiss(miss) if args.json => output.json("tier_deadline_miss", miss)?,
            _ if shown < args.limit => output.text(&told(&line, text::width()))?,
            _ => {}
        }
        shown += 1;
    }
    if shown > args.limit && !args.json {
        output.line(&format!("{} more: --limit, or --json for all of them", shown - args.limit))?;
    }
    if let (0, Some(block)) = (shown, &args.block) {
        warn!("{}: nothing of what is asked for is about {}", args.decisions.display(), printable(block));
    }
    Ok(Exit::Done)
}

fn range(text: &str) -> anyhow::Result<(u64, u64)> {
    let ends = text.split_once("..").and_then(|(first, last)| {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        Some((number(first)?, number(last.trim_start_matches('='))?))
    });
    let ends = ends.filter(|(first, last)| first <= last);
    ends.with_context(|| format!("--steps {text:?}: expected steps such as 500..600"))
}

fn of_decision(decision: &TierDecision) -> Replay {
    let TierDecision { policy, mode, hbm_capacity_bytes, dram_capacity_bytes, .. } = decision;
    (policy.clone(), mode.clone(), *hbm_capacity_bytes, *dram_capacity_bytes)
}

fn of_miss(miss: &DeadlineMiss) -> Replay {
    (miss.policy.clone(), miss.mode.clone(), miss.hbm_capacity_bytes, miss.dram_capacity_bytes)
}

impl Asked<'_> {
    /// Whether a line is of a replay and of steps that are asked for.
    fn is_within(&self, replay: &Replay, first: u64, last: u64) -> bool {
        self.policy.is_none_or(|policy| policy.name() == replay.0)
            && self.args.mode.as_ref().is_none_or(|mode| *mode == replay.1)
            && self.steps.is_none_or(|(from, to)| last >= from && first <= to)
    }

    /// Counts what is within, and finds which decisions cost a deadline. `None` if it was stopped.
    fn look_through(&mut self, stop: &AtomicBool) -> anyhow::Result<Option<Summary>> {
        let mut summary = Summary::default();
        let mut log = LogReader::open(&self.args.decisions)?;
        while let Some(line) = log.next_line()? {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            match line {
                LogLine::TierDecision(decision) => {
                    let replay = of_decision(&decision);
                    if self.is_within(&replay, decision.step, decision.step) {
                        summary.replays.entry(replay).or_default().count(&decision);
                    }
                }
                LogLine::TierDeadlineMiss(miss) => {
                    let replay = of_miss(&miss);
                    if self.is_within(&replay, miss.first_step, miss.last_step) {
                        let costly = self.costly.entry(replay.clone()).or_default();
                        costly.extend(miss.waited_for.iter().filter_map(|waited| waited.decision));
                        summary.replays.entry(replay).or_default().missed += 1;
                    }
                }
            }
        }
        for (replay, costly) in &self.costly {
            summary.replays.entry(replay.clone()).or_default().costly = costly.len();
        }
        Ok(Some(summary))
    }

    fn wants(&self, line: &LogLine) -> bool {
        let about = |name: &str| self.args.block.as_deref().is_none_or(|block| block == name);
        match line {
            LogLine::TierDecision(decision) => {
                let replay = of_decision(decision);
                let is_costly = || self.costly.get(&replay).is_some_and(|costly| costly.contains(&decision.number));
                about(&decision.object_id)
                    && (!self.args.deadlines || is_costly())
                    // What cost a deadline was decided before the step that missed it.
                    && (self.args.deadlines || self.is_within(&replay, decision.step, decision.step))
            }
            LogLine::TierDeadlineMiss(miss) => {
                let is_asked = self.args.deadlines || self.args.block.is_some();
                is_asked
                    && self.is_within(&of_miss(miss), miss.first_step, miss.last_step)
                    && (self.args.block.is_none() || miss.waited_for.iter().any(|waited| about(&waited.object_id)))
            }
        }
    }
}

/// What is in a log.
#[derive(Default)]
struct Summary {
    replays: BTreeMap<Replay, Counted>,
}

#[derive(Default)]
struct Counted {
    spilled: usize,
    evicted: usize,
    prefetched: usize,
    spared: usize,
    missed: usize,
    costly: usize,
}

impl Counted {
    fn count(&mut self, decision: &TierDecision) {
        match decision.action {
            DecisionKind::Spill => self.spilled += 1,
            DecisionKind::Evict => self.evicted += 1,
            DecisionKind::Prefetch => self.prefetched += 1,
        }
        self.spared += usize::from(decision.spared_decode_critical);
    }
}

impl Summary {
    fn render(&self, args: &ExplainArgs, width: usize) -> String {
        let mut text = String::new();
        for (replay, counted) in &self.replays {
            let Counted { spilled, evicted, prefetched, spared, missed, costly } = counted;
            let line = format!(
                "{}: {spilled} spilled, {evicted} evicted, {prefetched} brought in; a decode-critical block spared {spared} times; \
                 {missed} deadlines missed, by {costly} of these decisions",
                named(replay)
            );
            text.push_str(&wrapped(&line, width, 2));
        }
        if self.replays.is_empty() {
            let _ = writeln!(text, "{}: nothing of that in it", args.decisions.display());
        }
        text + "\n"
    }
}

fn named((policy, mode, hbm, dram): &Replay) -> String {
    format!("{} {} in {} + {} MiB", printable(policy), printable(mode), mib(*hbm), mib(*dram))
}

/// A line for people.
fn told(line: &LogLine, width: usize) -> String {
    match line {
        LogLine::TierDecision(decision) => wrapped(&decided(decision), width, 4),
        LogLine::TierDeadlineMiss(miss) => wrapped(&missed(miss), width, 4),
    }
}

fn decided(decision: &TierDecision) -> String {
    let name = printable(&decision.object_id);
    let what = match decision.action {
        DecisionKind::Spill => "went to DRAM",
        DecisionKind::Evict => "went, and is nowhere",
        DecisionKind::Prefetch => "was brought in ahead of its use",
    };
    let mut text = format!(
        "step {}, decision {}, {}: {name} {what}",
        decision.step,
        decision.number,
        named(&of_decision(decision))
    );
    if let Some(other) = &decision.room_for {
        let _ = write!(text, ", to make room for {}", printable(other));
    }
    let _ = write!(text, "\n  because: {}", printable(&decision.reason));
    if !decision.terms.is_empty() {
        let terms = decision.terms.iter().map(|term| format!("{} {:+.2}", printable(&term.name), term.value));
        let _ = write!(text, "\n  score {:.2}: {}", decision.score, terms.collect::<Vec<_>>().join(", "));
    }
    for other in &decision.runners_up {
        let (name, why) = (printable(&other.object_id), printable(&other.why));
        let (priority, phase) = (other.priority.name(), other.phase.name());
        let _ = write!(text, "\n  stayed: {name}, {priority} in {phase}, score {:.2}: {why}", other.score);
    }
    if let Some(spared) = &decision.spared {
        let critical = if decision.spared_decode_critical { "; a decode-critical block was spared" } else { "" };
        let _ = write!(text, "\n  most urgent of {} that stayed: {}{critical}", decision.candidates, printable(spared));
    }
    text + "\n"
}

fn missed(miss: &DeadlineMiss) -> String {
    let mut text = format!(
        "steps {} to {}, {}: a decode step took {} us and had {} us",
        miss.first_step,
        miss.last_step,
        named(&of_miss(miss)),
        miss.latency_us,
        miss.deadline_us
    );
    for waited in &miss.waited_for {
        let left = match (waited.decision, waited.left_at_step) {
            (Some(decision), Some(step)) => format!("had left at step {step} by decision {decision}"),
            _ => "had not left by any decision".to_owned(),
        };
        let _ = write!(text, "\n  waited {} us for {}, which {left}", waited.cost_us, printable(&waited.object_id));
    }
    text + "\n"
}
