//! What a checkpoint says of itself.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::imported::Origin;
use super::{ACTION_SET_HASH, ActionProfile, CheckpointError, FileContents, SCHEMA_HASH, parse};
use crate::agent::{Activation, Architecture, CrossEntropyConfig, PpoConfig, TrainerState};

/// Version of the folder's layout.
pub const FORMAT_VERSION: u64 = 1;

/// Where a run comes from, as far as the agent cannot know it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunProvenance {
    /// The heads that were trained.
    pub profile: ActionProfile,
    /// Commit of the source, if known.
    pub commit: Option<String>,
    /// The experiment file, as text; empty if there was none.
    pub experiment: String,
    /// Anything else worth knowing.
    pub metadata: BTreeMap<String, String>,
}

/// Length and digest of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Length, bytes.
    pub bytes: u64,
    /// BLAKE3, in hexadecimal.
    pub blake3: String,
}

/// `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT_VERSION`].
    pub format_version: u64,
    /// Version of the crate that wrote it.
    pub kvtide_version: String,
    /// Commit of the source, if known.
    pub commit: Option<String>,
    /// Seed of every stream of the run.
    pub seed: u64,
    /// Iterations done.
    pub iteration: u64,
    /// Decisions taken.
    pub decisions: u64,
    /// Length of an observation.
    pub observation_size: usize,
    /// Choices of each head.
    pub head_sizes: Vec<usize>,
    /// Name of the action profile.
    pub profile: String,
    /// Meaning of an observation: `kvtide_runtime::SCHEMA_HASH`, in hexadecimal.
    pub schema_hash: String,
    /// Meaning of an action: `kvtide_runtime::ACTION_SET_HASH`, in hexadecimal.
    pub action_set_hash: String,
    /// Settings of the agent. Of a cross-entropy search only `hidden`, which is empty, `prior` and `seed` mean anything.
    pub config: PpoConfig,
    /// Settings of the cross-entropy search, if that is how it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross_entropy: Option<CrossEntropyConfig>,
    /// Where it comes from, if it was trained elsewhere; of the settings only `hidden` and `seed` then mean anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Origin>,
    /// BLAKE3 of `config`, and `cross_entropy` if there is one, as compact JSON: equal for runs of equal settings.
    pub config_blake3: String,
    /// The experiment file, as text.
    pub experiment: String,
    /// Anything else worth knowing.
    pub metadata: BTreeMap<String, String>,
    /// The other files.
    pub files: BTreeMap<String, FileEntry>,
}

/// What a manifest says of the run itself.
pub(super) struct RunFacts<'a> {
    pub(super) config: &'a PpoConfig,
    pub(super) cross_entropy: Option<&'a CrossEntropyConfig>,
    pub(super) imported: Option<&'a Origin>,
    pub(super) iteration: u64,
    pub(super) decisions: u64,
    pub(super) architecture: &'a Architecture,
}

impl RunFacts<'_> {
    pub(super) fn of(state: &TrainerState) -> RunFacts<'_> {
        RunFacts {
            config: &state.config,
            cross_entropy: None,
            imported: None,
            iteration: state.iteration,
            decisions: state.decisions,
            architecture: state.weights.architecture(),
        }
    }
}

impl Manifest {
    pub(super) fn new(facts: &RunFacts<'_>, provenance: &RunProvenance, contents: &FileContents) -> Manifest {
        let RunFacts { config, cross_entropy, imported, iteration, decisions, architecture } = *facts;
        let entry = |bytes: &Vec<u8>| FileEntry { bytes: bytes.len() as u64, blake3: blake3::hash(bytes).to_string() };
        Manifest {
            format_version: FORMAT_VERSION,
            kvtide_version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: provenance.commit.clone(),
            seed: config.seed,
            iteration,
            decisions,
            observation_size: architecture.observation_size,
            head_sizes: architecture.head_sizes.clone(),
            profile: provenance.profile.name().to_owned(),
            schema_hash: hex(SCHEMA_HASH),
            action_set_hash: hex(ACTION_SET_HASH),
            config: config.clone(),
            cross_entropy: cross_entropy.cloned(),
            imported: imported.cloned(),
            config_blake3: config_digest(config, cross_entropy),
            experiment: provenance.experiment.clone(),
            metadata: provenance.metadata.clone(),
            files: contents.iter().map(|(name, bytes)| (name.clone(), entry(bytes))).collect(),
        }
    }

