//! Runs of an evaluation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvtide_envs::env::Controller;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{answer, asked, in_words};
use crate::crew::{CrewError, Setting, shipped_name};
use crate::policy::{PolicySpec, Subject};
use crate::world::{Errand, World, WorldSpec};

/// What runs of an evaluation have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixWork {
    /// Traffic, node and targets, the files by the names under which they are shipped.
    pub world: WorldSpec,
    /// Policies that are read from files, by what errands call them.
    pub policies: BTreeMap<String, PolicySpec>,
    /// Whether tables are judged behind their guards.
    pub is_guarded: bool,
    /// The fingerprint of the traffic, which workers must come to as well.
    pub traffic: Option<String>,
}

/// A world ready to be served.
pub(super) struct Matrix {
    world: World,
    policies: BTreeMap<String, Subject>,
}

impl MatrixWork {
    /// The setting of runs of `policies` in the world of `spec`.
    ///
    /// # Errors
    /// A file cannot be read or sent.
    pub fn setting(
        spec: &WorldSpec,
        world: &World,
        policies: &[PolicySpec],
        is_guarded: bool,
    ) -> Result<Setting, CrewError> {
        let mut files = Vec::new();
        let shipped = spec.clone().shipped(&mut files)?;
        let mut named = BTreeMap::new();
        for policy in policies {
            if let Some(shipped) = shipped_policy(policy, &mut files)? {
                named.insert(policy.to_string(), shipped);
            }
        }
        let work = MatrixWork { world: shipped, policies: named, is_guarded, traffic: world.fingerprint() };
        Setting::new(&json!({"matrix": work}), &files)
    }
}

/// A policy by the name its files are shipped under; `None` of one that is not read from any.
fn shipped_policy(policy: &PolicySpec, files: &mut Vec<PathBuf>) -> Result<Option<PolicySpec>, CrewError> {
    let mut shipped = |path: &Path| {
        files.push(path.to_owned());
        shipped_name(path).map_err(|error| CrewError(format!("{}: {error}", path.display())))
    };
    Ok(Some(match policy {
        PolicySpec::Table(path) => PolicySpec::Table(shipped(path)?),
        PolicySpec::Checkpoint(path) => PolicySpec::Checkpoint(shipped(path)?),
        PolicySpec::Retaining(policy, classes) => match shipped_policy(policy, files)? {
            Some(policy) => PolicySpec::Retaining(Box::new(policy), *classes),
            None => return Ok(None),
        },
        _ => return Ok(None),
    }))
}

impl Matrix {
    pub(super) fn new(work: MatrixWork, folder: &Path) -> Result<Matrix, CrewError> {
        let MatrixWork { world, policies, is_guarded, traffic } = work;
        let world = world.relative_to(folder).world().map_err(|error| in_words(&error))?;
        if world.fingerprint() != traffic {
            let (found, meant) = (world.fingerprint(), traffic);
            return Err(CrewError(format!("{}: its fingerprint is {found:?}, meant is {meant:?}", world.trace)));
        }
        let load = |(name, spec): (String, PolicySpec)| {
            let subject = Subject::load(&spec.relative_to(folder)).map_err(|error| in_words(&error))?;
            Ok((name, if is_guarded { subject } else { subject.unguarded() }))
        };
        let policies = policies.into_iter().map(load).collect::<Result<BTreeMap<String, Subject>, CrewError>>()?;
        Ok(Matrix { world, policies })
    }

    pub(super) fn serve(&self, task: &str) -> Result<String, CrewError> {
        let errand: Errand = asked(task)?;
        let (mut controller, draw) = (self.controller(&errand.policy)?, errand.draw());
        let drawn;
        let world = match errand.clock {
            Some(clock) => {
                drawn = self.world.by_clock(clock);
                &drawn
            }
            None => &self.world,
        };
        let workload = world.draw(&draw).map_err(|error| in_words(&error))?;
        let served = world.serve(draw.load, &workload, controller.as_mut()).map_err(|error| in_words(&error))?;
        answer(&served)
    }

    fn controller(&self, policy: &str) -> Result<Box<dyn Controller + Send>, CrewError> {
        if let Some(controller) = self.policies.get(policy).and_then(Subject::controller) {
            return Ok(controller);
        }
        let spec: PolicySpec = policy.parse().map_err(|error| in_words(&error))?;
        if let PolicySpec::Table(_) | PolicySpec::Checkpoint(_) = spec.of_heads() {
            return Err(CrewError(format!("policy {policy} is not of this setting")));
        }
        let subject = Subject::load(&spec).map_err(|error| in_words(&error))?;
        subject.controller().ok_or_else(|| CrewError(format!("policy {policy} is many runs, not one")))
    }
}
