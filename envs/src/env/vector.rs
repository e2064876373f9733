//! Serving environments stepped in parallel, writing into the caller's buffers.

use std::sync::Arc;

use kvtide_runtime::action::{NUM_CHOICES, NUM_HEADS, SIZES};
use kvtide_runtime::{Action, ActionMask, Head, NUM_FEATURES, Observation};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::episode::ResetOptions;
use super::serving::{EnvConfig, EnvError, ServingEnv};
use super::{Batch, Episode, VectorEnv};
use crate::deploy::DeadEnds;
use crate::memory::MemoryError;
use crate::seed;

/// Serving environments as one [`VectorEnv`].
///
/// Episode *k* of environment *i* has a seed of its own, so results do not depend on how environments are spread over
/// threads. The state between two steps is (episode number, actions since its reset): saving is short and restoring
/// replays the episode.
///
/// On a device, where time is measured, an episode cannot be replayed: a restored environment begins it again.
#[derive(Debug)]
pub struct VecEnv {
    slots: Vec<EnvSlot>,
    /// Environments of a group, one after another, which serve the same traffic.
    group: usize,
    seed: u64,
    failure: Option<MemoryError>,
}

#[derive(Debug)]
struct EnvSlot {
    index: usize,
    /// Number of its group.
    group: usize,
    env: ServingEnv,
    /// Episodes begun.
    episodes: u64,
    /// Seed of the episode under way.
    episode_seed: u64,
    /// Actions since the last reset.
    actions: Vec<[u8; NUM_HEADS]>,
}

/// A saved state.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    seed: u64,
    envs: Vec<SavedSlot>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedSlot {
    episodes: u64,
    /// Fingerprint of the episode so far, to notice a world that has changed since.
    hash: u64,
    actions: Vec<[u8; NUM_HEADS]>,
}

/// Where one environment writes its part of a [`Batch`].
struct BatchRow<'a> {
    observation: &'a mut [f32],
    mask: &'a mut [bool],
    reward: &'a mut f32,
    terminated: &'a mut bool,
    truncated: &'a mut bool,
    final_observation: &'a mut [f32],
    elapsed_s: &'a mut f64,
    clock_s: &'a mut f64,
    traffic: &'a mut u64,
}

impl VecEnv {
    /// `num_envs` environments of one configuration.
    ///
    /// # Errors
    /// Those of [`ServingEnv::new`]; a faithful engine is refused, because it can die in the middle of an episode.
    pub fn new(config: &Arc<EnvConfig>, num_envs: usize) -> Result<VecEnv, EnvError> {
        VecEnv::in_groups(config, num_envs, 1)
    }

    /// `num_envs` environments of one configuration, each `group` of which, one after another, serve the same traffic in the
    /// same world, episode for episode; 1 for each its own.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn in_groups(config: &Arc<EnvConfig>, num_envs: usize, group: usize) -> Result<VecEnv, EnvError> {
        let group = group.max(1);
        if config.worlds.iter().any(|world| world.node.engine.dead_ends == DeadEnds::Faithful) {
            return Err(EnvError::Faithful);
        }
        if config.memory.is_exclusive() && num_envs > 1 {
            return Err(EnvError::Exclusive(num_envs));
        }
        let mut slots = Vec::with_capacity(num_envs);
        for index in 0..num_envs {
            let env = ServingEnv::new(Arc::clone(config))?;
            slots.push(EnvSlot { index, group: index / group, env, episodes: 0, episode_seed: 0, actions: Vec::new() });
        }
        Ok(VecEnv { slots, group, seed: 0, failure: None })
    }

    /// Keeps the first failure of memory. Any other error is a programmer's.
    fn note(&mut self, results: impl IntoIterator<Item = Result<Option<Episode>, EnvError>>) -> Vec<Episode> {
        let mut ended = Vec::new();
        for result in results {
            match result {
                Ok(episode) => ended.extend(episode),
                Err(EnvError::Memory(error)) => self.failure = self.failure.take().or(Some(error)),
                Err(error) => panic!("agents obey the mask, and training engines are safe: {error}"),
            }
        }
        ended
    }
}

impl VectorEnv for VecEnv {
    fn num_envs(&self) -> usize {
        self.slots.len()
    }

    fn observation_size(&self) -> usize {
        NUM_FEATURES
    }

    fn head_sizes(&self) -> &[usize] {
        &SIZES
    }

