//! Fits the cost model to measured runs of a real server, and says how well it then forecasts the rest of each.
//!
//! [`MeasuredRun`] is what the server recorded. [`ObservedRun`] is what it had recorded by a moment; [`fit`](fit::fit) is given
//! no more than that. [`Setup::serve`] serves the same requests with the simulator's own node, scheduler and prefix
//! cache; only the constants of the cost model, and the time of the first step, are free. [`RunErrors`] compare.

mod account;
mod compare;
mod engine;
mod error;
mod files;
mod fit;
mod load;
mod measured;
mod picture;
mod replicas;
mod report;
mod seen;
mod serve;
mod text;

use kvtide_envs::deploy::{DeadEnds, Deployment, EngineKind, Hardware, Model, Setting};

pub use account::RunAccount;
pub use compare::{Curves, Pair, PairedPercentiles, RunErrors, RunPart, Stalls};
pub use engine::MeasuredEngine;
pub use error::{CalibrateError, MeasuredError, MeasuredFault};
pub(in crate::calibrate) use files::TextFile;
pub use fit::{Fit, fit, fit_jointly};
pub(in crate::calibrate) use measured::without_position;
pub use measured::{MeasuredRequest, MeasuredRun, MeasuredTick};
pub use picture::picture;
pub use report::{CalibrationReport, FitRange, FittedConstant, Verdict};
pub use seen::{ClockOffsets, ObservedRun, Stamps, Tick};
pub use serve::{Setup, SimulatedRun};

pub use super::constants::{FitScope, FittedConstants, PARAMETERS, Parameter};

/// A fit and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// What was simulated, before the fit.
    pub setup: Setup,
    /// What was fitted.
    pub scope: FitScope,
    /// Share of the run's time that was fitted; 0 where nothing was.
    pub fraction: f64,
    /// The same in seconds.
    pub until_s: f64,
    /// The fit.
    pub fit: Fit,
    /// The whole run, on the clock of the part that was fitted.
    pub whole: ObservedRun,
    /// The whole run as the fitted simulator serves it.
    pub fitted: SimulatedRun,
    /// The whole run as the simulator serves it without a fit.
    pub unfitted: SimulatedRun,
}

impl Setup {
    /// The engine of `run` on `env`, or on what the run itself names, with `overrides` of engine and hardware.
    ///
    /// # Errors
    /// The model or hardware is not known, or a setting is out of range.
    pub fn of(run: &MeasuredRun, env: Option<&str>, overrides: &[Setting]) -> Result<Setup, CalibrateError> {
        let named = run.engine.env();
        let unknown = || {
            let (model, device) = (run.engine.model.clone(), run.engine.device.clone());
            CalibrateError::NoEnv { model, device }
        };
        // `@HARDWARE`: the run's own model on it.
        let given = match env {
            Some(hardware) if hardware.starts_with('@') => {
                let model = Model::published_as(&run.engine.model).ok_or_else(unknown)?;
                Some(format!("{model}{hardware}"))
            }
            env => env.map(str::to_owned),
        };
        let other = given.as_deref().zip(named.as_deref()).and_then(|(env, named)| another(env, named));
        let env = given.or(named).ok_or_else(unknown)?;
        // What is set here wins over what the run says.
        let all = [&run.engine.deployed, overrides].concat();
        let deployment = Deployment::load_with(&env, &all)?;
        let engine = run.engine.config(&deployment).with(overrides)?;
        // Whatever is measured is served to its end, which is promised only here.
        if engine.engine != EngineKind::V1 || engine.dead_ends != DeadEnds::Safe {
            return Err(CalibrateError::Engine);
        }
        let replicas = run.engine.replicas;
        if replicas > 1 && deployment.model.structure.experts.is_some() {
            return Err(CalibrateError::SharedExperts { model: deployment.model.name, replicas });
        }
        let mut assumed = run.engine.assumed(&engine, &deployment, overrides);
        assumed.splice(0..0, other);
        Ok(Setup { deployment, engine, replicas, assumed })
    }
}

