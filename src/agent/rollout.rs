//! Acting: the environments stepped under the current actor, and what is kept of it.

use kvtide_envs::env::{Batch, Episode, VectorEnv};
use kvtide_envs::seed;
use ndarray::Array2;
use rand::RngExt;
use rayon::prelude::*;

use super::AgentError;
use super::config::PpoConfig;
use super::heads::Heads;
use super::inference::Inference;
use super::normalise::{Moments, Normalisers, RewardScaler};
use super::weights::Architecture;

/// Environments whose decisions are inferred together, on one thread.
const TOGETHER: usize = 16;

/// What was seen and done in one iteration. Rows are `[num_steps, num_envs]`; observations are standardised and rewards
/// scaled as they were when decided on.
#[derive(Debug, Clone)]
pub struct Rollout {
    /// `[num_steps, num_envs, observation_size]`.
    pub observations: Vec<f32>,
    /// `[num_steps, num_envs, num_choices]`.
    pub masks: Vec<bool>,
    /// `[num_steps, num_envs, num_heads]`.
    pub actions: Vec<u8>,
    /// `[num_steps, num_envs]`.
    pub rewards: Array2<f32>,
    /// `[num_steps, num_envs]`.
    pub terminated: Array2<bool>,
    /// `[num_steps, num_envs]`.
    pub truncated: Array2<bool>,
    /// `[num_steps, num_envs]`: for how long each decision was obeyed, seconds.
    pub elapsed_s: Array2<f64>,
    /// `[num_steps, num_envs]`: when it was taken, seconds into its episode.
    pub clock_s: Array2<f64>,
    /// `[num_steps, num_envs]`: which traffic its episode has.
    pub traffic: Array2<u64>,
    /// `[num_envs + cuts, observation_size]`: the observation after the last step of each environment, then the final
    /// observation of each cut.
    pub bootstrap_observations: Vec<f32>,
    /// `[step, env]` of each episode that was truncated and not terminated.
    pub cuts: Vec<[usize; 2]>,
    /// Episodes that ended.
    pub episodes: Vec<Episode>,
}

impl Rollout {
    pub(super) fn new(num_steps: usize, num_envs: usize, architecture: &Architecture) -> Rollout {
        let rows = num_steps * num_envs;
        Rollout {
            observations: Vec::with_capacity(rows * architecture.observation_size),
            masks: Vec::with_capacity(rows * architecture.num_choices()),
            actions: Vec::with_capacity(rows * architecture.head_sizes.len()),
            rewards: Array2::zeros((num_steps, num_envs)),
            terminated: Array2::default((num_steps, num_envs)),
            truncated: Array2::default((num_steps, num_envs)),
            elapsed_s: Array2::zeros((num_steps, num_envs)),
            clock_s: Array2::zeros((num_steps, num_envs)),
            traffic: Array2::zeros((num_steps, num_envs)),
            bootstrap_observations: Vec::new(),
            cuts: Vec::new(),
            episodes: Vec::new(),
        }
    }

    /// V(s′) of every row, given V(s) of every row and of the bootstrap observations.
    pub fn next_values(&self, values: &Array2<f32>, bootstrap: &[f32]) -> Array2<f32> {
        let (num_steps, num_envs) = values.dim();
        let mut next = Array2::from_shape_fn((num_steps, num_envs), |(step, env)| {
            if step + 1 < num_steps { values[[step + 1, env]] } else { bootstrap[env] }
        });
        for (&cut, &value) in self.cuts.iter().zip(&bootstrap[num_envs..]) {
            next[cut] = value;
        }
        next
    }
}

/// The environments, where they stand, and what is normalised by what they showed so far.
pub(crate) struct Actor {
    env: Box<dyn VectorEnv>,
    batch: Batch,
    /// The current observations, standardised.
    observations: Vec<f32>,
    pub(crate) normalisers: Normalisers,
    /// Whether observations are standardised as they are, whatever else is seen: a policy that learning starts from knows no
    /// others.
    is_frozen: bool,
    heads: Heads,
    architecture: Architecture,
}