    fn reset(&mut self, seed: u64, batch: &mut Batch) {
        self.seed = seed;
        batch.episodes.clear();
        let rows: Vec<BatchRow<'_>> = rows(batch, self.slots.len()).collect();
        let begun = self.slots.par_iter_mut().zip(rows).map(|(slot, row)| {
            slot.episodes = 0;
            slot.begin(seed, row).map(|()| None)
        });
        let begun: Vec<_> = begun.collect();
        self.note(begun);
    }

    fn step(&mut self, actions: &[u8], batch: &mut Batch) {
        assert_eq!(actions.len(), self.slots.len() * NUM_HEADS, "actions are [num_envs, num_heads]");
        if self.failure.is_some() {
            return;
        }
        let seed = self.seed;
        let rows: Vec<BatchRow<'_>> = rows(batch, self.slots.len()).collect();
        let chosen = actions.par_chunks_exact(NUM_HEADS);
        let slots = self.slots.par_iter_mut().zip(rows).zip(chosen);
        let ended: Vec<Result<Option<Episode>, EnvError>> =
            slots.map(|((slot, row), action)| slot.step(seed, action, row)).collect();
        batch.episodes = self.note(ended);
    }

    fn failure(&self) -> Option<String> {
        self.failure.as_ref().map(MemoryError::to_string)
    }

    fn gather(&mut self, leader: usize, batch: &mut Batch) -> Result<(), String> {
        let mut rows = rows(batch, self.slots.len());
        for slots in self.slots.chunks_mut(self.group) {
            let leader = leader % slots.len();
            let (episodes, episode_seed) = (slots[leader].episodes, slots[leader].episode_seed);
            let actions = slots[leader].actions.clone();
            for follower in (0..slots.len()).filter(|&follower| follower != leader) {
                let env = slots[leader].env.fork();
                slots[follower].env =
                    env.ok_or("an environment whose blocks are more than numbers cannot be forked")?;
                (slots[follower].episodes, slots[follower].episode_seed) = (episodes, episode_seed);
                slots[follower].actions.clone_from(&actions);
            }
            for (slot, row) in slots.iter().zip(&mut rows) {
                if let Some((observation, mask)) = slot.env.seen() {
                    row.write(&observation, mask, slot);
                }
            }
        }
        Ok(())
    }

    fn save(&self) -> Value {
        let envs = self.slots.iter().map(|slot| {
            let replays = !slot.env.config().memory.is_exclusive();
            SavedSlot {
                episodes: slot.episodes,
                hash: if replays { slot.env.fingerprint() } else { 0 },
                actions: if replays { slot.actions.clone() } else { Vec::new() },
            }
        });
        let saved = Saved { seed: self.seed, envs: envs.collect() };
        serde_json::to_value(saved).expect("plain data serialises")
    }

    fn restore(&mut self, saved: &Value, batch: &mut Batch) -> Result<(), String> {
        let saved = Saved::deserialize(saved).map_err(|error| format!("not a saved environment: {error}"))?;
        if saved.envs.len() != self.slots.len() {
            return Err(format!("saved with {} environments, now {}", saved.envs.len(), self.slots.len()));
        }
        let actions = saved.envs.iter().flat_map(|env| &env.actions);
        if let Some(bad) = actions.clone().find(|action| Action::new(**action).is_none()) {
            return Err(format!("action {bad:?} is out of range"));
        }
        self.seed = saved.seed;
        batch.episodes.clear();
        let seed = self.seed;
        let rows: Vec<BatchRow<'_>> = rows(batch, self.slots.len()).collect();
        let restored: Result<Vec<()>, String> = self
            .slots
            .par_iter_mut()
            .zip(rows)
            .zip(saved.envs.into_par_iter())
            .map(|((slot, row), saved)| slot.restore(seed, &saved, row))
            .collect();
        if restored.is_err() {
            self.reset(seed, batch);
        }
        restored.map(drop)
    }
}

impl EnvSlot {
    /// Starts the next episode.
    ///
    /// # Errors
    /// There is no memory for its node.
    fn begin(&mut self, seed: u64, row: BatchRow<'_>) -> Result<(), EnvError> {
        let episode_seed = seed::derive(seed::derive(seed, "env", self.group as u64), "episode", self.episodes);
        self.episode_seed = episode_seed;
        self.episodes += 1;
        self.actions.clear();
        let (observation, info) = self.env.reset(episode_seed, &ResetOptions::default())?;
        row.write(&observation, info.mask, self);
        Ok(())
    }

