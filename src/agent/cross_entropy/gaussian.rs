//! The distribution that is searched with: a normal one with a mean and a deviation of its own in each coordinate.

use kvtide_envs::seed::Stream;
use serde::{Deserialize, Serialize};

use crate::agent::orthogonal::gaussian;

/// Independent normal coordinates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gaussian {
    /// Mean of each coordinate.
    pub mean: Vec<f64>,
    /// Standard deviation of each.
    pub std: Vec<f64>,
}

impl Gaussian {
    /// Around `mean`, every coordinate with the same deviation.
    pub fn around(mean: Vec<f64>, std: f64) -> Gaussian {
        let std = vec![std; mean.len()];
        Gaussian { mean, std }
    }

    /// One point.
    pub fn draw(&self, stream: &mut Stream) -> Vec<f64> {
        self.mean.iter().zip(&self.std).map(|(mean, std)| mean + std * gaussian(stream)).collect()
    }

    /// The distribution under which `elite` is likeliest, with `noise²` added to every variance so that it does not
    /// contract onto a point before it is near a good one (Szita, Lőrincz 2006, "Learning Tetris Using the Noisy
    /// Cross-Entropy Method", equations 4 and 5).
    ///
    /// # Panics
    /// If there is no point.
    #[must_use]
    pub fn fitted(elite: &[&[f64]], noise: f64) -> Gaussian {
        let count = elite.len() as f64;
        let moments = |coordinate: usize| {
            let values = || elite.iter().map(move |point| point[coordinate]);
            let mean = values().sum::<f64>() / count;
            let variance = values().map(|value| (value - mean) * (value - mean)).sum::<f64>() / count;
            (mean, (variance + noise * noise).sqrt())
        };
        let (mean, std) = (0..elite[0].len()).map(moments).unzip();
        Gaussian { mean, std }
    }

    /// Root mean square of the deviations.
    pub fn spread(&self) -> f64 {
        let squares: f64 = self.std.iter().map(|std| std * std).sum();
        (squares / self.std.len().max(1) as f64).sqrt()
    }

    /// Whether every number is one a search can have produced.
    pub fn is_sound(&self) -> bool {
        self.mean.len() == self.std.len()
            && self.mean.iter().all(|mean| mean.is_finite())
            && self.std.iter().all(|std| std.is_finite() && *std >= 0.0)
    }
}

#[cfg(test)]
mod tests {
    use kvtide_envs::seed;

    use super::*;

    #[test]
    fn what_is_fitted_are_the_moments_of_the_elite() {
        let fitted = Gaussian::fitted(&[&[1.0, 5.0], &[3.0, 5.0]], 0.0);
        assert_eq!(fitted, Gaussian { mean: vec![2.0, 5.0], std: vec![1.0, 0.0] });
        let noisy = Gaussian::fitted(&[&[1.0, 5.0], &[7.0, 5.0]], 4.0);
        assert_eq!(noisy, Gaussian { mean: vec![4.0, 5.0], std: vec![5.0, 4.0] });
    }

    /// The method of the paper on a function whose maximum is known.
    #[test]
    fn it_finds_the_top_of_a_hill() {
        let top = [3.0, -1.0, 0.5, 8.0];
        let height = |point: &[f64]| -point.iter().zip(top).map(|(x, top)| (x - top) * (x - top)).sum::<f64>();
        let mut search = Gaussian::around(vec![0.0; 4], 1.0);
        let mut stream = seed::stream(1, "test", 0);
        for generation in 1..=60 {
            let mut points: Vec<Vec<f64>> = (0..50).map(|_| search.draw(&mut stream)).collect();
            points.sort_by(|a, b| height(b).total_cmp(&height(a)));
            let elite: Vec<&[f64]> = points[..8].iter().map(Vec::as_slice).collect();
            search = Gaussian::fitted(&elite, 0.5 * (1.0 - f64::from(generation) / 60.0));
        }
        for (mean, top) in search.mean.iter().zip(top) {
            assert!((mean - top).abs() < 0.05, "{search:?}");
        }
        assert!(search.spread() < 0.1, "{search:?}");
    }
}
