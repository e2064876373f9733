//! The folder of a run: what has been found so far stands in one file, so that a run that was stopped goes on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kvtide_envs::files;
use serde::{Deserialize, Serialize};

use super::TuneError;
use super::effort::Effort;
use super::heads::ChosenHeads;
use super::loads::LoadRange;
use super::table::Shipped;
use super::traffic::{Cut, TrafficLook};
use crate::experiment::Method;
use crate::policy::PolicySpec;
use crate::world::WorldSpec;

/// The file that says that the folder is a run's, and how far it has come.
const STATE: &str = "tune.json";
/// What a run leaves beside it.
const LEFT: [&str; 10] = [
    "checkpoint",
    "policy",
    "tensorboard",
    "train.jsonl",
    "policy.kvt",
    "results.jsonl",
    "clocks.jsonl",
    "report.html",
    "experiment.toml",
    "verdict.json",
];

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// How much is spent.
    pub effort: Effort,
    /// Root of every stream.
    pub seed: u64,
    /// How a policy is found.
    pub method: Method,
    /// The heads to decide, where they are not to be chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Drawn clocks by which the table is judged once more; `None` for as many as the effort takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_spread: Option<u32>,
    /// What runs today.
    pub versus: PolicySpec,
    /// Traffic, node and targets.
    pub world: WorldSpec,
}

/// A run as far as it has come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Who wrote it: `kvtide tune`.
    made_by: String,
    /// What was asked for.
    pub settings: Settings,
    /// The command line that began it, for the page: how it was gone on with is no matter.
    #[serde(default)]
    pub command: String,
    /// Fingerprint of the traffic; `None` of a generator's.
    pub traffic: Option<String>,
    /// What was seen of it.
    pub look: TrafficLook,
    /// How it was cut.
    pub cut: Cut,
    /// The loads at which today's engine begins to fail.
    pub range: Option<LoadRange>,
    /// The heads chosen.
    pub heads: Option<ChosenHeads>,
    /// Whether training is done.
    pub is_trained: bool,
    /// The table that was written.
    pub shipped: Option<Shipped>,
    /// Whether there is a verdict.
    pub is_finished: bool,
}

const MADE_BY: &str = "kvtide tune";

impl Progress {
    /// Of a run that has only looked at its traffic.
    pub fn new(settings: Settings, command: &str, traffic: Option<String>, look: TrafficLook, cut: Cut) -> Progress {
        Progress {
            made_by: MADE_BY.to_owned(),
            settings,
            command: command.to_owned(),
            traffic,
            look,
            cut,
            range: None,
            heads: None,
            is_trained: false,
            shipped: None,
            is_finished: false,
        }
    }

    /// The one in `out`; `None` if there is nothing.
    ///
    /// # Errors
    /// The folder is not empty and no run's, or cannot be read.
    pub fn of(out: &Path) -> Result<Option<Progress>, TuneError> {
        let cannot = |source| TuneError::Folder { path: out.to_owned(), source };
        if !out.exists() || fs::read_dir(out).map_err(cannot)?.next().is_none() {
            return Ok(None);
        }
        let text = match fs::read_to_string(out.join(STATE)) {
            // Nobody's, or none of ours.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => String::new(),
            Err(source) => return Err(TuneError::Folder { path: out.join(STATE), source }),
            Ok(text) => text,
        };
        let progress: Option<Progress> = serde_json::from_str(&text).ok();
        progress
            .filter(|progress| progress.made_by == MADE_BY)
            .map_or_else(|| Err(TuneError::Foreign { path: out.to_owned() }), |progress| Ok(Some(progress)))
    }

    /// Takes what an earlier run has left out of `out`, or makes the folder, and begins this one there.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn begin(&self, out: &Path) -> Result<(), TuneError> {
        let cannot = |source| TuneError::Folder { path: out.to_owned(), source };
        fs::create_dir_all(out).map_err(cannot)?;
        for name in LEFT {
            let path = out.join(name);
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
                _ => {}
            }
        }
        self.save(out)
    }

    /// Keeps how far the run has come.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn save(&self, out: &Path) -> Result<(), TuneError> {
        let text = serde_json::to_string_pretty(self).expect("plain values") + "\n";
        write(&out.join(STATE), text.as_bytes())
    }
}

/// Makes sure that nothing `settings` read is among what a run takes out of `out` before it begins.
///
/// # Errors
/// [`TuneError::Swept`]
pub(super) fn spares(out: &Path, settings: &Settings) -> Result<(), TuneError> {
    let versus = match settings.versus.of_heads() {
        PolicySpec::Table(path) | PolicySpec::Checkpoint(path) => Some(("--versus", path)),
        _ => None,
    };
    let trace = settings.world.trace.as_ref().map(|path| ("--trace", path));
    for (option, read) in versus.into_iter().chain(trace) {
        let Ok(place) = read.canonicalize() else { continue };
        let swept =
            LEFT.iter().filter_map(|name| out.join(name).canonicalize().ok()).any(|left| place.starts_with(left));
        if swept {
            return Err(TuneError::Swept { option, read: read.clone(), out: out.to_owned() });
        }
    }
    Ok(())
}

/// Writes a file of a run, whole or not at all.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), TuneError> {
    files::replace(path, bytes).map_err(|source| TuneError::Folder { path: path.to_owned(), source })
}

/// Where a run goes if nobody says where: a folder named after its trace.
pub fn folder_of(world: &WorldSpec) -> PathBuf {
    let stem = world.trace.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let stem = stem.as_deref().and_then(|name| name.split('.').next()).filter(|stem| !stem.is_empty());
    Path::new("runs").join(stem.unwrap_or("tune"))
}
