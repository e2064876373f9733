//! Growing a tree, best split first.
//!
//! CART with histograms, grown leaf by leaf where the gain is largest (Shi 2007, "Best-first Decision Tree Learning") to
//! several times the leaves it may keep; what is kept is for [pruning](super::prune) to say. Splits whose two sides end up
//! saying the same are merged, from the bottom, and count as one leaf: Gini likes splits that only make a majority larger,
//! and they must not use up a table. Same samples, same tree: weights are whole numbers, and ties are broken by position.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use kvtide_runtime::action::{NUM_CHOICES, NUM_HEADS};
use kvtide_runtime::{Action, Head};

use super::DistilConfig;
use super::bins::{self, Column};
use super::dataset::{Sample, first_choice};
use super::split::{PackedSample, SplitSearch, TreeSplit};

/// Leaves that may be grown for each that may be kept, before merging.
const GROWTH: usize = 8;
/// Leaves that are grown for each that may be kept, after merging.
const SURPLUS: usize = 4;

/// Grows a tree larger than is asked for; the first node is the root.
pub(super) fn grow(samples: &[Sample], config: &DistilConfig) -> Vec<Grown> {
    let mut grower = Grower {
        samples,
        columns: bins::columns(samples, config.bins as usize),
        rows: samples.iter().map(PackedSample::new).collect(),
        members: (0..samples.len() as u32).collect(),
        search: SplitSearch::new(config.bins as usize, config.min_leaf_samples.max(1)),
        max_depth: config.max_depth,
        nodes: Vec::new(),
        open: BinaryHeap::new(),
    };
    grower.grow(config.max_leaves as usize);
    grower.nodes
}

/// A node while the tree grows.
#[derive(Debug)]
pub(super) struct Grown {
    /// Its samples: a range of the grower's members.
    start: usize,
    end: usize,
    depth: u32,
    pub(super) parent: Option<usize>,
    /// What it says if it is a leaf.
    pub(super) choices: [u8; NUM_HEADS],
    /// Weight of its samples that want something else, over all heads.
    pub(super) error: u64,
    /// How it is split best, if it can be.
    best: Option<TreeSplit>,
    /// How it is split.
    pub(super) inner: Option<Inner>,
    /// What all its leaves say, if they agree: it is merged into one leaf then.
    pub(super) verdict: Option<[u8; NUM_HEADS]>,
    /// Leaves below it, after merging.
    pub(super) leaves: usize,
}

/// A split that was carried out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inner {
    pub(super) feature: u8,
    pub(super) threshold: f32,
    /// The left child; the right one follows it.
    pub(super) left: usize,
    /// Impurity it removes.
    pub(super) gain: f64,
}

struct Grower<'a> {
    samples: &'a [Sample],
    columns: Vec<Column>,
    rows: Vec<PackedSample>,
    /// Sample numbers, those of a node side by side.
    members: Vec<u32>,
    search: SplitSearch,
    max_depth: u32,
    nodes: Vec<Grown>,
    /// Nodes that can be split, by gain and then age. The bits of a positive float are in the order of its values.
    open: BinaryHeap<(u64, Reverse<usize>)>,
}

