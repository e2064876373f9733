//! Proximal policy optimisation (Schulman et al. 2017, "Proximal Policy Optimization Algorithms"), read top to bottom:
//! [`Trainer::iterate`] is the algorithm. Its details, numbered as they are marked below and in `gradient.rs`, follow
//! Huang et al. 2022, "The 37 Implementation Details of Proximal Policy Optimization" (H), and cleanrl's `ppo.py`:
//!
//! 1. several environments, rollouts of fixed length that go on where the last stopped (H core 1);
//! 2. orthogonal initialisation, a nearly uniform first policy (H core 2, [`Weights::orthogonal`]);
//! 3. Adam with ε = 1e-5 (H core 3);
//! 4. the learning rate falls linearly (H core 4);
//! 5. generalised advantage estimation (Schulman et al. 2016; H core 5), bootstrapped from the final observation of an
//!    episode that was cut short (Pardo et al. 2018), which cleanrl does not do;
//! 6. each epoch shuffles the rollout and takes every decision once (H core 6);
//! 7. advantages are standardised within the minibatch (H core 7);
//! 8. clipped surrogate objective (Schulman et al. 2017, equation 7; H core 8);
//! 9. optionally, the value loss is clipped alike (H core 9);
//! 10. one loss: policy − entropy bonus + weighted value loss (Schulman et al. 2017, equation 9; H core 10);
//! 11. the gradient's norm over all parameters is limited (H core 11);
//! 12. `approx_kl` and `clip_fraction` tell whether the step was a small one (H core 12), and optionally end the epochs;
//! 13. actor and critic share nothing (H core 13);
//! 14. observations are standardised by running moments and clipped, rewards scaled and clipped (H continuous 5–8),
//!     [`super::normalise`];
//! 15. one categorical distribution per head, impossible choices masked (H `MultiDiscrete`, masking), [`super::heads`];
//! 16. optionally, the first policy favours a given constant choice instead of being nearly uniform
//!     ([`Weights::favouring`]); this is ours;
//! 17. optionally, the numbers that choices are drawn with are kept for several decisions: each choice is distributed as
//!     the policy says, but a mixture of watermarks is tried as several steady watermarks rather than as one that jumps
//!     (the idea of generalised state-dependent exploration, Raffin et al. 2021, for discrete heads).
//! 18. optionally, discounts go by the environment's clock, since decisions last as long as they last (Bradtke, Duff 1995);
//! 19. optionally, environments come in groups that serve the same traffic, may begin each iteration in the same state (the
//!     rollouts of Schulman et al. 2015, section 5.2), and what the others of a group came to is the baseline of each (Mao et al.
//!     2019), [`super::group`];
//! 20. optionally, the network is a correction of a linear policy that a search has found, which it equals at first
//!     ([`Weights::starting_from`]).
//!
//! Nothing here reads a clock or keeps a generator: each iteration's draws come from streams named by its number, so the
//! state saved between two iterations is all there is, and a resumed run is byte for byte the one that never stopped. Nor
//! does it matter how many threads there are: what is added up is cut into shards that do not depend on them.

use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::env::VectorEnv;
use kvtide_envs::seed;
use ndarray::Array2;
use rand::seq::SliceRandom;

use super::adam::{AdamState, clip_norm};
use super::config::{HyperparameterError, PpoConfig, TrainingPlan};
use super::gae::{self, Trajectory};
use super::gradient::{self, Gradient, Means, PpoObjective, Samples};
use super::group;
use super::heads::Heads;
use super::normalise::{Moments, Normalisers};
use super::rollout::{Actor, Rollout};
use super::state::{RunOutcome, TrainerState};
use super::tensors::Tensors;
use super::weights::{Architecture, LinearStart, Weights};
use super::{AgentError, IterationReport, Losses};

/// A training run.
pub struct Trainer {
    tensors: &'static dyn Tensors,
    config: PpoConfig,
    plan: TrainingPlan,
    iteration: u64,
    decisions: u64,
    actor: Actor,
    weights: Weights,
    adam: AdamState,
    heads: Heads,
}

impl Trainer {
    /// A new run, whose networks `tensors` multiplies.
    ///
    /// # Errors
    /// [`AgentError::Config`] if a setting is out of range for this environment; [`AgentError::Shape`],
    /// [`AgentError::Environment`] or [`AgentError::EmptyMask`] if nothing can be learned from it.
    pub fn new(
        config: PpoConfig,
        env: Box<dyn VectorEnv>,
        tensors: &'static dyn Tensors,
    ) -> Result<Trainer, AgentError> {
        Trainer::starting_from(None, config, env, tensors)
    }