impl Actor {
    /// Environments started anew; observations are standardised by `frozen`, if there are such moments, for ever.
    pub(crate) fn start(
        env: Box<dyn VectorEnv>,
        architecture: &Architecture,
        config: &PpoConfig,
        frozen: Option<Moments>,
    ) -> Result<Actor, AgentError> {
        let is_frozen = frozen.is_some();
        let fresh = || Moments::new(architecture.observation_size).blind_to(&config.blind);
        let normalisers = Normalisers {
            observation: config.normalise_observations.then(|| frozen.unwrap_or_else(fresh)),
            reward: config.normalise_rewards.then(|| RewardScaler::new(env.num_envs())),
        };
        let mut actor = Actor::at_rest(env, architecture, normalisers, is_frozen);
        actor.env.reset(seed::derive(config.seed, "ppo.env", 0), &mut actor.batch);
        actor.look(1, true)?;
        Ok(actor)
    }

    /// Environments and normalisers as they were saved.
    pub(crate) fn resume(
        env: Box<dyn VectorEnv>,
        architecture: &Architecture,
        (normalisers, is_frozen): (Normalisers, bool),
        saved: &serde_json::Value,
        iteration: u64,
    ) -> Result<Actor, AgentError> {
        let mut actor = Actor::at_rest(env, architecture, normalisers, is_frozen);
        actor.env.restore(saved, &mut actor.batch).map_err(AgentError::Resume)?;
        // These observations were counted before they were saved.
        actor.look(iteration, false)?;
        Ok(actor)
    }

    fn at_rest(
        env: Box<dyn VectorEnv>,
        architecture: &Architecture,
        normalisers: Normalisers,
        is_frozen: bool,
    ) -> Actor {
        let batch = Batch::new(env.num_envs(), architecture.observation_size, architecture.num_choices());
        let heads = Heads::new(&architecture.head_sizes);
        let observations = vec![0.0; batch.observations.len()];
        Actor { env, batch, observations, normalisers, is_frozen, heads, architecture: architecture.clone() }
    }

    pub(crate) fn num_envs(&self) -> usize {
        self.env.num_envs()
    }

    /// State of the environments, to be saved between iterations.
    pub(crate) fn save(&self) -> serde_json::Value {
        self.env.save()
    }

    /// Takes `config.num_steps` decisions in every environment, sampled from the stream `ppo.sample` of `iteration`.
    pub(crate) fn collect(
        &mut self,
        actor: &Inference,
        config: &PpoConfig,
        iteration: u64,
    ) -> Result<Rollout, AgentError> {
        let num_envs = self.num_envs();
        let num_heads = self.heads.len();
        let mut stream = seed::stream(config.seed, "ppo.sample", iteration);
        let mut draws = vec![0.0; num_envs * num_heads];
        let mut actions = vec![0_u8; num_envs * num_heads];
        let mut cut_observations = Vec::new();
        let mut rollout = Rollout::new(config.num_steps, num_envs, &self.architecture);
        if config.fork {
            self.gather(config.group, iteration)?; // 19.
        }

        for step in 0..config.num_steps {
            if step % config.hold == 0 {
                draws.fill_with(|| stream.random::<f64>()); // 17.
            }
            self.decide(actor, &draws, &mut actions);
            rollout.observations.extend_from_slice(&self.observations);
            rollout.masks.extend_from_slice(&self.batch.masks);
            rollout.actions.extend_from_slice(&actions);
            rollout.clock_s.row_mut(step).iter_mut().zip(&self.batch.clock_s).for_each(|(kept, &at)| *kept = at);
            rollout.traffic.row_mut(step).iter_mut().zip(&self.batch.traffic).for_each(|(kept, &id)| *kept = id);

            self.env.step(&actions, &mut self.batch);
            if let Some(reason) = self.env.failure() {
                return Err(AgentError::Failed { iteration, reason });
            }
            self.look(iteration, true)?;
            rollout
                .elapsed_s
                .row_mut(step)
                .iter_mut()
                .zip(&self.batch.elapsed_s)
                .for_each(|(kept, &for_s)| *kept = for_s);
            self.reward(iteration, config)?;
            let mut rewards = rollout.rewards.row_mut(step);
            rewards.iter_mut().zip(&self.batch.rewards).for_each(|(kept, &reward)| *kept = reward);
            for env in 0..num_envs {
                let (terminated, truncated) = (self.batch.terminated[env], self.batch.truncated[env]);
                rollout.terminated[[step, env]] = terminated;
                rollout.truncated[[step, env]] = truncated;
                if truncated && !terminated {
                    rollout.cuts.push([step, env]);
                    cut_observations.extend(self.final_observation(iteration, env)?);
                }
            }
            rollout.episodes.append(&mut self.batch.episodes);
        }
        rollout.bootstrap_observations.clone_from(&self.observations);
        rollout.bootstrap_observations.append(&mut cut_observations);
        Ok(rollout)
    }

