//! Fits a few constants, each with a physical meaning, to what was seen of a run.
//!
//! The **objective** is how far the simulation is off on what was seen, as a mean absolute log ratio, so that 0.01 is
//! about one per cent: over first tokens (arrival to first token), over finished requests (arrival to last token), and
//! over ticks (tokens generated so far), the three added. Absolute, not squared, because a request that just misses an
//! admission is far off for reasons no constant can mend.
//!
//! The search, about 200 simulations, none of them random: the simplex over the kernels' constants; then values for the
//! cold start, because it decides who gets into which of the first steps, so that the objective has basins along it;
//! then the simplex over all. It works on logarithms within bounds.
//!
//! Several runs are fitted at once, with a cold start for each.
//!
//! A server that is always full shows only the sum of the time a step takes to read the weights and its fixed time. So
//! the two overheads carry a weak **prior**: they stay where the profile has them unless the run says otherwise.

use super::error::CalibrateError;
use super::seen::ObservedRun;
use super::serve::{Setup, SimulatedRun};
use crate::calibrate::constants::{COLD_START, FitScope, FittedConstants, PARAMETERS, Parameter, Part, prior};
use crate::calibrate::nelder_mead::{StoppingRule, minimise};

/// The kernels alone, roughly.
const COARSE: StoppingRule = StoppingRule { edge: 0.25, iterations: 30, size: 3e-3 };
/// Everything, to a tenth of a per cent.
const FINE: StoppingRule = StoppingRule { edge: 0.1, iterations: 120, size: 1e-3 };
/// Cold starts tried, from none to all of the first request's time to first token.
const COLD_STARTS: u32 = 12;
/// Tokens added to both sides of a ratio of counts, so that the first few do not decide.
const FEW_TOKENS: f64 = 100.0;
/// Ticks before this are passed over, seconds: the server has hardly begun.
const SETTLED_S: f64 = 3.0;
/// Shortest time, seconds: a microsecond, the simulator's clock.
const LEAST_S: f64 = 1e-6;
/// Least that can be fitted to: requests with a first token, and ticks.
const LEAST: (usize, usize) = (10, 5);

/// What came of a fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The constants found.
    pub constants: FittedConstants,
    /// The objective there, prior included.
    pub objective: f64,
    /// Simulations it took.
    pub simulations: u32,
}

/// Finds the constants with which `setup` behaves most like what was seen. `watch` is called once a simulation.
///
/// # Errors
/// Too little was seen, or the engine cannot work with its settings.
pub fn fit(setup: &Setup, seen: &ObservedRun, watch: &mut dyn FnMut()) -> Result<Fit, CalibrateError> {
    let mut fits = fit_jointly(&[(&setup.to_fit(FitScope::All), seen)], FitScope::All, watch)?;
    Ok(fits.remove(0))
}

/// The same of several runs at once, and of those constants that `scope` names: they are those of all runs, but for the cold
/// start, which each has for itself. What is least is the mean of the objectives.
///
/// # Errors
/// Too little was seen of one of them, or an engine cannot work with its settings.
///
/// # Panics
/// Without runs.
pub fn fit_jointly(
    runs: &[(&Setup, &ObservedRun)],
    scope: FitScope,
    watch: &mut dyn FnMut(),
) -> Result<Vec<Fit>, CalibrateError> {
    let start = FittedConstants::of(&runs[0].0.deployment.hardware);
    if scope == FitScope::None {
        return Ok(vec![Fit { constants: start, objective: 0.0, simulations: 0 }; runs.len()]);
    }
    for (_, seen) in runs {
        let (started, ticks) = (seen.num_started(), seen.ticks.len());
        if started < LEAST.0 || ticks < LEAST.1 {
            let until_s = seen.until_s;
            return Err(CalibrateError::TooLittle {
                until_s,
                started,
                ticks,
                least_started: LEAST.0,
                least_ticks: LEAST.1,
            });
        }
    }
    let mut search = FitSearch { runs, prior: start, simulations: 0, watch };
    let is_async = runs[0].0.engine.async_scheduling;
    let is_kernel = |index: &usize| matches!(PARAMETERS[*index].part, Part::Roofs | Part::Scales);
    let kernels = (0..COLD_START).filter(is_kernel).filter(|index| PARAMETERS[*index].is_free(scope, is_async, &start));
    let kernels: Vec<Free> = kernels.map(Free::Shared).collect();
    let mut coarse = vec![start; runs.len()];
    if !kernels.is_empty() {
        coarse = search.descend(&coarse, &kernels, COARSE)?;
    }
    let scanned = search.scan_cold_starts(coarse)?;
    let shared = (0..COLD_START).map(Free::Shared);
    let all = shared.chain((0..runs.len()).map(Free::ColdStart));
    let free: Vec<Free> = all.filter(|free| free.is_free(scope, is_async, &scanned)).collect();
    if free.is_empty() {
        return search.ended(scanned);
    }
    let constants = search.descend(&scanned, &free, FINE)?;
    search.ended(constants)
}

/// A constant that is free to move: one of all runs, by its place among the parameters, or the cold start of one.
#[derive(Debug, Clone, Copy)]
enum Free {
    Shared(usize),
    ColdStart(usize),
}

