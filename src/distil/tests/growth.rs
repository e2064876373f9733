//! Trees from samples made by hand.

use kvtide_envs::seed;
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::{Action, ActionMask, ActionProfile, Head, NUM_FEATURES, Observation, Policy, TreeNode};
use rand::RngExt;

use super::{Rules, samples};
use crate::distil::dataset::{self, Sample, Visit};
use crate::distil::{DistilConfig, PerHeadTrees, Tree};

fn config(max_leaves: u32) -> DistilConfig {
    DistilConfig { max_leaves, min_leaf_samples: 1, ..DistilConfig::default() }
}

fn random_values(count: usize, features: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut stream = seed::stream(seed, "test", 0);
    (0..count).map(|_| (0..features).map(|_| stream.random_range(0.0..1.0)).collect()).collect()
}

#[test]
fn no_samples_and_a_single_class_are_one_leaf() {
    let default = Action::ENGINE_DEFAULT.indices();
    assert_eq!(Tree::grow(&[], &config(8)).nodes, [TreeNode::Leaf { choices: default }]);
    let ranges = dataset::ranges(&[]);
    assert!(ranges.iter().all(|range| (range.min, range.max) == (0.0, 0.0)));
    let constant = samples(&Rules(|_| [3, 1, 2, 0, 8, 0]), &random_values(100, 5, 1));
    assert_eq!(Tree::grow(&constant, &config(8)).nodes, [TreeNode::Leaf { choices: [3, 1, 2, 0, 8, 0] }]);
}

#[test]
fn identical_observations_are_one_leaf_with_the_weightier_choices() {
    let mut all = samples(&Rules(|_| [3, 1, 2, 0, 8, 0]), &vec![vec![0.5]; 2]);
    all.extend(samples(&Rules(|_| [4, 2, 2, 0, 8, 0]), &vec![vec![0.5]; 3]));
    assert_eq!(Tree::grow(&all, &config(8)).nodes, [TreeNode::Leaf { choices: [4, 2, 2, 0, 8, 0] }]);
    // The two that say 3 mind ten times as much; of the victims, the three that say 2 still do.
    all[..2].iter_mut().for_each(|sample| sample.regrets[0] *= 10);
    assert_eq!(Tree::grow(&all, &config(8)).nodes, [TreeNode::Leaf { choices: [3, 2, 2, 0, 8, 0] }]);
}

#[test]
fn where_the_teacher_does_not_mind_the_frequent_choice_wins_and_nothing_is_split() {
    let teacher = Rules(|observation| [if observation.values[0] > 0.3 { 5 } else { 2 }, 0, 0, 0, 8, 0]);
    let mut all = samples(&teacher, &random_values(100, 2, 1));
    for sample in &mut all {
        sample.regrets = [0; NUM_HEADS];
    }
    assert_eq!(Tree::grow(&all, &config(8)).nodes, [TreeNode::Leaf { choices: [5, 0, 0, 0, 8, 0] }]);
}

#[test]
fn one_rule_is_one_split_halfway_between_its_neighbours() {
    let teacher = Rules(|observation| [if observation.values[1] > 2.0 { 5 } else { 2 }, 0, 0, 0, 8, 0]);
    let all = samples(&teacher, &[1.0, 2.0, 3.0, 4.0].map(|value| vec![0.0, value]));
    let expected = [
        TreeNode::Split { feature: 1, left: 1, threshold: 2.5 },
        TreeNode::Leaf { choices: [2, 0, 0, 0, 8, 0] },
        TreeNode::Leaf { choices: [5, 0, 0, 0, 8, 0] },
    ];
    assert_eq!(Tree::grow(&all, &config(8)).nodes, expected);
}

#[test]
fn of_equal_splits_the_lowest_feature_and_then_the_lowest_threshold_is_taken() {
    // Features 2 and 3 tell the same, in opposite order.
    let teacher = Rules(|observation| [if observation.values[2] > 1.5 { 5 } else { 2 }, 0, 0, 0, 8, 0]);
    let all = samples(&teacher, &[1.0, 2.0].map(|value| vec![0.0, 0.0, value, -value]));
    assert_eq!(Tree::grow(&all, &config(8)).nodes[0], TreeNode::Split { feature: 2, left: 1, threshold: 1.5 });
    // A B A: both ends can be cut off for the same gain.
    let teacher = Rules(|observation| [if observation.values[0] == 2.0 { 5 } else { 2 }, 0, 0, 0, 8, 0]);
    let all = samples(&teacher, &[1.0, 2.0, 3.0].map(|value| vec![value]));
    assert_eq!(Tree::grow(&all, &config(3)).nodes[0], TreeNode::Split { feature: 0, left: 1, threshold: 1.5 });
    // With two leaves nothing is gained: either half still says 2.
    assert_eq!(Tree::grow(&all, &config(2)).nodes, [TreeNode::Leaf { choices: [2, 0, 0, 0, 8, 0] }]);
}

