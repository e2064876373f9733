//! The student: a decision tree in the order of the file format.

use std::collections::VecDeque;

use kvtide_runtime::{Action, ActionMask, FeatureSet, NUM_FEATURES, Observation, Policy, TreeNode};

use super::DistilConfig;
use super::dataset::Sample;
use super::grow::{self, Grown, Inner};
use super::prune::prune;

/// A decision tree, its nodes in the order of the file format: breadth first, children adjacent.
///
/// Deciding follows the format's definition step by step. It is the legible reference beside
/// [`Table`](kvtide_runtime::Table), which is the same thing over bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Tree {
    /// The nodes; the first is the root.
    pub nodes: Vec<TreeNode>,
    /// How much each feature's comparisons tell apart: the impurity they remove, as shares of all of it; zeros if there is
    /// no comparison.
    pub importance: [f64; NUM_FEATURES],
}

impl Tree {
    /// Grows a tree from `samples`. Without samples it says the engine's default.
    pub fn grow(samples: &[Sample], config: &DistilConfig) -> Tree {
        Tree::nested(samples, config, &[config.max_leaves]).swap_remove(0)
    }

    /// One tree for each of `budgets`, which fall: each is cut from the one before. Only the first is looked at for how far
    /// the tree they are cut from is grown.
    pub fn nested(samples: &[Sample], config: &DistilConfig, budgets: &[u32]) -> Vec<Tree> {
        let most = budgets.first().copied().unwrap_or(1);
        let mut grown = grow::grow(samples, &DistilConfig { max_leaves: most, ..config.clone() });
        let cut = |&budget: &u32| {
            prune(&mut grown, budget as usize);
            breadth_first(&grown)
        };
        budgets.iter().map(cut).collect()
    }

    /// Number of leaves.
    pub fn leaves(&self) -> usize {
        self.nodes.len().div_ceil(2)
    }

    /// The features it decides by.
    pub fn uses(&self) -> FeatureSet {
        self.nodes.iter().fold(FeatureSet::EMPTY, |uses, node| match node {
            TreeNode::Split { feature, .. } => uses.with_index(*feature),
            TreeNode::Leaf { .. } => uses,
        })
    }

    /// What the tree says before any mask.
    pub fn action(&self, observation: &Observation) -> Action {
        let mut node = 0;
        loop {
            match self.nodes[node] {
                TreeNode::Leaf { choices } => break Action::new(choices).expect("leaves are samples' choices"),
                TreeNode::Split { feature, left, threshold } => {
                    let goes_right = observation.values[usize::from(feature)] > threshold;
                    node = usize::from(left) + usize::from(goes_right);
                }
            }
        }
    }
}

impl Policy for Tree {
    fn decide(&self, observation: &Observation, mask: ActionMask) -> Action {
        mask.repair(self.action(observation))
    }
}

/// The tree below the first node, breadth first: the children of the *n*th split (from 0) are 2*n* + 1 and 2*n* + 2. Where
/// all leaves of a node agree, it becomes a leaf.
fn breadth_first(grown: &[Grown]) -> Tree {
    let mut queue = VecDeque::from([0]);
    let mut nodes = Vec::new();
    let mut importance = [0.0; NUM_FEATURES];
    let mut splits: u16 = 0;
    while let Some(node) = queue.pop_front() {
        let Grown { choices, verdict, inner, .. } = &grown[node];
        nodes.push(match (verdict, inner) {
            (None, Some(Inner { feature, threshold, left, gain })) => {
                queue.extend([*left, left + 1]);
                splits += 1;
                importance[usize::from(*feature)] += gain;
                TreeNode::Split { feature: *feature, left: 2 * splits - 1, threshold: *threshold }
            }
            (verdict, _) => TreeNode::Leaf { choices: verdict.unwrap_or(*choices) },
        });
    }
    let whole: f64 = importance.iter().sum();
    if whole > 0.0 {
        for gain in &mut importance {
            *gain /= whole;
        }
    }
    Tree { nodes, importance }
}
