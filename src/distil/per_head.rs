//! One tree for each head instead of one for all: what sharing comparisons between heads costs, or saves.

use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::{Action, ActionMask, ActionProfile, Observation, Policy};

use super::dataset::Sample;
use super::{DistilConfig, Tree};

/// A tree for each head of a profile.
#[derive(Debug, Clone, PartialEq)]
pub struct PerHeadTrees {
    /// By head; `None` where the profile leaves it to the engine.
    trees: [Option<Tree>; NUM_HEADS],
    default: Action,
}

impl PerHeadTrees {
    /// Grows a tree for each head of `profile` from what the teacher wants of it alone; together they have as many leaves
    /// as `config` allows one tree. Other heads are as in the first sample, where they never vary.
    pub fn grow(samples: &[Sample], config: &DistilConfig, profile: ActionProfile) -> PerHeadTrees {
        let heads = profile.heads();
        let config = DistilConfig { max_leaves: (config.max_leaves / heads.len() as u32).max(1), ..config.clone() };
        let default = samples.first().map_or(Action::ENGINE_DEFAULT, |sample| sample.action);
        let mut trees = [const { None }; NUM_HEADS];
        for &head in heads {
            let alone = |sample: &Sample| {
                let mut regrets = [0; NUM_HEADS];
                regrets[head as usize] = sample.regrets[head as usize];
                // One answer in the other heads, so that nothing of them can be told apart.
                let action = default.with(head, sample.action.get(head)).unwrap_or(default);
                Sample { visit: sample.visit, action, regrets }
            };
            let samples: Vec<Sample> = samples.iter().map(alone).collect();
            trees[head as usize] = Some(Tree::grow(&samples, &config));
        }
        PerHeadTrees { trees, default }
    }

    /// Leaves of all trees.
    pub fn leaves(&self) -> usize {
        self.trees.iter().flatten().map(Tree::leaves).sum()
    }
}

impl Policy for PerHeadTrees {
    fn decide(&self, observation: &Observation, mask: ActionMask) -> Action {
        let mut choices = self.default.indices();
        for (head, tree) in self.trees.iter().enumerate() {
            if let Some(tree) = tree {
                choices[head] = tree.action(observation).indices()[head];
            }
        }
        mask.repair(Action::new(choices).unwrap_or(self.default))
    }
}
