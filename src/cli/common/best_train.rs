//! `--policy best-train`: which training it is the best constant of, and the search for it.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};

use super::progress::Runs;
use crate::evaluate::Kept;
use crate::experiment::Experiment;
use crate::policy::{PolicyName, PolicySpec, Subject};
use crate::train::{self, BestTrain};
use crate::world::World;

/// A policy to be looked for, by its place, and the training it is to be best on.
pub(in crate::cli) struct Sought {
    place: usize,
    experiment: Experiment,
}

/// Those of `policies` that are to be looked for.
pub(in crate::cli) fn sought(policies: &[(PolicyName, Subject)]) -> anyhow::Result<Vec<Sought>> {
    let asked = policies.iter().enumerate().filter_map(|(place, (name, _))| match name.spec() {
        PolicySpec::BestTrain(path) => Some((place, name, path.as_deref())),
        _ => None,
    });
    asked
        .map(|(place, name, path)| {
            let experiment = experiment(policies, path).with_context(|| name.to_string())?;
            Ok(Sought { place, experiment })
        })
        .collect()
}

/// What an evaluation is of, where it has such policies.
pub(in crate::cli) fn identity(policies: &[(PolicyName, Subject)], sought: &[Sought]) -> Vec<(String, String)> {
    let digest = |text: &str| blake3::hash(text.as_bytes()).to_hex()[..16].to_owned();
    let said = |Sought { place, experiment }: &Sought| {
        (format!("the training of {}", policies[*place].0), digest(&experiment.to_toml()))
    };
    sought.iter().map(said).collect()
}

/// Looks for them, unless they are `kept`, puts them in their places, and says which they are; false if stopped.
pub(in crate::cli) fn choose(
    sought: Vec<Sought>,
    policies: &mut [(PolicyName, Subject)],
    world: &World,
    kept: &Kept,
    (bar, stop): (&Runs, &AtomicBool),
) -> anyhow::Result<bool> {
    for Sought { place, experiment } in sought {
        let (name, subject) = &mut policies[place];
        if let Some(controls) = kept.choice(name) {
            *subject = Subject::Chosen(controls);
            continue;
        }
        bar.phase("looking for the best constant on training traffic");
        let found = train::best_train(&experiment, world, bar, stop).with_context(|| name.to_string())?;
        let Some(BestTrain { controls, experiment, traffic }) = found else { return Ok(false) };
        say!(
            "{name} is {}, the best constant on what {experiment} trains on: {}",
            PolicySpec::Fixed(controls),
            traffic.join("; ")
        );
        *subject = Subject::Chosen(controls);
        subject.check(name, &world.node)?;
    }
    Ok(true)
}

/// The experiment at `path`, or of the first table or checkpoint among `policies`.
fn experiment(policies: &[(PolicyName, Subject)], path: Option<&Path>) -> anyhow::Result<Experiment> {
    let beside = policies.iter().find_map(|(name, _)| match name.spec().of_heads() {
        PolicySpec::Table(path) | PolicySpec::Checkpoint(path) => Some(path.as_path()),
        _ => None,
    });
    let Some(path) = path.or(beside) else {
        bail!(
            "best on which training? best-train:EXPERIMENT.toml, or the folder of a checkpoint, or evaluate a table that has one \
             beside it"
        );
    };
    if path.extension().is_some_and(|extension| extension == "toml") {
        return Ok(Experiment::load(path)?);
    }
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let places: [PathBuf; 3] = [folder.to_owned(), train::policy_of(folder), train::checkpoint_of(folder)];
    let Some(checkpoint) = places.iter().find(|place| place.join("manifest.json").is_file()) else {
        bail!(
            "{}: no checkpoint is there that says what it was trained on; name one, or best-train:EXPERIMENT.toml",
            folder.display()
        );
    };
    Ok(train::experiment_of(checkpoint)?)
}
