//! What a policy was trained on, held against what it is judged on: a policy judged on what it was trained on proves nothing,
//! and one judged in another world may prove little.

use std::collections::BTreeMap;
use std::fmt;

use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Duration, Window, WorkloadError, to_whole_second};
use thiserror::Error;

use super::matrix::Matrix;
use crate::checkpoint::{self, CheckpointError};
use crate::experiment::met_in_training;
use crate::export::{self, ExportError};
use crate::policy::PolicySpec;
use crate::world::World;

/// Why it cannot be said what a policy was trained on.
#[derive(Debug, Error)]
pub enum TrainedOnError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The table cannot be read.
    #[error(transparent)]
    Table(#[from] ExportError),
    /// The traffic has no length.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

/// A reason to doubt a judgement.
#[derive(Debug, Clone, PartialEq)]
pub enum Doubt {
    /// It was trained in another world.
    World {
        /// The policy.
        policy: PolicySpec,
        /// What differs.
        key: &'static str,
        /// There.
        trained: String,
        /// Here.
        judged: String,
    },
    /// It has seen a part of what it is judged on.
    Seen {
        /// The policy.
        policy: PolicySpec,
        /// What it has seen.
        seen: Window,
        /// Where the traffic ends, to the next whole second.
        end: Micros,
    },
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::World { policy, key, trained, judged } => {
                write!(f, "{policy} was trained with {key} {trained} and is judged with {judged}")
            }
            Doubt::Seen { policy, seen, end } => write!(
                f,
                "{policy} was trained on {seen} of this trace, and a window judged overlaps it; judge what comes after \
                 with --window {}..{}",
                Duration(seen.end),
                Duration(*end)
            ),
        }
    }
}

/// Every reason to doubt what `matrix` says of `policies`.
///
/// # Errors
/// It cannot be said what one of them was trained on.
pub fn doubts(world: &World, matrix: &Matrix, policies: &[PolicySpec]) -> Result<Vec<Doubt>, TrainedOnError> {
    let mut doubts = Vec::new();
    for policy in policies {
        let Some(trained) = trained(policy)? else { continue };
        for (key, judged) in world.conditions() {
            if let Some(there) = trained.get(key).filter(|there| !met_in_training(there, &judged)) {
                doubts.push(Doubt::World { policy: policy.clone(), key, trained: there.clone(), judged });
            }
        }
        let same_trace = world.fingerprint().is_some_and(|fingerprint| trained.get("traffic") == Some(&fingerprint));
        let seen = trained.get("fit_range").filter(|_| same_trace).map(|text| text.parse::<Window>());
        let Some(Ok(seen)) = seen else { continue };
        let overlaps =
            |window: &Option<Window>| window.is_none_or(|window| window.start < seen.end && seen.start < window.end);
        if matrix.windows.iter().any(overlaps) {
            doubts.push(Doubt::Seen { policy: policy.clone(), seen, end: to_whole_second(world.span()?) });
        }
    }
    Ok(doubts)
}

/// What a policy says it was trained on; `None` of one that was not.
fn trained(policy: &PolicySpec) -> Result<Option<BTreeMap<String, String>>, TrainedOnError> {
    Ok(match policy {
        PolicySpec::Checkpoint(path) => Some(checkpoint::inspect(path)?.metadata),
        PolicySpec::Table(path) => {
            let table = export::load_table(path)?;
            Some(table.metadata().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
        }
        _ => None,
    })
}
