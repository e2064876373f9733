//! A training run between two iterations, as a self-describing folder.
//!
//! | file | holds |
//! |---|---|
//! | `manifest.json` | [`Manifest`]: versions, seed, settings, schema hashes, and length and BLAKE3 of every file below |
//! | `manifest.b3` | BLAKE3 of `manifest.json`, as `b3sum --check` reads it |
//! | `weights.safetensors` | actor and critic, `f32`, named as [`Architecture::parameters`] says; `start.weight` and `start.bias` of the linear policy that learning started from, if any |
//! | `normaliser.json` | [`Normalisers`] |
//! | `optimiser.safetensors` | Adam's moments `first.*` and `second.*`, and its `step` |
//! | `trainer.json` | iteration, decisions, and the environments as they save themselves |
//! | `search.json` | [`SearchProgress`](crate::agent::SearchProgress), of a cross-entropy search, in the place of the two above |
//!
//! A folder to decide with needs only the first four ([`save_policy`]); files the manifest does not name (a table, a
//! model card) are left alone. Nothing is believed before it was checked, and every rejection is a named
//! [`CheckpointError`]. No file holds a clock or a path, so equal runs leave equal bytes.

mod describe;
mod error;
mod folder;
mod imported;
mod manifest;
mod search;
mod tensors;
mod trainer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvtide_runtime::{ACTION_SET_HASH, ActionProfile, SCHEMA_HASH};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::agent::normalise::{Moments, Normalisers};
use crate::agent::{Architecture, LinearStart, TrainerState, Weights};

pub use crate::agent::NetworkPolicy;
pub use error::CheckpointError;
pub use imported::{ImportedPolicy, Origin, save_imported};
pub use manifest::{FORMAT_VERSION, FileEntry, Manifest, RunProvenance};
pub use search::{load_search, save_search, save_search_policy};
pub use trainer::load_trainer;

use manifest::RunFacts;

const MANIFEST: &str = "manifest.json";
const SEAL: &str = "manifest.b3";
const WEIGHTS: &str = "weights.safetensors";
const NORMALISER: &str = "normaliser.json";
const OPTIMISER: &str = "optimiser.safetensors";
const TRAINER: &str = "trainer.json";
const SEARCH: &str = "search.json";

/// The files a checkpoint consists of.
pub const FILES: [&str; 7] = [MANIFEST, SEAL, WEIGHTS, NORMALISER, OPTIMISER, TRAINER, SEARCH];

/// No file of a checkpoint is larger: 256 MiB, some five thousand times the default network.
const MAX_FILE_BYTES: u64 = 256 << 20;

type FileContents = BTreeMap<String, Vec<u8>>;

/// A checkpoint read and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Where it was found: the folder asked for, or the one beside it that an interrupted [`save`] left.
    pub path: PathBuf,
    /// What it says of itself.
    pub manifest: Manifest,
    /// The run.
    pub state: TrainerState,
}

/// The part of a run that no other file holds.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunState {
    iteration: u64,
    decisions: u64,
    env: serde_json::Value,
}

/// Writes a checkpoint to go on from, replacing the one at `path`.
///
/// The folder is written beside `path` and renamed: whenever the machine stops, one whole checkpoint is left, and [`load`]
/// finds it.
///
/// # Errors
/// [`CheckpointError::Write`].
pub fn save(path: &Path, state: &TrainerState, provenance: &RunProvenance) -> Result<(), CheckpointError> {
    let progress = RunState { iteration: state.iteration, decisions: state.decisions, env: state.env.clone() };
    let mut contents = decision_files(state);
    contents.insert(OPTIMISER.to_owned(), tensors::encode_optimiser(state.weights.architecture(), &state.optimiser));
    contents.insert(TRAINER.to_owned(), json(&progress));
    write(path, &RunFacts::of(state), provenance, contents)
}

/// As [`save`], but only what is needed to decide: nothing can be resumed from it.
///
/// # Errors
/// [`CheckpointError::Write`].
pub fn save_policy(path: &Path, state: &TrainerState, provenance: &RunProvenance) -> Result<(), CheckpointError> {
    write(path, &RunFacts::of(state), provenance, decision_files(state))
}

