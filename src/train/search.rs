//! `kvtide train` where the method is cross-entropy search.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use kvtide_envs::env::ServingArena;

use super::keep::Keeper;
use super::train::{TrainError, checkpoint_of, policy_of, provenance};
use crate::agent::{CrossEntropy, Outcome};
use crate::checkpoint;
use crate::experiment::Experiment;
use crate::record::Recorder;
use crate::world::World;

/// Searches into `out` until done or `stop` is set; either way a checkpoint is left.
pub(super) fn train(
    experiment: &Experiment,
    world: &World,
    out: &Path,
    resume: bool,
    checkpoint_every: u64,
    stop: &AtomicBool,
) -> anyhow::Result<Outcome> {
    let arena = Box::new(ServingArena::new(&experiment.env_config(world)?)?);
    let (folder, profile) = (checkpoint_of(out), experiment.profile());
    let mut search = if resume {
        CrossEntropy::resume(checkpoint::load_search(&folder)?.0, profile, arena)
            .with_context(|| folder.display().to_string())?
    } else {
        let (config, ppo) = (experiment.cross_entropy.clone(), &experiment.ppo);
        CrossEntropy::new(config, ppo.prior.clone(), &ppo.blind, profile, arena)?
    };
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let provenance = provenance(experiment, world)?;
    let mut recorder = Recorder::of_search(out, search.state())
        .with_context(|| format!("cannot write logs into {}", out.display()))?;
    let mut keeper = Keeper::new(experiment, world, policy_of(out), resume)?;
    if !resume && let Some(judgement) = keeper.look(&search, &provenance)? {
        recorder.line("validation", &judgement)?;
    }
    let outcome = search.run(stop, |search, report| -> Result<(), TrainError> {
        recorder.generation(report)?;
        if let Some(judgement) = keeper.look(search, &provenance)? {
            recorder.line("validation", &judgement)?;
        }
        if report.generation.is_multiple_of(checkpoint_every.max(1)) {
            checkpoint::save_search(&folder, search.state(), &provenance)?;
        }
        Ok(())
    });
    recorder.finish();
    let outcome = outcome.with_context(|| format!("searching into {}", out.display()))?;
    checkpoint::save_search(&folder, search.state(), &provenance)?;
    Ok(outcome)
}
