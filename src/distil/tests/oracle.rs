//! The split search against a slow one that knows nothing of bins, sums of squares or running totals.

use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::{Action, ActionMask, Head, Observation, TreeNode};
use proptest::prelude::*;

use crate::distil::bins;
use crate::distil::dataset::{Sample, Visit};
use crate::distil::split::{PackedSample, SplitSearch};
use crate::distil::{DistilConfig, Tree};

fn sample() -> impl Strategy<Value = Sample> {
    // Few values and choices, so that there are ties; choices that depend on values, so that there is a best split.
    let values = prop::collection::vec(0..5_u8, 4);
    (values, 0..3_u8, 0..2_u8, prop::array::uniform6(0..4_u32)).prop_map(|(values, noise, other, regrets)| {
        let mut observation = Observation::ZERO;
        for (slot, value) in observation.values[3..].iter_mut().zip(&values) {
            *slot = f32::from(*value) * 0.3 - 0.5;
        }
        let action = Action::new([values[1] + noise, other, u8::from(values[3] > 2), 0, values[2], other]).unwrap();
        Sample { visit: Visit { observation, mask: ActionMask::ALL }, action, regrets: regrets.map(|r| r * 1000) }
    })
}

/// What a label drawn by weight would get wrong: `Σ_c w_c (1 - w_c / W)`, head by head.
fn impurity(samples: &[&Sample]) -> f64 {
    let of_head = |head: usize| {
        let weight = |sample: &&&Sample| f64::from(sample.regrets[head]);
        let total: f64 = samples.iter().map(|sample| weight(&sample)).sum();
        (0..Head::ALL[head].size() as u8)
            .map(|choice| {
                let chose = samples.iter().filter(|sample| sample.action.indices()[head] == choice);
                let mass: f64 = chose.map(|sample| weight(&sample)).sum();
                if total > 0.0 { mass * (1.0 - mass / total) } else { 0.0 }
            })
            .sum::<f64>()
    };
    (0..NUM_HEADS).map(of_head).sum()
}

fn gain(samples: &[Sample], feature: usize, threshold: f32) -> f64 {
    let (right, left): (Vec<&Sample>, Vec<&Sample>) =
        samples.iter().partition(|sample| sample.visit.observation.values[feature] > threshold);
    impurity(&samples.iter().collect::<Vec<_>>()) - impurity(&left) - impurity(&right)
}

/// The largest gain over every feature and every value as threshold.
fn best_gain(samples: &[Sample], min_samples: usize) -> f64 {
    let mut best: f64 = 0.0;
    for feature in 0..Observation::ZERO.values.len() {
        for threshold in samples.iter().map(|sample| sample.visit.observation.values[feature]) {
            let right = samples.iter().filter(|s| s.visit.observation.values[feature] > threshold).count();
            if right.min(samples.len() - right) >= min_samples {
                best = best.max(gain(samples, feature, threshold));
            }
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_split_found_is_the_best_there_is(samples in prop::collection::vec(sample(), 1..24), min_samples in 1..4_u32) {
        let columns = bins::columns(&samples, 256);
        let rows: Vec<PackedSample> = samples.iter().map(PackedSample::new).collect();
        let members: Vec<u32> = (0..samples.len() as u32).collect();
        let found = SplitSearch::new(256, min_samples).best(&columns, &rows, &members);
        let expected = best_gain(&samples, min_samples as usize);
        prop_assert!((found.map_or(0.0, |split| split.gain) - expected).abs() < 1e-6, "{found:?}, oracle {expected}");

        // The tree carries out what was found: its threshold gains as much.
        let config = DistilConfig { max_leaves: 2, min_leaf_samples: min_samples, ..DistilConfig::default() };
        if let TreeNode::Split { feature, threshold, .. } = Tree::grow(&samples, &config).nodes[0] {
            prop_assert!((gain(&samples, feature.into(), threshold) - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn a_tree_without_limits_says_what_the_teacher_says(samples in prop::collection::vec(sample(), 1..60)) {
        let config = DistilConfig { max_leaves: 8192, max_depth: 32, min_leaf_samples: 1, ..DistilConfig::default() };
        let tree = Tree::grow(&samples, &config);
        // Greedy growth may stop where no single split helps; never where one would.
        let mut leaves = vec![Vec::new(); tree.nodes.len()];
        for sample in &samples {
            let mut node = 0;
            while let TreeNode::Split { feature, left, threshold } = tree.nodes[node] {
                node = usize::from(left) + usize::from(sample.visit.observation.values[usize::from(feature)] > threshold);
            }
            leaves[node].push(*sample);
        }
        for (members, node) in leaves.iter().zip(&tree.nodes) {
            let TreeNode::Leaf { choices } = node else { continue };
            prop_assert!(!members.is_empty());
            for head in Head::ALL {
                let mass = |choice: u8| {
                    let chose = members.iter().filter(|sample| sample.action.get(head) == choice);
                    chose.map(|sample| sample.regrets[head as usize]).sum::<u32>()
                };
                let most = (0..head.size() as u8).map(mass).max().unwrap();
                prop_assert_eq!(mass(choices[head as usize]), most, "{:?}", head);
            }
        }
    }
}
