//! The derivatives that are written out are those libtorch finds.

use kvtide::agent::gradient::{Gradient, PpoObjective, Samples, evaluate, gradient};
use kvtide::agent::heads::Heads;
use kvtide::agent::rollout::Rollout;
use kvtide::agent::{Architecture, LinearStart, Weights};
use kvtide_envs::seed;
use kvtide_torch::Torch;
use kvtide_torch::tensor::{self, rows_of};
use ndarray::Array2;
use rand::RngExt;
use tch::{Kind, Tensor};

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

fn noise(hidden: &[usize], has_start: bool) -> Noise {
    let architecture = Architecture { observation_size: 5, hidden: hidden.to_vec(), head_sizes: vec![4, 1, 3] };
    let mut stream = seed::stream(11, "test", 0);
    let mut floats =
        |count: usize, scale: f32| -> Vec<f32> { (0..count).map(|_| stream.random_range(-scale..scale)).collect() };
    let start = Weights::orthogonal(architecture.clone(), 3);
    let moved = |values: &Vec<f32>| values.iter().zip(floats(values.len(), 0.4)).map(|(a, b)| a + b).collect();
    let weights = Weights::new(architecture, start.values().iter().map(moved).collect()).unwrap();
    let corrected = has_start.then(|| LinearStart { weight: floats(8 * 5, 0.5), bias: floats(8, 0.5) });
    let weights = weights.with_start(corrected).unwrap();
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
        elapsed_s: Array2::zeros((ROWS, 1)),
        clock_s: Array2::zeros((ROWS, 1)),
        traffic: Array2::zeros((ROWS, 1)),
        bootstrap_observations: Vec::new(),
        cuts: Vec::new(),
        episodes: Vec::new(),
    };
    let (log_probs, values) = evaluate(&Torch, &weights, &heads, &rollout);
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
    fn gradient(&self, objective: &PpoObjective) -> Gradient {
        let Noise { heads, rollout, log_probs, values, returns, .. } = self;
        let samples = Samples { rollout, heads, log_probs, values, returns };
        gradient(&Torch, &self.weights, &samples, (&self.rows, &self.advantages), objective)
    }

    /// The same in libtorch's operations, differentiated by libtorch: means, and the gradient.
    fn autograd(&self, objective: &PpoObjective) -> ([f64; 6], Vec<Vec<f32>>) {
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

        let mut logits = network(actor);
        if let Some(start) = self.weights.start() {
            logits += observations.linear(&tensor::of(&start.weight, &[8, 5]), Some(&tensor::of(&start.bias, &[8])));
        }
        let masked = logits.masked_fill(&masks.logical_not(), -1e8);
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
    let cases =
        [(&[16, 24][..], None, false), (&[16], Some(0.2), false), (&[], Some(0.2), false), (&[16, 24], None, true)];
    for (hidden, value_clip, has_start) in cases {
        let noise = noise(hidden, has_start);
        let objective = PpoObjective { clip: 0.2, value_clip, entropy_coef: 0.3, value_coef: 0.7 };
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
            assert!(size > 1e-3 && off < 1e-5 * (1.0 + size), "parameter {index} of {hidden:?} off by {off} of {size}");
        }
    }
}

#[test]
fn it_does_not_depend_on_the_number_of_threads() {
    let noise = noise(&[16, 16], true);
    let objective = PpoObjective { clip: 0.2, value_clip: None, entropy_coef: 0.01, value_coef: 0.5 };
    let of = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| noise.gradient(&objective).values)
    };
    assert_eq!(of(1), of(3));
}
