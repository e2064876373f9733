//! Whole episodes under one policy, and which of a run's policies is kept: the one that does best on traffic nobody trains
//! on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::env::{Arena, Episode, Served};
use kvtide_envs::seed;
use kvtide_runtime::{Action, ActionMask, Observation, Policy};
use rayon::prelude::*;

use super::AgentError;

/// Whoever decides in one episode; obeys the mask, and may remember.
pub type Decider<'a> = Box<dyn FnMut(&Observation, ActionMask) -> Action + 'a>;

/// Who decides in whole episodes, each from its start.
pub trait Server: Sync {
    /// Whoever decides in the next episode.
    fn start(&self) -> Decider<'_>;
}

/// A policy remembers nothing.
impl<P: Policy + Sync + ?Sized> Server for P {
    fn start(&self) -> Decider<'_> {
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

    /// The share of requests that missed no target under `policy`, as [`Attained::share`] has it. Of a network that is the
    /// likeliest choice, as serving takes it.
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
    /// Requests that arrived in it.
    pub requests: f64,
    /// Those that missed no target.
    pub on_time: f64,
    /// Number of the world it was drawn from.
    pub world: usize,
}

impl Attained {
    /// How an episode went.
    pub fn of(episode: &Episode) -> Attained {
        let Served { requests, on_time, world, .. } = episode.served;
        Attained { requests: requests as f64, on_time: on_time as f64, world }
    }

    /// The share of requests that missed no target: within a world every request counts the same, and a world counts as many
    /// times as it has episodes with requests. A world whose requests are short, and therefore many, would otherwise decide for
    /// all. 1 of no requests.
    pub fn share(episodes: &[Attained]) -> f64 {
        let mut worlds: BTreeMap<usize, (f64, f64, f64)> = BTreeMap::new();
        for episode in episodes.iter().filter(|episode| episode.requests > 0.0) {
            let (count, requests, on_time) = worlds.entry(episode.world).or_default();
            *count += 1.0;
            *requests += episode.requests;
            *on_time += episode.on_time;
        }
        let count: f64 = worlds.values().map(|world| world.0).sum();
        let shares: f64 = worlds.values().map(|(count, requests, on_time)| count * on_time / requests).sum();
        if count > 0.0 { shares / count } else { 1.0 }
    }
}

/// How much less is attained in the world that loses most by `episodes` instead of `others`, which are as many of the same
/// worlds; 0 where none loses.
pub fn worst_loss(episodes: &[Attained], others: &[Attained]) -> f64 {
    let worlds = episodes.iter().map(|episode| episode.world).max().map_or(0, |most| most + 1);
    let share = |episodes: &[Attained], world| {
        let of_world = episodes.iter().copied().filter(|episode| episode.world == world);
        Attained::share(&of_world.collect::<Vec<Attained>>())
    };
    (0..worlds).map(|world| share(others, world) - share(episodes, world)).fold(0.0, f64::max)
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

/// The share of the requests of `episodes` that missed no target, as [`Attained::share`] has it.
pub(super) fn attainment(episodes: &[Episode]) -> f64 {
    Attained::share(&episodes.iter().map(Attained::of).collect::<Vec<Attained>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_a_world_requests_count_and_between_worlds_episodes() {
        let attained = |world, requests, on_time| Attained { requests, on_time, world };
        assert_eq!(Attained::share(&[attained(0, 100.0, 100.0), attained(0, 300.0, 100.0)]), 0.5);
        let many = [attained(0, 100.0, 100.0), attained(1, 9000.0, 0.0), attained(0, 100.0, 60.0)];
        assert!((Attained::share(&many) - (2.0 * 0.8 + 0.0) / 3.0).abs() < 1e-12);
        assert_eq!(Attained::share(&[attained(0, 100.0, 50.0), attained(1, 0.0, 0.0)]), 0.5);
        assert_eq!(Attained::share(&[]), 1.0);
    }

    #[test]
    fn the_world_that_loses_most_counts() {
        let attained = |world, on_time| Attained { requests: 100.0, on_time, world };
        let table = [attained(0, 90.0), attained(1, 50.0), attained(0, 70.0), attained(2, 10.0)];
        let constant = [attained(0, 60.0), attained(1, 55.0), attained(0, 60.0), attained(2, 10.0)];
        assert!((worst_loss(&table, &constant) - 0.05).abs() < 1e-12);
        assert!((worst_loss(&constant, &table) - 0.2).abs() < 1e-12);
        assert_eq!(worst_loss(&table, &table), 0.0);
        assert_eq!(worst_loss(&[], &[]), 0.0);
    }
}
