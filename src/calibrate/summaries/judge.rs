//! How well a clock tells what was measured: the errors of every load and budget, and whether it names the best budget.

use kvtide_envs::percentile::percentile;
use serde::Serialize;

use super::fit::{FitLoads, Load};
use super::rows::{Latencies, SummaryPolicy, SummaryRun};
use super::setup::ModelRuns;
use crate::calibrate::served::Pair;

/// A run and what the simulator makes of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Twice<'a> {
    pub(super) run: &'a SummaryRun,
    pub(super) simulated: Latencies,
}

/// What one choice of a step's tokens came to at one load: means over its runs, which differ in their seeds. Seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChoiceReport {
    /// What chose.
    pub policy: SummaryPolicy,
    /// The token budget.
    pub max_num_batched_tokens: u32,
    /// Runs.
    pub runs: usize,
    /// Mean time to the end of an answer.
    pub e2e_mean: Pair,
    /// Its 95th percentile.
    pub e2e_p95: Pair,
    /// Mean time to first token.
    pub ttft_mean: Pair,
    /// Its 95th percentile.
    pub ttft_p95: Pair,
    /// Mean time per token after the first; `None` where answers have one token.
    pub tpot_mean: Option<Pair>,
    /// Its 95th percentile.
    pub tpot_p95: Option<Pair>,
    /// First arrival to last token.
    pub makespan: Pair,
    /// Median over the runs, instead of the mean, of the mean time to the end of an answer: one run with a stall does not decide it.
    pub e2e_mean_median: Pair,
}

/// The best fixed budget of a load, by mean time to the end of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BestBudget {
    /// As measured.
    pub measured: u32,
    /// As simulated.
    pub simulated: u32,
    /// What was measured of the simulated choice, as a multiple of the measured best, less 1.
    pub excess: f64,
}

/// What the adaptive policy came to, against the best fixed budget: shares of its mean time to the end of an answer, less 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AdaptiveGain {
    /// As measured.
    pub measured: f64,
    /// As simulated.
    pub simulated: f64,
}

/// One load of one model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellReport {
    /// Prompt length.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Most requests running at once.
    pub max_num_seqs: u32,
    /// The load: `seconds:rate,…`.
    pub phases: String,
    /// Requests per second of its busiest phase.
    pub peak_rps: f64,
    /// Whether the clock was fitted to it.
    pub is_fitted: bool,
    /// By policy and budget.
    pub choices: Vec<ChoiceReport>,
    /// The best of all its fixed budgets; `None` with fewer than two.
    pub best: Option<BestBudget>,
    /// The better of two budgets that every load has: 2,048 tokens, or the smallest, and the largest.
    pub better: Option<BestBudget>,
    /// `None` where no run was adaptive, or none was fixed.
    pub adaptive: Option<AdaptiveGain>,
}

/// Absolute relative errors over runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ErrorSpread {
    /// Median.
    pub median: f64,
    /// 90th percentile.
    pub p90: f64,
    /// The largest.
    pub worst: f64,
    /// Mean of the errors with their signs: above 0 where the simulation is too slow.
    pub bias: f64,
}

/// How often the best budget is named.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Naming {
    /// Loads with a choice.
    pub cells: usize,
    /// Those where the simulated choice is the measured one.
    pub named: usize,
    /// Largest excess of the simulated choice over the measured best.
    pub worst_excess: f64,
    /// Mean excess.
    pub mean_excess: f64,
}

/// All of a model's loads that a clock was fitted to, or all others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartReport {
    /// Loads.
    pub cells: usize,
    /// Runs with fixed budgets, which the errors are of.
    pub runs: usize,
    /// Mean time to the end of an answer.
    pub e2e_mean: ErrorSpread,
    /// Its 95th percentile.
    pub e2e_p95: ErrorSpread,
    /// Mean time to first token.
    pub ttft_mean: ErrorSpread,
    /// Its 95th percentile.
    pub ttft_p95: ErrorSpread,
    /// Mean time per token after the first; `None` where answers have one token.
    pub tpot_mean: Option<ErrorSpread>,
    /// Its 95th percentile.
    pub tpot_p95: Option<ErrorSpread>,
    /// First arrival to last token.
    pub makespan: ErrorSpread,
    /// Naming the best of all fixed budgets.
    pub best: Option<Naming>,
    /// Naming the better of the two that every load has.
    pub better: Option<Naming>,
    /// Which two.
    pub better_of: Option<[u32; 2]>,
}

/// vLLM's `max_num_batched_tokens` where nobody sets it, on all but the largest cards.
const USUAL_BUDGET: u32 = 2048;