    /// A new run that begins with a policy, over observations standardised by its moments, instead of with a constant choice.
    ///
    /// # Errors
    /// As [`Trainer::new`]; [`AgentError::Config`] if the policy is not over the observation and action of `env`.
    pub fn starting_from(
        start: Option<(LinearStart, Moments)>,
        config: PpoConfig,
        env: Box<dyn VectorEnv>,
        tensors: &'static dyn Tensors,
    ) -> Result<Trainer, AgentError> {
        let architecture = architecture(&config, &*env)?;
        let plan = config.plan(env.num_envs())?;
        let mut weights = Weights::orthogonal(architecture.clone(), config.seed); // 2.
        let mut frozen = None;
        if let Some((start, moments)) = start {
            let fits = config.normalise_observations && moments.mean.len() == architecture.observation_size;
            weights = weights.starting_from(start).filter(|_| fits).ok_or_else(|| HyperparameterError {
                table: "ppo",
                field: "normalise_observations",
                value: config.normalise_observations.to_string(),
                range: "true where learning starts from a policy, which must be over this observation and action",
            })?; // 20.
            frozen = Some(moments);
        } else if let Some(prior) = &config.prior {
            weights = weights.favouring(prior).ok_or_else(|| HyperparameterError {
                table: "ppo",
                field: "prior.choices",
                value: format!("{:?}", prior.choices),
                range: "one choice for each head, within its range",
            })?; // 16.
        }
        let adam = AdamState::new(weights.values().iter().map(Vec::len)); // 3.
        let actor = Actor::start(env, &architecture, &config, frozen)?;
        let heads = Heads::new(&architecture.head_sizes);
        Ok(Trainer { tensors, config, plan, iteration: 0, decisions: 0, actor, weights, adam, heads })
    }

    /// Goes on from a saved state, in an environment made as the one it was saved from.
    ///
    /// # Errors
    /// As [`Trainer::new`], and [`AgentError::Resume`] if the state is not of this environment or these settings.
    pub fn resume(
        state: TrainerState,
        env: Box<dyn VectorEnv>,
        tensors: &'static dyn Tensors,
    ) -> Result<Trainer, AgentError> {
        let TrainerState { config, iteration, decisions, weights, optimiser, normalisers, env: saved } = state;
        let architecture = architecture(&config, &*env)?;
        let plan = config.plan(env.num_envs())?;
        if architecture != *weights.architecture() {
            let found = weights.architecture();
            return Err(AgentError::Resume(format!("saved networks are {found:?}, asked for are {architecture:?}")));
        }
        let lengths = |values: &[Vec<f32>]| values.iter().map(Vec::len).collect::<Vec<_>>();
        if [&optimiser.first, &optimiser.second].iter().any(|moments| lengths(moments) != lengths(weights.values())) {
            return Err(AgentError::Resume("saved moments of the optimiser are not those of the networks".to_owned()));
        }
        if !fits(&normalisers, &config, &architecture, env.num_envs()) {
            return Err(AgentError::Resume("saved normalisers do not fit the settings or the environment".to_owned()));
        }
        let normalisers = (normalisers, weights.start().is_some());
        let actor = Actor::resume(env, &architecture, normalisers, &saved, iteration + 1)?;
        let heads = Heads::new(&architecture.head_sizes);
        Ok(Trainer { tensors, config, plan, iteration, decisions, actor, weights, adam: optimiser, heads })
    }

    /// Iterates until done or until `stop` is set, which is looked at between iterations. `observe` is called after each
    /// and may save [`Trainer::state`].
    ///
    /// # Errors
    /// As [`Trainer::iterate`]; and whatever `observe` gives, which ends the run.
    pub fn run<E: From<AgentError>>(
        &mut self,
        stop: &AtomicBool,
        mut observe: impl FnMut(&Trainer, &IterationReport) -> Result<(), E>,
    ) -> Result<RunOutcome, E> {
        while !self.is_finished() {
            if stop.load(Ordering::Relaxed) {
                return Ok(RunOutcome::Interrupted);
            }
            let report = self.iterate()?;
            observe(self, &report)?;
        }
        Ok(RunOutcome::Finished)
    }

    /// One iteration: act, estimate advantages, improve.
    ///
    /// # Errors
    /// [`AgentError::Environment`] or [`AgentError::EmptyMask`] if the environment gave something nobody can learn from,
    /// [`AgentError::NonFinite`] if the optimisation diverged. The run cannot go on after an error.
    pub fn iterate(&mut self) -> Result<IterationReport, AgentError> {
        let rollout = self.act()?;
        self.learn(rollout)
    }

