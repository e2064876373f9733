//! The two clipped objectives, on tensors of a minibatch `[batch]`; each returns a scalar to be minimised.

use tch::{Kind, Tensor};

/// `−mean(min(r A, clamp(r, 1 − ε, 1 + ε) A))`: no gradient rewards moving a ratio further than `clip` (Schulman et al.
/// 2017, equation 7).
pub(crate) fn policy(ratio: &Tensor, advantages: &Tensor, clip: f64) -> Tensor {
    let clipped = ratio.clamp(1.0 - clip, 1.0 + clip);
    -(advantages * ratio).minimum(&(advantages * clipped)).mean(Kind::Float)
}

/// Half the mean squared error of `values`; with `clip`, the larger of that and the error of values moved at most so far
/// from the `old` ones (Huang et al. 2022, detail 9).
pub(crate) fn value(values: &Tensor, old: &Tensor, returns: &Tensor, clip: Option<f64>) -> Tensor {
    let mut errors = (values - returns).square();
    if let Some(clip) = clip {
        let clipped = old + (values - old).clamp(-clip, clip);
        errors = errors.maximum(&(clipped - returns).square());
    }
    errors.mean(Kind::Float) * 0.5
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::tensor;

    /// The loss and its gradient for one ratio and advantage.
    fn surrogate(ratio: f32, advantage: f32) -> (f64, f64) {
        let ratio = tensor::of(&[ratio], &[1]).set_requires_grad(true);
        let loss = policy(&ratio, &tensor::of(&[advantage], &[1]), 0.2);
        let gradient = Tensor::run_backward(&[&loss], &[&ratio], false, false);
        (loss.double_value(&[]), gradient[0].double_value(&[0]))
    }

    #[test]
    fn the_surrogate_stops_where_it_has_gone_far_enough() {
        for (ratio, advantage, loss, gradient) in [
            (1.1, 2.0, -2.2, -2.0), // on the way: follow the advantage
            (1.5, 2.0, -2.4, 0.0),  // far enough up
            (0.5, -2.0, 1.6, 0.0),  // far enough down
            (1.5, -2.0, 3.0, 2.0),  // gone the wrong way: come back
            (0.5, 2.0, -1.0, -2.0), // likewise
        ] {
            let found = surrogate(ratio, advantage);
            let close = (found.0 - loss).abs() < 1e-6 && (found.1 - gradient).abs() < 1e-6;
            assert!(close, "r = {ratio}, A = {advantage}: {found:?}, not {:?}", (loss, gradient));
        }
    }

    #[test]
    fn value_errors_are_the_larger_of_clipped_and_not() {
        let loss = |value: f32, clip| {
            let of = |value: f32| tensor::of(&[value], &[1]);
            value_of(&super::value(&of(value), &of(1.0), &of(3.0), clip))
        };
        assert_eq!(loss(2.0, None), 0.5);
        // Moved by 1 of the 0.5 allowed: counts as 1.5, an error of 1.5.
        assert_eq!(loss(2.0, Some(0.5)), 1.125);
        assert_eq!(loss(1.25, Some(0.5)), 0.5 * 1.75 * 1.75);
        // Clipped would be closer: the error as it is.
        assert_eq!(loss(6.0, Some(2.5)), 4.5);
    }

    fn value_of(scalar: &Tensor) -> f64 {
        scalar.double_value(&[])
    }
}
