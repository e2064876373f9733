//! What a calibration has to say: constants, the range they were seen in, errors, and where not to trust them.

use kvtide_envs::deploy::{Hardware, ServedRun};
use kvtide_envs::percentile::percentile;
use serde::Serialize;

use super::seen::Tick;
use super::{Calibration, MeasuredRun, Pair, RunErrors, RunPart};
use crate::calibrate::constants::{FitScope, FittedConstants, PARAMETERS, Parameter, Part};

/// A calibration in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CalibrationReport {
    /// File or folder of the run.
    pub run: String,
    /// Engine that was measured.
    pub engine: String,
    /// Model that was measured.
    pub model: String,
    /// Accelerator that was measured.
    pub device: String,
    /// When, as the run says.
    pub recorded: String,
    /// Model and hardware that were simulated.
    pub env: String,
    /// Whether the prompts' tokens were known, so that those with the same beginning share blocks.
    pub knows_tokens: bool,
    /// Requests of the run.
    pub requests: usize,
    /// First arrival to last token, seconds.
    pub makespan_s: f64,
    /// How much of the clock was fitted.
    pub scope: FitScope,
    /// What was fitted.
    pub constants: Vec<FittedConstant>,
    /// To what; `None` where nothing was fitted.
    pub fit: Option<FitRange>,
    /// Ticks after the part that was fitted in which the server was fuller or emptier than the fit has seen.
    pub ticks_outside: usize,
    /// On what was not fitted; `None` if all was.
    pub held_out: Option<RunErrors>,
    /// On what was fitted.
    pub fitted: RunErrors,
    /// On what was not fitted (on all, if all was), without a fit.
    pub uncalibrated: RunErrors,
    /// Preemptions in the simulated run.
    pub preemptions: u64,
    /// Tokens they dropped; some of them were found again.
    pub recomputed_tokens: u64,
    /// Tokens found in the prefix cache, those of resumed requests included.
    pub prefix_hit_tokens: u64,
    /// Whether what is promised is kept on what was not fitted.
    pub verdicts: Vec<Verdict>,
    /// What to keep in mind.
    pub warnings: Vec<String>,
}

/// A constant that was fitted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FittedConstant {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// What it was before.
    pub default: f64,
    /// Unit of both, empty for a share.
    pub unit: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// The part of a run that was fitted. Ranges are of the middle nine tenths of its ticks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FitRange {
    /// Share of the run's time.
    pub fraction: f64,
    /// From the first arrival to this, seconds.
    pub until_s: f64,
    /// Requests that had arrived.
    pub requests: usize,
    /// Requests that had finished.
    pub finished: usize,
    /// Ticks of the server's metrics that were compared.
    pub ticks: usize,
    /// Running requests.
    pub running: [f64; 2],
    /// Waiting requests.
    pub waiting: [f64; 2],
    /// Share of KV blocks in use.
    pub kv_usage: [f64; 2],
    /// How far the simulation is off on it: the sum of three mean absolute log ratios and the prior.
    pub objective: f64,
    /// Simulations the fit took.
    pub simulations: u32,
}

/// A promise, and whether it is kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// What is promised something.
    pub metric: &'static str,
    /// Its error.
    pub error: f64,
    /// Largest error that is allowed, either way.
    pub target: f64,
    /// Whether it is within.
    pub met: bool,
}

/// Largest errors promised on what was not fitted: output throughput, medians, 99th percentiles.
pub(super) const fn targets(scope: FitScope) -> [f64; 3] {
    match scope {
        FitScope::None => [0.05, 0.08, 0.12],
        FitScope::Host => [0.02, 0.04, 0.05],
        FitScope::All => [0.02, 0.03, 0.05],
    }
}

/// Ticks at either end that do not count for a range, per cent.
const TAIL: f64 = 5.0;

