//! Who plays the episodes of a generation: this process, or others in its place.

use std::sync::atomic::AtomicBool;

use kvtide_envs::env::{Arena, Episode};

use super::space::{LinearPolicies, LinearSpace};
use crate::agent::AgentError;
use crate::agent::validate::play;

/// Others who play in this process's place; what they come to is what this process would.
pub trait Players: Send + Sync {
    /// The episodes of each point, the same seeds for all; `None` if `stop` was set.
    ///
    /// # Errors
    /// An episode cannot be played, or nobody is there to play it.
    fn play(
        &self,
        points: &[Vec<f64>],
        seeds: &[u64],
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Vec<Episode>>>, AgentError>;
}

/// Plays any point of a search, whoever searches.
pub struct Player {
    policies: LinearPolicies,
    arena: Box<dyn Arena + Send>,
}

impl Player {
    /// The points of `space`, in the episodes of `arena`.
    ///
    /// # Errors
    /// [`AgentError::Config`] or [`AgentError::Resume`] if the space contradicts itself or is not of these episodes.
    pub fn new(space: &LinearSpace, arena: Box<dyn Arena + Send>) -> Result<Player, AgentError> {
        let (searched, found) = (space.choices, arena.choices());
        if searched != found {
            return Err(AgentError::Resume(format!("choices {searched:?} are searched, possible are {found:?}")));
        }
        Ok(Player { policies: space.policies()?, arena })
    }

    /// The episodes of a point.
    ///
    /// # Errors
    /// [`AgentError::Resume`] if it is no point of this search, [`AgentError::Play`] if an episode cannot be played.
    pub fn play(&self, point: &[f64], seeds: &[u64]) -> Result<Vec<Episode>, AgentError> {
        let Some(policy) = self.policies.policy(point) else {
            let (numbers, searched) = (point.len(), self.policies.start().len());
            return Err(AgentError::Resume(format!("a point of {numbers} numbers, searched are {searched}")));
        };
        seeds.iter().map(|&seed| play(&*self.arena, seed, &policy, |_| {})).collect()
    }
}
