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
    /// Lower end, from the resampled ones; `None` where nothing can be resampled.
    pub low: Option<f64>,
    /// Upper end, likewise.
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
    /// Seeds that were run.
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

    /// Of a statistic and what it came to when so many independent `units` were resampled: percentiles, the further out the
    /// fewer units there are.
    pub fn of(mean: f64, mut resampled: Vec<f64>, units: usize) -> Interval {
        if resampled.is_empty() {
            return Interval::single(mean);
        }
        resampled.sort_by(f64::total_cmp);
        let tail = tail(units);
        let at = |p| Some(percentile(&resampled, p));
        Interval { low: at(tail), high: at(100.0 - tail), ..Interval::single(mean) }
    }
}

/// Percent of resamples below a 95 % interval over `units`, as many as above it. The plain 2.5 is too narrow for few of them:
/// it takes their spread for the true one, and knows nothing of Student. Expanded percentiles (Hesterberg 2015, "What Teachers Should
/// Know About the Bootstrap"): Φ(−√(n/(n−1)) · t), with t the 97.5 % quantile of Student's distribution of n − 1 degrees of
/// freedom; beyond the table 2.5 − 19 / n, which is within 0.01 of it.
fn tail(units: usize) -> f64 {
    const FEW: [f64; 30] = [
        0.0, 0.0, 0.012, 0.095, 0.243, 0.411, 0.574, 0.722, 0.855, 0.972, 1.08, 1.17, 1.25, 1.32, 1.39, 1.44, 1.5,
        1.54, 1.59, 1.63, 1.66, 1.7, 1.73, 1.76, 1.79, 1.81, 1.83, 1.85, 1.88, 1.89,
    ];
    FEW.get(units.saturating_sub(2)).copied().unwrap_or(2.5 - 19.0 / units as f64)
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
    Some(Interval::of(mean, (0..RESAMPLES).filter_map(|_| again()).collect(), all.len()))
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
        // It is 4 with probability (1/4)^4, which is not left out where there are four draws only.
        let interval = resampled(&draws, smallest).unwrap();
        assert_eq!((interval.mean, interval.low, interval.high), (1.0, Some(1.0), Some(4.0)));
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
    fn few_units_are_less_certain_than_they_look() {
        assert!((2..200).map(tail).is_sorted() && (tail(31) - (2.5 - 19.0 / 31.0)).abs() < 0.03);
        assert!((tail(10_000) - 2.5).abs() < 0.01);
        // Means of five normal values: of 200 such samples about 95 % of intervals hold the mean, of plain percentiles 83.
        let mut stream = seed::stream(1, "few", 0);
        let mut normal = || (0..12).map(|_| stream.random::<f64>()).sum::<f64>() - 6.0;
        let mut holds = || {
            let interval = resampled(&[(); 5].map(|()| normal()), mean).unwrap();
            (interval.low.unwrap()..=interval.high.unwrap()).contains(&0.0)
        };
        let held = (0..200).filter(|_| holds()).count();
        assert!((176..200).contains(&held), "{held} of 200");
    }

    #[test]
    fn evidence_is_said_in_words_and_stands_in_the_interval() {
        let recorded = Evidence { traces: 1, draws: 5, stretches: Some(12) };
        assert_eq!(recorded.to_string(), "1 trace, 5 draws, 12 stretches");
        assert_eq!(Evidence { traces: 3, draws: 3, stretches: None }.to_string(), "3 traces, 3 draws");
        let interval = Interval { evidence: Some(recorded), ..Interval::of(0.5, vec![0.5; 9], 12) };
        assert_eq!(
            serde_json::to_string(&interval).unwrap(),
            r#"{"mean":0.5,"low":0.5,"high":0.5,"traces":1,"draws":5,"stretches":12}"#
        );
        assert_eq!(serde_json::to_string(&Interval::single(0.5)).unwrap(), r#"{"mean":0.5,"low":null,"high":null}"#);
    }
}
