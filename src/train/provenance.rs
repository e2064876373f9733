//! Where a run comes from: what its checkpoints say of it, and what is read back when it goes on.

use std::collections::BTreeMap;
use std::path::Path;

use super::TrainError;
use crate::agent::PpoConfig;
use crate::checkpoint::{self, RunProvenance};
use crate::experiment::Experiment;
use crate::world::World;

/// What checkpoints of `experiment` in `world` say of it.
pub(super) fn provenance(experiment: &Experiment, world: &World) -> Result<RunProvenance, TrainError> {
    let mut metadata: BTreeMap<String, String> = experiment.conditions(world)?;
    metadata.insert("name".to_owned(), experiment.name.clone());
    metadata.insert("trace".to_owned(), world.trace.clone());
    if let Some(fallback) = experiment.fallback {
        metadata.insert("fallback".to_owned(), fallback.to_string());
    }
    // Of a recorded trace, what was seen; a generator never gives the same traffic twice.
    if let Some(fingerprint) = world.fingerprint() {
        metadata.insert("traffic".to_owned(), fingerprint);
        metadata.insert("fit_range".to_owned(), experiment.fit_range(world)?.to_string());
    }
    Ok(RunProvenance {
        profile: experiment.profile(),
        commit: option_env!("KVTIDE_COMMIT").map(str::to_owned),
        experiment: experiment.to_toml(),
        metadata,
    })
}

/// The experiment of the checkpoint at `folder`.
///
/// # Errors
/// The checkpoint cannot be read, or its experiment is none.
pub fn experiment_of(folder: &Path) -> Result<Experiment, TrainError> {
    let manifest = checkpoint::inspect(folder)?;
    Experiment::parse(&manifest.experiment)
        .map_err(|reason| TrainError::Unreadable { folder: folder.to_owned(), reason })
}

/// The experiment that a run goes on with from the checkpoint at `folder`: the one saved there, as it was when training
/// started.
///
/// # Errors
/// As [`experiment_of`], and [`TrainError::OtherExperiment`] if one is given that is not that one.
pub fn resumed(folder: &Path, given: Option<Experiment>) -> Result<Experiment, TrainError> {
    let saved = experiment_of(folder)?;
    // The prior and the fallback were filled in when training started.
    let same = |given: Experiment| {
        let (prior, fallback) = (saved.ppo.prior.clone(), given.fallback.or(saved.fallback));
        saved == Experiment { ppo: PpoConfig { prior, ..given.ppo.clone() }, fallback, ..given }
    };
    if given.is_some_and(|given| !same(given)) {
        return Err(TrainError::OtherExperiment { folder: folder.to_owned() });
    }
    Ok(saved)
}

/// Refuses traffic other than the checkpoint at `folder` was trained on.
///
/// # Errors
/// [`TrainError::OtherTraffic`]; the checkpoint cannot be read.
pub fn same_traffic(world: &World, folder: &Path) -> Result<(), TrainError> {
    let trained = checkpoint::inspect(folder)?.metadata.get("traffic").cloned();
    if trained == world.fingerprint() {
        return Ok(());
    }
    Err(TrainError::OtherTraffic { folder: folder.to_owned(), trace: world.trace.clone() })
}
