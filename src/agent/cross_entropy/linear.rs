//! What a point of the search stands for: a policy that is linear in the standardised observation.
//!
//! A point holds one row after another, each a weight for every feature and a bias. A head with several choices has a row
//! for each choice that can be taken: its logit. Levels are in order, so a head with levels has a single row, its score
//! `s` counted in levels, and level *k* has the logit `2ks − k²`, which is `−(s − k)²` but for a term that all levels
//! share: the nearest level wins. Either way the logits are linear, so a point is exactly a network without hidden layers.

use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::{Head, NUM_FEATURES};

use crate::agent::{Architecture, Prior, Weights};

/// Bias of a choice that no episode allowed: it was never tried, so it is not taken.
const NEVER: f32 = -1e3;

/// From points to weights.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Linear {
    rows: Vec<RowTarget>,
    start: Vec<f64>,
    /// What no row decides.
    base: Weights,
}

/// What one row of a point fills in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowTarget {
    /// The logit of that number.
    Choice(usize),
    /// So many logits from the first on.
    Levels(usize, usize),
}

impl Linear {
    /// Over every choice in `choices`, of heads that have more than one; starts as `prior`. `None` if a choice of the prior
    /// is out of its head's range.
    pub(super) fn new(choices: [u32; NUM_HEADS], prior: &Prior) -> Option<Linear> {
        let head_sizes = Head::ALL.map(Head::size).to_vec();
        let architecture = Architecture { observation_size: NUM_FEATURES, hidden: Vec::new(), head_sizes };
        let base = Weights::zeros(architecture.clone()).favouring(prior)?;
        let mut bias = base.values()[1].clone();
        let (mut rows, mut start, mut first) = (Vec::new(), Vec::new(), 0);
        for (head, word) in Head::ALL.into_iter().zip(choices) {
            let mut row = |row, bias: f64| {
                rows.push(row);
                start.extend(std::iter::repeat_n(0.0, NUM_FEATURES).chain([bias]));
            };
            if word.count_ones() > 1 && head.choices().are_levels() {
                row(RowTarget::Levels(first, head.size()), f64::from(prior.choices[head as usize]));
            }
            for choice in 0..head.size() {
                if word >> choice & 1 == 0 {
                    bias[first + choice] = NEVER;
                } else if word.count_ones() > 1 && !head.choices().are_levels() {
                    row(RowTarget::Choice(first + choice), f64::from(bias[first + choice]));
                }
            }
            first += head.size();
        }
        let mut values = base.values().to_vec();
        values[1] = bias;
        Weights::new(architecture, values).map(|base| Linear { rows, start, base })
    }

    /// The point that stands for the prior.
    pub(super) fn start(&self) -> &[f64] {
        &self.start
    }

    /// The network of a point.
    ///
    /// # Panics
    /// If it has another number of coordinates.
    pub(super) fn weights(&self, point: &[f64]) -> Weights {
        assert_eq!(point.len(), self.start.len(), "coordinates");
        let mut values = self.base.values().to_vec();
        let (weight, rest) = values.split_at_mut(1);
        let (weight, bias) = (&mut weight[0], &mut rest[0]);
        for (row, point) in self.rows.iter().zip(point.chunks_exact(NUM_FEATURES + 1)) {
            match *row {
                RowTarget::Choice(logit) => fill(weight, bias, logit, point, 1.0, 0.0),
                RowTarget::Levels(first, levels) => (0..levels).for_each(|level| {
                    let k = level as f64;
                    // Levels that no episode allowed stay out.
                    if bias[first + level] != NEVER {
                        fill(weight, bias, first + level, point, 2.0 * k, -k * k);
                    }
                }),
            }
        }
        Weights::new(self.base.architecture().clone(), values).expect("lengths are unchanged")
    }
}

