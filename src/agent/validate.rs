//! Whole episodes under one policy, and which of a run's policies is kept: the one that does best on traffic nobody trains
//! on.

use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::env::{Arena, Episode};
use kvtide_envs::seed;
use kvtide_runtime::{Action, ActionMask, Observation, Policy};
use rayon::prelude::*;

use super::AgentError;

/// Who decides in whole episodes, each from its start.
pub trait Server: Sync {
    /// Whoever decides in one episode; obeys the mask, and may remember.
    fn start(&self) -> Box<dyn FnMut(&Observation, ActionMask) -> Action + '_>;
}

/// A policy remembers nothing.
impl<P: Policy + Sync + ?Sized> Server for P {
    fn start(&self) -> Box<dyn FnMut(&Observation, ActionMask) -> Action + '_> {
        Box::new(|observation, mask| self.decide(observation, mask))
    }
}

/// Judges policies on the same episodes each time.
pub struct Validator {
    arena: Box<dyn Arena>,
    episodes: u64,
    seed: u64,
}

impl Validator {
    /// On `episodes` episodes of `arena`, drawn from `seed`.
    pub fn new(arena: Box<dyn Arena>, episodes: usize, seed: u64) -> Validator {
        Validator { arena, episodes: episodes as u64, seed }
    }

    /// The share of all requests that missed no target under `policy`. Of a network that is the likeliest choice, as serving
    /// takes it.
    ///
    /// # Errors
    /// [`AgentError::Play`] if an episode cannot be played.
    pub fn attainment(&self, policy: &(impl Server + ?Sized)) -> Result<f64, AgentError> {
        Ok(Attained::share(&self.attained(policy, &AtomicBool::new(false))?.unwrap_or_default()))
    }

    /// Requests, and those that missed no target, of every episode, in order: the same episodes for every policy. `None`
    /// once `stop` is set.
    ///
    /// # Errors
    /// [`AgentError::Play`] if an episode cannot be played.
    pub fn attained(
        &self,
        policy: &(impl Server + ?Sized),
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Attained>>, AgentError> {
        let attained = |episode| {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let seed = seed::derive(self.seed, "validation", episode);
            Ok(Some(Attained::of(&self.play(seed, policy)?)))
        };
        let all: Result<Vec<Option<Attained>>, AgentError> = (0..self.episodes).into_par_iter().map(attained).collect();
        Ok(all?.into_iter().collect())
    }

    fn play(&self, seed: u64, server: &(impl Server + ?Sized)) -> Result<Episode, AgentError> {
        let played = self.arena.play(seed, &mut *server.start());
        played.map_err(|error| AgentError::Play { seed, reason: error.to_string() })
    }
}

/// How an episode went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attained {
    /// Requests.
    pub requests: f64,
    /// Those that missed no target.
    pub on_time: f64,
}

impl Attained {
    fn of(episode: &Episode) -> Attained {
        let requests = metric(episode, "requests");
        Attained { requests, on_time: requests * metric(episode, "slo_attainment") }
    }

    /// The share of all requests that missed no target; 1 of none.
    pub fn share(episodes: &[Attained]) -> f64 {
        let requests: f64 = episodes.iter().map(|episode| episode.requests).sum();
        if requests > 0.0 { episodes.iter().map(|episode| episode.on_time).sum::<f64>() / requests } else { 1.0 }
    }
}

/// Plays an episode under `policy`, showing every observation to `look`.
pub(super) fn play(
    arena: &dyn Arena,
    seed: u64,
    policy: &dyn Policy,
    mut look: impl FnMut(&[f32]),
) -> Result<Episode, AgentError> {
    let mut decide = |observation: &Observation, mask| {
        look(&observation.values);
        policy.decide(observation, mask)
    };
    arena.play(seed, &mut decide).map_err(|error| AgentError::Play { seed, reason: error.to_string() })
}

/// The share of all requests of `episodes` that missed no target.
pub(super) fn attainment(episodes: &[Episode]) -> f64 {
    Attained::share(&episodes.iter().map(Attained::of).collect::<Vec<Attained>>())
}

fn metric(episode: &Episode, name: &str) -> f64 {
    episode.metrics.iter().find(|(found, _)| *found == name).map_or(0.0, |&(_, value)| value)
}