#[test]
fn splits_that_decide_nothing_are_merged_and_cost_no_budget() {
    // Left of 0.5 the teacher is torn, more so left of 0.25, but every majority there is 2.
    let torn = |values: &[f32], from: f32, to: f32| {
        let mut all = samples(&Rules(|_| [2, 0, 0, 0, 8, 0]), &vec![values.to_vec(); from as usize]);
        all.extend(samples(&Rules(|_| [3, 0, 0, 0, 8, 0]), &vec![values.to_vec(); to as usize]));
        all
    };
    let mut all = torn(&[0.1], 60.0, 40.0);
    all.extend(torn(&[0.3], 90.0, 10.0));
    all.extend(samples(&Rules(|_| [9, 0, 0, 0, 8, 0]), &vec![vec![0.7]; 100]));
    all.extend(samples(&Rules(|_| [8, 0, 0, 0, 8, 0]), &vec![vec![0.8]; 2]));
    let tree = Tree::grow(&all, &config(3));
    let leaves: Vec<u8> = tree
        .nodes
        .iter()
        .filter_map(|node| if let TreeNode::Leaf { choices } = node { Some(choices[0]) } else { None })
        .collect();
    assert_eq!(leaves.len(), 3, "{:?}", tree.nodes);
    assert!([2, 8, 9].iter().all(|choice| leaves.contains(choice)), "{leaves:?}");
}

#[test]
fn the_budget_goes_where_most_is_to_be_gained() {
    // Left of 0.5 one sample in ten says something else; right of it four in ten do.
    let said = |choice: u8, value: f32, count: usize| {
        let mut all = samples(&Rules(|_| [0, 0, 0, 0, 8, 0]), &vec![vec![value]; count]);
        for sample in &mut all {
            sample.action = Action::new([choice, 0, 0, 0, 8, 0]).unwrap();
        }
        all
    };
    let all = [said(3, 0.125, 10), said(2, 0.25, 90), said(8, 0.75, 60), said(9, 1.0, 40)].concat();
    let tree = Tree::grow(&all, &config(3));
    assert_eq!(tree.nodes[0], TreeNode::Split { feature: 0, left: 1, threshold: 0.5 });
    assert_eq!(tree.nodes[1], TreeNode::Leaf { choices: [2, 0, 0, 0, 8, 0] });
    assert!(matches!(tree.nodes[2], TreeNode::Split { threshold: 0.875, .. }), "{:?}", tree.nodes);
}

#[test]
fn budgets_are_kept() {
    let teacher = Rules(|observation| {
        let values = &observation.values;
        let cell = |index: usize| (values[index] * 4.0) as u8 % 3;
        [cell(0) * 3 + cell(1), cell(2), (cell(0) + cell(2)) % 3, cell(3), 8, 0]
    });
    let values = random_values(2000, 6, 5);
    let all = samples(&teacher, &values);
    for max_leaves in [1, 2, 3, 7, 20, 100] {
        let tree = Tree::grow(&all, &config(max_leaves));
        assert!(tree.leaves() <= max_leaves as usize);
        assert!(tree.leaves() * 10 >= max_leaves as usize * 8, "{} of {max_leaves}", tree.leaves());
    }
    for max_depth in [0, 1, 4] {
        let tree = Tree::grow(&all, &DistilConfig { max_depth, ..config(1000) });
        assert!(tree.leaves() <= 1 << max_depth);
    }
    let tree = Tree::grow(&all, &DistilConfig { min_leaf_samples: 50, ..config(1000) });
    let mut visits = vec![0; tree.nodes.len()];
    for sample in &all {
        visits[leaf(&tree, &sample.visit.observation)] += 1;
    }
    assert!(visits.iter().all(|&visits| visits == 0 || visits >= 50), "{visits:?}");
    // Without a budget a tree can say everything.
    let tree = Tree::grow(&all, &config(8192));
    let wrong = all.iter().filter(|sample| tree.action(&sample.visit.observation) != sample.action).count();
    assert_eq!(wrong, 0);
}

