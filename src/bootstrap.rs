//! Statistics of runs.
//!
//! Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice": interquartile means
//! and bootstrap intervals, because a handful of seeds makes a mean alone an anecdote.

use std::fmt;

use kvtide_envs::percentile::percentile;
use kvtide_envs::seed;
use rand::RngExt;
use serde::Serialize;

/// A mean, or another statistic, with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// 2.5th percentile of the resampled ones; `None` where nothing can be resampled.
    pub low: Option<f64>,
    /// 97.5th percentile, likewise.
    pub high: Option<f64>,
    /// What it rests on, where that is not said elsewhere.
    #[serde(flatten)]
    pub evidence: Option<Evidence>,
}

/// What an interval rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Independent traces: 1 for a recorded one, however often it is thinned; one per seed of a generator.
    pub traces: usize,
    /// Seeds.
    pub draws: usize,
    /// Stretches of time resampled, where it is time that is; `None` where traces are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stretches: Option<usize>,
}

impl fmt::Display for Evidence {
    /// `1 trace, 5 draws, 12 stretches`, `5 traces, 5 draws`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let several = |count: usize| if count == 1 { "" } else { "s" };
        let Evidence { traces, draws, stretches } = *self;
        write!(f, "{traces} trace{}, {draws} draw{}", several(traces), several(draws))?;
        stretches.map_or(Ok(()), |count| write!(f, ", {count} stretch{}", if count == 1 { "" } else { "es" }))
    }
}

impl Interval {
    /// A statistic of which nothing can be resampled.
    pub fn single(mean: f64) -> Interval {
        Interval { mean, low: None, high: None, evidence: None }
    }

    /// Of a statistic and what it came to when resampled: percentiles.
    pub fn of(mean: f64, mut resampled: Vec<f64>) -> Interval {
        if resampled.is_empty() {
            return Interval::single(mean);
        }
        resampled.sort_by(f64::total_cmp);
        let at = |p| Some(percentile(&resampled, p));
        Interval { low: at(2.5), high: at(97.5), ..Interval::single(mean) }
    }
}

/// Resamples of a bootstrap.
pub const RESAMPLES: u64 = 2000;

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

/// A statistic of independent draws, and its interval by resampling them. `None` where the statistic is; resamples without one
/// are left out. A single draw has a statistic and no interval.
pub fn resampled<T>(draws: &[T], statistic: impl Fn(&[&T]) -> Option<f64>) -> Option<Interval> {
    let all: Vec<&T> = draws.iter().collect();
    let mean = statistic(&all)?;
    if all.len() < 2 {
        return Some(Interval::single(mean));
    }
    let mut stream = seed::stream(0, "bootstrap", 0);
    let mut again = || {
        let drawn: Vec<&T> = all.iter().map(|_| all[stream.random_range(0..all.len())]).collect();
        statistic(&drawn)
    };
    Some(Interval::of(mean, (0..RESAMPLES).filter_map(|_| again()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(values: &[&f64]) -> Option<f64> {
        (!values.is_empty()).then(|| values.iter().copied().sum::<f64>() / values.len() as f64)
    }

    #[test]
    fn the_interquartile_mean_drops_a_quarter_at_each_end() {
        assert_eq!(interquartile_mean(vec![100.0, 2.0, 4.0, -50.0]), Some(3.0));
        assert_eq!(interquartile_mean(vec![5.0]), Some(5.0));
        // Of 1..6 the middle half runs from 1.5 to 4.5: half of 2, all of 3 and 4, half of 5.
        assert_eq!(interquartile_mean((1..=6).map(f64::from).collect()), Some(3.5));
        assert_eq!(interquartile_mean(Vec::new()), None);
    }

    #[test]
    fn any_statistic_is_resampled() {
        let draws = [1.0, 2.0, 3.0, 4.0];
        let smallest = |values: &[&f64]| values.iter().map(|value| **value).min_by(f64::total_cmp);
        // It exceeds 1 in (3/4)^4 of resamples, 2 with probability (1/2)^4, more than 2.5 %, and 3 with (1/4)^4, less.
        let interval = resampled(&draws, smallest).unwrap();
        assert_eq!((interval.mean, interval.low, interval.high), (1.0, Some(1.0), Some(3.0)));
        // Resamples without a statistic do not count; if there is none at all, there is no interval.
        let first = |values: &[&f64]| (*values[0] == 1.0).then_some(1.0);
        assert_eq!(resampled(&draws, first).unwrap().high, Some(1.0));
        assert_eq!(resampled(&draws, |_: &[&f64]| None), None);
        assert_eq!(resampled(&[], mean), None);
        assert_eq!(resampled(&[0.3], mean), Some(Interval::single(0.3)), "one draw is no certainty");
    }

    #[test]
    fn the_interval_of_a_mean_is_as_wide_as_theory_says() {
        // 400 values of variance 1/12: a mean's standard error is sqrt(1 / 12 / 400), an interval 2 × 1.96 of it.
        let values: Vec<f64> = (0..400).map(|index| (f64::from(index) + 0.5) / 400.0).collect();
        let interval = resampled(&values, mean).unwrap();
        let width = interval.high.unwrap() - interval.low.unwrap();
        assert!((width / (2.0 * 1.96 * f64::sqrt(1.0 / 4800.0)) - 1.0).abs() < 0.05, "{width}");
    }

    #[test]
    fn evidence_is_said_in_words_and_stands_in_the_interval() {
        let recorded = Evidence { traces: 1, draws: 5, stretches: Some(12) };
        assert_eq!(recorded.to_string(), "1 trace, 5 draws, 12 stretches");
        assert_eq!(Evidence { traces: 3, draws: 3, stretches: None }.to_string(), "3 traces, 3 draws");
        let interval = Interval { evidence: Some(recorded), ..Interval::of(0.5, vec![0.5; 9]) };
        assert_eq!(
            serde_json::to_string(&interval).unwrap(),
            r#"{"mean":0.5,"low":0.5,"high":0.5,"traces":1,"draws":5,"stretches":12}"#
        );
        assert_eq!(serde_json::to_string(&Interval::single(0.5)).unwrap(), r#"{"mean":0.5,"low":null,"high":null}"#);
    }
}
