//! Whether deploying is worth it: what the comparison of all runs says, by rules that are fixed beforehand.

use kvtide_envs::metrics::GuardReport;
use serde::Serialize;

use super::heads::ChosenHeads;
use super::loads::{AtOne, LoadRange};
use super::table::Shipped;
use crate::evaluate::{Against, ClockGain, Comparison, Evidence, GainAt, Interval};
use crate::policy::{PolicyName, PolicySpec};

/// What a table may lose at the load at which it does worst: a percentage point.
pub const MARGIN: f64 = 0.01;

/// The answer, and what it is made of: `verdict.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// Whether the table is worth deploying.
    pub worth_deploying: bool,
    /// Why, or why not.
    pub reason: Reason,
    /// What runs today: whom the table is held against.
    pub versus: PolicyName,
    /// Attainment less that of what runs today, paired by draw, over every load run.
    pub gain: Option<Interval>,
    /// The load at which it gains least.
    pub worst_load: Option<GainAt>,
    /// What may be lost there.
    pub margin: f64,
    /// What it gains on the traffic as it is, which is load 1; `None` where that is not judged, because everybody drowns in it.
    pub as_recorded: Option<f64>,
    /// Share of requests that met every target, by policy.
    pub attained: Vec<AttainedBy>,
    /// What it costs those who are late anyway.
    pub late: Option<Late>,
    /// The loads judged, ascending.
    pub loads: Vec<f64>,
    /// How they were found, and what one node does with the traffic as it is.
    pub range: LoadRange,
    /// The windows judged.
    pub windows: Vec<String>,
    /// What is in the table.
    pub shipped: Shipped,
    /// The heads it decides, why, and the best constants.
    pub heads: ChosenHeads,
    /// What its guard did in all runs.
    pub guard: Option<GuardReport>,
    /// What times rest on.
    pub clock: Clock,
    /// What it gains over what runs today by drawn clocks, where any were drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_gain: Option<ClockGain>,
    /// The five lines, as they are said.
    pub lines: Vec<String>,
}

/// Why a table is, or is not, worth deploying.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The interval of its gain is above 0, and no load loses more than the margin.
    Gains,
    /// The interval is not above 0.
    NoGain,
    /// It gains, but some load loses more than the margin.
    LosesAtALoad,
    /// There was too little to judge on for an interval.
    TooLittle,
    /// At load 1 nothing is lost that could be gained, neither on what was trained on nor on what is judged.
    Idle,
}

/// What one policy attains.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AttainedBy {
    /// The policy.
    pub policy: PolicyName,
    /// In which capacity it is here.
    pub role: Role,
    /// Share of requests that met every target, over all draws.
    pub attained: f64,
}

/// In which capacity a policy is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// What runs today.
    Today,
    /// The engine as it comes, where something else runs today.
    Default,
    /// The best watermark in hindsight.
    BestFixed,
    /// The best constant choice of every head, in hindsight.
    BestStatic,
    /// The best constant choice as chosen beforehand.
    Constant,
    /// What ships.
    Table,
}

/// What it costs those who are late anyway, at the load where that is most.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Late {
    /// The load.
    pub load: f64,
    /// The longest wait for a first token under the table, milliseconds, mean over draws.
    pub longest_wait_ms: Option<f64>,
    /// The same as a multiple of today's.
    pub times: f64,
    /// 99th percentile of time to first token there: today, and under the table.
    pub ttft_p99_ms: (Option<f64>, Option<f64>),
}

/// What times rest on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Clock {
    /// Data sheets and engineering defaults.
    DataSheet {
        /// Of which hardware.
        hardware: String,
    },
    /// A file fitted to a run or to a device.
    Calibrated {
        /// Of which hardware.
        hardware: String,
    },
}

/// What a verdict is made of.
#[derive(Debug, Clone, Copy)]
pub struct Judged<'a> {
    /// What runs today.
    pub versus: &'a PolicyName,
    /// The table, as it is named.
    pub table: &'a PolicyName,
    /// Everybody, over every run.
    pub comparisons: &'a [Comparison],
    /// The loads found.
    pub range: &'a LoadRange,
    /// The heads chosen.
    pub heads: &'a ChosenHeads,
    /// What ships.
    pub shipped: &'a Shipped,
    /// What times rest on.
    pub clock: &'a Clock,
}

