//! The gradient of the loss over a minibatch, and what is evaluated of a rollout before it. Rows are cut into shards of fixed
//! length that are worked on in parallel and added up in order, so that sums do not depend on the number of threads. Numbers
//! are those of [`super::ppo`].

use rayon::prelude::*;
use tch::Tensor;

use super::heads::Heads;
use super::network::Network;
use super::rollout::Rollout;
use super::weights::Weights;
use super::{loss, tensor};

/// Rows of a shard: enough that libtorch multiplies rather than dispatches, few enough that a shard stays in the cache. Part of
/// what a run computes, because sums over other shards are rounded otherwise.
const SHARD: usize = 512;

/// A rollout, and what was estimated of each of its rows.
pub(crate) struct Samples<'a> {
    pub(crate) rollout: &'a Rollout,
    pub(crate) heads: &'a Heads,
    /// Log-probability of the action taken.
    pub(crate) log_probs: &'a [f32],
    /// V(s) as it was.
    pub(crate) values: &'a [f32],
    /// What V(s) should have been.
    pub(crate) returns: &'a [f32],
}

/// What is minimised: policy loss − entropy bonus + weighted value loss, mean over a minibatch.
pub(crate) struct Objective {
    pub(crate) clip: f32,
    pub(crate) value_clip: Option<f32>,
    pub(crate) entropy_coef: f32,
    pub(crate) value_coef: f32,
}

/// A derivative by every parameter, in the order of the weights, and what was seen on the way.
pub(crate) struct Gradient {
    pub(crate) values: Vec<Vec<f32>>,
    pub(crate) means: Means,
}

/// Means over a minibatch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Means {
    pub(crate) policy_loss: f64,
    pub(crate) value_loss: f64,
    pub(crate) entropy: f64,
    pub(crate) log_ratio: f64,
    /// Of `(r − 1) − log r`.
    pub(crate) kl: f64,
    /// Of whether the ratio left `1 ± clip`.
    pub(crate) clipped: f64,
}