/// What is to be said where `env` is another model or accelerator than the run names itself: a fit makes up for the difference as
/// well as it can, and its constants mean nothing then.
fn another(env: &str, named: &str) -> Option<String> {
    let (given, run) = (Deployment::load(env).ok()?, Deployment::load(named).ok()?);
    let model = |deployment: &Deployment| {
        let Model { num_layers, hidden_size, num_heads, .. } = deployment.model;
        (num_layers, hidden_size, num_heads)
    };
    // A profile keeps the peaks of the accelerator it was fitted on.
    let card = |deployment: &Deployment| {
        let Hardware { peak_flops, peak_bandwidth, .. } = deployment.hardware;
        (peak_flops, peak_bandwidth, deployment.devices)
    };
    let is_other = model(&given) != model(&run) || card(&given) != card(&run);
    is_other
        .then(|| format!("the run names {named}, and {env} is simulated: what is fitted makes up for the difference"))
}

/// Fits `setup` to the first `fraction` of `run`'s time, and serves the whole run with and without the fit. `watch` is
/// called once a simulation.
///
/// # Errors
/// The fraction is out of range, too little was recorded in it, or the run has a prompt the engine refuses.
pub fn calibrate(
    run: &MeasuredRun,
    setup: &Setup,
    fraction: f64,
    watch: &mut dyn FnMut(),
) -> Result<Calibration, CalibrateError> {
    let mut calibrations = calibrate_jointly(&[(run, setup)], FitScope::All, fraction, watch)?;
    Ok(calibrations.remove(0))
}

/// The same of several runs on accelerators of one kind: one fit of what `scope` names to all of them, each with a cold start of
/// its own. Where nothing is fitted all of each run is forecast.
///
/// # Errors
/// As for one, or the runs are of different accelerators.
pub fn calibrate_jointly(
    runs: &[(&MeasuredRun, &Setup)],
    scope: FitScope,
    fraction: f64,
    watch: &mut dyn FnMut(),
) -> Result<Vec<Calibration>, CalibrateError> {
    if !(fraction > 0.0 && fraction <= 1.0) {
        return Err(CalibrateError::Fraction(fraction));
    }
    for (run, setup) in runs {
        check(run, setup, runs[0].1)?;
    }
    let cut = |run: &MeasuredRun| {
        let until = if fraction < 1.0 && scope != FitScope::None {
            run.start() + fraction * (run.end() - run.start())
        } else {
            run.end()
        };
        ObservedRun::until(run, until)
    };
    let fraction = if scope == FitScope::None { 0.0 } else { fraction };
    let seen: Vec<ObservedRun> = runs.iter().map(|(run, _)| cut(run)).collect();
    let setups: Vec<Setup> = runs.iter().map(|(_, setup)| setup.to_fit(scope)).collect();
    let parts: Vec<(&Setup, &ObservedRun)> = setups.iter().zip(&seen).collect();
    let fits = fit_jointly(&parts, scope, watch)?;
    let runs = runs.iter().copied().zip(setups).zip(seen.iter().zip(fits));
    runs.map(|(((run, before), setup), (seen, fit))| {
        let whole = ObservedRun::whole(run, seen.clock);
        Ok(Calibration {
            scope,
            fraction,
            until_s: if scope == FitScope::None { 0.0 } else { seen.until_s },
            fitted: setup.serve(&fit.constants, &whole)?,
            unfitted: before.serve(&FittedConstants::of(&before.deployment.hardware), &whole)?,
            setup,
            fit,
            whole,
        })
    })
    .collect()
}

/// Whether `run` can be served, on the hardware of `first`.
fn check(run: &MeasuredRun, setup: &Setup, first: &Setup) -> Result<(), CalibrateError> {
    let (one, other) = (&first.deployment.hardware, &setup.deployment.hardware);
    if one != other {
        return Err(CalibrateError::OtherHardware { one: one.name.clone(), other: other.name.clone() });
    }
    let max_model_len = setup.engine.max_model_len;
    if let Some(index) = run.requests.iter().position(|request| request.prompt_tokens >= max_model_len) {
        let prompt_tokens = run.requests[index].prompt_tokens;
        return Err(CalibrateError::Prompt { index, prompt_tokens, max_model_len });
    }
    Ok(())
}
