//! Settings of a training run.

use std::fmt::Display;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A setting outside its range.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{table}.{field} = {value}: must be {range}")]
pub struct HyperparameterError {
    /// The table of an experiment it stands in.
    pub table: &'static str,
    /// The setting.
    pub field: &'static str,
    /// What it was.
    pub value: String,
    /// What it must be.
    pub range: &'static str,
}

/// A value that moves linearly from `start`, at the first iteration, to `end`, after the last.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Value at the first iteration.
    pub start: f64,
    /// Value after the last iteration.
    pub end: f64,
}

impl Schedule {
    /// The value once `progress`, in `0..=1`, of the iterations is done.
    pub fn at(self, progress: f64) -> f64 {
        self.start + (self.end - self.start) * progress
    }
}

/// Where learning starts. A policy near uniform wanders through states no sensible policy comes to, and what one decision
/// does there is lost in what the others do; starting from a constant choice, deviations are judged against it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prior {
    /// The choice of each head.
    pub choices: Vec<u8>,
    /// With what probability the first policy takes each of them, in `(0, 1)`; the others share the rest evenly.
    pub probability: f64,
}

/// Settings of PPO. The defaults are those of cleanrl's `ppo.py`, with observations and rewards normalised as in its
/// `ppo_continuous_action.py`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PpoConfig {
    /// Decisions to learn from, over all environments; rounded down to whole iterations.
    pub total_decisions: u64,
    /// Decisions of each environment per iteration, in `1..=65536`.
    pub num_steps: usize,
    /// For how many decisions each environment keeps the uniform numbers its choices are drawn with, in `1..=65536`.
    pub hold: usize,
    /// Passes over each rollout, in `1..=100`.
    pub num_epochs: usize,
    /// Minibatches per pass; must divide `num_steps * num_envs`.
    pub num_minibatches: usize,
    /// Adam's step size, in `(0, 1]`.
    pub learning_rate: f64,
    /// Whether the learning rate falls linearly to zero.
    pub anneal: bool,
    /// Discount per decision, in `0..=1`.
    pub gamma: f64,
    /// λ of generalised advantage estimation, in `0..=1`.
    pub gae_lambda: f64,
    /// Discounts by the clock instead of by `gamma`: what is earned so many seconds later counts for 1/e; above 0. Decisions last
    /// as long as they last, and one under which much is refused is asked for again soon: per decision, its consequences would be
    /// discounted more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon_s: Option<f64>,
    /// λ by the clock instead of `gae_lambda`: it falls to 1/e in so many seconds; above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_s: Option<f64>,
    /// Environments that serve the same traffic, in `1..=256`; must divide the number of environments. What a decision came to is
    /// then held against what the others of its group came to from that moment of the clock on: arrivals cancel. 1: each its own.
    #[serde(skip_serializing_if = "is_one")]
    pub group: usize,
    /// Whether in each iteration the environments of a group begin in the same state, that of one of them.
    #[serde(skip_serializing_if = "is_false")]
    pub fork: bool,
    /// How far the probability ratio may move before its gradient is cut, in `(0, 1)`.
    pub clip: f64,
    /// How far a value may move from the rollout's before its gradient is cut; positive. `None`: not clipped.
    pub value_clip: Option<f64>,
    /// Weight of the entropy bonus. What is shipped takes the likeliest choice always, so a policy that still draws among
    /// many is judged in training by what it will not do; a weight that falls below 0 makes it sure by the end.
    pub entropy_coef: Schedule,
    /// Weight of the value loss, not negative.
    pub value_coef: f64,
    /// Largest Euclidean norm of the gradient over all parameters; positive.
    pub max_grad_norm: f64,
    /// Stops the passes over a rollout once the approximate KL divergence exceeds this; positive. `None`: never.
    pub target_kl: Option<f64>,
    /// Widths of the hidden layers of actor and critic, each in `1..=4096`, at most 8 of them.
    pub hidden: Vec<usize>,
    /// Where learning starts. `None`: from a nearly uniform policy.
    pub prior: Option<Prior>,
    /// Whether observations are standardised by running moments.
    pub normalise_observations: bool,
    /// Features that are left out of the observation, by index; needs `normalise_observations`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blind: Vec<usize>,
    /// Whether rewards are divided by the running standard deviation of the discounted return.
    pub normalise_rewards: bool,
    /// Seed of every stream.
    pub seed: u64,
    /// Threads of one libtorch operation, in `1..=256`. Runs are byte for byte repeatable only at the same number.
    pub num_threads: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(value: &usize) -> bool {
    *value == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Default for PpoConfig {
    fn default() -> PpoConfig {
        PpoConfig {
            total_decisions: 1_000_000,
            num_steps: 128,
            hold: 1,
            num_epochs: 4,
            num_minibatches: 4,
            learning_rate: 2.5e-4,
            anneal: true,
            gamma: 0.99,
            gae_lambda: 0.95,
            horizon_s: None,
            trace_s: None,
            group: 1,
            fork: false,
            clip: 0.2,
            value_clip: None,
            entropy_coef: Schedule { start: 0.01, end: 0.01 },
            value_coef: 0.5,
            max_grad_norm: 0.5,
            target_kl: None,
            hidden: vec![64, 64],
            prior: None,
            normalise_observations: true,
            blind: Vec::new(),
            normalise_rewards: true,
            seed: 1,
            num_threads: 1,
        }
    }
}

/// No weight or bound is larger: what is, is a slip of the pen.
const MOST: f64 = 1e6;

impl PpoConfig {
    /// Checks every range that can be checked without an environment.
    ///
    /// # Errors
    /// The first setting outside its range.
    pub fn validate(&self) -> Result<(), HyperparameterError> {
        let whole = |field, value: usize, allowed: std::ops::RangeInclusive<usize>, range| {
            require(allowed.contains(&value), "ppo", field, &value, range)
        };
        let real = |field, value: f64, allowed: bool, range| {
            require(value.is_finite() && allowed, "ppo", field, &value, range)
        };

        require(self.total_decisions >= 1, "ppo", "total_decisions", &self.total_decisions, "at least 1")?;
        whole("num_steps", self.num_steps, 1..=65_536, "in 1..=65536")?;
        whole("hold", self.hold, 1..=65_536, "in 1..=65536")?;
        whole("num_epochs", self.num_epochs, 1..=100, "in 1..=100")?;
        whole("num_minibatches", self.num_minibatches, 1..=65_536, "in 1..=65536")?;
        let rate = self.learning_rate;
        real("learning_rate", rate, rate > 0.0 && rate <= 1.0, "in (0, 1]")?;
        real("gamma", self.gamma, (0.0..=1.0).contains(&self.gamma), "in 0..=1")?;
        real("gae_lambda", self.gae_lambda, (0.0..=1.0).contains(&self.gae_lambda), "in 0..=1")?;
        real("clip", self.clip, self.clip > 0.0 && self.clip < 1.0, "in (0, 1)")?;
        whole("group", self.group, 1..=256, "in 1..=256")?;
        let forks = !self.fork || self.group > 1;
        require(forks, "ppo", "fork", &self.fork, "false unless group is at least 2")?;
        for (field, optional) in [
            ("value_clip", self.value_clip),
            ("target_kl", self.target_kl),
            ("horizon_s", self.horizon_s),
            ("trace_s", self.trace_s),
        ] {
            optional
                .map_or(Ok(()), |value| real(field, value, value > 0.0 && value <= MOST, "above 0, at most 1000000"))?;
        }
        for (field, value) in
            [("entropy_coef.start", self.entropy_coef.start), ("entropy_coef.end", self.entropy_coef.end)]
        {
            real(field, value, value.abs() <= MOST, "in -1000000..=1000000")?;
        }
        real("value_coef", self.value_coef, (0.0..=MOST).contains(&self.value_coef), "in 0..=1000000")?;
        let norm = self.max_grad_norm;
        real("max_grad_norm", norm, norm > 0.0 && norm <= MOST, "above 0, at most 1000000")?;
        require(self.hidden.len() <= 8, "ppo", "hidden", &format!("{:?}", self.hidden), "at most 8 layers")?;
        for &width in &self.hidden {
            whole("hidden", width, 1..=4096, "layers of 1..=4096")?;
        }
        let is_blind = self.blind.is_empty() || self.normalise_observations;
        require(is_blind, "ppo", "blind", &format!("{:?}", self.blind), "empty unless observations are normalised")?;
        if let Some(Prior { probability, .. }) = self.prior {
            real("prior.probability", probability, probability > 0.0 && probability < 1.0, "in (0, 1)")?;
        }
        whole("num_threads", self.num_threads, 1..=256, "in 1..=256")
    }

    /// Decisions per iteration and iterations in all, for `num_envs` environments.
    ///
    /// # Errors
    /// `total_decisions` is less than one iteration, or `num_minibatches` does not divide one evenly into at least two
    /// decisions each (the advantages of one decision cannot be standardised).
    pub fn plan(&self, num_envs: usize) -> Result<TrainingPlan, HyperparameterError> {
        self.validate()?;
        let grouped = num_envs.is_multiple_of(self.group);
        require(grouped, "ppo", "group", &self.group, "a divisor of num_envs")?;
        let batch = self.num_steps * num_envs;
        let minibatches = self.num_minibatches;
        require(
            batch.is_multiple_of(minibatches) && batch / minibatches >= 2,
            "ppo",
            "num_minibatches",
            &format!("{minibatches} with {} steps of {num_envs} environments", self.num_steps),
            "a divisor of num_steps * num_envs that leaves at least 2 decisions each",
        )?;
        require(
            self.total_decisions >= batch as u64,
            "ppo",
            "total_decisions",
            &self.total_decisions,
            "at least num_steps * num_envs",
        )?;
        Ok(TrainingPlan { batch, minibatch: batch / minibatches, iterations: self.total_decisions / batch as u64 })
    }

    /// γ and λ of a decision that was obeyed for `elapsed_s`.
    pub fn discount(&self, elapsed_s: f64) -> (f64, f64) {
        let by_clock =
            |seconds: Option<f64>, otherwise| seconds.map_or(otherwise, |seconds| (-elapsed_s / seconds).exp());
        (by_clock(self.horizon_s, self.gamma), by_clock(self.trace_s, self.gae_lambda))
    }
}

/// How a run divides its decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainingPlan {
    /// Decisions per iteration.
    pub batch: usize,
    /// Decisions per minibatch.
    pub minibatch: usize,
    /// Iterations in all.
    pub iterations: u64,
}

