//! Checkpoints of a cross-entropy search.

use std::path::Path;

use super::manifest::RunFacts;
use super::{CheckpointError, MANIFEST, Manifest, NORMALISER, RunProvenance, SEARCH, WEIGHTS};
use super::{decision_parts, json, listed, open, parse, tensors, write};
use crate::agent::normalise::Normalisers;
use crate::agent::{PpoConfig, SearchProgress, SearchState};

/// Writes a checkpoint to go on from, as [`save`](super::save) does. To decide with, it is one like any other.
///
/// # Errors
/// [`CheckpointError::Write`].
///
/// # Panics
/// If the state contradicts itself, which none does that a search gave or [`load_search`] read.
pub fn save_search(path: &Path, state: &SearchState, provenance: &RunProvenance) -> Result<(), CheckpointError> {
    write_search(path, state, provenance, Some((SEARCH.to_owned(), json(&state.progress))))
}

/// Writes only what is needed to decide with, as [`save_policy`](super::save_policy) does.
///
/// # Errors
/// [`CheckpointError::Write`].
///
/// # Panics
/// As [`save_search`].
pub fn save_search_policy(path: &Path, state: &SearchState, provenance: &RunProvenance) -> Result<(), CheckpointError> {
    write_search(path, state, provenance, None)
}

fn write_search(
    path: &Path,
    state: &SearchState,
    provenance: &RunProvenance,
    progress: Option<(String, Vec<u8>)>,
) -> Result<(), CheckpointError> {
    let weights = state.weights().expect("a search gives whole states");
    let normalisers = Normalisers { observation: Some(state.moments.clone()), reward: None };
    let mut contents = super::FileContents::from([
        (WEIGHTS.to_owned(), tensors::encode_weights(&weights)),
        (NORMALISER.to_owned(), json(&normalisers)),
    ]);
    contents.extend(progress);
    // Of the settings of PPO only these mean anything.
    let config = PpoConfig {
        hidden: Vec::new(),
        prior: Some(state.prior.clone()),
        seed: state.config.seed,
        normalise_rewards: false,
        ..PpoConfig::default()
    };
    let facts = RunFacts {
        config: &config,
        cross_entropy: Some(&state.config),
        imported: None,
        iteration: state.progress.generation,
        decisions: state.progress.decisions,
        architecture: weights.architecture(),
    };
    write(path, &facts, provenance, contents)
}

/// Reads and checks a checkpoint of a search, to go on from it.
///
/// # Errors
/// As [`load`](super::load); [`CheckpointError::NotListed`] for one of another kind.
pub fn load_search(path: &Path) -> Result<(SearchState, Manifest), CheckpointError> {
    let (path, manifest, contents) = open(path)?;
    let progress: SearchProgress = parse(&path.join(SEARCH), listed(&path, &contents, SEARCH)?)?;
    let inconsistent = |name: &str, what| CheckpointError::Inconsistent { path: path.join(name), what };
    let (Some(config), Some(prior)) = (manifest.cross_entropy.clone(), manifest.config.prior.clone()) else {
        return Err(inconsistent(MANIFEST, "lists a search but not its settings"));
    };
    let (weights, normalisers) = decision_parts(&path, &manifest, &contents)?;
    let moments = normalisers.observation.ok_or_else(|| inconsistent(NORMALISER, "a search has moments"))?;
    if (progress.generation, progress.decisions) != (manifest.iteration, manifest.decisions) {
        return Err(inconsistent(SEARCH, "generation and decisions are not the manifest's"));
    }
    let sound = progress.distribution.is_sound();
    let state = SearchState { config, prior, moments, progress };
    if !sound || state.weights().as_ref() != Some(&weights) {
        return Err(inconsistent(SEARCH, "the distribution is not that of the weights"));
    }
    Ok((state, manifest))
}
