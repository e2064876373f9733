//! Which class each leaf of a tree should have, by what serving attains: the cross-entropy method over classes.
//!
//! Each leaf has a distribution over the four classes. A generation draws candidates from them, serves the same episodes under each,
//! and moves every leaf's distribution towards what the best of them had (Rubinstein 1999, "The Cross-Entropy Method for
//! Combinatorial and Continuous Optimization"; de Boer et al. 2005, section 4, with their smoothing). What it comes to is the
//! likeliest class of each leaf. Candidates have streams named by their number: the same search at any number of threads.

use kvtide_envs::seed;
use kvtide_runtime::Retention;
use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use super::RetentionError;
use super::episodes::Episodes;
use crate::distil::RetentionTree;
use crate::evaluate::Watch;

const CLASSES: usize = Retention::ALL.len();

/// Settings of the search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeafSearchConfig {
    /// Leaves of the tree whose classes are searched.
    pub leaves: u32,
    /// Generations.
    pub generations: u32,
    /// Candidates of a generation.
    pub population: u32,
    /// The share of them that the next is drawn like.
    pub elite: f64,
    /// Episodes each is judged in, the same for all of a generation.
    pub episodes: u32,
    /// How much of what a leaf believed before it gives up for what the elite had, in `(0, 1]`.
    pub step: f64,
}

impl Default for LeafSearchConfig {
    fn default() -> LeafSearchConfig {
        LeafSearchConfig { leaves: 16, generations: 12, population: 32, elite: 0.2, episodes: 16, step: 0.6 }
    }
}

impl LeafSearchConfig {
    pub(super) fn validate(&self) -> Result<(), RetentionError> {
        let refuse = |field, value: String, expected| Err(RetentionError::Setting { field, value, expected });
        if !(1..=1024).contains(&self.leaves) {
            return refuse("search.leaves", self.leaves.to_string(), "1 to 1024");
        }
        for (field, value) in [
            ("search.generations", self.generations),
            ("search.population", self.population),
            ("search.episodes", self.episodes),
        ] {
            if !(1..=4096).contains(&value) {
                return refuse(field, value.to_string(), "1 to 4096");
            }
        }
        for (field, value) in [("search.elite", self.elite), ("search.step", self.step)] {
            if !(value > 0.0 && value <= 1.0) {
                return refuse(field, value.to_string(), "above 0, at most 1");
            }
        }
        Ok(())
    }

    fn num_elite(&self) -> usize {
        ((f64::from(self.population) * self.elite).round() as usize).max(1)
    }
}

/// What a search has come to between two generations: all that is kept to go on from, since its tree is grown again alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeafBelief {
    /// Generations done.
    pub generation: u32,
    /// By leaf, how likely each class is.
    pub belief: Vec<[f64; CLASSES]>,
}

/// A search.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LeafSearch {
    /// The tree whose questions are kept.
    tree: RetentionTree,
    pub(super) progress: LeafBelief,
}

/// A generation. Scores are of its own episodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SearchedGeneration {
    /// Counted from 1.
    pub generation: u32,
    /// What LRU attained.
    pub lru: f64,
    /// What the likeliest classes before it attained.
    pub likeliest: f64,
    /// Mean of the elite.
    pub elite: f64,
    /// The best.
    pub best: f64,
}

/// How sure a search is of the classes it starts from.
const BELIEF: f64 = 0.55;

impl LeafSearch {
    /// Starts around what the leaves of `tree` say; half of the rest of their belief is with normal.
    pub(super) fn around(tree: RetentionTree) -> LeafSearch {
        let believed = |class: Retention| {
            let mut belief = [(1.0 - BELIEF) / 4.0; CLASSES];
            belief[Retention::Normal as usize] += (1.0 - BELIEF) / 4.0;
            belief[class as usize] += 1.0 - belief.iter().sum::<f64>();
            belief
        };
        let belief = tree.classes().into_iter().map(believed).collect();
        LeafSearch { tree, progress: LeafBelief { generation: 0, belief } }
    }

    /// Goes on from `progress`; `None` if that is of another tree.
    pub(super) fn resume(tree: RetentionTree, progress: LeafBelief) -> Option<LeafSearch> {
        let is_share = |share: &f64| (0.0..=1.0).contains(share);
        let fits = progress.belief.len() == tree.leaves() && progress.belief.iter().flatten().all(is_share);
        fits.then_some(LeafSearch { tree, progress })
    }

    /// The tree with the likeliest classes; of equals the nearest to normal.
    pub(super) fn tree(&self) -> RetentionTree {
        let likeliest = |belief: &[f64; CLASSES]| {
            let order = [Retention::Normal, Retention::EvictFirst, Retention::Keep, Retention::KeepLong];
            let better = |best: Retention, class: Retention| {
                if belief[class as usize] > belief[best as usize] { class } else { best }
            };
            order.into_iter().reduce(better).unwrap_or_default()
        };
        self.tree.with_classes(&self.progress.belief.iter().map(likeliest).collect::<Vec<Retention>>())
    }

    pub(super) fn episodes_left(&self, config: &LeafSearchConfig) -> usize {
        let generations = config.generations.saturating_sub(self.progress.generation) as usize;
        generations * (config.population as usize + 2) * config.episodes as usize
    }

    /// One generation. `None`, and nothing changed, if stopped.
    pub(super) fn advance(
        &mut self,
        training: &Episodes<'_>,
        seed: u64,
        config: &LeafSearchConfig,
        watch: &dyn Watch,
    ) -> Result<Option<SearchedGeneration>, RetentionError> {
        let generation = self.progress.generation + 1;
        let root = seed::derive(seed, "retention.generation", u64::from(generation));
        let mut drawn: Vec<Vec<Retention>> = (0..u64::from(config.population))
            .map(|candidate| self.draw(&mut seed::stream(root, "candidate", candidate)))
            .collect();
        // Judged beside them, and no candidates themselves.
        drawn.push(self.tree().classes());
        drawn.push(vec![Retention::Normal; self.progress.belief.len()]);
        let trees: Vec<RetentionTree> = drawn.iter().map(|classes| self.tree.with_classes(classes)).collect();
        let Some(scores) = training.scores(&trees, root, config.episodes, watch)? else { return Ok(None) };

        let population = config.population as usize;
        let mut order: Vec<usize> = (0..population).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(scores[a]));
        order.truncate(config.num_elite());
        for (leaf, belief) in self.progress.belief.iter_mut().enumerate() {
            for class in Retention::ALL {
                let had = order.iter().filter(|&&candidate| drawn[candidate][leaf] == class).count();
                let share = had as f64 / order.len() as f64;
                belief[class as usize] += config.step * (share - belief[class as usize]);
            }
        }
        self.progress.generation = generation;
        Ok(Some(SearchedGeneration {
            generation,
            lru: scores[population + 1].attained,
            likeliest: scores[population].attained,
            elite: order.iter().map(|&candidate| scores[candidate].attained).sum::<f64>() / order.len() as f64,
            best: scores[order[0]].attained,
        }))
    }

    fn draw(&self, stream: &mut impl Rng) -> Vec<Retention> {
        let draw = |belief: &[f64; CLASSES]| {
            let mut left = stream.random::<f64>() * belief.iter().sum::<f64>();
            let class = Retention::ALL.into_iter().find(|class| {
                left -= belief[*class as usize];
                left < 0.0
            });
            class.unwrap_or_default()
        };
        self.progress.belief.iter().map(draw).collect()
    }
}