/// # Errors
/// The setting, unless what is required of it holds.
pub(crate) fn require(
    holds: bool,
    table: &'static str,
    field: &'static str,
    value: &dyn Display,
    range: &'static str,
) -> Result<(), HyperparameterError> {
    if holds { Ok(()) } else { Err(HyperparameterError { table, field, value: value.to_string(), range }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(PpoConfig::default().validate(), Ok(()));
    }

    #[test]
    fn errors_name_field_value_and_range() {
        let config = PpoConfig { gamma: 1.5, ..PpoConfig::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "ppo.gamma = 1.5: must be in 0..=1");
        let config = PpoConfig { target_kl: Some(f64::NAN), ..PpoConfig::default() };
        assert_eq!(config.validate().unwrap_err().field, "target_kl");
        let config = PpoConfig { hidden: vec![64, 0], ..PpoConfig::default() };
        assert_eq!(config.validate().unwrap_err().field, "hidden");
    }

    #[test]
    fn a_plan_divides_evenly_or_is_refused() {
        let config = PpoConfig { total_decisions: 10_000, num_steps: 16, num_minibatches: 4, ..PpoConfig::default() };
        assert_eq!(config.plan(8), Ok(TrainingPlan { batch: 128, minibatch: 32, iterations: 78 }));
        assert_eq!(PpoConfig { num_minibatches: 5, ..config.clone() }.plan(8).unwrap_err().field, "num_minibatches");
        assert_eq!(PpoConfig { num_minibatches: 128, ..config.clone() }.plan(8).unwrap_err().field, "num_minibatches");
        assert_eq!(PpoConfig { total_decisions: 100, ..config }.plan(8).unwrap_err().field, "total_decisions");
    }

    #[test]
    fn a_discount_by_the_clock_does_not_ask_how_time_was_cut() {
        let config = PpoConfig { horizon_s: Some(50.0), trace_s: Some(5.0), ..PpoConfig::default() };
        let (whole, parts) = (config.discount(3.0), [config.discount(1.0), config.discount(2.0)]);
        assert!((whole.0 - parts[0].0 * parts[1].0).abs() < 1e-12 && (whole.1 - parts[0].1 * parts[1].1).abs() < 1e-12);
        assert!((config.discount(50.0).0 - (-1.0_f64).exp()).abs() < 1e-12);
        assert_eq!(PpoConfig::default().discount(7.0), (0.99, 0.95));
        assert_eq!(PpoConfig { horizon_s: Some(0.0), ..config }.validate().unwrap_err().field, "horizon_s");
    }

    #[test]
    fn groups_divide_the_environments_and_forks_need_them() {
        let config = PpoConfig { group: 4, fork: true, ..PpoConfig::default() };
        assert!(config.plan(8).is_ok());
        assert_eq!(config.plan(10).unwrap_err().to_string(), "ppo.group = 4: must be a divisor of num_envs");
        assert_eq!(PpoConfig { group: 1, ..config }.validate().unwrap_err().field, "fork");
        // A file that says nothing of them is written as before.
        let text = serde_json::to_string(&PpoConfig::default()).unwrap();
        assert!(!["group", "fork", "horizon_s", "trace_s"].iter().any(|key| text.contains(key)), "{text}");
    }

    #[test]
    fn unknown_settings_are_refused() {
        let error = serde_json::from_str::<PpoConfig>(r#"{"gama": 0.9}"#).unwrap_err();
        assert!(error.to_string().contains("gama"), "{error}");
    }

    #[test]
    fn a_schedule_is_linear() {
        let schedule = Schedule { start: 0.02, end: 0.0 };
        assert_eq!([0.0, 0.5, 1.0].map(|progress| schedule.at(progress)), [0.02, 0.01, 0.0]);
    }
}
