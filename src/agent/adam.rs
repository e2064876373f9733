//! Adam (Kingma, Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1), because tch's cannot be saved.

const BETA_1: f64 = 0.9;
const BETA_2: f64 = 0.999;

/// PPO's ε (Huang et al. 2022, detail 3), not the 1e-8 of the paper.
const EPSILON: f64 = 1e-5;

/// The optimiser, which is all it remembers: moments per parameter, in the order of the parameters.
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

    /// Moves each parameter against its gradient:
    /// `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`, `θ ← θ − η m̂ / (√v̂ + ε)`.
    pub fn step(&mut self, parameters: &mut [Vec<f32>], gradients: &[Vec<f32>], learning_rate: f64) {
        self.step += 1;
        let steps = self.step as f64;
        let size = (learning_rate / (1.0 - BETA_1.powf(steps))) as f32;
        let correction = (1.0 - BETA_2.powf(steps)).sqrt() as f32;
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((parameter, gradient), (first, second)) in parameters.iter_mut().zip(gradients).zip(moments) {
            for (((value, &g), m), v) in parameter.iter_mut().zip(gradient).zip(first).zip(second) {
                *m = *m * BETA_1 as f32 + g * (1.0 - BETA_1) as f32;
                *v = *v * BETA_2 as f32 + g * g * (1.0 - BETA_2) as f32;
                *value -= size * *m / (v.sqrt() / correction + EPSILON as f32);
            }
        }
    }
}

/// Scales `gradients` in place so that their joint Euclidean norm is at most `limit`; returns the norm before (Huang et
/// al. 2022, detail 11; the 1e-6 is `torch.nn.utils.clip_grad_norm_`'s).
pub(crate) fn clip_norm(gradients: &mut [Vec<f32>], limit: f64) -> f64 {
    let squares: f64 = gradients.iter().flatten().map(|&value| f64::from(value) * f64::from(value)).sum();
    let norm = squares.sqrt();
    if norm > limit {
        let scale = (limit / (norm + 1e-6)) as f32;
        gradients.iter_mut().flatten().for_each(|value| *value *= scale);
    }
    norm
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(gradients: &[f32], learning_rate: f64) -> (f32, AdamState) {
        let mut adam = AdamState::new([1].into_iter());
        let mut parameters = [vec![1.0]];
        for &gradient in gradients {
            adam.step(&mut parameters, &[vec![gradient]], learning_rate);
        }
        (parameters[0][0], adam)
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
    fn a_saved_optimiser_goes_on_alike() {
        let gradients = [0.5_f32, -1.0, 2.0, 0.25];
        let (half, mut resumed) = run(&gradients[..2], 0.1);
        let mut parameters = [vec![half]];
        for &gradient in &gradients[2..] {
            resumed.step(&mut parameters, &[vec![gradient]], 0.1);
        }
        let (expected, state) = run(&gradients, 0.1);
        assert_eq!(parameters[0][0].to_bits(), expected.to_bits());
        assert_eq!(resumed, state);
    }

    #[test]
    fn long_gradients_are_shortened_and_short_ones_left() {
        let mut gradients = [vec![3.0], vec![0.0, 4.0]];
        assert!((clip_norm(&mut gradients, 0.5) - 5.0).abs() < 1e-9);
        let clipped = gradients.clone();
        assert!((clipped[0][0] - 0.3).abs() < 1e-6 && (clipped[1][1] - 0.4).abs() < 1e-6, "{clipped:?}");
        assert!((clip_norm(&mut gradients, 1.0) - 0.5).abs() < 1e-6);
        assert_eq!(gradients, clipped);
    }
}
