//! The gradient of the loss over a minibatch, and what is evaluated of a rollout before it. Rows are cut into shards of fixed
//! length that are worked on in parallel and added up in order, so that sums do not depend on the number of threads. Numbers
//! are those of [`super::ppo`].

use rayon::prelude::*;

use super::heads::Heads;
use super::inference::Inference;
use super::loss;
use super::rollout::Rollout;
use super::tensors::Tensors;
use super::weights::Weights;

/// Rows of a shard: enough that a tensor library multiplies rather than dispatches, few enough that a shard stays in the cache. Part of
/// what a run computes, because sums over other shards are rounded otherwise.
const SHARD: usize = 512;

/// A rollout, and what was estimated of each of its rows.
pub struct Samples<'a> {
    /// What was seen and done.
    pub rollout: &'a Rollout,
    /// How choices are laid out in a row.
    pub heads: &'a Heads,
    /// Log-probability of the action taken.
    pub log_probs: &'a [f32],
    /// V(s) as it was.
    pub values: &'a [f32],
    /// What V(s) should have been.
    pub returns: &'a [f32],
}

/// What is minimised: policy loss − entropy bonus + weighted value loss, mean over a minibatch.
pub struct PpoObjective {
    /// How far a ratio may move before nothing rewards moving it further.
    pub clip: f32,
    /// Likewise of values, if they are held.
    pub value_clip: Option<f32>,
    /// Weight of the entropy bonus.
    pub entropy_coef: f32,
    /// Weight of the value loss.
    pub value_coef: f32,
}

/// A derivative by every parameter, in the order of the weights, and what was seen on the way.
pub struct Gradient {
    /// By parameter.
    pub values: Vec<Vec<f32>>,
    /// What was seen on the way.
    pub means: Means,
}

/// Means over a minibatch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Means {
    /// Of the clipped surrogate.
    pub policy_loss: f64,
    /// Of half the squared error.
    pub value_loss: f64,
    /// Over all heads, nats.
    pub entropy: f64,
    /// Log of the ratio of the new probability to the old.
    pub log_ratio: f64,
    /// Of `(r − 1) − log r`.
    pub kl: f64,
    /// Of whether the ratio left `1 ± clip`.
    pub clipped: f64,
}

/// Log-probability of the action and value of every row of `rollout`, `[batch]` each.
pub fn evaluate(tensors: &dyn Tensors, weights: &Weights, heads: &Heads, rollout: &Rollout) -> (Vec<f32>, Vec<f32>) {
    let size = weights.architecture().observation_size;
    let start = weights.start_alone();
    let shards = rollout.observations.par_chunks(SHARD * size);
    let shards = shards.zip(rollout.masks.par_chunks(SHARD * heads.num_choices()));
    let shards = shards.zip(rollout.actions.par_chunks(SHARD * heads.len()));
    let shards = shards.map(|((observations, masks), actions)| {
        let mut logits = tensors.network(&mut weights.actor()).forward(observations);
        add(start.as_ref(), observations, &mut logits);
        let values = tensors.network(&mut weights.critic()).forward(observations);
        let rows = logits.chunks_exact_mut(heads.num_choices()).zip(masks.chunks_exact(heads.num_choices()));
        let rows = rows.zip(actions.chunks_exact(heads.len()));
        let mut spare = vec![0.0; heads.num_choices()];
        let log_probs: Vec<f32> =
            rows.map(|((row, mask), action)| heads.evaluate(row, &mut spare, mask, action).0).collect();
        (log_probs, values)
    });
    let (log_probs, values): (Vec<_>, Vec<_>) = shards.unzip();
    (log_probs.concat(), values.concat())
}

/// Adds the logits of the policy that learning started from, which are not learned.
fn add(start: Option<&Inference>, observations: &[f32], logits: &mut [f32]) {
    if let Some(start) = start {
        let mut sums = vec![0.0; logits.len()];
        start.forward(observations, &mut sums);
        logits.iter_mut().zip(&sums).for_each(|(logit, sum)| *logit += sum);
    }
}

/// Values of `observations` `[rows, observation_size]`.
pub fn values(tensors: &dyn Tensors, weights: &Weights, observations: &[f32]) -> Vec<f32> {
    tensors.network(&mut weights.critic()).forward(observations)
}

