//! The one definition of a percentile: linear interpolation between the two nearest order statistics.

/// The `p`-th percentile of values in ascending order, `p` from 0 to 100.
///
/// Definition 7 of Hyndman and Fan 1996 ("Sample Quantiles in Statistical Packages"), the default of `NumPy`, whose way
/// of interpolating is followed to the last bit: percentile `p` of `n` values is at position `(n - 1) * p / 100`.
///
/// # Panics
/// If there are no values or `p` is out of range: a programmer's mistake. Say "no samples" before asking.
pub fn percentile(sorted: &[f64], p: f64) -> f64 {
    assert!(!sorted.is_empty(), "percentile of no values");
    assert!((0.0..=100.0).contains(&p), "percentile {p} is not within 0..=100");
    debug_assert!(sorted.is_sorted(), "percentile of values out of order");
    interpolated(sorted.len() as u64, p, |index| sorted[index as usize])
}

/// The same of `count` values, at least one, of which `at` gives the one at a place in ascending order.
pub(crate) fn interpolated(count: u64, p: f64, at: impl Fn(u64) -> f64) -> f64 {
    let position = (count - 1) as f64 * (p / 100.0);
    let below = position.floor() as u64;
    let above = (below + 1).min(count - 1);
    let weight = position - below as f64;
    let (low, high) = (at(below), at(above));
    let step = high - low;
    if weight < 0.5 { low + step * weight } else { high - step * (1.0 - weight) }
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn interpolates_as_numpy_does() {
        // numpy.percentile([1, 2, 4, 8], [0, 25, 50, 90, 100]), to the last bit.
        let values = [1.0, 2.0, 4.0, 8.0];
        let expected = [1.0, 1.75, 3.0, 6.800_000_000_000_001, 8.0];
        assert_eq!([0.0, 25.0, 50.0, 90.0, 100.0].map(|p| percentile(&values, p)), expected);
        // sorted(i * 7919 % 1000 / 7 for i in range(137)) at [1.2, 33.3, 50, 75.6, 99]
        let mut values: Vec<f64> = (0..137).map(|index| f64::from(index * 7_919 % 1_000) / 7.0).collect();
        values.sort_by(f64::total_cmp);
        let expected = [
            0.699_428_571_428_571_4,
            46.837_714_285_714_284,
            70.285_714_285_714_29,
            107.643_428_571_428_54,
            139.988_571_428_571_42,
        ];
        assert_eq!([1.2, 33.3, 50.0, 75.6, 99.0].map(|p| percentile(&values, p)), expected);
    }

    #[test]
    fn one_value_is_every_percentile() {
        assert_eq!([0.0, 37.0, 100.0].map(|p| percentile(&[7.5], p)), [7.5; 3]);
    }

    #[test]
    #[should_panic(expected = "percentile of no values")]
    fn no_values_have_no_percentile() {
        percentile(&[], 50.0);
    }
}
