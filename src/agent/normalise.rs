//! Running moments, and what is standardised by them: observations and the scale of rewards.

use serde::{Deserialize, Serialize};

/// Standardised observations and scaled rewards are clipped to `±CLIP` (Huang et al. 2022, "observation clipping").
pub const CLIP: f64 = 10.0;

/// Added to a variance before its root is taken, as Gymnasium does: a feature that never varied is not blown up to
/// infinity.
const EPSILON: f64 = 1e-8;

/// Variance of a column nothing shall be seen of; no batch changes it.
const BLIND: f64 = 1e200;

/// Mean and population variance of each column of everything seen so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moments {
    /// Rows seen.
    pub count: f64,
    /// Mean of each column.
    pub mean: Vec<f64>,
    /// Variance of each column; 1 while nothing was seen.
    pub variance: Vec<f64>,
    /// Smallest and largest value of each column that was seen. `None` where it is not known: nothing is clipped then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<Ranges>,
    /// How rows are standardised by them. `None`: as is done here, `(x − mean) / √(variance + 1e-8)`, clipped to ±10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Form>,
}

/// How others standardise, whose policies were trained on what comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    /// Added before the division; above 0.
    pub epsilon: f64,
    /// To what it is added.
    pub added_to: Spread,
    /// What comes of it is clipped to ± so much, above 0. `None`: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
}

/// By what a column is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// `√(variance + epsilon)`, as Gymnasium's and stable-baselines3's wrappers have it.
    Variance,
    /// `√variance + epsilon`, as `RLlib`'s filter has it.
    Deviation,
}

impl Form {
    /// As observations are standardised here.
    pub const OURS: Form = Form { epsilon: EPSILON, added_to: Spread::Variance, clip: Some(CLIP) };

    fn is_sound(&self) -> bool {
        let positive = |value: f64| value > 0.0 && value.is_finite();
        positive(self.epsilon) && self.clip.is_none_or(positive)
    }

    fn scale(&self, variance: f64) -> f64 {
        1.0 / match self.added_to {
            Spread::Variance => (variance + self.epsilon).sqrt(),
            Spread::Deviation => variance.sqrt() + self.epsilon,
        }
    }
}

/// Smallest and largest value of each column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ranges {
    /// Smallest value seen of each feature.
    pub least: Vec<f32>,
    /// Largest value seen of each feature.
    pub most: Vec<f32>,
}

impl Ranges {
    /// Of rows of so many columns; `None` of no rows.
    pub fn of(rows: &[f32], columns: usize) -> Option<Ranges> {
        let mut rows = rows.chunks_exact(columns);
        let first = rows.next()?;
        let mut ranges = Ranges { least: first.to_vec(), most: first.to_vec() };
        rows.for_each(|row| ranges.take_in(row, row));
        Some(ranges)
    }

    /// Both together.
    #[must_use]
    pub fn or(self, other: Option<Ranges>) -> Ranges {
        let mut both = self;
        if let Some(other) = other {
            both.take_in(&other.least, &other.most);
        }
        both
    }

    fn take_in(&mut self, least: &[f32], most: &[f32]) {
        self.least.iter_mut().zip(least).for_each(|(old, &new)| *old = old.min(new));
        self.most.iter_mut().zip(most).for_each(|(old, &new)| *old = old.max(new));
    }

    fn is_sound(&self, columns: usize) -> bool {
        self.least.len() == columns
            && self.most.len() == columns
            && self.least.iter().zip(&self.most).all(|(least, most)| least <= most && (most - least).is_finite())
    }
}

impl Moments {
    /// Of nothing yet: mean 0, variance 1.
    pub fn new(columns: usize) -> Moments {
        Moments { count: 0.0, mean: vec![0.0; columns], variance: vec![1.0; columns], range: None, form: None }
    }

    /// The same, but for `columns` of a variance so large that they are standardised to zero: what was left out of the
    /// observation without changing its shape.
    #[must_use]
    pub fn blind_to(mut self, columns: &[usize]) -> Moments {
        for &column in columns {
            self.variance[column] = BLIND;
        }
        self
    }

    /// Merges a batch of rows, two passes over the batch and one merge (Chan, Golub, `LeVeque` 1979, "Updating Formulae
    /// and a Pairwise Algorithm for Computing Sample Variances", equation 2.1).
    pub fn update(&mut self, rows: &[f32]) {
        let columns = self.mean.len();
        let count = (rows.len() / columns) as f64;
        if count == 0.0 {
            return;
        }
        // Of what was seen before nobody knows the range: that of these rows alone would be too narrow.
        if self.count == 0.0 || self.range.is_some() {
            self.see(rows);
        }
        let total = self.count + count;
        for column in 0..columns {
            if self.variance[column] >= BLIND {
                continue;
            }
            let values = || rows[column..].iter().step_by(columns).map(|&value| f64::from(value));
            let mean = values().sum::<f64>() / count;
            let squares: f64 = values().map(|value| (value - mean) * (value - mean)).sum();
            let delta = mean - self.mean[column];
            let merged = self.variance[column] * self.count + squares + delta * delta * self.count * count / total;
            self.mean[column] += delta * count / total;
            self.variance[column] = merged / total;
        }
        self.count = total;
    }

