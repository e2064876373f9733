//! Where a run comes from: what its checkpoints say of it, and what is read back when it goes on.

use std::collections::BTreeMap;
use std::path::Path;

use super::TrainError;
use crate::checkpoint::{self, RunProvenance};
use crate::experiment::{Experiment, Method};
use crate::world::World;

/// What checkpoints of `experiment` in `world` say of it.
pub(crate) fn provenance(experiment: &Experiment, world: &World) -> Result<RunProvenance, TrainError> {
    let mut metadata: BTreeMap<String, String> = experiment.conditions(world)?;
    metadata.insert("name".to_owned(), experiment.name.clone());
    metadata.insert("trace".to_owned(), world.trace.clone());
    if let Some(fallback) = experiment.fallback {
        metadata.insert("fallback".to_owned(), fallback.to_string());
    }
    if let Some(clocks) = experiment.clocks(world)? {
        metadata.insert("clocks".to_owned(), clocks);
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
        .map(|experiment| experiment.as_sealed(&manifest.metadata))
        .map_err(|reason| TrainError::Unreadable { folder: folder.to_owned(), reason })
}

/// The experiment that a run goes on with from the checkpoint at `folder`: the one saved there, as it was when training
/// started.
///
/// # Errors
/// As [`experiment_of`], and [`TrainError::OtherExperiment`] if one is given that is not that one.
pub fn resumed(folder: &Path, given: Option<Experiment>) -> Result<Experiment, TrainError> {
    resumed_to(folder, given, None)
}

/// As [`resumed`], with `total` decisions, or generations of a search, if it is to be of another length: see
/// [`Extension`](super::Extension).
///
/// # Errors
/// As [`resumed`].
pub fn resumed_to(folder: &Path, given: Option<Experiment>, total: Option<u64>) -> Result<Experiment, TrainError> {
    let mut saved = experiment_of(folder)?;
    if let Some(given) = given {
        // A file names a card as it did when training started.
        let mut given = given.as_sealed(&checkpoint::inspect(folder)?.metadata);
        // The prior and the fallback were filled in when training started.
        given.ppo.prior.clone_from(&saved.ppo.prior);
        given.fallback = given.fallback.or(saved.fallback);
        if total.is_some() {
            set_total(&mut given, *total_of(&mut saved));
        }
        if given != saved {
            let (key, saved, given) = difference(&saved, &given);
            return Err(TrainError::OtherExperiment { folder: folder.to_owned(), key, saved, given });
        }
    }
    if let Some(total) = total {
        set_total(&mut saved, total);
    }
    Ok(saved)
}

/// How long a run of an experiment is, as its method counts.
fn total_of(experiment: &mut Experiment) -> &mut u64 {
    match experiment.method {
        Method::Ppo => &mut experiment.ppo.total_decisions,
        Method::CrossEntropy => &mut experiment.cross_entropy.generations,
    }
}

fn set_total(experiment: &mut Experiment, total: u64) {
    *total_of(experiment) = total;
}

/// The first key that two experiments differ in, and what it is in each.
fn difference(saved: &Experiment, given: &Experiment) -> (String, String, String) {
    let table = |experiment: &Experiment| experiment.to_toml().parse::<toml::Table>().unwrap_or_default();
    let (mut ours, mut theirs) = (BTreeMap::new(), BTreeMap::new());
    flatten("", &toml::Value::Table(table(saved)), &mut ours);
    flatten("", &toml::Value::Table(table(given)), &mut theirs);
    let said =
        |map: &BTreeMap<String, String>, key: &String| map.get(key).cloned().unwrap_or_else(|| "none".to_owned());
    let mut keys = ours.keys().chain(theirs.keys());
    let key = keys.find(|key| ours.get(*key) != theirs.get(*key)).cloned().unwrap_or_default();
    (key.clone(), said(&ours, &key), said(&theirs, &key))
}

/// `a.b = 1`, `a.c[0] = 2`.
fn flatten(name: &str, value: &toml::Value, into: &mut BTreeMap<String, String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let dot = if name.is_empty() { "" } else { "." };
                flatten(&format!("{name}{dot}{key}"), value, into);
            }
        }
        toml::Value::Array(values) if values.iter().any(toml::Value::is_table) => {
            for (index, value) in values.iter().enumerate() {
                flatten(&format!("{name}[{index}]"), value, into);
            }
        }
        other => drop(into.insert(name.to_owned(), other.to_string())),
    }
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