impl Calibration {
    /// It in numbers.
    pub fn report(&self, run: &MeasuredRun) -> CalibrationReport {
        let held_out =
            (self.fraction < 1.0).then(|| RunErrors::of(&self.whole, &self.fitted, RunPart::After(self.until_s)));
        let rest = if held_out.is_some() { RunPart::After(self.until_s) } else { RunPart::After(0.0) };
        let fit = (self.scope != FitScope::None).then(|| self.fit_range());
        let ticks_outside =
            fit.as_ref().map_or(0, |fit| self.later_ticks().filter(|tick| fit.is_outside(tick)).count());
        let verdicts = held_out.as_ref().map_or_else(Vec::new, |errors| verdicts(errors, targets(self.scope)));
        let mut report = CalibrationReport {
            run: run.name.clone(),
            engine: run.engine.version.clone(),
            model: run.engine.model.clone(),
            device: run.engine.device.clone(),
            recorded: run.engine.recorded.clone(),
            env: self.setup.deployment.name(),
            knows_tokens: run.requests.iter().any(|request| !request.block_hashes.is_empty()),
            requests: run.requests.len(),
            makespan_s: self.whole.end_s(),
            scope: self.scope,
            constants: self.constants(),
            fit,
            ticks_outside,
            held_out,
            fitted: RunErrors::of(&self.whole, &self.fitted, RunPart::Until(self.until_s)),
            uncalibrated: RunErrors::of(&self.whole, &self.unfitted, rest),
            preemptions: self.fitted.preempted.iter().map(|times| u64::from(*times)).sum(),
            recomputed_tokens: self.fitted.recomputed_tokens,
            prefix_hit_tokens: self.fitted.prefix_hit_tokens,
            verdicts,
            warnings: Vec::new(),
        };
        report.warnings = self.warnings(&report);
        report
    }

    /// The fitted accelerator, as any of the runs it was fitted to together has it.
    pub fn hardware(&self) -> Hardware {
        self.fit.constants.apply(&self.setup.deployment.hardware)
    }

    /// Where the fit to `run` comes from, by `command`.
    pub fn provenance(&self, run: &MeasuredRun, command: &str) -> ServedRun {
        let range = self.fit_range();
        ServedRun {
            command: command.to_owned(),
            version: format!("kvtide {}", env!("CARGO_PKG_VERSION")),
            data: run.name.clone(),
            recorded: run.engine.recorded.clone(),
            engine: run.engine.version.clone(),
            env: self.setup.deployment.name(),
            fit_fraction: self.fraction,
            fit_until_s: self.until_s,
            requests: range.requests as u64,
            running: range.running,
            kv_usage: range.kv_usage,
            cold_start_s: self.fit.constants.cold_start,
        }
    }

    fn constants(&self) -> Vec<FittedConstant> {
        let before = FittedConstants::of(&self.setup.deployment.hardware);
        // The cold start has no value before.
        let is_fitted = |parameter: &&Parameter| {
            parameter.part == Part::Run && self.scope != FitScope::None
                || parameter.is_free(self.scope, self.setup.engine.async_scheduling, &before)
        };
        let constant = |parameter: &Parameter| FittedConstant {
            name: parameter.name,
            value: parameter.get(&self.fit.constants),
            default: parameter.get(&before),
            unit: parameter.unit,
            meaning: parameter.meaning,
        };
        PARAMETERS.iter().filter(is_fitted).map(constant).collect()
    }

    fn fit_range(&self) -> FitRange {
        let seen = |at_s: f64| at_s <= self.until_s;
        let ticks: Vec<&Tick> = self.whole.ticks.iter().filter(|tick| seen(tick.at_s)).collect();
        let range = |of: fn(&Tick) -> f64| {
            let mut values: Vec<f64> = ticks.iter().map(|tick| of(tick)).collect();
            values.sort_by(f64::total_cmp);
            [TAIL, 100.0 - TAIL].map(|p| percentile(&values, p))
        };
        let arrived = self.whole.requests.iter().filter(|request| seen(request.arrival.as_secs_f64()));
        let finished = self.whole.stamps.iter().filter(|stamps| stamps.last_s.is_some_and(seen));
        FitRange {
            fraction: self.fraction,
            until_s: self.until_s,
            requests: arrived.count(),
            finished: finished.count(),
            ticks: ticks.len(),
            running: range(|tick| tick.running),
            waiting: range(|tick| tick.waiting),
            kv_usage: range(|tick| tick.kv_usage),
            objective: self.fit.objective,
            simulations: self.fit.simulations,
        }
    }

    /// Those after the part that was fitted, until the end.
    fn later_ticks(&self) -> impl Iterator<Item = &Tick> {
        let end_s = self.whole.end_s();
        self.whole.ticks.iter().filter(move |tick| tick.at_s > self.until_s && tick.at_s <= end_s)
    }