    /// Lets the environments of each group go on from the state of one of them, each time another's.
    fn gather(&mut self, group: usize, iteration: u64) -> Result<(), AgentError> {
        let leader = (iteration % group as u64) as usize;
        let gathered = self.env.gather(leader, &mut self.batch);
        gathered.map_err(|reason| AgentError::Failed { iteration, reason: format!("ppo.fork: {reason}") })?;
        if let Some(scaler) = &mut self.normalisers.reward {
            scaler.returns.chunks_mut(group).for_each(|returns| returns.fill(returns[leader]));
        }
        self.look(iteration, false)
    }

    /// Samples an action in every environment by `draws`; both are `[num_envs, num_heads]`.
    fn decide(&self, actor: &Inference, draws: &[f64], actions: &mut [u8]) {
        let heads = &self.heads;
        let (num_heads, num_choices) = (heads.len(), heads.num_choices());
        let together = self.observations.par_chunks(TOGETHER * self.architecture.observation_size);
        let together = together.zip(self.batch.masks.par_chunks(TOGETHER * num_choices));
        let together = together.zip(draws.par_chunks(TOGETHER * num_heads));
        let together = together.zip(actions.par_chunks_mut(TOGETHER * num_heads));
        together.for_each(|(((observations, masks), draws), actions)| {
            let mut logits = vec![0.0; masks.len()];
            actor.forward(observations, &mut logits);
            let rows = logits.chunks_exact(num_choices).zip(masks.chunks_exact(num_choices));
            let rows = rows.zip(draws.chunks_exact(num_heads)).zip(actions.chunks_exact_mut(num_heads));
            for (((logits, mask), draws), action) in rows {
                heads.sample(logits, mask, draws, action);
            }
        });
    }

    /// Takes in the batch's observations and masks; `count`s the observations among those seen.
    fn look(&mut self, iteration: u64, count: bool) -> Result<(), AgentError> {
        let size = self.architecture.observation_size;
        if let Some(index) = self.batch.observations.iter().position(|value| !value.is_finite()) {
            let what = format!("feature {} of the observation", index % size);
            return Err(AgentError::Environment {
                iteration,
                env: index / size,
                what,
                value: self.batch.observations[index],
            });
        }
        for (env, mask) in self.batch.masks.chunks_exact(self.heads.num_choices()).enumerate() {
            if let Some(head) = self.heads.first_empty(mask) {
                return Err(AgentError::EmptyMask { iteration, env, head });
            }
        }
        self.observations.copy_from_slice(&self.batch.observations);
        if let Some(moments) = &mut self.normalisers.observation {
            if count && !self.is_frozen {
                moments.update(&self.batch.observations);
            }
            moments.standardiser().apply(&mut self.observations);
        }
        Ok(())
    }

    /// Scales the batch's rewards in place.
    fn reward(&mut self, iteration: u64, config: &PpoConfig) -> Result<(), AgentError> {
        let Batch { rewards, terminated, truncated, elapsed_s, .. } = &mut self.batch;
        if let Some(env) = rewards.iter().position(|reward| !reward.is_finite()) {
            return Err(AgentError::Environment { iteration, env, what: "the reward".to_owned(), value: rewards[env] });
        }
        if let Some(scaler) = &mut self.normalisers.reward {
            let ended =
                terminated.iter().zip(truncated.iter()).map(|(&terminated, &truncated)| terminated || truncated);
            scaler.scale(rewards, ended, elapsed_s.iter().map(|&elapsed_s| config.discount(elapsed_s).0));
        }
        Ok(())
    }

    /// The last observation of the episode that just ended in `env`, standardised.
    fn final_observation(&self, iteration: u64, env: usize) -> Result<Vec<f32>, AgentError> {
        let size = self.architecture.observation_size;
        let mut row = self.batch.final_observations[env * size..][..size].to_vec();
        if let Some(feature) = row.iter().position(|value| !value.is_finite()) {
            let what = format!("feature {feature} of the final observation");
            return Err(AgentError::Environment { iteration, env, what, value: row[feature] });
        }
        if let Some(moments) = &self.normalisers.observation {
            moments.standardiser().apply(&mut row);
        }
        Ok(row)
    }
}