    /// Takes rows into the range, and not into the moments.
    pub fn see(&mut self, rows: &[f32]) {
        if let Some(seen) = Ranges::of(rows, self.mean.len()) {
            self.range = Some(seen.or(self.range.take()));
        }
    }

    /// Whether every number is one a run can have produced.
    pub fn is_sound(&self) -> bool {
        self.mean.len() == self.variance.len()
            && self.count.is_finite()
            && self.count >= 0.0
            && self.mean.iter().all(|mean| mean.is_finite())
            && self.variance.iter().all(|variance| variance.is_finite() && *variance >= 0.0)
            && self.range.as_ref().is_none_or(|range| range.is_sound(self.mean.len()))
            && self.form.as_ref().is_none_or(Form::is_sound)
    }

    /// The moments frozen for use.
    pub fn standardiser(&self) -> Standardiser {
        let form = self.form.unwrap_or(Form::OURS);
        Standardiser {
            mean: self.mean.clone(),
            scale: self.variance.iter().map(|&variance| form.scale(variance)).collect(),
            range: self.range.clone(),
            clip: form.clip.unwrap_or(f64::INFINITY),
        }
    }
}

/// Moments frozen: values are first clipped to the range that was seen, so that what was never seen looks like the nearest
/// that was: a policy that is linear in them, or a network, would extrapolate without bound. Then
/// `(x − mean) / √(variance + 1e-8)`, clipped to ±10, or what another [`Form`] says.
#[derive(Debug, Clone, PartialEq)]
pub struct Standardiser {
    mean: Vec<f64>,
    scale: Vec<f64>,
    range: Option<Ranges>,
    clip: f64,
}

impl Standardiser {
    /// Standardises rows in place.
    pub fn apply(&self, rows: &mut [f32]) {
        for row in rows.chunks_exact_mut(self.mean.len()) {
            if let Some(Ranges { least, most }) = &self.range {
                let clip = |(value, (&least, &most)): (&mut f32, (&f32, &f32))| *value = value.clamp(least, most);
                row.iter_mut().zip(least.iter().zip(most)).for_each(clip);
            }
            for ((value, mean), scale) in row.iter_mut().zip(&self.mean).zip(&self.scale) {
                *value = ((f64::from(*value) - mean) * scale).clamp(-self.clip, self.clip) as f32;
            }
        }
    }
}

/// Divides rewards by the running standard deviation of the discounted return (Engstrom et al. 2020, "Implementation
/// Matters in Deep Policy Gradients", algorithm 1; the mean is not subtracted, so signs keep their meaning).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardScaler {
    /// Moments of the discounted return, one column.
    pub moments: Moments,
    /// Discounted return of each environment's episode so far, `[num_envs]`.
    pub returns: Vec<f64>,
}

impl RewardScaler {
    /// For `num_envs` environments.
    pub fn new(num_envs: usize) -> RewardScaler {
        RewardScaler { moments: Moments::new(1), returns: vec![0.0; num_envs] }
    }

    /// Takes in the rewards of one step and scales them in place; `ended` says whose episode ended with it, `gammas` what each
    /// environment's return until then is discounted by.
    pub fn scale(&mut self, rewards: &mut [f32], ended: impl Iterator<Item = bool>, gammas: impl Iterator<Item = f64>) {
        for ((sum, &reward), gamma) in self.returns.iter_mut().zip(&*rewards).zip(gammas) {
            *sum = *sum * gamma + f64::from(reward);
        }
        let returns: Vec<f32> = self.returns.iter().map(|&sum| sum as f32).collect();
        self.moments.update(&returns);
        let scale = 1.0 / (self.moments.variance[0] + EPSILON).sqrt();
        for reward in rewards {
            *reward = (f64::from(*reward) * scale).clamp(-CLIP, CLIP) as f32;
        }
        for (sum, ended) in self.returns.iter_mut().zip(ended) {
            if ended {
                *sum = 0.0;
            }
        }
    }
}