#[test]
fn smaller_trees_are_cut_from_larger_ones_where_least_is_lost() {
    let teacher = Rules(|observation| {
        let values = &observation.values;
        [(values[0] * 12.0) as u8 % 12, (values[1] * 3.0) as u8 % 5, 1, u8::from(values[2] > 0.9), 8, 0]
    });
    let all = samples(&teacher, &random_values(3000, 4, 9));
    let trees = Tree::nested(&all, &config(64), &[64, 32, 16, 8, 4, 2, 1]);
    let splits = |tree: &Tree| -> Vec<(u8, u32)> {
        let split = |node: &TreeNode| match *node {
            TreeNode::Split { feature, threshold, .. } => Some((feature, threshold.to_bits())),
            TreeNode::Leaf { .. } => None,
        };
        tree.nodes.iter().filter_map(split).collect()
    };
    let error = |tree: &Tree| -> u64 {
        let of = |sample: &Sample| {
            let action = tree.action(&sample.visit.observation);
            let wrong = |head: &Head| action.get(*head) != sample.action.get(*head);
            Head::ALL
                .iter()
                .filter(|head| wrong(head))
                .map(|&head| u64::from(sample.regrets[head as usize]))
                .sum::<u64>()
        };
        all.iter().map(of).sum()
    };
    assert_eq!(trees.iter().map(Tree::leaves).collect::<Vec<usize>>(), [64, 32, 16, 8, 4, 2, 1]);
    for pair in trees.windows(2) {
        let larger = splits(&pair[0]);
        assert!(splits(&pair[1]).iter().all(|split| larger.contains(split)));
        assert!(error(&pair[1]) >= error(&pair[0]));
    }
    for tree in &trees[..6] {
        assert!((tree.importance.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(tree.importance[3] == 0.0 || tree.leaves() > 16, "feature 3 decides nothing");
    }
    assert_eq!(trees[6].importance, [0.0; NUM_FEATURES]);
}

#[test]
fn a_tree_for_each_head_decides_that_head_alone() {
    let teacher = Rules(|observation| {
        let values = &observation.values;
        [if values[0] > 0.5 { 9 } else { 1 }, if values[1] > 0.25 { 3 } else { 0 }, 1, u8::from(values[2] > 0.75), 8, 0]
    });
    let values = random_values(250, 4, 3);
    let all = samples(&teacher, &values);
    let forest = PerHeadTrees::grow(&all, &config(10), ActionProfile::Full);
    assert_eq!(forest.leaves(), 2 + 2 + 1 + 2 + 1);
    for sample in &all {
        assert_eq!(forest.decide(&sample.visit.observation, ActionMask::ALL), sample.action);
    }
    // One tree needs a leaf for every combination.
    let wrong =
        |tree: &Tree| all.iter().filter(|sample| tree.action(&sample.visit.observation) != sample.action).count();
    assert!(wrong(&Tree::grow(&all, &config(7))) > 0 && wrong(&Tree::grow(&all, &config(8))) == 0);
    // Heads outside the profile stay as they are.
    let watermark = PerHeadTrees::grow(&all, &config(8), ActionProfile::Watermark);
    let said = watermark.decide(&all[0].visit.observation, ActionMask::ALL);
    assert_eq!(said, all[0].action);
    assert_eq!(watermark.leaves(), 2);
}

fn leaf(tree: &Tree, observation: &Observation) -> usize {
    let mut node = 0;
    while let TreeNode::Split { feature, left, threshold } = tree.nodes[node] {
        node = usize::from(left) + usize::from(observation.values[usize::from(feature)] > threshold);
    }
    node
}

#[test]
fn a_student_never_does_what_the_mask_forbids() {
    let teacher = Rules(|observation| [(observation.values[0] * 11.0) as u8, 3, 0, 2, 8, 0]);
    let mask = ActionMask::ALL.forbid(Head::Preemption, 0).forbid(Head::Watermark, 4).pin(Head::Admission, 1);
    let label = |values: &Vec<f32>| {
        let mut observation = Observation::ZERO;
        observation.values[..2].copy_from_slice(values);
        Sample::label(&teacher, &Visit { observation, mask }).unwrap()
    };
    let all: Vec<Sample> = random_values(500, 2, 3).iter().map(label).collect();
    assert!(all.iter().all(|sample| sample.regrets[Head::Admission as usize] == 0));
    let tree = Tree::grow(&all, &config(6));
    for mask in [mask, ActionMask::ALL, mask.pin(Head::Watermark, 11)] {
        for sample in &all {
            let action = tree.decide(&sample.visit.observation, mask);
            assert_eq!(mask.repair(action), action);
        }
    }
}

/// Not a measurement, but a limit nobody should have to notice: seconds on one core, even unoptimised.
#[test]
fn it_grows_from_100_000_samples() {
    let teacher = Rules(|observation| {
        let values = &observation.values;
        let score = values.iter().enumerate().map(|(index, value)| value * (index as f32 * 0.7).sin()).sum::<f32>();
        [
            (score * 2.0).rem_euclid(12.0) as u8,
            (values[3] * 4.9) as u8,
            (values[9] * 2.9) as u8,
            u8::from(score > 0.0),
            8,
            0,
        ]
    });
    let all = samples(&teacher, &random_values(100_000, NUM_FEATURES, 11));
    let tree = Tree::grow(&all, &DistilConfig { min_leaf_samples: 16, ..config(256) });
    assert_eq!(tree.leaves(), 256);
}