/// Reads and checks a whole checkpoint.
///
/// # Errors
/// Any [`CheckpointError`] but [`CheckpointError::Write`]; [`CheckpointError::NotListed`] for one that [`save_policy`]
/// wrote.
pub fn load(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let (path, manifest, contents) = open(path)?;
    let (weights, normalisers) = decision_parts(&path, &manifest, &contents)?;
    let optimiser =
        tensors::decode_optimiser(&path.join(OPTIMISER), listed(&path, &contents, OPTIMISER)?, weights.architecture())?;
    let progress: RunState = parse(&path.join(TRAINER), listed(&path, &contents, TRAINER)?)?;
    if (progress.iteration, progress.decisions) != (manifest.iteration, manifest.decisions) {
        return Err(CheckpointError::Inconsistent {
            path: path.join(TRAINER),
            what: "iteration and decisions are not the manifest's",
        });
    }
    let state = TrainerState {
        config: manifest.config.clone(),
        iteration: progress.iteration,
        decisions: progress.decisions,
        weights,
        optimiser,
        normalisers,
        env: progress.env,
    };
    Ok(Checkpoint { path, manifest, state })
}

/// Reads a checkpoint of either kind to decide with. Needs no environment and no libtorch.
///
/// # Errors
/// As [`load`], and [`CheckpointError::Agent`] if its network is not over kvtide's observation and action.
pub fn load_policy(path: &Path) -> Result<NetworkPolicy, CheckpointError> {
    let (path, manifest, contents) = open(path)?;
    let (weights, normalisers) = decision_parts(&path, &manifest, &contents)?;
    NetworkPolicy::new(&weights, normalisers.observation.as_ref(), manifest.profile()?)
        .map(|policy| policy.activated_by(manifest.activation()))
        .map_err(|source| CheckpointError::Agent { path, source })
}

/// Reads a checkpoint of a linear policy to start another one from: its actor, and the moments its observations are standardised
/// by. `None` if it is not linear in the standardised observation.
///
/// # Errors
/// As [`load`].
pub fn load_start(path: &Path) -> Result<Option<(LinearStart, Moments)>, CheckpointError> {
    let (path, manifest, contents) = open(path)?;
    let (weights, normalisers) = decision_parts(&path, &manifest, &contents)?;
    Ok(normalisers.observation.and_then(|moments| Some((weights.linear()?, moments))))
}

/// Reads and checks what a checkpoint of either kind says of itself, its files included, whatever schema and action set it was
/// made for: it is looked at, and decides nothing.
///
/// # Errors
/// As [`load`], but for [`CheckpointError::Schema`].
pub fn inspect(path: &Path) -> Result<Manifest, CheckpointError> {
    find(path).map(|(_, manifest, _)| manifest)
}

fn decision_files(state: &TrainerState) -> FileContents {
    FileContents::from([
        (WEIGHTS.to_owned(), tensors::encode_weights(&state.weights)),
        (NORMALISER.to_owned(), json(&state.normalisers)),
    ])
}

fn write(
    path: &Path,
    facts: &RunFacts<'_>,
    provenance: &RunProvenance,
    mut contents: FileContents,
) -> Result<(), CheckpointError> {
    let manifest = json(&Manifest::new(facts, provenance, &contents));
    let seal = format!("{}  {MANIFEST}\n", blake3::hash(&manifest));
    contents.insert(SEAL.to_owned(), seal.into_bytes());
    contents.insert(MANIFEST.to_owned(), manifest);
    folder::replace(path, &contents, |found| read(found).is_ok())
}

