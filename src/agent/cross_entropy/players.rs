//! Who plays the episodes of a generation: this process, or others in its place.

use std::sync::atomic::AtomicBool;

use kvtide_envs::env::{Arena, Episode};
use kvtide_runtime::ActionProfile;
use kvtide_runtime::action::NUM_HEADS;

use super::linear::Linear;
use super::{linear, policy};
use crate::agent::AgentError;
use crate::agent::config::Prior;
use crate::agent::normalise::Moments;
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
    linear: Linear,
    moments: Moments,
    profile: ActionProfile,
    arena: Box<dyn Arena + Send>,
}

impl Player {
    /// Of the search over `choices` that started from `prior`, with the moments its features are standardised by.
    ///
    /// # Errors
    /// [`AgentError::Config`] if the prior does not fit, [`AgentError::Resume`] if the search is not of these episodes.
    pub fn new(
        (choices, prior): ([u32; NUM_HEADS], &Prior),
        moments: Moments,
        profile: ActionProfile,
        arena: Box<dyn Arena + Send>,
    ) -> Result<Player, AgentError> {
        let found = arena.choices();
        if choices != found {
            return Err(AgentError::Resume(format!("choices {choices:?} are searched, possible are {found:?}")));
        }
        Ok(Player { linear: linear(choices, prior)?, moments, profile, arena })
    }

    /// The episodes of a point.
    ///
    /// # Errors
    /// [`AgentError::Resume`] if it is no point of this search, [`AgentError::Play`] if an episode cannot be played.
    pub fn play(&self, point: &[f64], seeds: &[u64]) -> Result<Vec<Episode>, AgentError> {
        let dimension = self.linear.start().len();
        if point.len() != dimension {
            return Err(AgentError::Resume(format!("a point of {} numbers, searched are {dimension}", point.len())));
        }
        let policy = policy(&self.linear.weights(point), &self.moments, self.profile);
        seeds.iter().map(|&seed| play(&*self.arena, seed, &policy, |_| {})).collect()
    }
}