impl Free {
    fn parameter(self) -> &'static Parameter {
        match self {
            Free::Shared(index) => &PARAMETERS[index],
            Free::ColdStart(_) => &PARAMETERS[COLD_START],
        }
    }

    /// Its value among those of all runs.
    fn get(self, constants: &[FittedConstants]) -> f64 {
        match self {
            Free::Shared(_) => self.parameter().get(&constants[0]),
            Free::ColdStart(run) => self.parameter().get(&constants[run]),
        }
    }

    fn is_free(self, scope: FitScope, is_async: bool, constants: &[FittedConstants]) -> bool {
        match self {
            Free::Shared(_) => self.parameter().is_free(scope, is_async, &constants[0]),
            Free::ColdStart(run) => self.parameter().is_free(scope, is_async, &constants[run]),
        }
    }

    fn set(self, constants: &mut [FittedConstants], value: f64) {
        let of = self.parameter().of;
        match self {
            Free::Shared(_) => constants.iter_mut().for_each(|constants| *of(constants) = value),
            Free::ColdStart(run) => *of(&mut constants[run]) = value,
        }
    }
}

struct FitSearch<'a> {
    runs: &'a [(&'a Setup, &'a ObservedRun)],
    prior: FittedConstants,
    simulations: u32,
    watch: &'a mut dyn FnMut(),
}

impl FitSearch<'_> {
    /// Varies what is `free` downhill from `start`.
    fn descend(
        &mut self,
        start: &[FittedConstants],
        free: &[Free],
        limits: StoppingRule,
    ) -> Result<Vec<FittedConstants>, CalibrateError> {
        let place = |at: &[f64]| {
            let mut constants = start.to_vec();
            for (one, log) in free.iter().zip(at) {
                let (low, high) = one.parameter().bounds;
                one.set(&mut constants, log.exp().clamp(low, high));
            }
            constants
        };
        let at: Vec<f64> = free.iter().map(|one| one.get(start).ln()).collect();
        let outside = |at: &[f64]| -> f64 { free.iter().zip(at).map(|(one, log)| one.parameter().outside(*log)).sum() };
        let found = minimise(&at, limits, |at| self.objective(&place(at)).map(|objective| objective + outside(at)))?;
        Ok(place(&found))
    }

    /// The best of some cold starts, none included, of each run by itself.
    fn scan_cold_starts(
        &mut self,
        mut constants: Vec<FittedConstants>,
    ) -> Result<Vec<FittedConstants>, CalibrateError> {
        for (run, constants) in constants.iter_mut().enumerate() {
            let seen = self.runs[run].1;
            let longest = seen.stamps[0].first_s.map_or(0.0, |first| first - seen.arrival_s(0));
            let mut best = (f64::INFINITY, *constants);
            for number in 0..=COLD_STARTS {
                let cold_start = longest * f64::from(number) / f64::from(COLD_STARTS);
                let tried = FittedConstants { cold_start, ..*constants };
                let objective = self.objective_of(run, &tried)?;
                if objective < best.0 {
                    best = (objective, tried);
                }
            }
            *constants = best.1;
        }
        Ok(constants)
    }

    fn objective(&mut self, constants: &[FittedConstants]) -> Result<f64, CalibrateError> {
        let mut sum = 0.0;
        for (run, constants) in constants.iter().enumerate() {
            sum += self.objective_of(run, constants)?;
        }
        Ok(sum / constants.len() as f64)
    }

    fn objective_of(&mut self, run: usize, constants: &FittedConstants) -> Result<f64, CalibrateError> {
        self.simulations += 1;
        (self.watch)();
        let (setup, seen) = self.runs[run];
        let served = setup.serve(constants, seen)?;
        Ok(distance(seen, &served) + prior(constants, &self.prior))
    }

    /// What was found.
    fn ended(mut self, constants: Vec<FittedConstants>) -> Result<Vec<Fit>, CalibrateError> {
        let each = constants.iter().enumerate();
        let objectives: Vec<f64> =
            each.map(|(run, constants)| self.objective_of(run, constants)).collect::<Result<_, _>>()?;
        let simulations = self.simulations;
        let fits = constants.into_iter().zip(objectives);
        Ok(fits.map(|(constants, objective)| Fit { constants, objective, simulations }).collect())
    }
}

/// How far the simulation is off; see the [module](self). What it has not reached counts as reached when it stopped.
fn distance(seen: &ObservedRun, served: &SimulatedRun) -> f64 {
    let stopped_s = served.stopped_s;
    let off = |index: usize, seen_s: Option<f64>, served_s: Option<f64>| {
        let arrival_s = seen.arrival_s(index);
        let after = |at_s: f64| (at_s - arrival_s).max(LEAST_S);
        Some((after(served_s.unwrap_or(stopped_s)) / after(seen_s?)).ln().abs())
    };
    let pairs = || seen.stamps.iter().zip(&served.stamps).enumerate();
    let firsts = mean(pairs().filter_map(|(index, (seen, served))| off(index, seen.first_s, served.first_s)));
    let lasts = mean(pairs().filter_map(|(index, (seen, served))| off(index, seen.last_s, served.last_s)));
    let ticks = seen.ticks.iter().zip(&served.ticks).filter(|(tick, _)| tick.at_s > SETTLED_S);
    let tokens =
        mean(ticks.map(|(seen, served)| {
            ((served.output_tokens + FEW_TOKENS) / (seen.output_tokens + FEW_TOKENS)).ln().abs()
        }));
    firsts + lasts + tokens
}

/// The mean, 0 of nothing.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}