    /// The first half of an iteration: decisions under the current actor.
    pub(crate) fn act(&mut self) -> Result<Rollout, AgentError> {
        let actor = self.weights.deciding();
        // In a scope, so on a thread of the pool: from any other, each step would have to wait for one of them to wake up.
        rayon::scope(|_| self.actor.collect(&actor, &self.config, self.iteration + 1)) // 1., 14.
    }

    /// The second half: what is learned from them.
    pub(crate) fn learn(&mut self, mut rollout: Rollout) -> Result<IterationReport, AgentError> {
        let progress = (self.iteration as f64 / self.plan.iterations as f64).min(1.0);
        let learning_rate = self.config.learning_rate * if self.config.anneal { 1.0 - progress } else { 1.0 }; // 4.
        let entropy_coef = self.config.entropy_coef.at(progress);
        self.iteration += 1;
        self.decisions += self.plan.batch as u64;

        let episodes = std::mem::take(&mut rollout.episodes);
        let losses = rayon::scope(|_| self.update(&rollout, learning_rate, entropy_coef))?;
        let (iteration, decisions) = (self.iteration, self.decisions);
        Ok(IterationReport { iteration, decisions, learning_rate, entropy_coef, losses, episodes })
    }

    fn update(&mut self, rollout: &Rollout, learning_rate: f64, entropy_coef: f64) -> Result<Losses, AgentError> {
        let Trainer { tensors, config, plan, weights, adam, heads, .. } = self;
        let tensors = *tensors;
        // libtorch keeps this per thread.
        rayon::broadcast(|_| tensors.set_num_threads(config.num_threads));

        // Log-probabilities and values of the rollout, by the network that is about to change: taken here rather than
        // while acting, so that the ratio starts at one to the last bits and the critic runs once, on everything.
        let (log_probs, values) = gradient::evaluate(tensors, weights, heads, rollout);
        let values = Array2::from_shape_vec(rollout.rewards.dim(), values).expect("one per row");
        let bootstrap = gradient::values(tensors, weights, &rollout.bootstrap_observations);
        let next_values = rollout.next_values(&values, &bootstrap);
        let trajectory = Trajectory {
            rewards: rollout.rewards.view(),
            values: values.view(),
            next_values: next_values.view(),
            terminated: rollout.terminated.view(),
            truncated: rollout.truncated.view(),
        };
        let discount = |elapsed_s: f64| {
            let (gamma, lambda) = config.discount(elapsed_s);
            (gamma as f32, lambda as f32)
        }; // 18.
        let mut advantages = gae::discounted(&trajectory, |at| discount(rollout.elapsed_s[at])); // 5.
        let returns = &advantages + &values;
        let mut losses = Losses { explained_variance: explained_variance(&advantages, &returns), ..Losses::default() };
        if config.group > 1 {
            let baselines = group::baselines(&trajectory, rollout, &advantages, config); // 19.
            losses.grouped = Some(baselines.share);
            advantages -= &baselines.values;
        }
        let [values, advantages, returns] =
            [&values, &advantages, &returns].map(|rows| rows.as_slice().expect("row-major"));
        let samples = Samples { rollout, heads, log_probs: &log_probs, values, returns };
        let objective = PpoObjective {
            clip: config.clip as f32,
            value_clip: config.value_clip.map(|clip| clip as f32),
            entropy_coef: entropy_coef as f32,
            value_coef: config.value_coef as f32,
        };

        let mut order: Vec<usize> = (0..plan.batch).collect();
        let mut stream = seed::stream(config.seed, "ppo.shuffle", self.iteration);
        let mut clip_fractions = 0.0;
        let mut updates = 0.0;
        for epoch in 0..config.num_epochs {
            order.shuffle(&mut stream); // 6.
            for (minibatch, rows) in order.chunks_exact(plan.minibatch).enumerate() {
                let advantages = standardised(advantages, rows); // 7.
                let Gradient { values: mut gradient, means } =
                    gradient::gradient(tensors, weights, &samples, (rows, &advantages), &objective); // 8., 9., 10., 13., 15.
                let grad_norm = clip_norm(&mut gradient, config.max_grad_norm); // 11.
                let loss = means.policy_loss - entropy_coef * means.entropy + config.value_coef * means.value_loss;
                for (what, value) in [("the loss", loss), ("the norm of the gradient", grad_norm)] {
                    if !value.is_finite() {
                        let (epoch, minibatch) = (epoch + 1, minibatch + 1);
                        return Err(AgentError::NonFinite { iteration: self.iteration, epoch, minibatch, what, value });
                    }
                }
                adam.step(weights.values_mut(), &gradient, learning_rate);

                let Means { policy_loss, value_loss, entropy, log_ratio, kl, clipped } = means;
                let old_approx_kl = -log_ratio;
                losses = Losses { policy_loss, value_loss, entropy, old_approx_kl, approx_kl: kl, grad_norm, ..losses }; // 12.
                clip_fractions += clipped;
                updates += 1.0;
            }
            losses.epochs = epoch + 1;
            if config.target_kl.is_some_and(|target| losses.approx_kl > target) {
                break;
            }
        }
        losses.clip_fraction = clip_fractions / updates;
        Ok(losses)
    }

