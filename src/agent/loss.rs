//! The two clipped objectives of one decision, each with its derivative.

/// `−min(r A, clamp(r, 1 − ε, 1 + ε) A)` and its derivative by `r`: nothing rewards moving a ratio further than `clip`
/// (Schulman et al. 2017, equation 7).
pub(crate) fn policy(ratio: f32, advantage: f32, clip: f32) -> (f32, f32) {
    let (free, held) = (ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage);
    if held < free { (-held, 0.0) } else { (-free, -advantage) }
}

/// Half the squared error of `value` and its derivative by `value`; with `clip`, of the larger of that and the error of a
/// value moved at most so far from the `old` one (Huang et al. 2022, detail 9).
pub(crate) fn value(value: f32, old: f32, target: f32, clip: Option<f32>) -> (f32, f32) {
    let error = value - target;
    if let Some(clip) = clip {
        let held = old + (value - old).clamp(-clip, clip) - target;
        if held * held > error * error {
            let is_free = (value - old).abs() <= clip;
            return (0.5 * held * held, if is_free { held } else { 0.0 });
        }
    }
    (0.5 * error * error, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_surrogate_stops_where_it_has_gone_far_enough() {
        for (ratio, advantage, loss, gradient) in [
            (1.1, 2.0, -2.2, -2.0), // on the way: follow the advantage
            (1.5, 2.0, -2.4, 0.0),  // far enough up
            (0.5, -2.0, 1.6, 0.0),  // far enough down
            (1.5, -2.0, 3.0, 2.0),  // gone the wrong way: come back
            (0.5, 2.0, -1.0, -2.0), // likewise
        ] {
            let found = policy(ratio, advantage, 0.2);
            let close = (found.0 - loss).abs() < 1e-6 && (found.1 - gradient).abs() < 1e-6;
            assert!(close, "r = {ratio}, A = {advantage}: {found:?}, not {:?}", (loss, gradient));
        }
    }

    #[test]
    fn value_errors_are_the_larger_of_clipped_and_not() {
        assert_eq!(value(2.0, 1.0, 3.0, None), (0.5, -1.0));
        // Moved by 1 of the 0.5 allowed: counts as 1.5, an error of 1.5, which moving on does not change.
        assert_eq!(value(2.0, 1.0, 3.0, Some(0.5)), (1.125, 0.0));
        assert_eq!(value(1.25, 1.0, 3.0, Some(0.5)), (0.5 * 1.75 * 1.75, -1.75));
        // Clipped would be closer: the error as it is.
        assert_eq!(value(6.0, 1.0, 3.0, Some(2.5)), (4.5, 3.0));
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        assert!(policy(f32::NAN, 1.0, 0.2).0.is_nan() && policy(1.0, f32::NAN, 0.2).0.is_nan());
        assert!(value(f32::NAN, 0.0, 0.0, Some(0.2)).0.is_nan() && value(0.0, 0.0, 1e30, None).0.is_infinite());
    }
}
