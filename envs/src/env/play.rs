//! Random play, byte for byte: what other ways to the same environments are compared by.

use rand::RngExt;

use super::{Batch, VectorEnv};
use crate::seed::{self, RunHash};

/// What was done, and all that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trajectory {
    /// `[decisions, num_envs, num_heads]`: choices that the masks allowed, each as likely as any other.
    pub actions: Vec<u8>,
    /// After the reset, and after each decision, environment by environment: the observation as little-endian `f32`, a byte
    /// of the mask for each choice, the reward as little-endian `f32`, whether the episode was terminated, and truncated, a byte
    /// each.
    pub seen: Vec<u8>,
}

impl Trajectory {
    /// A hash of both.
    pub fn digest(&self) -> u64 {
        let mut hash = RunHash::default();
        for bytes in [&self.actions, &self.seen] {
            hash.absorb(bytes.len() as u64);
            for word in bytes.chunks(8) {
                hash.absorb(word.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)));
            }
        }
        hash.value()
    }
}

/// Plays `decisions` in each of `envs`, from their reset by `seed`.
pub fn random_play(envs: &mut dyn VectorEnv, seed: u64, decisions: usize) -> Trajectory {
    let sizes = envs.head_sizes().to_vec();
    let mut batch = Batch::new(envs.num_envs(), envs.observation_size(), sizes.iter().sum());
    let mut stream = seed::stream(seed, "play", 0);
    let mut trajectory = Trajectory { actions: Vec::new(), seen: Vec::new() };
    envs.reset(seed, &mut batch);
    trajectory.see(&batch, envs.observation_size());
    let mut actions = Vec::new();
    for _ in 0..decisions {
        actions.clear();
        let mut rest = batch.masks.as_slice();
        for &size in sizes.iter().cycle().take(envs.num_envs() * sizes.len()) {
            let (head, after) = rest.split_at(size);
            let allowed: Vec<usize> = (0..size).filter(|&choice| head[choice]).collect();
            actions.push(allowed[stream.random_range(0..allowed.len())] as u8);
            rest = after;
        }
        envs.step(&actions, &mut batch);
        trajectory.actions.extend_from_slice(&actions);
        trajectory.see(&batch, envs.observation_size());
    }
    trajectory
}

impl Trajectory {
    fn see(&mut self, batch: &Batch, observation_size: usize) {
        let num_choices = batch.masks.len() / batch.rewards.len().max(1);
        let rows = batch.observations.chunks_exact(observation_size).zip(batch.masks.chunks_exact(num_choices));
        for (env, (observation, mask)) in rows.enumerate() {
            self.seen.extend(observation.iter().flat_map(|value| value.to_le_bytes()));
            self.seen.extend(mask.iter().map(|&allowed| u8::from(allowed)));
            self.seen.extend(batch.rewards[env].to_le_bytes());
            self.seen.extend([batch.terminated[env], batch.truncated[env]].map(u8::from));
        }
    }
}
