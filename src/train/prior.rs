//! Where learning starts: the constant choice a first policy favours.

use std::sync::atomic::AtomicBool;

use kvtide_envs::env::ServingArena;
use kvtide_envs::seed;
use kvtide_runtime::{Action, ActionProfile, Choices, Controls, Head};

use super::{BestConstant, Listener, TrainError};
use crate::agent::{Prior, best_constant};
use crate::experiment::Experiment;
use crate::policy::PolicySpec;
use crate::world::World;

/// How surely the first policy takes the prior's choice of each head.
const PROBABILITY: f64 = 0.8;

/// Fills in the agent's prior as the experiment asks, and the watermark its tables fall back to. `None` if interrupted.
pub(super) fn resolve(
    experiment: Experiment,
    world: &World,
    listener: &dyn Listener,
    stop: &AtomicBool,
) -> Result<Option<Experiment>, TrainError> {
    let Some(experiment) = with_prior(experiment, world, listener, stop)? else { return Ok(None) };
    with_fallback(experiment, world, listener, stop)
}

pub(crate) fn with_prior(
    mut experiment: Experiment,
    world: &World,
    listener: &dyn Listener,
    stop: &AtomicBool,
) -> Result<Option<Experiment>, TrainError> {
    let Some(text) = &experiment.prior else { return Ok(Some(experiment)) };
    if experiment.ppo.prior.is_some() {
        return Err(TrainError::TwoPriors);
    }
    let choices = if text == "search" {
        let found = search(&experiment, world, experiment.profile(), "prior", listener, stop)?;
        let Some(found) = found else { return Ok(None) };
        listener.found(BestConstant::Prior(found.controls()));
        found.indices().to_vec()
    } else {
        let PolicySpec::Fixed(controls) = text.parse::<PolicySpec>().map_err(TrainError::Prior)? else {
            return Err(TrainError::NotConstant(text.clone()));
        };
        choices(&controls)?
    };
    experiment.ppo.prior = Some(Prior { choices, probability: PROBABILITY });
    Ok(Some(experiment))
}

/// What could be deployed without a table, as well as anybody knows before the traffic comes: the best constant watermark, of
/// all there are.
pub(crate) fn with_fallback(
    mut experiment: Experiment,
    world: &World,
    listener: &dyn Listener,
    stop: &AtomicBool,
) -> Result<Option<Experiment>, TrainError> {
    if experiment.fallback.is_none() {
        let free = Experiment { watermarks: Vec::new(), ..experiment.clone() };
        let found = search(&free, world, ActionProfile::Watermark, "fallback", listener, stop)?;
        let Some(found) = found else { return Ok(None) };
        let watermark = found.controls().watermark;
        listener.found(BestConstant::Fallback(watermark));
        experiment.fallback = Some(watermark);
        experiment.validate()?;
    }
    Ok(Some(experiment))
}

/// The best constant choice over the profile's heads, on episodes of everything that is trained on.
fn search(
    experiment: &Experiment,
    world: &World,
    profile: ActionProfile,
    stream: &str,
    listener: &dyn Listener,
    stop: &AtomicBool,
) -> Result<Option<Action>, TrainError> {
    let arena = ServingArena::new(&experiment.env_config(world)?)?;
    let watch = listener.watch();
    let show = |planned, done| {
        watch.planned(planned);
        (0..done).for_each(|_| watch.done());
    };
    let seed = seed::derive(experiment.seed(), stream, 0);
    Ok(best_constant(&arena, profile, seed, &show, stop)?)
}

/// The controls as choices; a number between the levels an agent has cannot be favoured.
fn choices(controls: &Controls) -> Result<Vec<u8>, TrainError> {
    let action = Action::nearest(controls);
    for head in Head::ALL {
        let setting = controls.get(head);
        if let Choices::Levels(levels) = head.choices()
            && action.controls().get(head) != setting
        {
            return Err(TrainError::Level { head: head.name(), setting: setting.to_string(), levels });
        }
    }
    Ok(action.indices().to_vec())
}
