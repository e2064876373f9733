//! The student: a decision tree in the order of the file format.

use std::collections::VecDeque;

use kvtide_runtime::{Action, ActionMask, Node, Observation, Policy};

use super::DistilConfig;
use super::dataset::Sample;
use super::grow::{self, Grown, Inner};

/// A decision tree, its nodes in the order of the file format: breadth first, children adjacent.
///
/// Deciding follows the format's definition step by step. It is the legible reference beside
/// [`Table`](kvtide_runtime::Table), which is the same thing over bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Tree {
    /// The nodes; the first is the root.
    pub nodes: Vec<Node>,
}

impl Tree {
    /// Grows a tree from `samples`. Without samples it says the engine's default.
    pub fn grow(samples: &[Sample], config: &DistilConfig) -> Tree {
        Tree { nodes: breadth_first(&grow::grow(samples, config)) }
    }

    /// Number of leaves.
    pub fn leaves(&self) -> usize {
        self.nodes.len().div_ceil(2)
    }

    /// What the tree says before any mask.
    pub fn action(&self, observation: &Observation) -> Action {
        let mut node = 0;
        loop {
            match self.nodes[node] {
                Node::Leaf { choices } => break Action::new(choices).expect("leaves are samples' choices"),
                Node::Split { feature, left, threshold } => {
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

/// The nodes below the first, breadth first: the children of the *n*th split (from 0) are 2*n* + 1 and 2*n* + 2. Where all
/// leaves of a node agree, it becomes a leaf.
fn breadth_first(grown: &[Grown]) -> Vec<Node> {
    let mut queue = VecDeque::from([0]);
    let mut nodes = Vec::new();
    let mut splits: u16 = 0;
    while let Some(node) = queue.pop_front() {
        let Grown { choices, verdict, inner, .. } = &grown[node];
        nodes.push(match (verdict, inner) {
            (None, Some(Inner { feature, threshold, left })) => {
                queue.extend([*left, left + 1]);
                splits += 1;
                Node::Split { feature: *feature, left: 2 * splits - 1, threshold: *threshold }
            }
            (verdict, _) => Node::Leaf { choices: verdict.unwrap_or(*choices) },
        });
    }
    nodes
}
