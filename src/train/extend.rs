//! A run that goes on for longer than it was planned.

use std::fmt;
use std::path::Path;

use super::TrainError;
use crate::checkpoint::{self, Manifest};
use crate::experiment::{Experiment, Method};

/// That a run is to be longer than it was planned, or shorter, when it goes on.
#[derive(Debug, Clone, PartialEq)]
pub struct Extension {
    /// What is counted: `decisions` or `generations`.
    unit: &'static str,
    /// How many were planned.
    from: u64,
    /// How many are now.
    to: u64,
    /// How many are done.
    at: u64,
    /// What went by how many there would be: without any, the run is the one that was planned for as many from the beginning.
    schedules: Vec<&'static str>,
}

/// The metadata that says that a run is not one that was planned for as many from the beginning.
pub(super) const EXTENDED: &str = "extended";

impl Extension {
    /// What `experiment` asks for beyond what the checkpoint at `folder` was planned for; `None` if that is the same.
    ///
    /// # Errors
    /// The checkpoint cannot be read, or has come further than is asked for.
    pub fn of(folder: &Path, experiment: &Experiment) -> Result<Option<Extension>, TrainError> {
        let manifest = checkpoint::inspect(folder)?;
        let extension = match (experiment.method, &manifest.cross_entropy) {
            (Method::CrossEntropy, Some(search)) => Extension {
                unit: "generations",
                from: search.generations,
                to: experiment.cross_entropy.generations,
                at: manifest.iteration,
                schedules: (search.noise > 0.0).then_some("noise").into_iter().collect(),
            },
            _ => Extension {
                unit: "decisions",
                from: manifest.config.total_decisions,
                to: experiment.ppo.total_decisions,
                at: manifest.decisions,
                schedules: schedules(&manifest),
            },
        };
        if extension.to < extension.at {
            return Err(TrainError::Shorter { folder: folder.to_owned(), extension });
        }
        Ok((extension.from != extension.to).then_some(extension))
    }

    /// Whether the run is the one that was planned for as many from the beginning.
    pub fn is_exact(&self) -> bool {
        self.schedules.is_empty() || self.at == 0
    }

    /// What checkpoints say from here on, after what they said `before`; `None` where nothing went by how many there would be.
    pub(super) fn said(&self, before: Option<&String>) -> Option<String> {
        if self.is_exact() {
            return before.cloned();
        }
        let said = format!("from {} to {} {} after {}", self.from, self.to, self.unit, self.at);
        Some(before.map_or_else(|| said.clone(), |before| format!("{before}; {said}")))
    }

    /// Planned and done, for an error.
    pub(super) fn shorter(&self) -> String {
        let Extension { unit, to, at, .. } = self;
        format!("has {at} {unit} behind it, and {to} are fewer")
    }
}

fn schedules(manifest: &Manifest) -> Vec<&'static str> {
    let config = &manifest.config;
    let entropy = config.entropy_coef.start != config.entropy_coef.end;
    [(config.anneal, "learning_rate"), (entropy, "entropy_coef")]
        .into_iter()
        .filter_map(|(depends, name)| depends.then_some(name))
        .collect()
}

impl fmt::Display for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Extension { unit, from, to, schedules, .. } = self;
        write!(f, "going on to {to} {unit} instead of {from}: ")?;
        if self.is_exact() {
            return write!(f, "the run is the one planned for as many");
        }
        write!(
            f,
            "{} went by {from} until here and goes by {to} from here on, so that the run is not the one planned for {to}; its \
             checkpoints say so",
            schedules.join(" and ")
        )
    }
}
