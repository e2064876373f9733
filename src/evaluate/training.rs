//! What a policy was trained on, held against what it is judged on: a policy judged on what it was trained on proves nothing,
//! and one judged in another world may prove little.

use std::collections::BTreeMap;
use std::fmt;

use kvtide_envs::deploy::without_clock;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Duration, Window, WorkloadError, to_whole_second};
use thiserror::Error;

use super::matrix::Matrix;
use crate::checkpoint::{self, CheckpointError};
use crate::experiment::{clocks_met_in_training, met_in_training};
use crate::export::{self, ExportError};
use crate::policy::PolicySpec;
use crate::world::World;

/// Why a policy cannot be judged in view of what it was trained on.
#[derive(Debug, Error)]
pub enum TrainedOnError {
    /// Under other rules, as for a host it was not made for: its choices mean something else here.
    #[error("{policy}: made for engine {trained}, and this is {judged}; its own is --engine {trained}")]
    Engine {
        /// The policy.
        policy: PolicySpec,
        /// The engine it was trained under.
        trained: String,
        /// The engine here.
        judged: String,
    },
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
        /// What differs: its name, there, and here.
        differs: Vec<(&'static str, String, String)>,
    },
    /// It was trained on the same card, whose steps took what another clock says.
    Clock {
        /// The policy.
        policy: PolicySpec,
        /// What they rested on there.
        trained: String,
        /// What they rest on here.
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
    /// It limits nothing that the engine's budget does not limit already.
    Idle {
        /// The policy.
        policy: PolicySpec,
        /// The budget.
        budget: u32,
    },
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::World { policy, differs } => {
                let one = |(key, trained, judged): &(&str, String, String)| {
                    format!("with {key} {trained} and is judged with {judged}")
                };
                write!(f, "{policy} was trained {}", differs.iter().map(one).collect::<Vec<String>>().join("; "))
            }
            Doubt::Clock { policy, trained, judged } => {
                write!(f, "{policy} was trained on this card by {trained} and is judged by {judged}")
            }
            Doubt::Seen { policy, seen, end } => write!(
                f,
                "{policy} was trained on {seen} of this trace, and a window judged overlaps it; judge what comes after \
                 with --window {}..{}",
                Duration(seen.end),
                Duration(*end)
            ),
            Doubt::Idle { policy, budget } => write!(
                f,
                "{policy} decides as default does where a step has {budget} tokens in all; it is made for more: --set \
                 max_num_batched_tokens=16384"
            ),
        }
    }
}

impl Doubt {
    /// Whether it is for those who ask for details: the card is the same.
    pub fn is_slight(&self) -> bool {
        matches!(self, Doubt::Clock { .. })
    }
}

/// Every reason to doubt what `matrix` says of `policies`.
///
/// # Errors
/// It cannot be said what one of them was trained on.
pub fn doubts(world: &World, matrix: &Matrix, policies: &[PolicySpec]) -> Result<Vec<Doubt>, TrainedOnError> {
    let mut doubts = Vec::new();
    for policy in policies {
        let budget = world.node.engine.max_num_batched_tokens;
        if matches!(policy.of_heads(), PolicySpec::PromptPressure(rule) if rule.tokens.get() >= budget) {
            doubts.push(Doubt::Idle { policy: policy.clone(), budget });
        }
        let Some(trained) = trained(policy)? else { continue };
        let differs: Vec<_> = world.conditions().into_iter().filter_map(|other| other_than(&trained, other)).collect();
        if !differs.is_empty() {
            doubts.push(Doubt::World { policy: policy.clone(), differs });
        }
        doubts.extend(other_clock(world, policy, &trained));
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

/// Refuses a policy that says it was trained under another engine than that of `world`.
///
/// # Errors
/// [`TrainedOnError::Engine`], or it cannot be said what it was trained on.
pub fn check_engine(world: &World, policy: &PolicySpec) -> Result<(), TrainedOnError> {
    let Some(trained) = trained(policy)? else { return Ok(()) };
    let mut engine = world.conditions().into_iter().filter(|(key, _)| *key == "engine");
    let differs = engine.find_map(|own| other_than(&trained, own));
    differs
        .map_or(Ok(()), |(_, trained, judged)| Err(TrainedOnError::Engine { policy: policy.clone(), trained, judged }))
}

/// A condition that was not met in training: its name, what was, and what is.
fn other_than(
    trained: &BTreeMap<String, String>,
    (key, judged): (&'static str, String),
) -> Option<(&'static str, String, String)> {
    let there = trained.get(key).filter(|there| !met_in_training(key, there, &judged))?;
    Some((key, there.clone(), judged))
}

/// That the card was met in training by other clocks only, if it was met and it is known by which.
fn other_clock(world: &World, policy: &PolicySpec, trained: &BTreeMap<String, String>) -> Option<Doubt> {
    let judged = world.deployment.hardware.clock_kind();
    let met = clocks_met_in_training(trained, without_clock(&world.deployment.name()))?;
    let trained: Vec<String> = met.iter().map(ToString::to_string).collect();
    (!met.is_empty() && !met.contains(&judged)).then(|| Doubt::Clock {
        policy: policy.clone(),
        trained: trained.join(" and "),
        judged: judged.to_string(),
    })
}

/// What a policy says it was trained on; `None` of one that was not.
fn trained(policy: &PolicySpec) -> Result<Option<BTreeMap<String, String>>, TrainedOnError> {
    Ok(match policy.of_heads() {
        PolicySpec::Checkpoint(path) => Some(checkpoint::inspect(path)?.metadata),
        PolicySpec::Table(path) => {
            let table = export::load_table(path)?;
            Some(table.metadata().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
        }
        _ => None,
    })
}
