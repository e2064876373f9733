//! Fits a card's clock to summaries of runs on it.
//!
//! The **objective** is a mean over runs of absolute log ratios, simulated to measured: of the means of E2E, TTFT and TPOT, and with
//! half their weight of the 95th percentiles. Absolute, not squared, because near the knee one admission decides a run. Overheads
//! carry the same weak prior as in a fit to a recorded run.
//!
//! The search draws no random number: all kernels are scaled together until the runs come out best, because near the knee a clock that
//! is far too slow or too fast has no slope to follow; then the simplex over the kernels' constants, then over all.
//!
//! Runs with the adaptive policy are never fitted: what it gains is to be foretold. The runs of a step of the search are served
//! side by side and summed in their order, so that threads change nothing.

use std::ops::ControlFlow;

use rayon::prelude::*;
use serde::Serialize;

use super::rows::{Latencies, SummaryPolicy, SummaryRun};
use super::serve::Clock;
use super::setup::{CardRuns, ModelRuns};
use crate::calibrate::constants::{FitScope, FittedConstants, PARAMETERS, Parameter, Part, prior};
use crate::calibrate::nelder_mead::{StoppingRule, minimise};
use crate::calibrate::served::CalibrateError;

/// Which loads of each model a clock is fitted to; it is judged on the others, or where there are none on the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FitLoads {
    /// All of them.
    All,
    /// The first, the third and so on, by rate.
    Half,
    /// The second, the fourth and so on.
    OtherHalf,
}

/// What came of a fit to a card's runs.
#[derive(Debug, Clone, PartialEq)]
pub struct CardFit {
    /// The constants found.
    pub constants: FittedConstants,
    /// The objective there, prior included; 0 where nothing was fitted.
    pub objective: f64,
    /// Runs it was fitted to.
    pub runs: usize,
    /// Simulations it took.
    pub simulations: u64,
}

/// Called once a simulation, from any thread; breaks where the fit is to end.
pub type WatchFit<'a> = &'a (dyn Fn() -> ControlFlow<()> + Sync);

/// How much slower or faster all kernels together are tried first, as logarithms: steps of 15 %, up to a factor of 1.8 either way.
const SCAN: std::ops::RangeInclusive<i32> = -4..=4;
const SCAN_STEP: f64 = 0.15;
/// The kernels alone, roughly; then everything, to a tenth of a per cent, and once more from there with a simplex as wide as at first.
const COARSE: StoppingRule = StoppingRule { edge: 0.15, iterations: 30, size: 3e-3 };
const FINE: StoppingRule = StoppingRule { edge: 0.1, iterations: 150, size: 1e-3 };
const ROUNDS: usize = 2;
/// Weight of a 95th percentile beside a mean.
const P95_WEIGHT: f64 = 0.5;

impl FitLoads {
    /// Whether runs at the load of `run` are fitted to.
    pub fn takes(self, model: &ModelRuns, run: &SummaryRun) -> bool {
        let place = model.loads().iter().position(|load| *load == Load::of(run)).unwrap_or_default();
        match self {
            FitLoads::All => true,
            FitLoads::Half => place.is_multiple_of(2),
            FitLoads::OtherHalf => !place.is_multiple_of(2),
        }
    }
}

/// What two runs have in common that differ in policy, budget or seed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Load {
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    pub(super) max_num_seqs: u32,
    pub(super) peak_rps: f64,
    pub(super) phases: String,
}

impl Load {
    pub(super) fn of(run: &SummaryRun) -> Load {
        let &SummaryRun { prompt_tokens, output_tokens, max_num_seqs, peak_rps, .. } = run;
        Load { prompt_tokens, output_tokens, max_num_seqs, peak_rps, phases: run.phases.clone() }
    }

    /// By lengths, then by rate.
    fn cmp(&self, other: &Load) -> std::cmp::Ordering {
        let key = |load: &Load| (load.prompt_tokens, load.output_tokens, load.max_num_seqs);
        let by_rate = || self.peak_rps.total_cmp(&other.peak_rps);
        key(self).cmp(&key(other)).then_with(by_rate).then_with(|| self.phases.cmp(&other.phases))
    }
}

impl ModelRuns {
    /// Its loads, each once, by lengths and rate.
    pub(super) fn loads(&self) -> Vec<Load> {
        let mut loads: Vec<Load> = self.runs.iter().map(Load::of).collect();
        loads.sort_by(Load::cmp);
        loads.dedup();
        loads
    }
}

