//! Lengths with a heavy tail: log-normal, given by mean and 95th percentile.

use rand_distr::{Distribution, StandardNormal};

use crate::seed::Stream;

/// 95th percentile of the standard normal distribution.
const Z95: f64 = 1.644_853_626_951_472_7;

/// Largest `p95 / mean` of any log-normal distribution: `exp(Z95² / 2)`, rounded down.
pub const MAX_P95_OVER_MEAN: f64 = 3.868;

/// A log-normal distribution of lengths in tokens.
///
/// It is given by its mean, not by its median, so that it offers as many tokens as [`super::TrafficProfile::Uniform`] of that mean
/// does, and a comparison of the two is one of their tails. With `m = exp(mu + sigma² / 2)` and `p95 = exp(mu + z sigma)`,
/// where `z = 1.645`, `ln(p95 / m) = z sigma - sigma² / 2`. That has two solutions while `p95 / m < exp(z² / 2)`; the one
/// with the lighter tail is meant: `sigma = z - sqrt(z² - 2 ln(p95 / m))`, `mu = ln(m) - sigma² / 2`.
///
/// The family is chosen: `ServeGen` (Xiang et al. 2025, arXiv 2505.09999) fits a Pareto and a log-normal mixture to prompts
/// and an exponential to answers, and finds that answers of reasoning models have two modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogNormal {
    /// Mean, tokens.
    pub mean: u32,
    /// 95th percentile, tokens: above the mean, at most [`MAX_P95_OVER_MEAN`] times it.
    pub p95: u32,
}

impl LogNormal {
    /// Whether there is such a distribution.
    pub fn is_possible(self) -> bool {
        self.p95 > self.mean && f64::from(self.p95) <= f64::from(self.mean) * MAX_P95_OVER_MEAN
    }

    /// `(mu, sigma)`: mean and standard deviation of the logarithm.
    fn parameters(self) -> (f64, f64) {
        let (mean, p95) = (f64::from(self.mean), f64::from(self.p95));
        let sigma = Z95 - (Z95 * Z95 - 2.0 * (p95 / mean).ln()).max(0.0).sqrt();
        (mean.ln() - sigma * sigma / 2.0, sigma)
    }

    /// Draws a length from 1 to `most`.
    pub fn draw(self, stream: &mut Stream, most: u32) -> u32 {
        let (mu, sigma) = self.parameters();
        let normal: f64 = StandardNormal.sample(stream);
        ((mu + sigma * normal).exp().round() as u32).clamp(1, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed;

    #[test]
    fn mean_and_percentile_are_met() {
        for (mean, p95) in [(3_000, 9_000), (1_000, 2_000), (100, 101), (1_000, 3_868)] {
            let lengths = LogNormal { mean, p95 };
            assert!(lengths.is_possible());
            let mut stream = seed::stream(1, "test", 0);
            let mut drawn: Vec<u32> = (0..200_000).map(|_| lengths.draw(&mut stream, u32::MAX)).collect();
            drawn.sort_unstable();
            let found_mean = drawn.iter().map(|length| f64::from(*length)).sum::<f64>() / drawn.len() as f64;
            let found_p95 = f64::from(drawn[drawn.len() * 95 / 100]);
            assert!((found_mean / f64::from(mean) - 1.0).abs() < 0.02, "{found_mean} for {mean}");
            assert!((found_p95 / f64::from(p95) - 1.0).abs() < 0.02, "{found_p95} for {p95}");
        }
        for (mean, p95) in [(100, 100), (100, 99), (100, 387), (1_000_000, 3_869_000)] {
            assert!(!LogNormal { mean, p95 }.is_possible());
        }
    }

    #[test]
    fn lengths_stay_within_their_limits() {
        let mut stream = seed::stream(2, "test", 0);
        assert!((0..10_000).all(|_| (1..=9).contains(&LogNormal { mean: 5, p95: 19 }.draw(&mut stream, 9))));
    }
}
