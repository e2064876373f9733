//! Where the variance of returns comes from, and how much of a signal is left in it for a gradient: looked at before an agent is
//! trained, because what is lost in noise no optimiser finds.
//!
//! Two questions, answered by nested replays of the same episodes. `components` cuts the variance of an episode's return into
//! what was drawn once for the episode (its world, load, pool), the traffic that came, and the actions that were sampled: a
//! crossed design and its analysis of variance (Searle, Casella, `McCulloch` 1992, "Variance Components", chapters 4 and 5).
//! `advantage` forks episodes where they stand, holds one choice against another for a number of decisions on the same future
//! (the *vine* of Schulman et al. 2015, "Trust Region Policy Optimization", section 5.2), and holds the mean difference against
//! the spread of what a learner has to find it in: returns, returns of the same traffic (Mao et al. 2019, "Variance Reduction
//! for Reinforcement Learning in Input-Driven Environments"), and the forks' own.

mod advantage;
mod branch;
mod components;
mod statistics;

use std::sync::atomic::AtomicBool;

use kvtide_envs::env::EnvError;
use serde::Serialize;
use thiserror::Error;

pub use advantage::HeldAdvantage;
pub use branch::{Branch, Branches, Earned, ServingBranches};
pub use components::{Component, Source};

use crate::agent::NetworkPolicy;
use crate::evaluate::Watch;

/// How much is played.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VarianceConfig {
    /// Draws of world, load and node; at least 2.
    pub scenes: u32,
    /// Traffics in each of them; at least 2.
    pub traffics: u32,
    /// Action seeds on each traffic; at least 2.
    pub actions: u32,
    /// Moments of episodes that are forked; at least 2.
    pub states: u32,
    /// Futures drawn for each of them; at least 2.
    pub futures: u32,
    /// For how many decisions a choice is held against another, each.
    pub holds: Vec<u32>,
    /// Seed of every draw.
    pub seed: u64,
}

impl Default for VarianceConfig {
    fn default() -> VarianceConfig {
        let holds = vec![1, 8, 32, 128, 512];
        VarianceConfig { scenes: 48, traffics: 4, actions: 4, states: 96, futures: 4, holds, seed: 1 }
    }
}

impl VarianceConfig {
    /// Checks every count.
    ///
    /// # Errors
    /// The first that is too small, or too large to be played.
    pub fn validate(&self) -> Result<(), VarianceError> {
        let counts = [
            ("scenes", self.scenes),
            ("traffics", self.traffics),
            ("actions", self.actions),
            ("states", self.states),
            ("futures", self.futures),
        ];
        for (field, value) in counts {
            if !(2..=100_000).contains(&value) {
                return Err(VarianceError::Count { field, value, expected: "2 to 100000" });
            }
        }
        match self.holds.iter().find(|hold| !(1..=1_000_000).contains(*hold)) {
            Some(&value) => {
                Err(VarianceError::Count { field: "holds", value, expected: "1 to 1000000 decisions each" })
            }
            None if self.holds.is_empty() || self.holds.len() > 64 => {
                let value = self.holds.len() as u32;
                Err(VarianceError::Count { field: "holds", value, expected: "1 to 64 of them" })
            }
            None => Ok(()),
        }
    }
}

/// Why nothing is measured.
#[derive(Debug, Error)]
pub enum VarianceError {
    /// A count out of range.
    #[error("{field} = {value}: expected {expected}")]
    Count {
        /// Which.
        field: &'static str,
        /// What it was.
        value: u32,
        /// What it must be.
        expected: &'static str,
    },
    /// An episode cannot be played.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// Episodes cannot be forked.
    #[error("an environment whose blocks are more than numbers cannot be forked: leave out [world] memory")]
    Unforkable,
    /// No moment had two choices.
    #[error("no moment of {0} episodes allows two choices of any head: there is nothing to decide")]
    NoChoice(u32),
}

/// Who acts, as PPO's actor does: choices are sampled, and the numbers they are drawn with kept for `hold` decisions.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// What is sampled from.
    pub policy: NetworkPolicy,
    /// Decisions for which the numbers that choices are drawn with are kept.
    pub hold: u32,
}

/// What a learner makes of rewards: γ and λ, per decision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Discount {
    /// γ.
    pub gamma: f64,
    /// λ of generalised advantage estimation.
    pub lambda: f64,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decomposition {
    /// Of the variance of an episode's return, by its source.
    pub components: Vec<Component>,
    /// Of the advantage of a choice, by for how long it is held.
    pub advantages: Vec<HeldAdvantage>,
}

/// Measures both. `None` once `stop` is set.
///
/// # Errors
/// Why nothing can be measured.
pub fn decompose<B: Branches>(
    branches: &B,
    behaviour: &Behaviour,
    discount: Discount,
    config: &VarianceConfig,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Decomposition>, VarianceError> {
    config.validate()?;
    watch.planned((config.scenes + config.states) as usize);
    let play = branch::Play { branches, behaviour, watch, stop };
    let Some(components) = components::measure(&play, config)? else { return Ok(None) };
    let Some(advantages) = advantage::measure(&play, discount, config)? else { return Ok(None) };
    Ok(Some(Decomposition { components, advantages }))
}

#[cfg(test)]
mod tests;
