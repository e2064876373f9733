//! Adam (Kingma, Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1), because tch's cannot be saved.

use tch::{Tensor, no_grad};

use super::tensor;

const BETA_1: f64 = 0.9;
const BETA_2: f64 = 0.999;

/// PPO's ε (Huang et al. 2022, detail 3), not the 1e-8 of the paper.
const EPSILON: f64 = 1e-5;

/// Everything Adam remembers, as plain numbers: moments per parameter, in the order of the parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct AdamState {
    /// Steps taken.
    pub step: u64,
    /// Running means of the gradients.
    pub first: Vec<Vec<f32>>,
    /// Running means of their squares.
    pub second: Vec<Vec<f32>>,
}

impl AdamState {
    /// Before the first step, for parameters of these lengths.
    pub fn new(lengths: impl Iterator<Item = usize>) -> AdamState {
        let zeros: Vec<Vec<f32>> = lengths.map(|length| vec![0.0; length]).collect();
        AdamState { step: 0, first: zeros.clone(), second: zeros }
    }
}

/// The optimiser.
#[derive(Debug)]
pub(crate) struct Adam {
    step: u64,
    first: Vec<Tensor>,
    second: Vec<Tensor>,
}

impl Adam {
    /// Goes on from `state`, for parameters of these shapes.
    ///
    /// # Panics
    /// If lengths and shapes differ.
    pub(crate) fn new(state: &AdamState, shapes: &[Vec<usize>]) -> Adam {
        let tensors = |values: &[Vec<f32>]| -> Vec<Tensor> {
            values.iter().zip(shapes).map(|(values, shape)| tensor::of(values, shape)).collect()
        };
        Adam { step: state.step, first: tensors(&state.first), second: tensors(&state.second) }
    }

    /// Moves each parameter against its gradient:
    /// `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`, `θ ← θ − η m̂ / (√v̂ + ε)`.
    pub(crate) fn step(&mut self, parameters: &mut [Tensor], gradients: &[Tensor], learning_rate: f64) {
        self.step += 1;
        let steps = self.step as f64;
        let (correction_1, correction_2) = (1.0 - BETA_1.powf(steps), 1.0 - BETA_2.powf(steps));
        no_grad(|| {
            for (index, (parameter, gradient)) in parameters.iter_mut().zip(gradients).enumerate() {
                let (first, second) = (&mut self.first[index], &mut self.second[index]);
                *first = &*first * BETA_1 + gradient * (1.0 - BETA_1);
                *second = &*second * BETA_2 + gradient.square() * (1.0 - BETA_2);
                let denominator = second.sqrt() / correction_2.sqrt() + EPSILON;
                *parameter -= &*first / denominator * (learning_rate / correction_1);
            }
        });
    }

    /// What to save.
    pub(crate) fn state(&self) -> AdamState {
        let values = |tensors: &[Tensor]| tensors.iter().map(tensor::values).collect();
        AdamState { step: self.step, first: values(&self.first), second: values(&self.second) }
    }
}