/// What is normalised in a run; `None` is passed through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalisers {
    /// Moments of the observations.
    pub observation: Option<Moments>,
    /// Scale of the rewards.
    pub reward: Option<RewardScaler>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_blind_column_is_zero_and_stays_so() {
        let mut moments = Moments::new(2).blind_to(&[1]);
        let rows: Vec<f32> = (0..2000).map(|index| index as f32).collect();
        moments.update(&rows);
        moments.update(&rows);
        assert!(moments.is_sound());
        let mut row = [7.0, 7e30];
        moments.standardiser().apply(&mut row);
        assert!(row[0] != 0.0 && row[1] == 0.0, "{row:?}");
    }

    proptest! {
        #[test]
        fn merged_moments_are_those_of_the_whole(
            rows in prop::collection::vec((-100.0_f32..100.0, -1.0_f32..1.0), 1..60),
            cut in 0..60_usize,
        ) {
            let flat: Vec<f32> = rows.iter().flat_map(|&(a, b)| [a, b]).collect();
            let cut = 2 * cut.min(rows.len());
            let mut moments = Moments::new(2);
            moments.update(&flat[..cut]);
            moments.update(&flat[cut..]);
            let count = rows.len() as f64;
            let mean = rows.iter().map(|row| f64::from(row.0)).sum::<f64>() / count;
            let variance = rows.iter().map(|row| (f64::from(row.0) - mean).powi(2)).sum::<f64>() / count;
            prop_assert_eq!(moments.count, count);
            prop_assert!((moments.mean[0] - mean).abs() < 1e-9);
            prop_assert!((moments.variance[0] - variance).abs() < 1e-7);
        }
    }

    #[test]
    fn standardised_rows_have_mean_zero_and_variance_one() {
        let mut rows = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0];
        let mut moments = Moments::new(2);
        moments.update(&rows);
        moments.standardiser().apply(&mut rows);
        let mut after = Moments::new(2);
        after.update(&rows);
        for column in 0..2 {
            assert!(after.mean[column].abs() < 1e-6 && (after.variance[column] - 1.0).abs() < 1e-6, "{after:?}");
        }
    }

    #[test]
    fn what_was_never_seen_looks_like_the_nearest_that_was() {
        let mut moments = Moments::new(1);
        moments.update(&[0.0, 1.0]);
        let shown = |moments: &Moments, value| {
            let mut row = [value];
            moments.standardiser().apply(&mut row);
            row[0]
        };
        assert_eq!(shown(&moments, 1e6), shown(&moments, 1.0));
        assert_eq!(shown(&moments, -3.0), shown(&moments, 0.0));
        let mean = moments.mean.clone();
        moments.see(&[4.0]);
        assert_eq!(moments.mean, mean);
        assert_eq!(shown(&moments, 1e6), shown(&moments, 4.0));
        assert!(shown(&moments, 4.0) > shown(&moments, 1.0));
        moments.range = None;
        assert_eq!(shown(&moments, 1e6), 10.0);
        // A run from before ranges were kept goes on without them.
        moments.update(&[0.0, 1.0]);
        assert_eq!(moments.range, None);
        moments.range = Some(Ranges { least: vec![2.0], most: vec![1.0] });
        assert!(!moments.is_sound());
    }

    #[test]
    fn other_forms_are_those_of_others() {
        let moments =
            |form| Moments { mean: vec![1.0], variance: vec![4.0], form: Some(form), ..Moments::new(1) }.standardiser();
        let shown = |form, value: f32| {
            let mut row = [value];
            moments(form).apply(&mut row);
            row[0]
        };
        let deviation = Form { epsilon: 0.5, added_to: Spread::Deviation, clip: Some(1.5) };
        assert_eq!(shown(deviation, 3.0), 2.0 / 2.5);
        assert_eq!(shown(deviation, 99.0), 1.5);
        assert_eq!(shown(Form { clip: None, ..deviation }, 101.0), 40.0);
        let variance = Form { epsilon: 5.0, added_to: Spread::Variance, clip: None };
        assert_eq!(shown(variance, 4.0), 1.0);
        let sound = |form| Moments { form: Some(form), ..Moments::new(1) }.is_sound();
        assert!(sound(variance) && !sound(Form { epsilon: 0.0, ..variance }));
        assert!(!sound(Form { clip: Some(f64::NAN), ..variance }));
        // What was written before there were forms is as it was.
        assert!(!serde_json::to_string(&Moments::new(1)).unwrap().contains("form"));
    }

    #[test]
    fn rewards_are_divided_by_the_deviation_of_the_return() {
        let mut scaler = RewardScaler::new(2);
        let mut rewards = [1.0, 3.0];
        scaler.scale(&mut rewards, [false, true].into_iter(), [0.5, 0.5].into_iter());
        // Returns 1 and 3: deviation 1.
        assert!((rewards[0] - 1.0).abs() < 1e-6 && (rewards[1] - 3.0).abs() < 1e-6);
        assert_eq!(scaler.returns, [1.0, 0.0]);
        let mut rewards = [1.0, 5.5];
        scaler.scale(&mut rewards, [false, false].into_iter(), [0.5, 0.5].into_iter());
        // Returns 1, 3, 1.5 and 5.5.
        let mut returns = Moments::new(1);
        returns.update(&[1.0, 3.0, 1.5, 5.5]);
        assert!((f64::from(rewards[1]) - 5.5 / returns.variance[0].sqrt()).abs() < 1e-6);
    }
}
