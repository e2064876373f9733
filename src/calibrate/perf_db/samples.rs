//! Latencies of a family as they were measured: by shape, then by size.

use std::collections::BTreeMap;

/// Latencies by size, and the rank of what they were measured with; several where a point was measured more than once.
type Points<S> = BTreeMap<S, (usize, Vec<f64>)>;

/// What was measured of one family.
pub(super) struct Samples<K, S> {
    by_shape: BTreeMap<K, Points<S>>,
}

impl<K: Ord, S: Ord + Copy> Samples<K, S> {
    pub(super) fn new() -> Samples<K, S> {
        Samples { by_shape: BTreeMap::new() }
    }

    /// Adds a latency that was measured with what has this rank. Only those of the lowest count.
    pub(super) fn add(&mut self, shape: K, size: S, rank: usize, us: f64) {
        let point = self.by_shape.entry(shape).or_default().entry(size).or_insert_with(|| (rank, Vec::new()));
        if rank < point.0 {
            *point = (rank, Vec::new());
        }
        if rank == point.0 {
            point.1.push(us);
        }
    }

    /// Of each shape, in order, the median at each size.
    pub(super) fn medians(self) -> impl Iterator<Item = (K, Vec<(S, f64)>)> {
        self.by_shape.into_iter().map(|(shape, points)| {
            (shape, points.into_iter().map(|(size, (_, mut us))| (size, median(&mut us))).collect())
        })
    }
}

fn median(us: &mut [f64]) -> f64 {
    us.sort_by(f64::total_cmp);
    let middle = us.len() / 2;
    if us.len().is_multiple_of(2) { f64::midpoint(us[middle - 1], us[middle]) } else { us[middle] }
}

/// Times that never fall, as near as can be to `us` by the squares of their logarithms: neighbours that fall are replaced by their
/// geometric mean. More work does not take less time, and what says so is how the measurement scatters.
pub(super) fn never_falling(us: &mut [f64]) {
    // Pools of neighbours: the mean of their logarithms, and how many they are.
    let mut pools: Vec<(f64, usize)> = Vec::with_capacity(us.len());
    for time in us.iter() {
        let mut last = (time.ln(), 1);
        while let Some(&(mean, count)) = pools.last().filter(|(mean, _)| *mean > last.0) {
            let together = count + last.1;
            last = ((mean * count as f64 + last.0 * last.1 as f64) / together as f64, together);
            pools.pop();
        }
        pools.push(last);
    }
    let even = pools.into_iter().flat_map(|(mean, count)| std::iter::repeat_n((mean, count), count));
    for (time, (mean, count)) in us.iter_mut().zip(even) {
        // A point by itself stays to the last bit.
        if count > 1 {
            *time = mean.exp();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_falls_is_levelled() {
        let mut us = [4.0, 1.0, 2.0, 8.0, 8.0, 2.0, 16.0];
        never_falling(&mut us);
        let expected = [2.0, 2.0, 2.0, 128.0_f64.cbrt(), 128.0_f64.cbrt(), 128.0_f64.cbrt(), 16.0];
        assert!(us.iter().zip(expected).all(|(one, other)| (one / other - 1.0).abs() < 1e-12), "{us:?}");
        let mut rising = [1.0, 1.5, 2.0];
        never_falling(&mut rising);
        assert_eq!(rising, [1.0, 1.5, 2.0]);
    }

    #[test]
    fn repeats_count_by_their_median_and_what_ranks_first() {
        let mut samples = Samples::new();
        for us in [3.0, 1.0, 100.0, 2.0] {
            samples.add("one", 8, 1, us);
        }
        samples.add("one", 4, 2, 9.0);
        samples.add("one", 4, 1, 5.0);
        samples.add("one", 4, 3, 7.0);
        assert_eq!(samples.medians().collect::<Vec<_>>(), [("one", vec![(4, 5.0), (8, 2.5)])]);
    }
}