    fn warnings(&self, report: &CalibrationReport) -> Vec<String> {
        let mut warnings = self.setup.assumed.clone();
        if self.setup.replicas > 1 {
            warnings.push(format!(
                "{} engines serve beside each other, each its own requests: where the run does not say whose they are \
                 (dp_rank), they are those that vLLM's balancer would give it",
                self.setup.replicas
            ));
        }
        for verdict in report.verdicts.iter().filter(|verdict| !verdict.met) {
            warnings.push(format!(
                "{} is off by {:+.1} %, more than {:.0} %",
                verdict.metric,
                verdict.error * 100.0,
                verdict.target * 100.0
            ));
        }
        let is_at_bound = |parameter: &&Parameter| {
            let is_fitted = report.constants.iter().any(|constant| constant.name == parameter.name);
            is_fitted && parameter.is_at_bound(&self.fit.constants)
        };
        for parameter in PARAMETERS.iter().filter(is_at_bound) {
            let value = parameter.get(&self.fit.constants);
            let unit = parameter.unit;
            warnings.push(format!(
                "{} ended at its bound, {value:.3}{}{unit}: is {} what was measured?",
                parameter.name,
                if unit.is_empty() { "" } else { " " },
                report.env
            ));
        }
        warnings.extend(report.fit.as_ref().into_iter().flat_map(|fit| self.warnings_of_range(report, fit)));
        if !report.knows_tokens {
            warnings.push(
                "the prompts' tokens are not known, so that none share a prefix; give the load with --load if it was \
                 kept"
                    .to_owned(),
            );
        }
        warnings
    }
}

impl Calibration {
    /// Where what was fitted to tells too little of what was not.
    fn warnings_of_range(&self, report: &CalibrationReport, fit: &FitRange) -> Vec<String> {
        let mut warnings = Vec::new();
        let later = self.later_ticks().count();
        let [low, high] = fit.kv_usage.map(|usage| usage * 100.0);
        let [fewest, most] = fit.running;
        if report.ticks_outside > 0 {
            warnings.push(format!(
                "{} of the {later} later ticks are outside of what was fitted (KV usage {low:.0} to {high:.0} %, \
                 {fewest:.0} to {most:.0} running); expect larger errors there",
                report.ticks_outside
            ));
        }
        let is_recorded = self.whole.ticks.iter().any(|tick| tick.kv_usage > 0.0);
        let reads_alike = high - low < 20.0;
        if !is_recorded {
            warnings
                .push("kv_cache_pct is 0 throughout: KV usage was not recorded, and its errors say nothing".to_owned());
        } else if reads_alike {
            warnings.push(format!(
                "KV usage hardly changed ({low:.0} to {high:.0} %), so that the time to read weights and KV cannot be \
                 told from the fixed time of a step: step_overhead is mostly its prior; a run with light load would tell"
            ));
        }
        warnings
    }
}

impl FitRange {
    /// Whether the server was fuller or emptier than this.
    fn is_outside(&self, tick: &Tick) -> bool {
        let outside = |[low, high]: [f64; 2], value: f64| value < low || value > high;
        outside(self.running, tick.running) || outside(self.kv_usage, tick.kv_usage)
    }
}

fn verdicts(errors: &RunErrors, [throughput, median, tail]: [f64; 3]) -> Vec<Verdict> {
    let of =
        |percentiles: Option<super::PairedPercentiles>, of: fn(super::PairedPercentiles) -> Pair| percentiles.map(of);
    [
        ("output_tok_s", errors.output_tok_s, throughput),
        ("ttft_ms.p50", of(errors.ttft_ms, |ttft| ttft.p50), median),
        ("ttft_ms.p99", of(errors.ttft_ms, |ttft| ttft.p99), tail),
        ("tpot_ms.p99", of(errors.tpot_ms, |tpot| tpot.p99), tail),
        ("e2e_ms.p50", of(errors.e2e_ms, |e2e| e2e.p50), median),
        ("e2e_ms.p99", of(errors.e2e_ms, |e2e| e2e.p99), tail),
    ]
    .into_iter()
    .filter_map(|(metric, pair, target)| {
        let error = pair?.error;
        Some(Verdict { metric, error, target, met: error.abs() <= target })
    })
    .collect()
}