/// The gradient over the minibatch `rows`, whose standardised advantages are `advantages`.
pub fn gradient(
    tensors: &dyn Tensors,
    weights: &Weights,
    samples: &Samples<'_>,
    (rows, advantages): (&[usize], &[f32]),
    objective: &PpoObjective,
) -> Gradient {
    let share = 1.0 / rows.len() as f32;
    let start = weights.start_alone();
    let shards: Vec<Gradient> = rows
        .par_chunks(SHARD)
        .zip(advantages.par_chunks(SHARD))
        .map(|shard| samples.shard(tensors, (weights, start.as_ref()), shard, objective, share))
        .collect();
    shards.into_iter().reduce(|sum, shard| sum.plus(&shard)).expect("a minibatch has rows")
}

impl Samples<'_> {
    /// The part of a minibatch's gradient that comes from some of its rows; each has `share` in the means.
    fn shard(
        &self,
        tensors: &dyn Tensors,
        (weights, start): (&Weights, Option<&Inference>),
        (rows, advantages): (&[usize], &[f32]),
        objective: &PpoObjective,
        share: f32,
    ) -> Gradient {
        let size = weights.architecture().observation_size;
        let mut observations = Vec::with_capacity(rows.len() * size);
        for &row in rows {
            observations.extend_from_slice(&self.rollout.observations[row * size..][..size]);
        }
        let mut actor = tensors.network(&mut weights.actor()); // 13.
        let mut critic = tensors.network(&mut weights.critic());

        // Outputs are replaced by the derivatives of the loss by them.
        let (mut logits, mut values) = (actor.forward(&observations), critic.forward(&observations));
        add(start, &observations, &mut logits);
        let (mut means, mut spare) = (Means::default(), vec![0.0; self.heads.num_choices()]);
        let outputs = logits.chunks_exact_mut(self.heads.num_choices()).zip(&mut values);
        for ((&row, &advantage), (logits, value)) in rows.iter().zip(advantages).zip(outputs) {
            self.differentiate((row, advantage), (logits, value), &mut spare, (objective, share), &mut means);
        }
        let mut gradient = actor.backward(&logits);
        gradient.extend(critic.backward(&values));
        Gradient { values: gradient, means: means.times(f64::from(share)) }
    }

    /// Replaces the outputs for one row by the derivatives of the loss by them.
    fn differentiate(
        &self,
        (row, advantage): (usize, f32),
        (logits, value): (&mut [f32], &mut f32),
        probabilities: &mut [f32],
        (objective, share): (&PpoObjective, f32),
        sums: &mut Means,
    ) {
        let mask = &self.rollout.masks[row * self.heads.num_choices()..][..self.heads.num_choices()];
        let action = &self.rollout.actions[row * self.heads.len()..][..self.heads.len()];
        let (log_prob, entropy) = self.heads.evaluate(logits, probabilities, mask, action); // 15.
        let log_ratio = log_prob - self.log_probs[row];
        let ratio = log_ratio.exp();

        let PpoObjective { clip, value_clip, entropy_coef, value_coef } = *objective;
        let (policy_loss, by_ratio) = loss::policy(ratio, advantage, clip); // 8.
        let (value_loss, by_value) = loss::value(*value, self.values[row], self.returns[row], value_clip); // 9.
        let weights = (share * by_ratio * ratio, -share * entropy_coef);
        self.heads.differentiate(logits, probabilities, action, weights); // 10.
        *value = share * value_coef * by_value;

        sums.policy_loss += f64::from(policy_loss);
        sums.value_loss += f64::from(value_loss);
        sums.entropy += f64::from(entropy);
        sums.log_ratio += f64::from(log_ratio);
        sums.kl += f64::from(ratio - 1.0 - log_ratio);
        sums.clipped += f64::from(u8::from((ratio - 1.0).abs() > clip));
    }
}

impl Gradient {
    fn plus(mut self, other: &Gradient) -> Gradient {
        for (values, others) in self.values.iter_mut().zip(&other.values) {
            values.iter_mut().zip(others).for_each(|(value, other)| *value += other);
        }
        self.means = self.means.plus(&other.means);
        self
    }
}

impl Means {
    /// Field by field.
    fn zip(&self, other: &Means, combine: impl Fn(f64, f64) -> f64) -> Means {
        Means {
            policy_loss: combine(self.policy_loss, other.policy_loss),
            value_loss: combine(self.value_loss, other.value_loss),
            entropy: combine(self.entropy, other.entropy),
            log_ratio: combine(self.log_ratio, other.log_ratio),
            kl: combine(self.kl, other.kl),
            clipped: combine(self.clipped, other.clipped),
        }
    }

    fn plus(&self, other: &Means) -> Means {
        self.zip(other, |value, other| value + other)
    }

    fn times(&self, factor: f64) -> Means {
        self.zip(self, |value, _| value * factor)
    }
}