    /// Everything needed to go on from here. To be taken between iterations.
    pub fn state(&self) -> TrainerState {
        TrainerState {
            config: self.config.clone(),
            iteration: self.iteration,
            decisions: self.decisions,
            weights: self.weights.clone(),
            optimiser: self.adam.clone(),
            normalisers: self.actor.normalisers.clone(),
            env: self.actor.save(),
        }
    }

    /// What it learns by.
    pub fn config(&self) -> &PpoConfig {
        &self.config
    }

    /// How the run divides its decisions.
    pub fn plan(&self) -> TrainingPlan {
        self.plan
    }

    /// Iterations done.
    pub fn iteration(&self) -> u64 {
        self.iteration
    }

    /// Decisions taken.
    pub fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Whether all iterations are done.
    pub fn is_finished(&self) -> bool {
        self.iteration >= self.plan.iterations
    }

    /// The current actor and critic.
    pub fn weights(&self) -> Weights {
        self.weights.clone()
    }
}

/// The advantages of `rows`, less their mean, over their (unbiased) standard deviation.
fn standardised(advantages: &[f32], rows: &[usize]) -> Vec<f32> {
    let taken = || rows.iter().map(|&row| f64::from(advantages[row]));
    let mean = taken().sum::<f64>() / rows.len() as f64;
    let squares: f64 = taken().map(|advantage| (advantage - mean).powi(2)).sum();
    let deviation = (squares / (rows.len() - 1) as f64).sqrt();
    taken().map(|advantage| ((advantage - mean) / (deviation + 1e-8)) as f32).collect()
}

/// `1 − Var(returns − values) / Var(returns)`, where `returns − values` are the advantages.
fn explained_variance(advantages: &Array2<f32>, returns: &Array2<f32>) -> Option<f64> {
    let variance = |values: &Array2<f32>| values.mapv(f64::from).var(0.0);
    let total = variance(returns);
    (total > 0.0).then(|| 1.0 - variance(advantages) / total)
}

fn architecture(config: &PpoConfig, env: &dyn VectorEnv) -> Result<Architecture, AgentError> {
    let (num_envs, observation_size, head_sizes) = (env.num_envs(), env.observation_size(), env.head_sizes().to_vec());
    let learnable = num_envs > 0
        && observation_size > 0
        && !head_sizes.is_empty()
        && head_sizes.iter().all(|size| (1..=256).contains(size));
    if !learnable {
        return Err(AgentError::Shape { num_envs, observation_size, head_sizes });
    }
    if config.blind.iter().any(|&feature| feature >= observation_size) {
        let value = format!("{:?}", config.blind);
        return Err(HyperparameterError { table: "ppo", field: "blind", value, range: "indices of features" }.into());
    }
    Ok(Architecture { observation_size, hidden: config.hidden.clone(), head_sizes })
}

fn fits(normalisers: &Normalisers, config: &PpoConfig, architecture: &Architecture, num_envs: usize) -> bool {
    let observation = match &normalisers.observation {
        Some(moments) => config.normalise_observations && moments.mean.len() == architecture.observation_size,
        None => !config.normalise_observations,
    };
    let reward = match &normalisers.reward {
        Some(scaler) => config.normalise_rewards && scaler.returns.len() == num_envs,
        None => !config.normalise_rewards,
    };
    observation && reward
}

#[cfg(test)]
mod tests {
    use ndarray::arr2;

    use super::*;

    #[test]
    fn explained_variance_is_one_for_perfect_values_and_zero_for_constant_ones() {
        let returns = arr2(&[[1.0, 2.0], [3.0, 4.0]]);
        assert_eq!(explained_variance(&Array2::zeros((2, 2)), &returns), Some(1.0));
        assert_eq!(explained_variance(&(&returns - 7.0), &returns), Some(0.0));
        assert_eq!(explained_variance(&returns, &Array2::ones((2, 2))), None);
    }
}