/// Scales `gradients` in place so that their joint Euclidean norm is at most `limit`; returns the norm before (Huang et
/// al. 2022, detail 11; the 1e-6 is `torch.nn.utils.clip_grad_norm_`'s).
pub(crate) fn clip_norm(gradients: &mut [Tensor], limit: f64) -> f64 {
    let squares: f64 =
        gradients.iter().map(|gradient| gradient.square().sum(tch::Kind::Double).double_value(&[])).sum();
    let norm = squares.sqrt();
    if norm > limit {
        for gradient in gradients {
            *gradient *= limit / (norm + 1e-6);
        }
    }
    norm
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(gradients: &[f32], learning_rate: f64) -> (f32, AdamState) {
        let shape = [1_usize];
        let mut adam = Adam::new(&AdamState::new([1].into_iter()), &[shape.to_vec()]);
        let mut parameters = [tensor::of(&[1.0_f32], &shape)];
        for &gradient in gradients {
            adam.step(&mut parameters, &[tensor::of(&[gradient], &shape)], learning_rate);
        }
        (tensor::values(&parameters[0])[0], adam.state())
    }

    #[test]
    fn the_first_step_is_the_learning_rate_against_the_sign() {
        // m̂ = g and √v̂ = |g|, so the step is η g / (|g| + ε).
        for gradient in [0.3_f32, -20.0, 1e-5] {
            let g = f64::from(gradient);
            let expected = 1.0 - 0.1 * g / (g.abs() + 1e-5);
            let (parameter, state) = run(&[gradient], 0.1);
            assert!((f64::from(parameter) - expected).abs() < 1e-6, "{gradient}: {parameter} {expected}");
            assert_eq!(state.step, 1);
        }
    }

    #[test]
    fn two_steps_as_written_out_in_f64() {
        let (g1, g2, rate) = (0.5_f64, -2.0_f64, 0.01);
        let (m, v) = (0.9 * 0.1 * g1 + 0.1 * g2, 0.999 * 0.001 * g1 * g1 + 0.001 * g2 * g2);
        let first = 1.0 - rate * g1 / (g1.abs() + EPSILON);
        let expected = first - rate * (m / (1.0 - 0.81)) / ((v / (1.0 - 0.998_001)).sqrt() + EPSILON);
        let (parameter, state) = run(&[0.5, -2.0], rate);
        assert!((f64::from(parameter) - expected).abs() < 1e-6, "{parameter} {expected}");
        assert!((f64::from(state.first[0][0]) - m).abs() < 1e-7 && (f64::from(state.second[0][0]) - v).abs() < 1e-7);
    }

    #[test]
    fn libtorchs_own_adam_takes_the_same_steps() {
        use tch::nn::{OptimizerConfig, VarStore, adam};
        let store = VarStore::new(tch::Device::Cpu);
        let mut theirs = store.root().var_copy("x", &tensor::of(&[1.0_f32, -2.0, 0.5], &[3]));
        let config = tch::nn::Adam { eps: EPSILON, ..adam(BETA_1, BETA_2, 0.0) };
        let mut optimizer = config.build(&store, 0.05).unwrap();
        let mut ours = [theirs.detach().copy()];
        let mut adam = Adam::new(&AdamState::new([3].into_iter()), &[vec![3]]);
        for _ in 0..20 {
            let gradient = (&ours[0] * 2.0 + ours[0].sin()).detach();
            adam.step(&mut ours, &[gradient], 0.05);
            optimizer.backward_step(&(theirs.square() - theirs.cos()).sum(tch::Kind::Float));
        }
        let difference = (&ours[0] - &theirs).abs().max().double_value(&[]);
        assert!(difference < 1e-6, "{difference}");
        theirs.zero_grad();
    }

    #[test]
    fn a_saved_optimiser_goes_on_alike() {
        let gradients = [0.5_f32, -1.0, 2.0, 0.25];
        let (_, state) = run(&gradients[..2], 0.1);
        let shape = [1_usize];
        let mut resumed = Adam::new(&state, &[shape.to_vec()]);
        let mut parameters = [tensor::of(&[run(&gradients[..2], 0.1).0], &shape)];
        for &gradient in &gradients[2..] {
            resumed.step(&mut parameters, &[tensor::of(&[gradient], &shape)], 0.1);
        }
        let (expected, expected_state) = run(&gradients, 0.1);
        assert_eq!(tensor::values(&parameters[0])[0].to_bits(), expected.to_bits());
        assert_eq!(resumed.state(), expected_state);
    }

    #[test]
    fn long_gradients_are_shortened_and_short_ones_left() {
        let mut gradients = [tensor::of(&[3.0_f32], &[1]), tensor::of(&[0.0_f32, 4.0], &[2])];
        assert!((clip_norm(&mut gradients, 0.5) - 5.0).abs() < 1e-9);
        let clipped: Vec<f32> = gradients.iter().flat_map(tensor::values).collect();
        assert!((clipped[0] - 0.3).abs() < 1e-6 && (clipped[2] - 0.4).abs() < 1e-6, "{clipped:?}");
        assert!((clip_norm(&mut gradients, 1.0) - 0.5).abs() < 1e-6);
        assert_eq!(gradients.iter().flat_map(tensor::values).collect::<Vec<_>>(), clipped);
    }
}