/// A latency of the seven.
type Latency = fn(&Latencies) -> f64;

const E2E_MEAN: Latency = |latencies| latencies.e2e.mean;
const TPOT_MEAN: Latency = |latencies| latencies.tpot.mean;
const TPOT_P95: Latency = |latencies| latencies.tpot.p95;

/// Of one model's runs, served: its loads, then what is to be said of those fitted to and of the others.
pub(super) fn judge(
    model: &ModelRuns,
    twice: &[Twice<'_>],
    is_fitted: bool,
    loads: FitLoads,
) -> (Vec<CellReport>, [Option<PartReport>; 2]) {
    let of_cell = |load: &Load| -> Vec<Twice<'_>> {
        twice.iter().filter(|twice| Load::of(twice.run) == *load).copied().collect()
    };
    let all: Vec<(Load, Vec<Twice<'_>>)> =
        model.loads().into_iter().map(|load| (load.clone(), of_cell(&load))).collect();
    let better_of = common_budgets(&all);
    let cell = |(load, runs): &(Load, Vec<Twice<'_>>)| {
        let is_fitted = is_fitted && loads.takes(model, runs[0].run);
        cell(load, runs, is_fitted, better_of)
    };
    let cells: Vec<CellReport> = all.iter().map(cell).collect();
    let part = |wanted: bool| {
        let its = |cell: &CellReport| cell.is_fitted == wanted;
        let runs = all.iter().zip(&cells).filter(|(_, cell)| its(cell)).flat_map(|((_, runs), _)| runs);
        let runs: Vec<Twice<'_>> = runs.filter(|twice| twice.run.policy == SummaryPolicy::Fixed).copied().collect();
        let cells: Vec<&CellReport> = cells.iter().filter(|cell| its(cell)).collect();
        (!runs.is_empty()).then(|| part(&cells, &runs, better_of))
    };
    let parts = [part(true), part(false)];
    (cells, parts)
}

/// Of the budgets that every load has vLLM's own for most cards, or the smallest, and the largest; `None` where that is one, or none.
fn common_budgets(all: &[(Load, Vec<Twice<'_>>)]) -> Option<[u32; 2]> {
    let has = |runs: &[Twice<'_>], budget: u32| {
        runs.iter().any(|twice| choice_of(twice.run) == (SummaryPolicy::Fixed, budget))
    };
    let budgets = all.iter().flat_map(|(_, runs)| runs.iter().map(|twice| twice.run.max_num_batched_tokens));
    let common = || budgets.clone().filter(|budget| all.iter().all(|(_, runs)| has(runs, *budget)));
    let small = common().find(|budget| *budget == USUAL_BUDGET).or(common().min())?;
    let large = common().max()?;
    (small < large).then_some([small, large])
}

fn choice_of(run: &SummaryRun) -> (SummaryPolicy, u32) {
    (run.policy, run.max_num_batched_tokens)
}

fn cell(load: &Load, runs: &[Twice<'_>], is_fitted: bool, better_of: Option<[u32; 2]>) -> CellReport {
    let mut keys: Vec<(SummaryPolicy, u32)> = runs.iter().map(|twice| choice_of(twice.run)).collect();
    keys.sort_unstable();
    keys.dedup();
    let of_choice = |key: &(SummaryPolicy, u32)| {
        let its: Vec<Twice<'_>> = runs.iter().filter(|twice| choice_of(twice.run) == *key).copied().collect();
        choice(*key, &its)
    };
    let choices: Vec<ChoiceReport> = keys.iter().map(of_choice).collect();
    let is_fixed = |choice: &&ChoiceReport| choice.policy == SummaryPolicy::Fixed;
    let fixed: Vec<&ChoiceReport> = choices.iter().filter(is_fixed).collect();
    let is_common =
        |choice: &&&ChoiceReport| better_of.is_some_and(|both| both.contains(&choice.max_num_batched_tokens));
    let both: Vec<&ChoiceReport> = fixed.iter().filter(is_common).copied().collect();
    let adaptive = choices.iter().find(|choice| choice.policy == SummaryPolicy::Ppas);
    CellReport {
        prompt_tokens: load.prompt_tokens,
        output_tokens: load.output_tokens,
        max_num_seqs: load.max_num_seqs,
        phases: load.phases.clone(),
        peak_rps: load.peak_rps,
        is_fitted,
        best: best(&fixed),
        better: best(&both),
        adaptive: adaptive.and_then(|adaptive| gain(adaptive, &fixed)),
        choices,
    }
}

fn choice((policy, max_num_batched_tokens): (SummaryPolicy, u32), runs: &[Twice<'_>]) -> ChoiceReport {
    let mean = |of: Latency| {
        let mean = |one: &dyn Fn(&Twice<'_>) -> f64| runs.iter().map(one).sum::<f64>() / runs.len() as f64;
        Pair::new(mean(&|twice| of(&twice.run.measured)), mean(&|twice| of(&twice.simulated)))
    };
    let median = |of: &dyn Fn(&Twice<'_>) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        percentile(&values, 50.0)
    };
    let has_gaps = runs.iter().all(|twice| twice.run.output_tokens > 1);
    ChoiceReport {
        policy,
        max_num_batched_tokens,
        runs: runs.len(),
        e2e_mean: mean(E2E_MEAN),
        e2e_p95: mean(|latencies| latencies.e2e.p95),
        ttft_mean: mean(|latencies| latencies.ttft.mean),
        ttft_p95: mean(|latencies| latencies.ttft.p95),
        tpot_mean: has_gaps.then(|| mean(TPOT_MEAN)),
        tpot_p95: has_gaps.then(|| mean(TPOT_P95)),
        makespan: mean(|latencies| latencies.makespan),
        e2e_mean_median: Pair::new(
            median(&|twice| twice.run.measured.e2e.mean),
            median(&|twice| twice.simulated.e2e.mean),
        ),
    }
}

/// The best of `choices`, the smallest budget of those that are equal; `None` with fewer than two.
fn best(choices: &[&ChoiceReport]) -> Option<BestBudget> {
    if choices.len() < 2 {
        return None;
    }
    let least = |of: fn(&ChoiceReport) -> f64| choices.iter().copied().min_by(|a, b| of(a).total_cmp(&of(b)));
    let measured = least(|choice| choice.e2e_mean.measured)?;
    let simulated = least(|choice| choice.e2e_mean.simulated)?;
    Some(BestBudget {
        measured: measured.max_num_batched_tokens,
        simulated: simulated.max_num_batched_tokens,
        excess: simulated.e2e_mean.measured / measured.e2e_mean.measured - 1.0,
    })
}

fn gain(adaptive: &ChoiceReport, fixed: &[&ChoiceReport]) -> Option<AdaptiveGain> {
    let least = |of: fn(&ChoiceReport) -> f64| fixed.iter().copied().map(of).min_by(f64::total_cmp);
    let (measured, simulated) = (least(|one| one.e2e_mean.measured)?, least(|one| one.e2e_mean.simulated)?);
    Some(AdaptiveGain {
        measured: adaptive.e2e_mean.measured / measured - 1.0,
        simulated: adaptive.e2e_mean.simulated / simulated - 1.0,
    })
}

fn part(cells: &[&CellReport], runs: &[Twice<'_>], better_of: Option<[u32; 2]>) -> PartReport {
    let spread = |of: Latency| {
        let errors = runs.iter().map(|twice| of(&twice.simulated) / of(&twice.run.measured) - 1.0);
        let mut sizes: Vec<f64> = errors.clone().map(f64::abs).collect();
        sizes.sort_by(f64::total_cmp);
        ErrorSpread {
            median: percentile(&sizes, 50.0),
            p90: percentile(&sizes, 90.0),
            worst: percentile(&sizes, 100.0),
            bias: errors.sum::<f64>() / runs.len() as f64,
        }
    };
    let has_gaps = runs.iter().all(|twice| twice.run.output_tokens > 1);
    PartReport {
        cells: cells.len(),
        runs: runs.len(),
        e2e_mean: spread(E2E_MEAN),
        e2e_p95: spread(|latencies| latencies.e2e.p95),
        ttft_mean: spread(|latencies| latencies.ttft.mean),
        ttft_p95: spread(|latencies| latencies.ttft.p95),
        tpot_mean: has_gaps.then(|| spread(TPOT_MEAN)),
        tpot_p95: has_gaps.then(|| spread(TPOT_P95)),
        makespan: spread(|latencies| latencies.makespan),
        best: naming(cells.iter().filter_map(|cell| cell.best)),
        better: naming(cells.iter().filter_map(|cell| cell.better)),
        better_of,
    }
}

fn naming(choices: impl Iterator<Item = BestBudget>) -> Option<Naming> {
    let choices: Vec<BestBudget> = choices.collect();
    let count = choices.len();
    (count > 0).then(|| Naming {
        cells: count,
        named: choices.iter().filter(|best| best.measured == best.simulated).count(),
        worst_excess: choices.iter().map(|best| best.excess).fold(0.0, f64::max),
        mean_excess: choices.iter().map(|best| best.excess).sum::<f64>() / count as f64,
    })
}
