//! Histograms of lengths, and lengths drawn from them.

use rand::RngExt;
use serde::{Deserialize, Serialize};

use crate::seed::Stream;

/// Most buckets of one histogram.
pub const MAX_BUCKETS: usize = 256;

/// How far towards either end of its bucket a length may lie on average: beyond, the sum and the buckets contradict each other.
const PLACES: std::ops::RangeInclusive<f64> = 0.02..=0.98;

/// Lengths of requests, counted by bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthCounts {
    /// Tokens of all of them.
    pub tokens: u64,
    /// `[most, count]`: how many had at most so many tokens and more than the bucket before has, rising. Empty where only the
    /// mean is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<(u32, u64)>,
    /// Longer than the last bucket has.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub over: u64,
}

// serde's `skip_serializing_if` passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl LengthCounts {
    /// Requests in the buckets.
    pub fn counted(&self) -> u64 {
        self.buckets.iter().fold(self.over, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Adds those of another stretch of time.
    pub fn add(&mut self, other: &LengthCounts) {
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.over = self.over.saturating_add(other.over);
        for &(most, count) in &other.buckets {
            match self.buckets.binary_search_by_key(&most, |bucket| bucket.0) {
                Ok(place) => self.buckets[place].1 = self.buckets[place].1.saturating_add(count),
                Err(place) => self.buckets.insert(place, (most, count)),
            }
        }
    }
}

/// A distribution of lengths to draw from.
///
/// Of a histogram, a bucket is drawn by its count, and a place in it: `u^g` of the way, with one `g` for all buckets, so that the
/// mean is the one that the sum says. Of a mean `m` alone, the geometric distribution on 1, 2, … of that mean, which of all of
/// that mean has the largest entropy.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    buckets: Vec<Bucket>,
    /// `g`.
    exponent: f64,
    mean: f64,
    most: u32,
}

/// Lengths from `low + 1` to `high`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bucket {
    low: u32,
    high: u32,
    /// Share of requests in this bucket or a lower one.
    cumulative: f64,
}

impl Sampler {
    /// Of `count` requests of these lengths, none longer than `most`; `None` if there are none.
    pub fn of(counts: &LengthCounts, count: u64, most: u32) -> Option<Sampler> {
        let counted = counts.counted();
        if counted == 0 {
            let mean = (counts.tokens as f64 / count as f64).clamp(1.0, f64::from(most));
            return (count > 0).then_some(Sampler { buckets: Vec::new(), exponent: 1.0, mean, most });
        }
        let (mut buckets, mut low, mut passed) = (Vec::new(), 0, 0);
        let last = counts.buckets.last().map_or(0, |bucket| bucket.0);
        // How long those are that no bucket has, nobody says; the sum says it on average.
        let over = (last.saturating_mul(2).clamp(1, most).max(last.saturating_add(1)), counts.over);
        for (high, in_it) in counts.buckets.iter().copied().chain([over]) {
            let high = high.min(most);
            if in_it > 0 && high > low {
                passed += in_it;
                buckets.push(Bucket { low, high, cumulative: passed as f64 / counted as f64 });
            }
            low = low.max(high);
        }
        buckets.last_mut()?.cumulative = 1.0;
        let mean = (counts.tokens as f64 / counted as f64).clamp(1.0, f64::from(most));
        let exponent = exponent(&buckets, mean);
        Some(Sampler { buckets, exponent, mean, most })
    }

    /// Mean, as it was recorded.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Draws a length.
    pub fn draw(&self, stream: &mut Stream) -> u32 {
        let (share, place) = (stream.random::<f64>(), stream.random::<f64>());
        if self.buckets.is_empty() {
            return geometric(self.mean, place).min(self.most);
        }
        let index = self.buckets.partition_point(|bucket| bucket.cumulative <= share).min(self.buckets.len() - 1);
        let Bucket { low, high, .. } = self.buckets[index];
        let offset = (f64::from(high - low) * place.powf(self.exponent)) as u32;
        (low + 1 + offset).min(high)
    }
}

