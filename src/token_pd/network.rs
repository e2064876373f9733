//! Who predicts what a block returns: one hidden layer, taught by what came.
//!
//! The gradient is written out here, and the optimiser is [`AdamState`]: 3,330 weights are taught in seconds on one core, the same bytes at
//! any number of threads, on whatever attention is judged, with no file of weights to keep apart from it. libtorch, which stands behind
//! [`Tensors`](crate::agent::Tensors) for PPO, has nothing to win here and would take the tool's place while it runs.

use kvtide_envs::seed;
use kvtide_envs::token_price::{Attention, FEATURES, Return, ReturnPredictor, returns};
use rand::RngExt;

use crate::agent::adam::AdamState;

/// Units of the hidden layer.
pub const HIDDEN: usize = 256;
/// Outputs: the mean, as a multiple of the mean over examples, and the logarithm of the variance, likewise.
const OUTPUTS: usize = 2;
/// Examples that are kept of what there is, in a minibatch, and set aside to judge by.
const MOST_EXAMPLES: usize = 1 << 17;
const MINIBATCH: usize = 256;
const SET_ASIDE: usize = 8192;
const LEARNING_RATE: f64 = 2e-3;
/// Between what the logarithm of a variance stays.
const LOG_VARIANCES: (f32, f32) = (-12.0, 8.0);

/// A predictor with one hidden layer of [`HIDDEN`] rectified units.
#[derive(Debug, Clone, PartialEq)]
pub struct ReturnNetwork {
    /// `[FEATURES][HIDDEN]`, `[HIDDEN]`, `[OUTPUTS][HIDDEN]`, `[OUTPUTS]`.
    weights: [Vec<f32>; 4],
    /// What inputs are less, and by what they are multiplied.
    shift: [f32; FEATURES],
    scale: [f32; FEATURES],
    /// Mean return of the examples, percent.
    unit: f32,
}

/// How well a predictor knows examples that it has not learned from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// Share of the variance of returns that it explains.
    pub explained: f64,
    /// Mean of squared errors over the variance predicted: one where risk is what it is said to be.
    pub calibration: f64,
    /// Examples that it was judged by.
    pub examples: usize,
}

type Example = ([f32; FEATURES], f32);

/// Activations of a row.
struct Row {
    hidden: [f32; HIDDEN],
    outputs: [f32; OUTPUTS],
}

impl ReturnNetwork {
    /// Learns from `attention` in so many steps of Adam, and how well.
    pub fn learn(attention: &Attention, steps: u32, seed: u64) -> (ReturnNetwork, Fit) {
        let mut examples = drawn(attention, seed);
        let judged = examples.split_off(examples.len() - (examples.len() / 8).min(SET_ASIDE));
        let mut network = ReturnNetwork::new(&examples, seed);
        let mut adam = AdamState::new(network.weights.iter().map(Vec::len));
        let mut stream = seed::stream(seed, "token-pd.minibatch", 0);
        for step in 0..steps {
            let mut gradient = network.weights.each_ref().map(|weights| vec![0.0; weights.len()]);
            for _ in 0..MINIBATCH {
                network.differentiate(&examples[stream.random_range(0..examples.len())], &mut gradient);
            }
            // To nothing at the end: what is kept is one point, not a walk around it.
            let rate = LEARNING_RATE * (1.0 - f64::from(step) / f64::from(steps));
            adam.step(&mut network.weights, &gradient, rate);
        }
        let fit = network.fit(&judged);
        (network, fit)
    }