impl Judged<'_> {
    /// The answer, without its words. `None` if the table or what runs today was not run.
    pub fn verdict(&self) -> Option<Verdict> {
        let Judged { versus, table, comparisons, range, heads, shipped, clock } = *self;
        let of = |name: &PolicyName| comparisons.iter().find(|comparison| comparison.policy == *name);
        let (line, today) = (of(table)?, of(versus)?);
        let against = line.against.iter().find(|against| against.than == *versus)?;
        let is_idle = matches!(range.at_one, AtOne::Idle { .. }) && serves_with_ease(today);
        let reason = reason(against, is_idle);
        Some(Verdict {
            worth_deploying: reason == Reason::Gains,
            reason,
            versus: versus.clone(),
            gain: against.gain,
            worst_load: against.worst_load,
            margin: MARGIN,
            as_recorded: at_load_one(line).zip(at_load_one(today)).map(|(mine, theirs)| mine - theirs),
            attained: comparisons.iter().filter_map(|comparison| self.attained(comparison)).collect(),
            late: late(against, line, today),
            loads: line.loads.iter().map(|at| at.load).collect(),
            range: range.clone(),
            windows: Vec::new(),
            shipped: shipped.clone(),
            heads: heads.clone(),
            guard: line.guard.clone(),
            clock: clock.clone(),
            clock_gain: None,
            lines: Vec::new(),
        })
    }

    fn attained(&self, comparison: &Comparison) -> Option<AttainedBy> {
        let name = &comparison.policy;
        let role = match name.spec() {
            _ if name == self.versus => Role::Today,
            _ if name == self.table => Role::Table,
            spec if *spec == self.heads.constant => Role::Constant,
            PolicySpec::Default => Role::Default,
            PolicySpec::BestFixed => Role::BestFixed,
            PolicySpec::BestStatic(_) => Role::BestStatic,
            _ => return None,
        };
        Some(AttainedBy { policy: name.clone(), role, attained: comparison.slo_attainment })
    }
}

/// The rules, in order.
fn reason(against: &Against, is_idle: bool) -> Reason {
    if is_idle {
        return Reason::Idle;
    }
    let Some(low) = against.gain.and_then(|gain| gain.low) else { return Reason::TooLittle };
    // An interval that touches 0 does not exclude it.
    if low <= 0.0 {
        return Reason::NoGain;
    }
    let loses = against.worst_load.is_some_and(|worst| worst.gain < -MARGIN);
    if loses { Reason::LosesAtALoad } else { Reason::Gains }
}

/// Whether load 1 loses next to nothing on what is judged as well: what was trained on may have been a quieter time.
fn serves_with_ease(today: &Comparison) -> bool {
    at_load_one(today).is_none_or(|attained| attained >= 1.0 - MARGIN)
}

/// What a policy attains of the traffic as it is.
fn at_load_one(comparison: &Comparison) -> Option<f64> {
    let at_one = comparison.loads.iter().find(|at| at.load == 1.0)?;
    at_one.slo_attainment.map(|attained| attained.mean)
}

/// The load at which the longest wait grows most.
fn late(against: &Against, table: &Comparison, today: &Comparison) -> Option<Late> {
    let waits = against.longest_waits.iter().filter_map(|wait| Some((wait.load, wait.times?)));
    let (load, times) = waits.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let at = |comparison: &Comparison| comparison.loads.iter().find(|at| at.load == load).cloned();
    let p99 = |comparison| at(comparison).and_then(|at| at.ttft_p99_ms);
    let longest_wait_ms = at(table).and_then(|at| at.longest_wait_ms);
    Some(Late { load, longest_wait_ms, times, ttft_p99_ms: (p99(today), p99(table)) })
}

impl Verdict {
    /// What a policy in some capacity attains.
    pub fn attained_by(&self, role: Role) -> Option<&AttainedBy> {
        self.attained.iter().find(|attained| attained.role == role)
    }

    /// What the gain rests on.
    pub fn evidence(&self) -> Option<Evidence> {
        self.gain.and_then(|gain| gain.evidence)
    }
}

#[cfg(test)]
mod tests;
