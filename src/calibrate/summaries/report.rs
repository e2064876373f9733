//! What there is to tell of a clock judged on summaries, a card at a time.

use kvtide_envs::deploy::Hardware;
use serde::Serialize;

use super::fit::{CardFit, FitLoads, WatchFit, fit_card, serve_card};
use super::judge::{CellReport, PartReport, Twice, judge};
use super::rows::{SummaryPolicy, SummaryRun};
use super::setup::{CardRuns, ModelRuns};
use crate::calibrate::constants::{FitScope, FittedConstants, PARAMETERS, Parameter};
use crate::calibrate::served::{CalibrateError, FittedConstant};

/// A card's clock and how well it tells what was measured on it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClockReport {
    /// Folder of the runs.
    pub data: String,
    /// The accelerator, as the rows name it.
    pub gpu: String,
    /// The accelerator that was simulated.
    pub hardware: String,
    /// How much of the clock was fitted.
    pub scope: FitScope,
    /// To which loads.
    pub fit_loads: FitLoads,
    /// Runs it was fitted to.
    pub fitted_runs: usize,
    /// Simulations the fit took.
    pub simulations: u64,
    /// How far the simulation is off on those, the prior included.
    pub objective: f64,
    /// What was fitted.
    pub constants: Vec<FittedConstant>,
    /// By model.
    pub models: Vec<ModelReport>,
    /// What to keep in mind.
    pub warnings: Vec<String>,
}

/// A model on the card.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelReport {
    /// The model, as the rows name it.
    pub model: String,
    /// Model and accelerator that were simulated.
    pub env: String,
    /// Loads the clock was not fitted to; `None` where there are none.
    pub judged: Option<PartReport>,
    /// Loads it was fitted to; `None` where nothing was fitted.
    pub fitted: Option<PartReport>,
    /// Every load.
    pub cells: Vec<CellReport>,
}

/// A card's runs, its fit, and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct CardAccount {
    /// In numbers.
    pub report: ClockReport,
    /// The accelerator as it was fitted.
    pub hardware: Hardware,
    /// The model to name where one is to be named: its first.
    pub model: String,
}

/// Fits what `scope` names of `card` to its runs at `loads`, serves all of its runs and compares.
///
/// # Errors
/// Nothing is to be fitted to, the engine cannot work with a run's settings, or it was asked to end.
pub fn judge_card(
    card: &CardRuns,
    data: &str,
    scope: FitScope,
    loads: FitLoads,
    watch: WatchFit<'_>,
) -> Result<CardAccount, CalibrateError> {
    let fit = fit_card(card, scope, loads, watch)?;
    let runs: Vec<(&ModelRuns, &SummaryRun)> = card.runs().collect();
    let simulated = serve_card(card, &fit.constants, watch)?;
    let twice: Vec<(&str, Twice<'_>)> = runs
        .iter()
        .zip(simulated)
        .map(|((model, run), simulated)| (model.model.as_str(), Twice { run, simulated }))
        .collect();
    let of_model = |model: &ModelRuns| {
        let its = twice.iter().filter(|(name, _)| *name == model.model).map(|(_, twice)| *twice);
        let (cells, [fitted, judged]) = judge(model, &its.collect::<Vec<_>>(), fit.runs > 0, loads);
        let env = model.deployment.name();
        ModelReport { model: model.model.clone(), env, judged, fitted, cells }
    };
    let models: Vec<ModelReport> = card.models.iter().map(of_model).collect();
    let report = ClockReport {
        data: data.to_owned(),
        gpu: card.gpu.clone(),
        hardware: card.hardware.name.clone(),
        scope,
        fit_loads: loads,
        fitted_runs: fit.runs,
        simulations: fit.simulations,
        objective: fit.objective,
        constants: constants(card, scope, &fit),
        warnings: warnings(card, scope, loads, &fit, &models),
        models,
    };
    let hardware = fit.constants.apply(&card.hardware);
    Ok(CardAccount { report, hardware, model: card.models[0].deployment.model.name.clone() })
}

fn constants(card: &CardRuns, scope: FitScope, fit: &CardFit) -> Vec<FittedConstant> {
    let before = FittedConstants::of(&card.hardware).seen_by_clients();
    let constant = |parameter: &Parameter| FittedConstant {
        name: parameter.name,
        value: parameter.get(&fit.constants),
        default: parameter.get(&before),
        unit: parameter.unit,
        meaning: parameter.meaning,
    };
    PARAMETERS.iter().filter(|parameter| parameter.is_free(scope, card.is_async(), &before)).map(constant).collect()
}

fn warnings(card: &CardRuns, scope: FitScope, loads: FitLoads, fit: &CardFit, models: &[ModelReport]) -> Vec<String> {
    let mut warnings = Vec::new();
    let before = FittedConstants::of(&card.hardware).seen_by_clients();
    for parameter in PARAMETERS.iter().filter(|parameter| parameter.is_free(scope, card.is_async(), &before)) {
        if parameter.is_at_bound(&fit.constants) {
            let (value, unit) = (parameter.get(&fit.constants), parameter.unit);
            let space = if unit.is_empty() { "" } else { " " };
            warnings.push(format!(
                "{}: {} ended at its bound, {value:.3}{space}{unit}: is {} what was measured?",
                card.gpu, parameter.name, card.hardware.name
            ));
        }
    }
    if fit.runs > 0 && models.iter().all(|model| model.judged.is_none()) {
        let way_out = match loads {
            FitLoads::All => "--fit-loads half leaves some out",
            FitLoads::Half | FitLoads::OtherHalf => "there is one load of each model",
        };
        warnings
            .push(format!("{}: fitted to every load, so that no error is of what was not fitted; {way_out}", card.gpu));
    }
    if card.runs().any(|(_, run)| run.policy == SummaryPolicy::Ppas) {
        warnings.push(format!(
            "{}: runs with the policy ppas are never fitted, and no error but their own is of them",
            card.gpu
        ));
    }
    warnings
}