    fn new(examples: &[Example], seed: u64) -> ReturnNetwork {
        let count = examples.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Example) -> f32| examples.iter().map(|one| f64::from(of(one))).sum::<f64>() / count;
        let shift: [f32; FEATURES] = std::array::from_fn(|index| mean(&|one| one.0[index]) as f32);
        let scale = std::array::from_fn(|index| {
            let variance = mean(&|one| (one.0[index] - shift[index]).powi(2));
            1.0 / (variance.sqrt() as f32).max(1e-3)
        });
        let mut stream = seed::stream(seed, "token-pd.weights", 0);
        // He et al. 2015, "Delving Deep into Rectifiers": uniform, of variance 2 / inputs.
        let mut layer = |inputs: usize, outputs: usize| -> Vec<f32> {
            let bound = (6.0 / inputs as f32).sqrt();
            (0..inputs * outputs).map(|_| stream.random_range(-bound..bound)).collect()
        };
        let weights = [layer(FEATURES, HIDDEN), vec![0.0; HIDDEN], layer(HIDDEN, OUTPUTS), vec![0.0; OUTPUTS]];
        ReturnNetwork { weights, shift, scale, unit: (mean(&|one| one.1) as f32).max(1e-6) }
    }

    fn inputs(&self, features: &[f32; FEATURES]) -> [f32; FEATURES] {
        std::array::from_fn(|index| (features[index] - self.shift[index]) * self.scale[index])
    }

    fn forward(&self, inputs: &[f32; FEATURES]) -> Row {
        let [from_inputs, biases, to_outputs, output_biases] = &self.weights;
        let mut hidden = [0.0; HIDDEN];
        hidden.copy_from_slice(biases);
        for (weights, &input) in from_inputs.chunks_exact(HIDDEN).zip(inputs) {
            hidden.iter_mut().zip(weights).for_each(|(unit, weight)| *unit += weight * input);
        }
        for unit in &mut hidden {
            *unit = unit.max(0.0);
        }
        let outputs = std::array::from_fn(|output| {
            output_biases[output] + dot(&hidden, &to_outputs[output * HIDDEN..][..HIDDEN])
        });
        Row { hidden, outputs }
    }

    /// Adds the derivative of the loss on one example: half the squared error of the mean, and the negative logarithm of the likelihood of
    /// that error under the variance, which moves the variance alone. A mean that were taught by likelihood would
    /// neglect the blocks that vary most, which are those with most attention.
    fn differentiate(&self, (features, target): &Example, gradient: &mut [Vec<f32>; 4]) {
        let inputs = self.inputs(features);
        let Row { hidden, outputs: [mean, log_variance] } = self.forward(&inputs);
        let error = mean - target / self.unit;
        let log_variance = log_variance.clamp(LOG_VARIANCES.0, LOG_VARIANCES.1);
        let share = 1.0 / MINIBATCH as f32;
        // Errors of a heavy hitter are hundreds of times those of others: bounded, so that one row is not the whole step.
        let by_outputs = [
            error.clamp(-10.0, 10.0) * share,
            0.5 * (1.0 - (error * error * (-log_variance).exp()).min(100.0)) * share,
        ];
        let mut by_hidden = [0.0; HIDDEN];
        for (output, by_output) in by_outputs.into_iter().enumerate() {
            let weights = &self.weights[2][output * HIDDEN..][..HIDDEN];
            by_hidden.iter_mut().zip(weights).for_each(|(by_unit, weight)| *by_unit += by_output * weight);
            let slots = gradient[2][output * HIDDEN..][..HIDDEN].iter_mut();
            slots.zip(&hidden).for_each(|(slot, unit)| *slot += by_output * unit);
            gradient[3][output] += by_output;
        }
        by_hidden.iter_mut().zip(&hidden).for_each(|(by_unit, &unit)| {
            if unit <= 0.0 {
                *by_unit = 0.0;
            }
        });
        for (slots, input) in gradient[0].chunks_exact_mut(HIDDEN).zip(inputs) {
            slots.iter_mut().zip(&by_hidden).for_each(|(slot, by_unit)| *slot += by_unit * input);
        }
        gradient[1].iter_mut().zip(&by_hidden).for_each(|(slot, by_unit)| *slot += by_unit);
    }

    fn fit(&self, examples: &[Example]) -> Fit {
        let count = examples.len().max(1) as f64;
        let mean = examples.iter().map(|one| f64::from(one.1)).sum::<f64>() / count;
        let (mut errors, mut variance, mut calibration) = (0.0, 0.0, 0.0);
        for (features, target) in examples {
            let expected = self.predict(features);
            let square = f64::from(expected.mean - target).powi(2);
            errors += square;
            variance += (f64::from(*target) - mean).powi(2);
            calibration += square / f64::from(expected.variance);
        }
        let explained = if variance > 0.0 { 1.0 - errors / variance } else { 0.0 };
        Fit { explained, calibration: calibration / count, examples: examples.len() }
    }
}

