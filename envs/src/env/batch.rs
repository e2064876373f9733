//! Several environments stepped together: what an agent trains on.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Buffers one step of a [`VectorEnv`] writes into. Rows are environments.
///
/// When an environment ends its episode, it is reset within the same step: `observations` and `masks` then hold the
/// first observation of the next episode, and `final_observations` the last one of the episode that ended, from which a
/// truncated return is bootstrapped.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// `[num_envs, observation_size]`.
    pub observations: Vec<f32>,
    /// `[num_envs, sum of head_sizes]`: whether the choice can be taken.
    pub masks: Vec<bool>,
    /// `[num_envs]`.
    pub rewards: Vec<f32>,
    /// `[num_envs]`: the episode reached its end; nothing is left to earn.
    pub terminated: Vec<bool>,
    /// `[num_envs]`: the episode was cut short; what is left to earn is estimated.
    pub truncated: Vec<bool>,
    /// `[num_envs, observation_size]`: valid where terminated or truncated.
    pub final_observations: Vec<f32>,
    /// `[num_envs]`: for how long the decision was obeyed, seconds of the environment's time; 0 where there is no clock.
    pub elapsed_s: Vec<f64>,
    /// `[num_envs]`: when the observations were made, seconds into their episode.
    pub clock_s: Vec<f64>,
    /// `[num_envs]`: which traffic their episode has: what is the same in two environments is met by both, at the same time.
    pub traffic: Vec<u64>,
    /// Episodes that ended in this step, in environment order.
    pub episodes: Vec<Episode>,
}

impl Batch {
    /// Zeroed buffers for `num_envs` environments.
    pub fn new(num_envs: usize, observation_size: usize, num_choices: usize) -> Batch {
        Batch {
            observations: vec![0.0; num_envs * observation_size],
            masks: vec![true; num_envs * num_choices],
            rewards: vec![0.0; num_envs],
            terminated: vec![false; num_envs],
            truncated: vec![false; num_envs],
            final_observations: vec![0.0; num_envs * observation_size],
            elapsed_s: vec![0.0; num_envs],
            clock_s: vec![0.0; num_envs],
            traffic: (0..num_envs as u64).collect(),
            episodes: Vec::new(),
        }
    }
}

/// What a finished episode amounted to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Which environment.
    pub env: usize,
    /// Sum of rewards.
    pub episode_return: f64,
    /// Decisions taken.
    pub decisions: u64,
    /// What was served; nothing in an environment that serves no requests.
    pub served: Served,
}

/// What an episode served. Of one cut short: so far.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Served {
    /// Requests that arrived.
    pub requests: u64,
    /// Of these, how many missed no target.
    pub on_time: u64,
    /// Tokens generated per second.
    pub output_tok_s: f64,
    /// Preemptions.
    pub preemptions: u64,
    /// Load of the traffic.
    pub load: f64,
    /// Number of the world the episode was drawn from.
    pub world: usize,
}

impl Served {
    /// The share of requests that missed no target; `None` of no requests.
    pub fn slo_attainment(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.on_time as f64 / self.requests as f64)
    }
}

/// Environments of one shape stepped together, each with its own seed stream: results do not depend on the number of
/// threads.
pub trait VectorEnv: Send {
    /// Number of environments.
    fn num_envs(&self) -> usize;

    /// Length of an observation.
    fn observation_size(&self) -> usize;

    /// Choices of each head of the multi-discrete action.
    fn head_sizes(&self) -> &[usize];

    /// Starts every environment anew and writes the first observations and masks.
    fn reset(&mut self, seed: u64, batch: &mut Batch);

    /// Takes one action in each environment. `actions` is `[num_envs, num_heads]`, choices allowed by the last masks.
    ///
    /// # Panics
    /// If `actions` or `batch` has another shape, or a choice is out of range.
    fn step(&mut self, actions: &[u8], batch: &mut Batch);

    /// Why these environments cannot go on, if so: then steps since have no meaning. A simulated node never fails.
    fn failure(&self) -> Option<String> {
        None
    }

    /// In each group of environments that serve the same traffic all others take the state of its member number `leader`; writes
    /// their observations, masks and clocks.
    ///
    /// # Errors
    /// Why there cannot be two of a state.
    fn gather(&mut self, leader: usize, batch: &mut Batch) -> Result<(), String> {
        let _ = (leader, batch);
        Err("these environments cannot be forked".to_owned())
    }

    /// Everything needed to go on from here, as plain data.
    fn save(&self) -> Value;

    /// Goes on from a saved state; writes the observations and masks of that moment.
    ///
    /// # Errors
    /// What is wrong with `saved`; the environments are then unchanged or freshly reset, never half restored.
    fn restore(&mut self, saved: &Value, batch: &mut Batch) -> Result<(), String>;
}