/// Makes a logit `factor` times the row's score plus `offset`.
fn fill(weight: &mut [f32], bias: &mut [f32], logit: usize, row: &[f64], factor: f64, offset: f64) {
    let weight = &mut weight[logit * NUM_FEATURES..][..NUM_FEATURES];
    for (weight, value) in weight.iter_mut().zip(row) {
        *weight = (factor * value) as f32;
    }
    bias[logit] = (factor * row[NUM_FEATURES] + offset) as f32;
}

#[cfg(test)]
mod tests {
    use kvtide_runtime::{Action, ActionMask, ActionProfile, Observation, Policy};

    use super::*;
    use crate::agent::NetworkPolicy;

    fn prior(choices: [u8; NUM_HEADS]) -> Prior {
        Prior { choices: choices.to_vec(), probability: 0.8 }
    }

    fn policy(linear: &Linear, point: &[f64]) -> NetworkPolicy {
        NetworkPolicy::new(&linear.weights(point), None, ActionProfile::Cache).unwrap()
    }

    #[test]
    fn it_starts_as_the_prior_whatever_is_seen() {
        for choices in [[0, 0, 0, 0, 0, 0], [5, 4, 2, 1, 3, 1], [19, 2, 1, 2, 8, 0]] {
            let linear = Linear::new(ActionMask::ALL.words(), &prior(choices)).unwrap();
            let policy = policy(&linear, linear.start());
            for value in [-3.0, 0.0, 2.0] {
                let observation = Observation { values: [value; NUM_FEATURES] };
                assert_eq!(policy.decide(&observation, ActionMask::ALL).indices(), choices);
            }
        }
        assert_eq!(Linear::new(ActionMask::ALL.words(), &prior([20, 0, 0, 0, 8, 0])), None);
    }

    #[test]
    fn the_level_nearest_to_the_score_is_taken() {
        let linear = Linear::new(ActionMask::ALL.words(), &prior([3, 0, 1, 0, 8, 0])).unwrap();
        let mut point = linear.start().to_vec();
        point[1] = 2.0;
        for (seen, level) in [(0.0, 3), (0.2, 3), (0.3, 4), (1.0, 5), (-1.0, 1), (9.0, 19), (-9.0, 0)] {
            let mut observation = Observation::ZERO;
            observation.values[1] = seen;
            let action = policy(&linear, &point).decide(&observation, ActionMask::ALL);
            assert_eq!(action.indices(), [level, 0, 1, 0, 8, 0], "{seen}");
            // Without that level, a neighbour.
            let mask = ActionMask::ALL.forbid(Head::Watermark, level);
            let other = policy(&linear, &point).decide(&observation, mask);
            assert_eq!(other.get(Head::Watermark).abs_diff(level), 1, "{seen}");
        }
    }

    #[test]
    fn only_what_can_be_chosen_is_searched() {
        let row = NUM_FEATURES + 1;
        let dimensions = |choices| Linear::new(choices, &prior([0, 0, 1, 0, 8, 0])).unwrap().start().len();
        assert_eq!(dimensions(ActionMask::ALL.words()), row * (1 + 5 + 3 + 3 + 1 + 2));
        let default = Action::V1_DEFAULT;
        let core = ActionProfile::Core.restrict(ActionMask::ALL.forbid(Head::Preemption, 0), default);
        assert_eq!(dimensions(core.words()), row * (1 + 5 + 2));
        let watermark = ActionProfile::Watermark.restrict(ActionMask::ALL, default);
        assert_eq!(dimensions(watermark.words()), row);

        let linear = Linear::new(core.words(), &prior([0, 0, 1, 0, 8, 0])).unwrap();
        let point: Vec<f64> = (0..linear.start().len()).map(|index| index as f64 % 7.0 - 3.0).collect();
        let observation = Observation { values: std::array::from_fn(|index| index as f32 / 5.0 - 2.0) };
        let action = policy(&linear, &point).decide(&observation, ActionMask::ALL);
        assert!(action.get(Head::Preemption) != 0 && action.get(Head::Admission) == 0, "{action:?}");
    }
}