    /// The version is looked at first, so that a manifest of another one is refused for that and nothing else.
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Manifest, CheckpointError> {
        let found = parse::<Value>(path, bytes)?.get("format_version").and_then(Value::as_u64).unwrap_or(0);
        if found != FORMAT_VERSION {
            return Err(CheckpointError::FormatVersion { path: path.to_owned(), found, supported: FORMAT_VERSION });
        }
        let manifest: Manifest = parse(path, bytes)?;
        let search = manifest.cross_entropy.as_ref();
        let valid = manifest.config.validate().and(search.map_or(Ok(()), CrossEntropyConfig::validate));
        valid.map_err(|source| CheckpointError::Config { path: path.to_owned(), source })?;
        manifest.profile()?;
        let sizes = manifest.head_sizes.iter().chain([&manifest.observation_size]);
        if manifest.head_sizes.is_empty() || !sizes.into_iter().all(|size| (1..=4096).contains(size)) {
            let what = "observation_size and head_sizes must be in 1..=4096";
            return Err(CheckpointError::Inconsistent { path: path.to_owned(), what });
        }
        let seeds_agree =
            manifest.seed == manifest.config.seed && search.is_none_or(|search| search.seed == manifest.seed);
        if manifest.config_blake3 != config_digest(&manifest.config, search) || !seeds_agree {
            let what = "config_blake3 or seed is not the config's";
            return Err(CheckpointError::Inconsistent { path: path.to_owned(), what });
        }
        Ok(manifest)
    }

    /// How it was found, in a word.
    pub fn method(&self) -> &'static str {
        match (&self.cross_entropy, &self.imported) {
            (Some(_), _) => "cross-entropy",
            (None, Some(_)) => "imported",
            (None, None) => "ppo",
        }
    }

    /// What is between the layers of its network.
    pub fn activation(&self) -> Activation {
        self.imported.as_ref().map_or_else(Activation::default, |origin| origin.activation)
    }

    /// How it was found and on how much, in a few words: what a table made of it says of its teacher.
    pub fn taught_by(&self) -> String {
        match &self.imported {
            Some(Origin { framework, .. }) if self.decisions == 0 => format!("imported, {framework}"),
            Some(Origin { framework, .. }) => format!("imported, {framework}, {} decisions", self.decisions),
            None => format!("{}, {} decisions", self.method(), self.decisions),
        }
    }

    /// The heads that were trained.
    ///
    /// # Errors
    /// [`CheckpointError::Profile`]; never for a manifest that was loaded.
    pub fn profile(&self) -> Result<ActionProfile, CheckpointError> {
        ActionProfile::from_name(&self.profile)
            .ok_or_else(|| CheckpointError::Profile { path: super::MANIFEST.into(), name: self.profile.clone() })
    }

    /// What it was saved with.
    ///
    /// # Errors
    /// As [`Manifest::profile`].
    pub fn provenance(&self) -> Result<RunProvenance, CheckpointError> {
        Ok(RunProvenance {
            profile: self.profile()?,
            commit: self.commit.clone(),
            experiment: self.experiment.clone(),
            metadata: self.metadata.clone(),
        })
    }
}

pub(super) fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

fn config_digest(config: &PpoConfig, cross_entropy: Option<&CrossEntropyConfig>) -> String {
    let mut bytes = serde_json::to_vec(config).expect("plain data with string keys");
    if let Some(search) = cross_entropy {
        serde_json::to_writer(&mut bytes, search).expect("plain data with string keys");
    }
    blake3::hash(&bytes).to_string()
}