impl ReturnPredictor for ReturnNetwork {
    fn predict(&self, features: &[f32; FEATURES]) -> Return {
        let [mean, log_variance] = self.forward(&self.inputs(features)).outputs;
        let variance = log_variance.clamp(LOG_VARIANCES.0, LOG_VARIANCES.1).exp();
        Return { mean: mean.max(0.0) * self.unit, variance: variance * self.unit * self.unit }
    }
}

/// Summed in eight lanes, which is as a vector unit does it, in an order of our own.
fn dot(a: &[f32; HIDDEN], b: &[f32]) -> f32 {
    let mut lanes = [0.0; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for lane in 0..8 {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    lanes.iter().sum()
}

/// Examples of all conversations, at most so many, drawn evenly and in a random order (Vitter 1985, "Random Sampling with a Reservoir",
/// algorithm R; Fisher and Yates).
fn drawn(attention: &Attention, seed: u64) -> Vec<Example> {
    let (mut kept, mut seen) = (Vec::<Example>::new(), 0_usize);
    let mut stream = seed::stream(seed, "token-pd.examples", 0);
    for conversation in &attention.conversations {
        returns(conversation, &mut |features, target| {
            seen += 1;
            if kept.len() < MOST_EXAMPLES {
                kept.push((*features, target));
            } else {
                let at = stream.random_range(0..seen);
                if at < MOST_EXAMPLES {
                    kept[at] = (*features, target);
                }
            }
        });
    }
    for index in (1..kept.len()).rev() {
        kept.swap(index, stream.random_range(0..=index));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_envs::token_price::Process;

    #[test]
    fn the_gradient_is_that_of_the_loss() {
        let examples: Vec<Example> = (0..4)
            .map(|row| (std::array::from_fn(|index| ((row * 7 + index * 3) % 5) as f32 - 1.5), row as f32 + 0.5))
            .collect();
        let network = ReturnNetwork::new(&examples, 3);
        // The variance's loss with the error held, as the derivative has it.
        let loss = |network: &ReturnNetwork, errors: &[f32]| -> f64 {
            let of = |((features, target), held): (&Example, &f32)| {
                let [mean, log_variance] = network.forward(&network.inputs(features)).outputs;
                let error = f64::from(mean - target / network.unit);
                let held = f64::from(held * held);
                0.5 * error * error + 0.5 * (f64::from(log_variance) + held * (-f64::from(log_variance)).exp())
            };
            examples.iter().zip(errors).map(of).sum::<f64>() / MINIBATCH as f64
        };
        let error = |(features, target): &Example| {
            network.forward(&network.inputs(features)).outputs[0] - target / network.unit
        };
        let errors: Vec<f32> = examples.iter().map(error).collect();
        assert!(errors.iter().all(|error| error.abs() < 10.0), "within what is not bounded: {errors:?}");
        let mut gradient = network.weights.each_ref().map(|weights| vec![0.0; weights.len()]);
        for example in &examples {
            network.differentiate(example, &mut gradient);
        }
        for (layer, index) in [(0, 5), (0, 700), (1, 40), (2, 3), (2, 300), (3, 0), (3, 1)] {
            let at = |step: f32| {
                let mut moved = network.clone();
                moved.weights[layer][index] += step;
                loss(&moved, &errors)
            };
            let numeric = (at(1e-2) - at(-1e-2)) / 2e-2;
            let written = f64::from(gradient[layer][index]);
            assert!(
                (numeric - written).abs() < 2e-3 * (1.0 + written.abs()) / 4.0,
                "{layer} {index}: {numeric} {written}"
            );
        }
    }

    #[test]
    fn it_learns_what_blocks_return() {
        let process: Process = "mixed:prompt=256,answer=256,n=24".parse().unwrap();
        let (network, fit) = ReturnNetwork::learn(&process.draw(1), 400, 1);
        assert!(fit.explained > 0.6, "{fit:?}");
        let (_, none) = ReturnNetwork::learn(&process.draw(1), 0, 1);
        assert!(none.explained < fit.explained - 0.3, "{none:?}");
        assert_eq!(ReturnNetwork::learn(&process.draw(1), 400, 1).0, network, "the same seed teaches the same");
    }
}