/// The exponent that gives a mean.
fn exponent(buckets: &[Bucket], mean: f64) -> f64 {
    let (mut before, mut least, mut width) = (0.0, 0.0, 0.0);
    for bucket in buckets {
        let share = bucket.cumulative - before;
        before = bucket.cumulative;
        least += share * (f64::from(bucket.low) + 0.5);
        width += share * f64::from(bucket.high - bucket.low);
    }
    // The mean of `u^g` is 1 over 1 + g.
    let place = ((mean - least) / width).clamp(*PLACES.start(), *PLACES.end());
    1.0 / place - 1.0
}

/// A draw from the geometric distribution on 1, 2, … by inversion.
fn geometric(mean: f64, place: f64) -> u32 {
    if mean <= 1.0 {
        return 1;
    }
    let tail = (1.0 - 1.0 / mean).ln();
    // A draw below 1, so that the logarithm is finite.
    let steps = ((1.0 - place).ln() / tail).floor();
    (steps.min(f64::from(u32::MAX - 1)) as u32) + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed;

    fn drawn(sampler: &Sampler) -> Vec<u32> {
        let mut stream = seed::stream(3, "test", 0);
        (0..20_000).map(|_| sampler.draw(&mut stream)).collect()
    }

    fn mean(lengths: &[u32]) -> f64 {
        lengths.iter().map(|length| f64::from(*length)).sum::<f64>() / lengths.len() as f64
    }

    #[test]
    fn buckets_come_as_often_as_they_were_counted_and_the_mean_is_the_sums() {
        for tokens in [300_000, 400_000, 500_000] {
            let counts = LengthCounts { tokens, buckets: vec![(100, 250), (200, 0), (1_000, 750)], over: 0 };
            let lengths = drawn(&Sampler::of(&counts, 1_000, 1 << 20).unwrap());
            let short = lengths.iter().filter(|length| **length <= 100).count() as f64 / lengths.len() as f64;
            assert!((short - 0.25).abs() < 0.01, "{short}");
            assert!(lengths.iter().all(|length| *length <= 100 || (201..=1_000).contains(length)));
            let (wanted, mean) = (tokens as f64 / 1_000.0, mean(&lengths));
            assert!((mean / wanted - 1.0).abs() < 0.02, "{mean}, recorded {wanted}");
        }
    }

    #[test]
    fn a_mean_alone_is_drawn_geometrically() {
        let counts = LengthCounts { tokens: 50_000, ..LengthCounts::default() };
        let lengths = drawn(&Sampler::of(&counts, 100, 1 << 20).unwrap());
        let deviation = lengths.iter().map(|length| (f64::from(*length) - 500.0).powi(2)).sum::<f64>();
        let deviation = (deviation / lengths.len() as f64).sqrt();
        assert!((mean(&lengths) / 500.0 - 1.0).abs() < 0.03 && (deviation / 500.0 - 1.0).abs() < 0.05);
        assert_eq!(Sampler::of(&counts, 0, 9), None);
        assert_eq!(drawn(&Sampler::of(&LengthCounts::default(), 5, 9).unwrap()), vec![1; 20_000]);
    }

    #[test]
    fn what_contradicts_itself_is_drawn_from_its_buckets() {
        // A sum that no lengths in these buckets can have, one way and the other, and one that is over all.
        for tokens in [0, 1 << 60] {
            let counts = LengthCounts { tokens, buckets: vec![(10, 5), (20, 5)], over: 0 };
            assert!(drawn(&Sampler::of(&counts, 10, 100).unwrap()).iter().all(|length| (1..=20).contains(length)));
        }
        let over = LengthCounts { tokens: 3_000, buckets: vec![(1_000, 0)], over: 2 };
        assert!(drawn(&Sampler::of(&over, 2, 5_000).unwrap()).iter().all(|length| (1_001..=2_000).contains(length)));
        let all = LengthCounts { tokens: 3_000, buckets: Vec::new(), over: 2 };
        assert!(drawn(&Sampler::of(&all, 2, 5_000).unwrap()).iter().all(|length| *length == 1));
    }
}