/// Finds the constants with which the simulator behaves most like what was measured on a card.
///
/// # Errors
/// Nothing is to be fitted to, the engine cannot work with a run's settings, or the fit was asked to end.
pub fn fit_card(
    card: &CardRuns,
    scope: FitScope,
    loads: FitLoads,
    watch: WatchFit<'_>,
) -> Result<CardFit, CalibrateError> {
    let start = FittedConstants::of(&card.hardware).seen_by_clients();
    let is_fitted =
        |(model, run): &(&ModelRuns, &SummaryRun)| run.policy == SummaryPolicy::Fixed && loads.takes(model, run);
    let runs: Vec<(&ModelRuns, &SummaryRun)> = card.runs().filter(is_fitted).collect();
    let free = |is_it: &dyn Fn(&Parameter) -> bool| -> Vec<&'static Parameter> {
        let is_free =
            |parameter: &&Parameter| parameter.is_free(scope, card.is_async(), &start) && parameter.part != Part::Run;
        PARAMETERS.iter().filter(is_free).filter(|parameter| is_it(parameter)).collect()
    };
    let all = free(&|_| true);
    if all.is_empty() {
        return Ok(CardFit { constants: start, objective: 0.0, runs: 0, simulations: 0 });
    }
    if runs.is_empty() {
        return Err(CalibrateError::NothingToFit { gpu: card.gpu.clone() });
    }
    let mut search = CardSearch { card, runs, before: start, simulations: 0, watch };
    let kernels = free(&|parameter| matches!(parameter.part, Part::Roofs | Part::Scales));
    let mut constants = start;
    if !kernels.is_empty() {
        constants = search.scan(constants, &kernels)?;
        constants = search.descend(constants, &kernels, COARSE)?;
    }
    for _ in 0..ROUNDS {
        constants = search.descend(constants, &all, FINE)?;
    }
    let objective = search.objective(&constants)?;
    Ok(CardFit { constants, objective, runs: search.runs.len(), simulations: search.simulations })
}

struct CardSearch<'a> {
    card: &'a CardRuns,
    runs: Vec<(&'a ModelRuns, &'a SummaryRun)>,
    before: FittedConstants,
    simulations: u64,
    watch: WatchFit<'a>,
}

impl CardSearch<'_> {
    /// The best of some factors on all of `kernels` at once.
    fn scan(&mut self, start: FittedConstants, kernels: &[&Parameter]) -> Result<FittedConstants, CalibrateError> {
        let mut best = (f64::INFINITY, start);
        for step in SCAN {
            let mut tried = start;
            for parameter in kernels {
                // A share of the peak is the other way round from a time.
                let slower = f64::from(step) * SCAN_STEP * if parameter.part == Part::Roofs { -1.0 } else { 1.0 };
                let (low, high) = parameter.bounds;
                let value = (parameter.of)(&mut tried);
                *value = (*value * slower.exp()).clamp(low, high);
            }
            let objective = self.objective(&tried)?;
            if objective < best.0 {
                best = (objective, tried);
            }
        }
        Ok(best.1)
    }

    /// Varies what is `free` downhill from `start`.
    fn descend(
        &mut self,
        start: FittedConstants,
        free: &[&Parameter],
        limits: StoppingRule,
    ) -> Result<FittedConstants, CalibrateError> {
        let place = |at: &[f64]| {
            let mut constants = start;
            for (parameter, log) in free.iter().zip(at) {
                let (low, high) = parameter.bounds;
                *(parameter.of)(&mut constants) = log.exp().clamp(low, high);
            }
            constants
        };
        let at: Vec<f64> = free.iter().map(|parameter| parameter.get(&start).ln()).collect();
        let outside = |at: &[f64]| -> f64 { free.iter().zip(at).map(|(parameter, log)| parameter.outside(*log)).sum() };
        let found = minimise(&at, limits, |at| self.objective(&place(at)).map(|objective| objective + outside(at)))?;
        Ok(place(&found))
    }

    fn objective(&mut self, constants: &FittedConstants) -> Result<f64, CalibrateError> {
        self.simulations += self.runs.len() as u64;
        let served = serve_all(self.card, constants, &self.runs, self.watch)?;
        let off = self.runs.iter().zip(&served).map(|((_, run), served)| distance(&run.measured, served));
        Ok(off.sum::<f64>() / self.runs.len() as f64 + prior(constants, &self.before))
    }
}

/// What clients see of all runs of `card` with `constants`, in the order of [`CardRuns::runs`].
///
/// # Errors
/// The engine cannot work with a run's settings, or it was asked to end.
pub fn serve_card(
    card: &CardRuns,
    constants: &FittedConstants,
    watch: WatchFit<'_>,
) -> Result<Vec<Latencies>, CalibrateError> {
    let runs: Vec<(&ModelRuns, &SummaryRun)> = card.runs().collect();
    serve_all(card, constants, &runs, watch)
}

/// What clients see of `runs` with `constants`, in their order.
///
/// # Errors
/// The engine cannot work with a run's settings, or it was asked to end.
fn serve_all(
    card: &CardRuns,
    constants: &FittedConstants,
    runs: &[(&ModelRuns, &SummaryRun)],
    watch: WatchFit<'_>,
) -> Result<Vec<Latencies>, CalibrateError> {
    let clocks: Vec<Clock<'_>> = card.models.iter().map(|model| Clock::new(model, &card.hardware, constants)).collect();
    let serve = |(model, run): &(&ModelRuns, &SummaryRun)| {
        if watch().is_break() {
            return Err(CalibrateError::Interrupted);
        }
        let place = card.models.iter().position(|other| other.model == model.model);
        clocks[place.expect("a run is of one of the card's models")].serve(run)
    };
    runs.par_iter().map(serve).collect()
}

/// How far a simulated run is off; see the [module](self).
fn distance(measured: &Latencies, served: &Latencies) -> f64 {
    let off = |measured: f64, served: f64| if measured > 0.0 { (served / measured).ln().abs() } else { 0.0 };
    let pairs = [(measured.e2e, served.e2e), (measured.ttft, served.ttft), (measured.tpot, served.tpot)];
    let both =
        pairs.map(|(measured, served)| off(measured.mean, served.mean) + P95_WEIGHT * off(measured.p95, served.p95));
    both.iter().sum()
}