    /// # Errors
    /// The action is forbidden, or memory failed.
    fn step(&mut self, seed: u64, action: &[u8], row: BatchRow<'_>) -> Result<Option<Episode>, EnvError> {
        let choices: [u8; NUM_HEADS] = action.try_into().expect("one choice per head");
        let action = Action::new(choices).expect("choices are in range");
        let before = self.env.elapsed_s();
        let step = self.env.step(action)?;
        self.actions.push(choices);
        *row.elapsed_s = step.info.elapsed_s - before;
        *row.reward = step.reward;
        *row.terminated = step.terminated;
        *row.truncated = step.truncated;
        if step.terminated || step.truncated {
            row.final_observation.copy_from_slice(&step.observation.values);
            let episode = self.env.episode(self.index);
            self.begin(seed, row)?;
            Ok(episode)
        } else {
            row.write(&step.observation, step.info.mask, self);
            Ok(None)
        }
    }

    /// Begins the saved episode and takes the saved actions again.
    fn restore(&mut self, seed: u64, saved: &SavedSlot, mut row: BatchRow<'_>) -> Result<(), String> {
        self.episodes = saved.episodes.checked_sub(1).ok_or("saved before the first reset")?;
        self.begin(seed, row.reborrow()).map_err(|error| format!("environment {}: {error}", self.index))?;
        if self.env.config().memory.is_exclusive() {
            return Ok(());
        }
        for choices in &saved.actions {
            let ended = self.step(seed, choices, row.reborrow());
            if ended.map_err(|error| format!("environment {}: {error}", self.index))?.is_some() {
                return Err(format!("environment {} ended its episode earlier than when it was saved", self.index));
            }
        }
        let hash = self.env.fingerprint();
        if hash != saved.hash {
            return Err(format!(
                "environment {} took another course than when it was saved ({hash:016x}, saved {:016x}): trace, settings or version changed",
                self.index, saved.hash
            ));
        }
        Ok(())
    }
}

impl BatchRow<'_> {
    fn write(self, observation: &Observation, mask: ActionMask, slot: &EnvSlot) {
        (*self.clock_s, *self.traffic) = (slot.env.elapsed_s(), slot.episode_seed);
        self.observation.copy_from_slice(&observation.values);
        let choices = Head::ALL.into_iter().flat_map(|head| (0..head.size()).map(move |choice| (head, choice as u8)));
        for (allowed, (head, choice)) in self.mask.iter_mut().zip(choices) {
            *allowed = mask.allows(head, choice);
        }
    }

    fn reborrow(&mut self) -> BatchRow<'_> {
        BatchRow {
            observation: self.observation,
            mask: self.mask,
            reward: self.reward,
            terminated: self.terminated,
            truncated: self.truncated,
            final_observation: self.final_observation,
            elapsed_s: self.elapsed_s,
            clock_s: self.clock_s,
            traffic: self.traffic,
        }
    }
}

/// The batch, environment by environment.
///
/// # Panics
/// If the batch has another shape.
fn rows(batch: &mut Batch, num_envs: usize) -> impl Iterator<Item = BatchRow<'_>> {
    assert_eq!(batch.observations.len(), num_envs * NUM_FEATURES, "observations are [num_envs, NUM_FEATURES]");
    assert_eq!(batch.masks.len(), num_envs * NUM_CHOICES, "masks are [num_envs, NUM_CHOICES]");
    assert_eq!(batch.rewards.len(), num_envs, "rewards are [num_envs]");
    batch
        .observations
        .chunks_exact_mut(NUM_FEATURES)
        .zip(batch.masks.chunks_exact_mut(NUM_CHOICES))
        .zip(&mut batch.rewards)
        .zip(&mut batch.terminated)
        .zip(&mut batch.truncated)
        .zip(batch.final_observations.chunks_exact_mut(NUM_FEATURES))
        .zip(batch.elapsed_s.iter_mut().zip(&mut batch.clock_s).zip(&mut batch.traffic))
        .map(|((((((observation, mask), reward), terminated), truncated), final_observation), time)| {
            let ((elapsed_s, clock_s), traffic) = time;
            BatchRow {
                observation,
                mask,
                reward,
                terminated,
                truncated,
                final_observation,
                elapsed_s,
                clock_s,
                traffic,
            }
        })
}
