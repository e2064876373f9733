//! Which of a student's sizes becomes the table: the one that serves best, behind its guard, on traffic that is kept apart.
//!
//! A larger tree agrees better with its teacher and is not always the better policy: what it tells apart in the states it was
//! taught on may be chance. So the table is judged, not the agreement, and of equals the smaller one is taken.
//!
//! Serving best is not enough where worlds differ: what one gains must not be another's loss. From a table's attainment is taken
//! off what the world that loses most loses against the constant watermark that could be deployed instead.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvtide_envs::env::EnvConfig;
use kvtide_envs::seed;
use kvtide_runtime::{Action, ActionMask, Controls, Observation, Policy};
use thiserror::Error;

use super::{Deployed, ExportError, TableProvenance, encode};
use crate::agent::{AgentError, Attained, Validator, worst_loss};
use crate::distil::{DistilError, Student};

/// Episodes whose observations are taken into the ranges.
const MARGIN_EPISODES: u64 = 64;

/// A table, and what it attains on the episodes it was chosen by.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// The student, cut to the size that was chosen.
    pub student: Student,
    /// Its file.
    pub deployed: Deployed,
    /// Share of requests that missed no target.
    pub attainment: f64,
    /// How much less than under its fallback that is in the world that loses most; 0 if none does.
    pub worst_loss: f64,
}

impl Chosen {
    /// What tables are compared by.
    pub fn score(&self) -> f64 {
        self.attainment - self.worst_loss
    }
}

/// Why no table was chosen.
#[derive(Debug, Error)]
pub enum ChooseError {
    /// A table cannot be written down.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// An episode cannot be played.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// Judges every size of `student` on the episodes of `validator`, on nodes whose engine does `engine` by itself. `None` once
/// `stop` is set.
///
/// # Errors
/// A table cannot be written down, or an episode cannot be played.
pub fn choose(
    student: &Student,
    provenance: &TableProvenance,
    engine: Controls,
    validator: &Validator,
    stop: &AtomicBool,
) -> Result<Option<Chosen>, ChooseError> {
    let mut best: Option<Chosen> = None;
    let mut constant: Option<Vec<Attained>> = None;
    for size in student.sizes() {
        let student = student.with_size(size);
        let deployed = deploy(&student, provenance, engine)?;
        let Some(episodes) = validator.attained(&deployed, stop)? else { return Ok(None) };
        if constant.is_none() {
            constant = validator.attained(&Masked(deployed.fallback()), stop)?;
        }
        let Some(constant) = &constant else { return Ok(None) };
        let (attainment, worst_loss) = (Attained::share(&episodes), worst_loss(&episodes, constant));
        let chosen = Chosen { student, deployed, attainment, worst_loss };
        // The smaller ones come later.
        if best.as_ref().is_none_or(|best| chosen.score() >= best.score()) {
            best = Some(chosen);
        }
    }
    Ok(best)
}

/// A constant, as far as the mask allows.
struct Masked(Action);

impl Policy for Masked {
    fn decide(&self, _: &Observation, mask: ActionMask) -> Action {
        mask.repair(self.0)
    }
}

/// Gives the ranges of `student` the margin of traffic it was not taught on: see [`Student::widen`].
///
/// # Errors
/// An episode cannot be played, or `stop` was set.
pub fn add_margin(
    student: &mut Student,
    env_config: &Arc<EnvConfig>,
    seed: u64,
    stop: &AtomicBool,
) -> Result<(), DistilError> {
    student.widen(env_config, seed::derive(seed, "export.margin", 0), MARGIN_EPISODES, stop)
}

/// `student` as a node would run it.
///
/// # Errors
/// [`ExportError::Encode`] if it cannot be written down.
pub fn deploy(student: &Student, provenance: &TableProvenance, engine: Controls) -> Result<Deployed, ExportError> {
    let bytes = encode(student, provenance)?;
    Ok(Deployed::new(bytes, engine).expect("what was encoded for this build can be read by it"))
}