impl Grower<'_> {
    fn grow(&mut self, max_leaves: usize) {
        let everything = 0..self.members.len();
        let root = self.node(everything.start, everything.end, 0, None);
        self.nodes.push(root);
        self.look(0);
        while self.nodes[0].leaves < SURPLUS * max_leaves && self.nodes.len() < 2 * GROWTH * max_leaves {
            let Some((_, Reverse(node))) = self.open.pop() else { break };
            self.split(node);
            let left = self.nodes.len() - 2;
            self.look(left);
            self.look(left + 1);
        }
    }

    /// Finds the best split of a new node.
    fn look(&mut self, node: usize) {
        let Grown { start, end, depth, .. } = self.nodes[node];
        if depth < self.max_depth {
            let best = self.search.best(&self.columns, &self.rows, &self.members[start..end]);
            self.open.extend(best.map(|split| (split.gain.to_bits(), Reverse(node))));
            self.nodes[node].best = best;
        }
    }

    /// Carries out the best split of a node.
    fn split(&mut self, node: usize) {
        let Grown { start, end, depth, best: Some(split), .. } = self.nodes[node] else { return };
        let column = &self.columns[split.column];
        let goes_left = |member: &u32| column.bins[*member as usize] <= split.last_left;
        let (left, right): (Vec<u32>, Vec<u32>) = self.members[start..end].iter().partition(|member| goes_left(member));
        let middle = start + left.len();
        let threshold = self.threshold(column.feature, &left, &right);
        self.nodes[node].inner =
            Some(Inner { feature: column.feature, threshold, left: self.nodes.len(), gain: split.gain });
        self.members[start..middle].copy_from_slice(&left);
        self.members[middle..end].copy_from_slice(&right);
        for (start, end) in [(start, middle), (middle, end)] {
            let child = self.node(start, end, depth + 1, Some(node));
            self.nodes.push(child);
        }
        recount(&mut self.nodes, node);
    }

    /// Halfway between the largest value on the left and the smallest on the right, as an `f32` that separates them.
    fn threshold(&self, feature: u8, left: &[u32], right: &[u32]) -> f32 {
        let value = |&member: &u32| self.samples[member as usize].visit.observation.values[usize::from(feature)];
        let below = left.iter().map(value).fold(f32::NEG_INFINITY, f32::max);
        let above = right.iter().map(value).fold(f32::INFINITY, f32::min);
        between(below, above)
    }

    /// A leaf over a range of members.
    fn node(&self, start: usize, end: usize, depth: u32, parent: Option<usize>) -> Grown {
        let (choices, error) = self.majority(&self.members[start..end]);
        Grown { start, end, depth, parent, choices, error, best: None, inner: None, verdict: Some(choices), leaves: 1 }
    }

    /// Per head the choice with the greatest weight, of equals the most frequent, of equals the first; and the weight of
    /// all other choices.
    fn majority(&self, members: &[u32]) -> ([u8; NUM_HEADS], u64) {
        if members.is_empty() {
            return (Action::ENGINE_DEFAULT.indices(), 0);
        }
        let (mut masses, mut counts) = ([0; NUM_CHOICES], [0; NUM_CHOICES]);
        for &member in members {
            self.rows[member as usize].add_to(&mut masses);
            self.rows[member as usize].count_in(&mut counts);
        }
        let mut error = masses.iter().sum();
        let choices = Head::ALL.map(|head| {
            let first = first_choice(head);
            let mut best = 0;
            for choice in 1..head.size() {
                let rank = |choice| (masses[first + choice], counts[first + choice]);
                if rank(choice) > rank(best) {
                    best = choice;
                }
            }
            error -= masses[first + best];
            best as u8
        });
        (choices, error)
    }
}

/// Brings verdicts and leaf counts up to date from `node` to the root.
pub(super) fn recount(nodes: &mut [Grown], node: usize) {
    let mut next = Some(node);
    while let Some(node) = next {
        let (verdict, leaves) = match nodes[node].inner {
            None => (Some(nodes[node].choices), 1),
            Some(Inner { left, .. }) => {
                let (left, right) = (&nodes[left], &nodes[left + 1]);
                match left.verdict.filter(|_| left.verdict == right.verdict) {
                    Some(verdict) => (Some(verdict), 1),
                    None => (None, left.leaves + right.leaves),
                }
            }
        };
        nodes[node].verdict = verdict;
        nodes[node].leaves = leaves;
        next = nodes[node].parent;
    }
}

/// The middle of two different values, not less than the lower and less than the upper.
fn between(below: f32, above: f32) -> f32 {
    let middle = f64::midpoint(below.into(), above.into()) as f32;
    // Neighbouring floats have nothing in between. Adding zero makes a negative zero positive.
    (if middle < above { middle } else { below }) + 0.0
}

#[cfg(test)]
mod tests {
    use super::between;

    #[test]
    fn a_threshold_separates_even_neighbouring_floats() {
        let next = |value: f32| f32::from_bits(value.to_bits() + 1);
        for below in [0.0, 1.0, 0.1, 255.999_98, f32::MIN_POSITIVE, 1e-45] {
            let above = next(below);
            let threshold = between(below, above);
            assert!(below <= threshold && above > threshold, "{below} {threshold} {above}");
        }
        assert_eq!(between(-8.0, 8.0), 0.0);
        assert_eq!(between(f32::MIN, f32::MAX), 0.0);
        assert!(between(-0.0, 1e-45).is_sign_positive());
    }
}
