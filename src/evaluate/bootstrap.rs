//! Statistics of paired runs.
//!
//! Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice": interquartile means
//! and stratified bootstrap intervals, because a handful of seeds makes a mean alone an anecdote.

use kvtide_envs::percentile::percentile;
use kvtide_envs::seed;
use rand::RngExt;

/// A mean of differences with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Interval {
    /// The mean of the differences.
    pub mean: f64,
    /// 2.5th percentile of the resampled means; `None` where nothing can be resampled.
    pub low: Option<f64>,
    /// 97.5th percentile, likewise.
    pub high: Option<f64>,
}

/// Resamples of a bootstrap.
const RESAMPLES: u64 = 2000;

/// The mean of the middle half of `values`; values at the edges count by the share of them that is inside. `None` of
/// none.
pub fn interquartile_mean(mut values: Vec<f64>) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let (from, to) = (count / 4.0, 3.0 * count / 4.0);
    let inside = |index: usize| ((index as f64 + 1.0).min(to) - (index as f64).max(from)).max(0.0);
    let weighted: f64 = values.iter().enumerate().map(|(index, value)| value * inside(index)).sum();
    Some(weighted / (to - from))
}

/// The mean of differences grouped in strata, and its interval by resampling within each stratum. A stratum is a window
/// at a load, its values one difference per seed; every difference counts the same.
///
/// With one seed there is nothing to resample within a stratum; the strata themselves, windows and loads, are then
/// resampled. A single difference has a mean and no interval. `None` without differences.
pub fn paired_interval(strata: &[Vec<f64>]) -> Option<Interval> {
    let merged;
    let strata = if strata.iter().all(|stratum| stratum.len() <= 1) {
        merged = [strata.concat()];
        &merged
    } else {
        strata
    };
    let count: usize = strata.iter().map(Vec::len).sum();
    if count == 0 {
        return None;
    }
    let mean = strata.iter().flatten().sum::<f64>() / count as f64;
    if count == 1 {
        return Some(Interval { mean, low: None, high: None });
    }
    let mut stream = seed::stream(0, "bootstrap", 0);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn = strata
                .iter()
                .filter(|stratum| !stratum.is_empty())
                .map(|stratum| (0..stratum.len()).map(|_| stratum[stream.random_range(0..stratum.len())]).sum::<f64>());
            drawn.sum::<f64>() / count as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    Some(Interval { mean, low: Some(percentile(&means, 2.5)), high: Some(percentile(&means, 97.5)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interquartile_mean_drops_a_quarter_at_each_end() {
        assert_eq!(interquartile_mean(vec![100.0, 2.0, 4.0, -50.0]), Some(3.0));
        assert_eq!(interquartile_mean(vec![5.0]), Some(5.0));
        // Of 1..6 the middle half runs from 1.5 to 4.5: half of 2, all of 3 and 4, half of 5.
        assert_eq!(interquartile_mean((1..=6).map(f64::from).collect()), Some(3.5));
        assert_eq!(interquartile_mean(Vec::new()), None);
    }

    #[test]
    fn the_interval_covers_what_is_there_and_no_more() {
        let bounds = |strata: &[Vec<f64>]| {
            let interval = paired_interval(strata).unwrap();
            (interval.low.unwrap(), interval.mean, interval.high.unwrap())
        };
        let (low, _, high) = bounds(&[vec![0.2; 5], vec![0.2; 5]]);
        assert!((low - 0.2).abs() < 1e-12 && (high - 0.2).abs() < 1e-12);
        let (low, mean, high) = bounds(&[vec![-1.0, 1.0, -1.0, 1.0, -1.0, 1.0]]);
        assert!(low < -0.5 && high > 0.5 && mean == 0.0);
        // A difference between strata is no uncertainty: each is resampled by itself.
        assert_eq!(bounds(&[vec![0.0; 4], vec![1.0; 4]]), (0.5, 0.5, 0.5));
        assert_eq!(paired_interval(&[]), None);
    }

    #[test]
    fn one_draw_is_no_certainty() {
        // One seed: windows are what varies. One difference: nothing does.
        let windows = paired_interval(&[vec![0.0], vec![1.0], vec![0.0], vec![1.0]]).unwrap();
        assert!(windows.low.unwrap() < 0.3 && windows.high.unwrap() > 0.7);
        assert_eq!(paired_interval(&[vec![0.3]]), Some(Interval { mean: 0.3, low: None, high: None }));
    }
}
