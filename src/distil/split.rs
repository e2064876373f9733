//! The best split of a set of samples: weighted Gini, summed over heads.
//!
//! A set whose samples of choice *c* weigh `w_c`, `W` in all, has the impurity `W - Σ w_c² / W` (Breiman, Friedman,
//! Olshen, Stone 1984, "Classification and Regression Trees", section 4.3, times `W`): the weight that a label drawn at
//! random would get wrong. A split gains what it takes away from the sum of the heads' impurities. Heads are summed
//! unscaled: regrets are nats in every head, and a head the teacher minds more shall decide more.

use kvtide_runtime::Head;
use kvtide_runtime::action::{NUM_CHOICES, NUM_HEADS};

use super::bins::Column;
use super::dataset::{Sample, first_choice};

/// Gains below this share of a set's weight are rounding.
const LEAST_GAIN: f64 = 1e-9;

/// A sample as growing a tree needs it: small, and nothing else.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedSample {
    /// The teacher's choices, numbered over all heads.
    choices: [u8; NUM_HEADS],
    weights: [u32; NUM_HEADS],
}

impl PackedSample {
    pub(super) fn new(sample: &Sample) -> PackedSample {
        PackedSample {
            choices: Head::ALL.map(|head| first_choice(head) as u8 + sample.action.get(head)),
            weights: sample.regrets,
        }
    }

    /// Adds itself to the weights of choices.
    pub(super) fn add_to(&self, masses: &mut [u64; NUM_CHOICES]) {
        for (&choice, &weight) in self.choices.iter().zip(&self.weights) {
            masses[usize::from(choice)] += u64::from(weight);
        }
    }

    /// Adds one to the number of each of its choices.
    pub(super) fn count_in(&self, counts: &mut [u64; NUM_CHOICES]) {
        for &choice in &self.choices {
            counts[usize::from(choice)] += 1;
        }
    }
}

/// Where to split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TreeSplit {
    /// Index among the columns.
    pub(super) column: usize,
    /// The last bin that goes left.
    pub(super) last_left: u8,
    /// Impurity it removes.
    pub(super) gain: f64,
}

/// Looks for splits; keeps its counters from one search to the next.
#[derive(Debug)]
pub(super) struct SplitSearch {
    masses: Vec<[u64; NUM_CHOICES]>,
    samples: Vec<u32>,
    min_samples: u32,
}

impl SplitSearch {
    /// A search for splits that leave `min_samples` on both sides.
    pub(super) fn new(max_bins: usize, min_samples: u32) -> SplitSearch {
        SplitSearch { masses: vec![[0; NUM_CHOICES]; max_bins], samples: vec![0; max_bins], min_samples }
    }

    /// The split of `members` with the largest gain; of equals that of the lowest feature, then the lowest threshold.
    /// `None` if none gains anything.
    pub(super) fn best(&mut self, columns: &[Column], rows: &[PackedSample], members: &[u32]) -> Option<TreeSplit> {
        let mut total = [0; NUM_CHOICES];
        for &member in members {
            rows[member as usize].add_to(&mut total);
        }
        let before = purity(&total);
        let mut best = None;
        let mut best_gain = LEAST_GAIN * total.iter().sum::<u64>() as f64;
        for (index, column) in columns.iter().enumerate() {
            self.count(column, rows, members);
            let mut left = [0; NUM_CHOICES];
            let mut left_samples = 0;
            for bin in 0..column.num_bins - 1 {
                if self.samples[bin] == 0 {
                    continue;
                }
                left_samples += self.samples[bin];
                left.iter_mut().zip(&self.masses[bin]).for_each(|(left, mass)| *left += mass);
                if left_samples < self.min_samples {
                    continue;
                }
                if members.len() as u32 - left_samples < self.min_samples {
                    break;
                }
                let right = std::array::from_fn(|choice| total[choice] - left[choice]);
                let gain = purity(&left) + purity(&right) - before;
                if gain > best_gain {
                    best_gain = gain;
                    best = Some(TreeSplit { column: index, last_left: bin as u8, gain });
                }
            }
        }
        best
    }

    /// Weight of every choice and number of samples in every bin.
    fn count(&mut self, column: &Column, rows: &[PackedSample], members: &[u32]) {
        self.masses[..column.num_bins].fill([0; NUM_CHOICES]);
        self.samples[..column.num_bins].fill(0);
        for &member in members {
            let bin = usize::from(column.bins[member as usize]);
            rows[member as usize].add_to(&mut self.masses[bin]);
            self.samples[bin] += 1;
        }
    }
}

/// `Σ w_c² / W`, summed over heads: what is left of the weight once impurity is taken off.
fn purity(masses: &[u64; NUM_CHOICES]) -> f64 {
    let mut rest = masses.as_slice();
    let mut sum = 0.0;
    for head in Head::ALL {
        let (of_head, tail) = rest.split_at(head.size());
        rest = tail;
        let total: u64 = of_head.iter().sum();
        if total > 0 {
            sum += of_head.iter().map(|&mass| mass as f64 * mass as f64).sum::<f64>() / total as f64;
        }
    }
    sum
}
