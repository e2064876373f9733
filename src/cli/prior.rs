//! Where learning starts: the constant choice a first policy favours.

use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use kvtide_envs::env::ServingArena;
use kvtide_envs::seed;
use kvtide_runtime::action::WATERMARK_LEVELS;
use kvtide_runtime::{Action, ActionProfile, Controls};

use super::progress::Runs;
use crate::agent::{Prior, best_constant};
use crate::experiment::Experiment;
use crate::policy::PolicySpec;
use crate::world::World;

/// How surely the first policy takes the prior's choice of each head.
const PROBABILITY: f64 = 0.8;

/// Fills in the agent's prior as the experiment asks, and the watermark its tables fall back to. `None` if interrupted.
pub(super) fn resolve(experiment: Experiment, world: &World, stop: &AtomicBool) -> anyhow::Result<Option<Experiment>> {
    let Some(experiment) = with_prior(experiment, world, stop)? else { return Ok(None) };
    with_fallback(experiment, world, stop)
}

fn with_prior(mut experiment: Experiment, world: &World, stop: &AtomicBool) -> anyhow::Result<Option<Experiment>> {
    let Some(text) = &experiment.prior else { return Ok(Some(experiment)) };
    if experiment.ppo.prior.is_some() {
        bail!("prior and ppo.prior are both given; only one can be meant");
    }
    let choices = if text == "search" {
        let Some(found) = search(&experiment, world, experiment.profile(), "prior", stop)? else { return Ok(None) };
        let found_text = PolicySpec::Fixed(found.controls());
        eprintln!("   learning starts from the best constant choice on that traffic: {found_text}");
        found.indices().to_vec()
    } else {
        let PolicySpec::Fixed(controls) = text.parse::<PolicySpec>().context("prior")? else {
            bail!("prior {text:?}: expected search or a fixed: policy")
        };
        choices(&controls)?
    };
    experiment.ppo.prior = Some(Prior { choices, probability: PROBABILITY });
    Ok(Some(experiment))
}

/// What could be deployed without a table, as well as anybody knows before the traffic comes: the best constant watermark, of
/// all there are.
fn with_fallback(mut experiment: Experiment, world: &World, stop: &AtomicBool) -> anyhow::Result<Option<Experiment>> {
    if experiment.fallback.is_none() {
        let free = Experiment { watermarks: Vec::new(), ..experiment.clone() };
        let found = search(&free, world, ActionProfile::Watermark, "fallback", stop)?;
        let Some(found) = found else { return Ok(None) };
        let watermark = found.controls().watermark;
        eprintln!("   a table that cannot be trusted falls back to the best constant watermark there: {watermark}");
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
    stop: &AtomicBool,
) -> anyhow::Result<Option<Action>> {
    let arena = ServingArena::new(&experiment.env_config(world)?)?;
    let bar = Runs::new();
    let seed = seed::derive(experiment.seed(), stream, 0);
    let found = best_constant(&arena, profile, seed, &|planned, done| bar.show(planned, done), stop)?;
    bar.finish();
    Ok(found)
}

/// The controls as choices; a watermark between the levels an agent has cannot be favoured.
fn choices(controls: &Controls) -> anyhow::Result<Vec<u8>> {
    let Some(level) = WATERMARK_LEVELS.iter().position(|&level| level == controls.watermark) else {
        bail!("prior: watermark {} is none of {WATERMARK_LEVELS:?}", controls.watermark);
    };
    Ok(vec![level as u8, controls.victim as u8, controls.preemption as u8, controls.admission as u8])
}