/// Log-probability of the action and value of every row of `rollout`, `[batch]` each.
pub(crate) fn evaluate(weights: &Weights, heads: &Heads, rollout: &Rollout) -> (Vec<f32>, Vec<f32>) {
    let size = weights.architecture().observation_size;
    let shards = rollout.observations.par_chunks(SHARD * size);
    let shards = shards.zip(rollout.masks.par_chunks(SHARD * heads.num_choices()));
    let shards = shards.zip(rollout.actions.par_chunks(SHARD * heads.len()));
    let shards = shards.map(|((observations, masks), actions)| {
        let observations = rows_of(observations, size);
        let (logits, _) = Network::new(weights.actor()).forward(&observations);
        let (values, _) = Network::new(weights.critic()).forward(&observations);
        let (mut logits, values) = (tensor::values(&logits), tensor::values(&values));
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

/// Values of `observations` `[rows, observation_size]`.
pub(crate) fn values(weights: &Weights, observations: &[f32]) -> Vec<f32> {
    let observations = rows_of(observations, weights.architecture().observation_size);
    tensor::values(&Network::new(weights.critic()).forward(&observations).0)
}

/// The gradient over the minibatch `rows`, whose standardised advantages are `advantages`.
pub(crate) fn gradient(
    weights: &Weights,
    samples: &Samples<'_>,
    (rows, advantages): (&[usize], &[f32]),
    objective: &Objective,
) -> Gradient {
    let share = 1.0 / rows.len() as f32;
    let shards: Vec<Gradient> = rows
        .par_chunks(SHARD)
        .zip(advantages.par_chunks(SHARD))
        .map(|shard| samples.shard(weights, shard, objective, share))
        .collect();
    shards.into_iter().reduce(|sum, shard| sum.plus(&shard)).expect("a minibatch has rows")
}

impl Samples<'_> {
    /// The part of a minibatch's gradient that comes from some of its rows; each has `share` in the means.
    fn shard(
        &self,
        weights: &Weights,
        (rows, advantages): (&[usize], &[f32]),
        objective: &Objective,
        share: f32,
    ) -> Gradient {
        let size = weights.architecture().observation_size;
        let mut observations = Vec::with_capacity(rows.len() * size);
        for &row in rows {
            observations.extend_from_slice(&self.rollout.observations[row * size..][..size]);
        }
        let observations = rows_of(&observations, size);
        let (actor, critic) = (Network::new(weights.actor()), Network::new(weights.critic())); // 13.
        let (logits, through_actor) = actor.forward(&observations);
        let (values, through_critic) = critic.forward(&observations);

        // Outputs are replaced by the derivatives of the loss by them.
        let (mut logits, mut values) = (tensor::values(&logits), tensor::values(&values));
        let (mut means, mut spare) = (Means::default(), vec![0.0; self.heads.num_choices()]);
        let outputs = logits.chunks_exact_mut(self.heads.num_choices()).zip(&mut values);
        for ((&row, &advantage), (logits, value)) in rows.iter().zip(advantages).zip(outputs) {
            self.differentiate((row, advantage), (logits, value), &mut spare, (objective, share), &mut means);
        }
        let mut gradient = actor.backward(&through_actor, rows_of(&logits, self.heads.num_choices()));
        gradient.extend(critic.backward(&through_critic, rows_of(&values, 1)));
        Gradient { values: gradient, means: means.times(f64::from(share)) }
    }

    /// Replaces the outputs for one row by the derivatives of the loss by them.
    fn differentiate(
        &self,
        (row, advantage): (usize, f32),
        (logits, value): (&mut [f32], &mut f32),
        probabilities: &mut [f32],
        (objective, share): (&Objective, f32),
        sums: &mut Means,
    ) {
        let mask = &self.rollout.masks[row * self.heads.num_choices()..][..self.heads.num_choices()];
        let action = &self.rollout.actions[row * self.heads.len()..][..self.heads.len()];
        let (log_prob, entropy) = self.heads.evaluate(logits, probabilities, mask, action); // 15.
        let log_ratio = log_prob - self.log_probs[row];
        let ratio = log_ratio.exp();

        let Objective { clip, value_clip, entropy_coef, value_coef } = *objective;
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

fn rows_of(values: &[f32], width: usize) -> Tensor {
    tensor::of(values, &[values.len() / width, width])
}

#[cfg(test)]
mod tests {
    use kvtide_envs::seed;
    use ndarray::Array2;
    use rand::RngExt;
    use tch::Kind;

    use super::*;
    use crate::agent::weights::Architecture;

    const ROWS: usize = 1300;

    /// A rollout of noise, and noisy estimates of it.
    struct Noise {
        weights: Weights,
        heads: Heads,
        rollout: Rollout,
        log_probs: Vec<f32>,
        values: Vec<f32>,
        returns: Vec<f32>,
        advantages: Vec<f32>,
        rows: Vec<usize>,
    }

    fn noise(hidden: &[usize]) -> Noise {
        let architecture = Architecture { observation_size: 5, hidden: hidden.to_vec(), head_sizes: vec![4, 1, 3] };
        let mut stream = seed::stream(11, "test", 0);
        let mut floats =
            |count: usize, scale: f32| -> Vec<f32> { (0..count).map(|_| stream.random_range(-scale..scale)).collect() };
        let start = Weights::orthogonal(architecture.clone(), 3);
        let moved = |values: &Vec<f32>| values.iter().zip(floats(values.len(), 0.4)).map(|(a, b)| a + b).collect();
        let weights = Weights::new(architecture, start.values().iter().map(moved).collect()).unwrap();
        let heads = Heads::new(&[4, 1, 3]);
        let observations = floats(ROWS * 5, 2.0);
        let mut masks: Vec<bool> = floats(ROWS * 8, 1.0).iter().map(|value| *value > -0.3).collect();
        masks.chunks_exact_mut(8).for_each(|mask| [1, 4, 7].iter().for_each(|&choice| mask[choice] = true));
        let mut actions = vec![0; ROWS * 3];
        let mut draws = seed::stream(11, "test", 1);
        for (action, mask) in actions.chunks_exact_mut(3).zip(masks.chunks_exact(8)) {
            heads.sample(&[0.0; 8], mask, &draws.random::<[f64; 3]>(), action);
        }
        let rollout = Rollout {
            observations,
            masks,
            actions,
            rewards: Array2::zeros((ROWS, 1)),
            terminated: Array2::default((ROWS, 1)),
            truncated: Array2::default((ROWS, 1)),
            bootstrap_observations: Vec::new(),
            cuts: Vec::new(),
            episodes: Vec::new(),
        };
        let (log_probs, values) = evaluate(&weights, &heads, &rollout);
        let near = |values: &[f32], noise: Vec<f32>| values.iter().zip(noise).map(|(a, b)| a + b).collect();
        Noise {
            log_probs: near(&log_probs, floats(ROWS, 0.4)),
            values: near(&values, floats(ROWS, 0.5)),
            returns: floats(ROWS, 2.0),
            advantages: floats(1100, 2.0),
            rows: (0..1100).map(|index| index * 7 % ROWS).collect(),
            weights,
            heads,
            rollout,
        }
    }

    impl Noise {
        fn gradient(&self, objective: &Objective) -> Gradient {
            let Noise { heads, rollout, log_probs, values, returns, .. } = self;
            let samples = Samples { rollout, heads, log_probs, values, returns };
            gradient(&self.weights, &samples, (&self.rows, &self.advantages), objective)
        }

        /// The same in libtorch's operations, differentiated by libtorch: means, and the gradient.
        fn autograd(&self, objective: &Objective) -> ([f64; 6], Vec<Vec<f32>>) {
            let parameters = self.weights.architecture().parameters();
            let parameters: Vec<Tensor> = parameters
                .iter()
                .zip(self.weights.values())
                .map(|((_, shape), values)| tensor::of(values, shape).set_requires_grad(true))
                .collect();
            let rows: Vec<i64> = self.rows.iter().map(|&row| row as i64).collect();
            let rows = tensor::of(&rows, &[rows.len()]);
            let of = |values: &[f32]| tensor::of(values, &[ROWS]).index_select(0, &rows);
            let observations = rows_of(&self.rollout.observations, 5).index_select(0, &rows);
            let masks = tensor::of(&self.rollout.masks, &[ROWS, 8]).index_select(0, &rows);
            let actions = tensor::of(&self.rollout.actions, &[ROWS, 3]).to_kind(Kind::Int64).index_select(0, &rows);
            let advantages = tensor::of(&self.advantages, &[rows.size()[0] as usize]);
            let network = |parameters: &[Tensor]| {
                let layers: Vec<_> = parameters.chunks_exact(2).collect();
                let inner = |inputs: Tensor, layer: &[Tensor]| inputs.linear(&layer[0], Some(&layer[1]));
                let (last, hidden) = layers.split_last().unwrap();
                inner(hidden.iter().fold(observations.shallow_clone(), |x, layer| inner(x, layer).tanh()), last)
            };
            let (actor, critic) = parameters.split_at(parameters.len() / 2);

            let masked = network(actor).masked_fill(&masks.logical_not(), -1e8);
            let (mut log_prob, mut entropy) = (Tensor::zeros_like(&advantages), Tensor::zeros_like(&advantages));
            for (head, (start, length)) in [(0, 4), (4, 1), (5, 3)].into_iter().enumerate() {
                let log_probs = masked.narrow(1, start, length).log_softmax(-1, Kind::Float);
                log_prob += log_probs.gather(1, &actions.narrow(1, head as i64, 1), false).squeeze_dim(1);
                entropy -= (log_probs.exp() * log_probs).sum_dim_intlist(-1, false, Kind::Float);
            }
            let log_ratio = log_prob - of(&self.log_probs);
            let ratio = log_ratio.exp();
            let clip = f64::from(objective.clip);
            let held = ratio.clamp(1.0 - clip, 1.0 + clip);
            let policy_loss = -(&advantages * &ratio).minimum(&(&advantages * held)).mean(Kind::Float);
            let (values, old, returns) = (network(critic).squeeze_dim(1), of(&self.values), of(&self.returns));
            let mut errors = (&values - &returns).square();
            if let Some(clip) = objective.value_clip.map(f64::from) {
                errors = errors.maximum(&(&old + (&values - &old).clamp(-clip, clip) - &returns).square());
            }
            let (value_loss, entropy) = (errors.mean(Kind::Float) * 0.5, entropy.mean(Kind::Float));
            let (entropy_coef, value_coef) = (f64::from(objective.entropy_coef), f64::from(objective.value_coef));
            let loss = &policy_loss - &entropy * entropy_coef + &value_loss * value_coef;
            let gradient = Tensor::run_backward(&[&loss], &parameters, false, false);
            let kl = (&ratio - 1.0 - &log_ratio).mean(Kind::Float);
            let clipped = (&ratio - 1.0).abs().gt(clip).to_kind(Kind::Float).mean(Kind::Float);
            let means = [&policy_loss, &value_loss, &entropy, &log_ratio.mean(Kind::Float), &kl, &clipped];
            (means.map(|mean| mean.double_value(&[])), gradient.iter().map(tensor::values).collect())
        }
    }

    #[test]
    fn it_is_the_one_libtorch_finds() {
        for (hidden, value_clip) in [(&[16, 24][..], None), (&[16], Some(0.2)), (&[], Some(0.2))] {
            let noise = noise(hidden);
            let objective = Objective { clip: 0.2, value_clip, entropy_coef: 0.3, value_coef: 0.7 };
            let Gradient { values, means: m } = noise.gradient(&objective);
            let (means, expected) = noise.autograd(&objective);
            let ours = [m.policy_loss, m.value_loss, m.entropy, m.log_ratio, m.kl, m.clipped];
            assert!(ours.iter().zip(means).all(|(a, b)| (a - b).abs() < 1e-5), "{ours:?}, not {means:?}");
            assert!(m.clipped > 0.1 && m.clipped < 0.9);
            assert_eq!(values.len(), expected.len());
            for (index, (values, expected)) in values.iter().zip(&expected).enumerate() {
                let off = values.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                let size = expected.iter().map(|value| value.abs()).fold(0.0, f32::max);
                assert_eq!(values.len(), expected.len());
                assert!(
                    size > 1e-3 && off < 1e-5 * (1.0 + size),
                    "parameter {index} of {hidden:?} off by {off} of {size}"
                );
            }
        }
    }

    #[test]
    fn it_does_not_depend_on_the_number_of_threads() {
        let noise = noise(&[16, 16]);
        let objective = Objective { clip: 0.2, value_clip: None, entropy_coef: 0.01, value_coef: 0.5 };
        let of = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| noise.gradient(&objective).values)
        };
        assert_eq!(of(1), of(3));
    }
}
