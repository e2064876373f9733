//! Where learning starts: the constant choice a first policy favours.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use kvtide_envs::seed;
use kvtide_envs::workload::Window;
use kvtide_runtime::Controls;
use kvtide_runtime::action::WATERMARK_LEVELS;

use super::progress::Runs;
use crate::agent::Prior;
use crate::evaluate::{Matrix, PolicySpec, Subject, run_matrix};
use crate::experiment::Experiment;
use crate::world::World;

/// How surely the first policy takes the prior's choice of each head.
const PROBABILITY: f64 = 0.8;
/// Draws a search judges each constant on.
const DRAWS: u64 = 3;

/// Fills in the agent's prior as the experiment asks. `None` if interrupted.
pub(super) fn resolve(
    mut experiment: Experiment,
    world: &World,
    stop: &AtomicBool,
) -> anyhow::Result<Option<Experiment>> {
    let Some(text) = &experiment.prior else { return Ok(Some(experiment)) };
    if experiment.ppo.prior.is_some() {
        bail!("prior and ppo.prior are both given; only one can be meant");
    }
    let spec = if text == "search" {
        let Some(found) = search(&experiment, world, stop)? else { return Ok(None) };
        eprintln!("   learning starts from the best constant choice on that traffic: {found}");
        found.parse()?
    } else {
        text.parse::<PolicySpec>().context("prior")?
    };
    let PolicySpec::Fixed(controls) = spec else { bail!("prior {text:?}: expected search or a fixed: policy") };
    experiment.ppo.prior = Some(Prior { choices: choices(&controls)?, probability: PROBABILITY });
    Ok(Some(experiment))
}

/// The best constant choice over the profile's heads, on the traffic that is trained on, in the middle of its loads.
fn search(experiment: &Experiment, world: &World, stop: &AtomicBool) -> anyhow::Result<Option<String>> {
    let (low, high) = experiment.episodes.load;
    let range: Window = experiment.fit_range(world)?;
    let matrix = Matrix {
        policies: vec![("prior".to_owned(), Subject::Hindsight(experiment.profile()))],
        windows: vec![Some(range)],
        loads: vec![f64::sqrt(low * high)],
        seeds: (0..DRAWS).map(|draw| seed::derive(experiment.seed(), "prior", draw)).collect(),
    };
    let bar = Runs::new();
    let mut chosen = None;
    run_matrix(world, &matrix, &bar, stop, &mut |rows| {
        chosen = rows.first().and_then(|row| row.chosen.clone());
        ControlFlow::Continue(())
    })?;
    bar.finish();
    Ok(chosen)
}

/// The controls as choices; a watermark between the levels an agent has cannot be favoured.
fn choices(controls: &Controls) -> anyhow::Result<Vec<u8>> {
    let Some(level) = WATERMARK_LEVELS.iter().position(|&level| level == controls.watermark) else {
        bail!("prior: watermark {} is none of {WATERMARK_LEVELS:?}", controls.watermark);
    };
    Ok(vec![level as u8, controls.victim as u8, controls.preemption as u8, controls.admission as u8])
}