/// The whole checkpoint at `path`, made for this build's schema and action set.
fn open(path: &Path) -> Result<(PathBuf, Manifest, FileContents), CheckpointError> {
    let (found, manifest, contents) = find(path)?;
    for (what, made_for, expected) in [
        ("schema_hash", &manifest.schema_hash, manifest::hex(SCHEMA_HASH)),
        ("action_set_hash", &manifest.action_set_hash, manifest::hex(ACTION_SET_HASH)),
    ] {
        if *made_for != expected {
            let (path, found) = (found.join(MANIFEST), made_for.clone());
            return Err(CheckpointError::Schema { path, what, found, expected });
        }
    }
    Ok((found, manifest, contents))
}

/// The whole checkpoint at `path`, or where an interrupted replacement left it.
fn find(path: &Path) -> Result<(PathBuf, Manifest, FileContents), CheckpointError> {
    let found = folder::find(path, |found| read(found).is_ok())?;
    let (manifest, contents) = read(&found)?;
    Ok((found, manifest, contents))
}

/// Checks, in this order: the manifest's own digest and version, and every listed file.
fn read(folder: &Path) -> Result<(Manifest, FileContents), CheckpointError> {
    let path = folder.join(MANIFEST);
    let manifest = folder::read(&path, MAX_FILE_BYTES)?;
    let seal_path = folder.join(SEAL);
    let expected = format!("{}  {MANIFEST}\n", blake3::hash(&manifest));
    let seal = folder::read(&seal_path, MAX_FILE_BYTES)?;
    if seal != expected.as_bytes() {
        return Err(CheckpointError::Digest {
            path,
            found: blake3::hash(&manifest).to_string(),
            expected: String::from_utf8_lossy(&seal).split(' ').next().unwrap_or_default().to_owned(),
        });
    }
    let manifest = Manifest::parse(&path, &manifest)?;
    let mut contents = FileContents::new();
    for (name, entry) in &manifest.files {
        if ![WEIGHTS, NORMALISER, OPTIMISER, TRAINER, SEARCH].contains(&name.as_str()) {
            return Err(CheckpointError::UnknownFile { path, name: name.clone() });
        }
        let path = folder.join(name);
        let bytes = folder::read(&path, MAX_FILE_BYTES)?;
        let found = blake3::hash(&bytes).to_string();
        if found != entry.blake3 || bytes.len() as u64 != entry.bytes {
            return Err(CheckpointError::Digest { path, found, expected: entry.blake3.clone() });
        }
        contents.insert(name.clone(), bytes);
    }
    Ok((manifest, contents))
}

fn decision_parts(
    folder: &Path,
    manifest: &Manifest,
    contents: &FileContents,
) -> Result<(Weights, Normalisers), CheckpointError> {
    let architecture = Architecture {
        observation_size: manifest.observation_size,
        hidden: manifest.config.hidden.clone(),
        head_sizes: manifest.head_sizes.clone(),
    };
    let weights = tensors::decode_weights(&folder.join(WEIGHTS), listed(folder, contents, WEIGHTS)?, architecture)?;
    let path = folder.join(NORMALISER);
    let normalisers: Normalisers = parse(&path, listed(folder, contents, NORMALISER)?)?;
    let moments = [normalisers.observation.as_ref(), normalisers.reward.as_ref().map(|scaler| &scaler.moments)];
    let lengths = [manifest.observation_size, 1];
    let sound = |(moments, &length): (Option<&crate::agent::normalise::Moments>, &usize)| {
        moments.is_none_or(|moments| moments.is_sound() && moments.mean.len() == length)
    };
    if !moments.into_iter().zip(&lengths).all(sound) {
        return Err(CheckpointError::Inconsistent {
            path,
            what: "moments are not finite or not of the manifest's size",
        });
    }
    Ok((weights, normalisers))
}

fn listed<'a>(folder: &Path, contents: &'a FileContents, name: &str) -> Result<&'a [u8], CheckpointError> {
    contents
        .get(name)
        .map(Vec::as_slice)
        .ok_or_else(|| CheckpointError::NotListed { path: folder.join(MANIFEST), name: name.to_owned() })
}

fn json(value: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("plain data with string keys");
    text.push(b'\n');
    text
}

fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, CheckpointError> {
    serde_json::from_slice(bytes).map_err(|source| CheckpointError::Json { path: path.to_owned(), source })
}
