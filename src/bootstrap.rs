//! Statistics of paired runs.
//!
//! Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice": interquartile means
//! and stratified bootstrap intervals, because a handful of seeds makes a mean alone an anecdote.

use kvtide_envs::percentile::percentile;
use kvtide_envs::seed;
use rand::RngExt;

/// A mean, or another statistic, with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// 2.5th percentile of the resampled ones; `None` where nothing can be resampled.
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

/// The mean of differences grouped in strata, and its interval; see [`stratified`]. Every difference counts the same.
pub fn paired_interval(strata: &[Vec<f64>]) -> Option<Interval> {
    stratified(strata, |values| (!values.is_empty()).then(|| values.iter().copied().sum::<f64>() / values.len() as f64))
}

/// A statistic of draws grouped in strata, and its interval by resampling draws within each stratum. A stratum is a
/// window at a load, its draws one per seed. `None` where the statistic is; resamples without one are left out.
///
/// A stratum of one draw has nothing to resample; those strata, windows and loads, are resampled together, as if they were
/// one. A single draw in all has a statistic and no interval.
pub fn stratified<T>(strata: &[Vec<T>], statistic: impl Fn(&[&T]) -> Option<f64>) -> Option<Interval> {
    let lone: Vec<&T> = strata.iter().filter(|stratum| stratum.len() == 1).flatten().collect();
    let several = strata.iter().filter(|stratum| stratum.len() > 1).map(|stratum| stratum.iter().collect());
    let mut strata: Vec<Vec<&T>> = several.collect();
    if !lone.is_empty() {
        strata.push(lone);
    }
    let all: Vec<&T> = strata.iter().flatten().copied().collect();
    let mean = statistic(&all)?;
    let none = Some(Interval { mean, low: None, high: None });
    if all.len() == 1 {
        return none;
    }
    let mut stream = seed::stream(0, "bootstrap", 0);
    let mut drawn = Vec::with_capacity(all.len());
    let mut resampled: Vec<f64> = Vec::new();
    for _ in 0..RESAMPLES {
        drawn.clear();
        for stratum in &strata {
            drawn.extend((0..stratum.len()).map(|_| stratum[stream.random_range(0..stratum.len())]));
        }
        resampled.extend(statistic(&drawn));
    }
    if resampled.is_empty() {
        return none;
    }
    resampled.sort_by(f64::total_cmp);
    Some(Interval { mean, low: Some(percentile(&resampled, 2.5)), high: Some(percentile(&resampled, 97.5)) })
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
    fn any_statistic_is_resampled_within_strata() {
        // The largest of a stratum of 1..=4 and a lone 9: 9 whatever is drawn. The smallest: 1 in all but (3/4)^4 of draws.
        let strata = [vec![1.0, 2.0, 3.0, 4.0], vec![9.0]];
        let largest = |values: &[&f64]| values.iter().map(|value| **value).max_by(f64::total_cmp);
        assert_eq!(stratified(&strata, largest), Some(Interval { mean: 9.0, low: Some(9.0), high: Some(9.0) }));
        let smallest = |values: &[&f64]| values.iter().map(|value| **value).min_by(f64::total_cmp);
        let interval = stratified(&strata, smallest).unwrap();
        assert_eq!((interval.mean, interval.low), (1.0, Some(1.0)));
        // The smallest exceeds 2 with probability (1/2)^4, more than 2.5 %, and 3 with (1/4)^4, less.
        assert_eq!(interval.high, Some(3.0));
        // Resamples without a statistic do not count; if there is none at all, there is no interval.
        let first = |values: &[&f64]| (*values[0] == 1.0).then_some(1.0);
        assert_eq!(stratified(&strata, first), Some(Interval { mean: 1.0, low: Some(1.0), high: Some(1.0) }));
        assert_eq!(stratified(&strata, |_: &[&f64]| None), None);
        assert_eq!(
            stratified(&[], |values: &[&f64]| Some(values.len() as f64)).map(|found| found.low),
            Some(Some(0.0))
        );
    }

    #[test]
    fn the_interval_of_a_mean_is_as_wide_as_theory_says() {
        // 400 values of variance 1/12: a mean's standard error is sqrt(1 / 12 / 400), an interval 2 × 1.96 of it.
        let values: Vec<f64> = (0..400).map(|index| (f64::from(index) + 0.5) / 400.0).collect();
        let interval = paired_interval(&[values]).unwrap();
        let width = interval.high.unwrap() - interval.low.unwrap();
        assert!((width / (2.0 * 1.96 * f64::sqrt(1.0 / 4800.0)) - 1.0).abs() < 0.05, "{width}");
    }

    #[test]
    fn one_draw_is_no_certainty() {
        // One seed: windows are what varies. One difference: nothing does.
        let windows = paired_interval(&[vec![0.0], vec![1.0], vec![0.0], vec![1.0]]).unwrap();
        assert!(windows.low.unwrap() < 0.3 && windows.high.unwrap() > 0.7);
        assert_eq!(paired_interval(&[vec![0.3]]), Some(Interval { mean: 0.3, low: None, high: None }));
    }
}
