//! A retention tree grown from releases of which it is known what would have been best.
//!
//! As [`Tree`](super::Tree), but over the features of a release and with one head: the leaf is split first whose split takes
//! away most of the weighted Gini impurity (`split.rs` has the sources), until there are as many leaves as may be; splits whose
//! sides say the same are merged. Weights are whole numbers, sums of them exact, ties are broken by position: same samples,
//! same tree.
//!
//! What a leaf says is not what most of its blocks would have needed: where one block in five comes back, most need nothing, and
//! yet it may be the best there is to keep. It is what pays at a **price** of room ([`RetentionTree::priced`]): a block that is found
//! again is worth one, a block kept for a turnover of the pool costs the price, whoever is kept and for however long.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use kvtide_envs::sched::ReleaseSample;
use kvtide_rules::retention::{KEEP_LONG_TURNOVERS, KEEP_TURNOVERS};
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::FeatureRange;
use kvtide_runtime::{NUM_FEATURES, NUM_RELEASE_FEATURES, ReleaseObservation, Retention, RetentionPolicy, TreeNode};

use super::DistilConfig;

/// A release, and the class it should have had.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetentionSample {
    /// What was seen.
    pub seen: ReleaseObservation,
    /// What would have been best.
    pub class: Retention,
    /// Blocks that would have been found, as a part of what it weighs.
    pub weight: u32,
    /// Blocks that take room for nothing, whatever their class, likewise.
    pub idle: u32,
}

impl RetentionSample {
    /// The class that would have served a release of a pool of `num_gpu_blocks`, as what came after it tells: the least under
    /// whose term its blocks would still have been there when they were asked for again, and evict first where nobody asked,
    /// or too late for any term. It weighs the root of its blocks: a few long prompts would otherwise decide for all.
    ///
    /// Normal is what was still found where nothing was kept: `of` is a release of a run under LRU.
    pub fn of_future(of: &ReleaseSample, num_gpu_blocks: u32) -> RetentionSample {
        let after = of.asked_at.map(|asked| asked.saturating_sub(of.evicted));
        let term = |turnovers: u64| turnovers * u64::from(num_gpu_blocks);
        let class = match after {
            Some(_) if of.found > 0 => Retention::Normal,
            Some(after) if after < term(KEEP_TURNOVERS) => Retention::Keep,
            Some(after) if after < term(KEEP_LONG_TURNOVERS + KEEP_TURNOVERS) => Retention::KeepLong,
            Some(_) | None => Retention::EvictFirst,
        };
        let found = if class == Retention::EvictFirst { 0 } else { of.asked_again.min(of.blocks) };
        let whole = (f64::from(of.blocks).sqrt() * WEIGHT).round();
        let weight = (whole * f64::from(found) / f64::from(of.blocks.max(1))).round() as u32;
        RetentionSample { seen: of.seen, class, weight, idle: (whole as u32).saturating_sub(weight) }
    }
}

/// A tree that chooses classes.
#[derive(Debug, Clone, PartialEq)]
pub struct RetentionTree {
    /// In breadth-first order; a leaf's first choice is its class.
    pub nodes: Vec<TreeNode>,
    /// Smallest and largest value of every feature over the samples.
    pub ranges: [FeatureRange; NUM_RELEASE_FEATURES],
    /// How many samples it was grown from.
    pub samples: usize,
}

const CLASSES: usize = Retention::ALL.len();

/// What a release of one block weighs; a whole number, and large enough for shares of it to be.
const WEIGHT: f64 = 64.0;

/// Turnovers of the pool until what would have needed a class came back, about; nothing of evict first does.
const RETURNS: [f64; CLASSES] = [0.0, 0.5, 1.5, 6.0];
/// Turnovers for which what does not come back takes room, by class; normal lasts one at most, the less the more is kept.
const TERMS: [f64; CLASSES] = [0.0, 0.5, KEEP_TURNOVERS as f64, (KEEP_LONG_TURNOVERS + KEEP_TURNOVERS) as f64];

/// Gains below this share of all weight are rounding.
const LEAST_GAIN: f64 = 1e-9;

impl RetentionTree {
    /// Grows a tree of at most `max_leaves` leaves; without samples one that says normal, and whose ranges no guard trusts.
    pub fn grow(samples: &[RetentionSample], config: &DistilConfig) -> RetentionTree {
        RetentionTree::grow_whole(samples, config).merged()
    }

    /// The same with leaves beside each other that say the same: what they are told apart by may matter to who chooses anew.
    pub fn grow_whole(samples: &[RetentionSample], config: &DistilConfig) -> RetentionTree {
        RetentionTree::grow_from(samples, 0, config)
    }

    /// The same that asks for nothing but the request. A node looks different all the time: of one afternoon a tree that sees it
    /// learns what the hour was.
    pub fn grow_by_request(samples: &[RetentionSample], config: &DistilConfig) -> RetentionTree {
        RetentionTree::grow_from(samples, NUM_FEATURES, config)
    }

    /// By the features from `first` on.
    fn grow_from(samples: &[RetentionSample], first: usize, config: &DistilConfig) -> RetentionTree {
        let cuts = (0..NUM_RELEASE_FEATURES).map(|feature| {
            let is_seen = feature >= first;
            if is_seen { cuts(samples, feature, config.bins as usize) } else { Vec::new() }
        });
        let cuts = cuts.collect();
        let balance = balance(samples);
        let mut grower =
            Grower { samples, cuts, config, balance, nodes: Vec::new(), open: BinaryHeap::new(), leaves: 1 };
        grower.add((0..samples.len()).collect(), 0);
        while grower.leaves < config.max_leaves as usize {
            let Some((_, Reverse(node))) = grower.open.pop() else { break };
            grower.split(node);
        }
        RetentionTree { nodes: grower.breadth_first(), ranges: ranges(samples), samples: samples.len() }
    }

    /// Number of leaves.
    pub fn leaves(&self) -> usize {
        self.nodes.len().div_ceil(2)
    }

    /// The same questions, each leaf with the class that pays best for the `samples` that reach it where keeping a block for a
    /// turnover of the pool costs `price` of what finding one is worth: nothing is kept where room is dear, everything where
    /// it is free. Of equals the shorter.
    #[must_use]
    pub fn priced(&self, samples: &[RetentionSample], price: f64) -> RetentionTree {
        let mut found = vec![[0_u64; CLASSES]; self.nodes.len()];
        let mut idle = vec![0_u64; self.nodes.len()];
        for sample in samples {
            let node = self.leaf_of(&sample.seen);
            found[node][sample.class as usize] += u64::from(sample.weight);
            idle[node] += u64::from(sample.idle);
        }
        let worth = |node: usize, class: Retention| -> f64 {
            let kept = TERMS[class as usize];
            let of = |needed: Retention| {
                let blocks = found[node][needed as usize] as f64;
                let is_found = class >= needed && needed != Retention::EvictFirst;
                if is_found { blocks * (1.0 - price * RETURNS[needed as usize]) } else { -price * kept * blocks }
            };
            Retention::ALL.into_iter().map(of).sum::<f64>() - price * kept * idle[node] as f64
        };
        let best = |node: usize| {
            let better = |best: Retention, class: Retention| {
                if worth(node, class) > worth(node, best) { class } else { best }
            };
            Retention::ALL.into_iter().reduce(better).unwrap_or_default()
        };
        let leaves = (0..self.nodes.len()).filter(|&node| class_of(self.nodes[node]).is_some());
        self.with_classes(&leaves.map(best).collect::<Vec<Retention>>())
    }

    fn leaf_of(&self, seen: &ReleaseObservation) -> usize {
        let mut node = 0;
        while let TreeNode::Split { feature, left, threshold } = self.nodes[node] {
            node = usize::from(left) + usize::from(seen.values[usize::from(feature)] > threshold);
        }
        node
    }

    /// What its leaves say, in the order of the nodes.
    pub fn classes(&self) -> Vec<Retention> {
        self.nodes.iter().copied().filter_map(class_of).collect()
    }

    /// The same questions with other answers, leaf by leaf in the order of the nodes; leaves beyond the answers keep theirs.
    #[must_use]
    pub fn with_classes(&self, classes: &[Retention]) -> RetentionTree {
        let mut nodes = self.nodes.clone();
        let leaves = nodes.iter_mut().filter(|node| class_of(**node).is_some());
        for (node, class) in leaves.zip(classes) {
            *node = leaf_of(*class);
        }
        RetentionTree { nodes, ..self.clone() }
    }

    /// The same without splits whose sides say the same.
    #[must_use]
    pub fn merged(&self) -> RetentionTree {
        let mut nodes = Vec::new();
        let mut next = VecDeque::from([0]);
        while let Some(node) = next.pop_front() {
            nodes.push(match (self.verdict(node), self.nodes[node]) {
                (None, TreeNode::Split { feature, left: child, threshold }) => {
                    let left = (nodes.len() + next.len() + 1) as u16;
                    next.extend([usize::from(child), usize::from(child) + 1]);
                    TreeNode::Split { feature, left, threshold }
                }
                (verdict, _) => leaf_of(verdict.unwrap_or_default()),
            });
        }
        RetentionTree { nodes, ..self.clone() }
    }

    /// What all leaves below a node say, if they agree.
    fn verdict(&self, node: usize) -> Option<Retention> {
        match self.nodes[node] {
            TreeNode::Split { left, .. } => {
                let left = usize::from(left);
                self.verdict(left).filter(|&class| self.verdict(left + 1) == Some(class))
            }
            leaf @ TreeNode::Leaf { .. } => class_of(leaf),
        }
    }
}

/// What a node says, if it is a leaf.
fn class_of(node: TreeNode) -> Option<Retention> {
    match node {
        TreeNode::Leaf { choices } => Some(Retention::from_index(choices[0]).unwrap_or_default()),
        TreeNode::Split { .. } => None,
    }
}

fn leaf_of(class: Retention) -> TreeNode {
    let mut choices = [0; NUM_HEADS];
    choices[0] = class as u8;
    TreeNode::Leaf { choices }
}

impl RetentionPolicy for RetentionTree {
    fn retain(&self, seen: &ReleaseObservation) -> Retention {
        class_of(self.nodes[self.leaf_of(seen)]).unwrap_or_default()
    }
}

/// Thresholds between neighbouring values of a feature, evenly among the samples, at most `bins`.
fn cuts(samples: &[RetentionSample], feature: usize, bins: usize) -> Vec<f32> {
    let mut values: Vec<f32> = samples.iter().map(|sample| sample.seen.values[feature]).collect();
    values.sort_by(f32::total_cmp);
    let step = values.len().div_ceil(bins.max(1)).max(1);
    let mut cuts: Vec<f32> = Vec::new();
    for pair in values.windows(2).step_by(step).chain(values.windows(2).rev().take(1)) {
        // Below the last of the lower ones: whatever is greater goes right.
        let above = values[values.partition_point(|value| *value <= pair[0])..].first();
        if let Some(above) = above {
            let middle = f64::midpoint(pair[0].into(), (*above).into()) as f32;
            cuts.push(if middle < *above { middle } else { pair[0] } + 0.0);
        }
    }
    cuts.sort_by(f32::total_cmp);
    cuts.dedup();
    cuts
}

fn ranges(samples: &[RetentionSample]) -> [FeatureRange; NUM_RELEASE_FEATURES] {
    std::array::from_fn(|feature| {
        let values = samples.iter().map(|sample| sample.seen.values[feature]);
        let range = values.map(|value| FeatureRange { min: value, max: value });
        let union = |a: FeatureRange, b: FeatureRange| FeatureRange { min: a.min.min(b.min), max: a.max.max(b.max) };
        range.reduce(union).unwrap_or(FeatureRange { min: 0.0, max: 0.0 })
    })
}

/// A node while the tree grows.
struct Grown {
    members: Vec<usize>,
    depth: u32,
    class: Retention,
    best: Option<Best>,
    /// Its left child; the right one follows it.
    left: Option<usize>,
}

#[derive(Clone, Copy)]
struct Best {
    feature: usize,
    threshold: f32,
    gain: f64,
}

struct Grower<'a> {
    samples: &'a [RetentionSample],
    cuts: Vec<Vec<f32>>,
    config: &'a DistilConfig,
    /// What a block that would have been found weighs, one that would not weighing one.
    balance: u64,
    nodes: Vec<Grown>,
    /// Leaves that can be split, by gain and then age. The bits of a positive float are in the order of its values.
    open: BinaryHeap<(u64, Reverse<usize>)>,
    leaves: usize,
}

impl Grower<'_> {
    fn add(&mut self, members: Vec<usize>, depth: u32) {
        let masses = self.masses(&members);
        // Of equals the nearest to normal, then the lower.
        let rank = |class: &Retention| {
            let distance = (*class as i8 - Retention::Normal as i8).unsigned_abs();
            (masses[*class as usize], Reverse(distance), Reverse(*class))
        };
        let class = Retention::ALL.into_iter().max_by_key(rank).unwrap_or_default();
        let best = if depth < self.config.max_depth { self.best(&members, &masses) } else { None };
        self.open.extend(best.map(|best| (best.gain.to_bits(), Reverse(self.nodes.len()))));
        self.nodes.push(Grown { members, depth, class, best, left: None });
    }

    fn weigh(&self, sample: &RetentionSample, masses: &mut [u64; CLASSES]) {
        masses[sample.class as usize] += self.balance * u64::from(sample.weight);
        masses[Retention::EvictFirst as usize] += u64::from(sample.idle);
    }

    fn masses(&self, members: &[usize]) -> [u64; CLASSES] {
        let mut masses = [0; CLASSES];
        for &member in members {
            self.weigh(&self.samples[member], &mut masses);
        }
        masses
    }

    fn best(&self, members: &[usize], masses: &[u64; CLASSES]) -> Option<Best> {
        let whole = impurity(masses);
        let least = LEAST_GAIN * masses.iter().sum::<u64>() as f64;
        let mut best: Option<Best> = None;
        for (feature, cuts) in self.cuts.iter().enumerate() {
            // Per bin, the bin of a value being the number of cuts below it: weight by class, and samples.
            let mut bins = vec![([0_u64; CLASSES], 0_u32); cuts.len() + 1];
            for &member in members {
                let sample = &self.samples[member];
                let bin = &mut bins[cuts.partition_point(|cut| sample.seen.values[feature] > *cut)];
                self.weigh(sample, &mut bin.0);
                bin.1 += 1;
            }
            let (mut left, mut left_count) = ([0; CLASSES], 0);
            for (cut, (bin, count)) in cuts.iter().zip(&bins) {
                left = std::array::from_fn(|class| left[class] + bin[class]);
                left_count += count;
                let right: [u64; CLASSES] = std::array::from_fn(|class| masses[class] - left[class]);
                let gain = whole - impurity(&left) - impurity(&right);
                let fewest = left_count.min(members.len() as u32 - left_count);
                let is_better = best.is_none_or(|best| gain > best.gain);
                if gain > least && fewest >= self.config.min_leaf_samples.max(1) && is_better {
                    best = Some(Best { feature, threshold: *cut, gain });
                }
            }
        }
        best
    }

    fn split(&mut self, node: usize) {
        let Grown { members, depth, best, .. } = &mut self.nodes[node];
        let (members, depth) = (std::mem::take(members), *depth + 1);
        let Some(Best { feature, threshold, .. }) = *best else { return };
        let goes_right = |member: &usize| self.samples[*member].seen.values[feature] > threshold;
        let (right, left): (Vec<usize>, Vec<usize>) = members.into_iter().partition(goes_right);
        self.nodes[node].left = Some(self.nodes.len());
        self.add(left, depth);
        self.add(right, depth);
        self.leaves += 1;
    }

    fn breadth_first(&self) -> Vec<TreeNode> {
        let mut nodes = Vec::new();
        let mut next = VecDeque::from([0]);
        while let Some(node) = next.pop_front() {
            let Grown { best, left, class, .. } = &self.nodes[node];
            nodes.push(match (*left, *best) {
                (Some(child), Some(Best { feature, threshold, .. })) => {
                    let left = (nodes.len() + next.len() + 1) as u16;
                    next.extend([child, child + 1]);
                    TreeNode::Split { feature: feature as u8, left, threshold }
                }
                _ => leaf_of(*class),
            });
        }
        nodes
    }
}

/// How many blocks take room for nothing for each that would have been found: with this weight the two are as many, and a tree asks
/// what tells them apart instead of counting the many.
fn balance(samples: &[RetentionSample]) -> u64 {
    let sum = |of: fn(&RetentionSample) -> u32| samples.iter().map(|sample| u64::from(of(sample))).sum::<u64>();
    (sum(|sample| sample.idle) / sum(|sample| sample.weight).max(1)).max(1)
}

/// The weight that a label drawn at random would get wrong.
fn impurity(masses: &[u64; CLASSES]) -> f64 {
    let all: u64 = masses.iter().sum();
    let squares: f64 = masses.iter().map(|&mass| mass as f64 * mass as f64).sum();
    if all == 0 { 0.0 } else { all as f64 - squares / all as f64 }
}

#[cfg(test)]
mod tests {
    use kvtide_runtime::{Observation, ReleaseFeature};

    use super::*;

    fn sample(turn: f32, asked: f32, class: Retention, weight: u32) -> RetentionSample {
        let mut seen = ReleaseObservation::of_node(&Observation::ZERO);
        seen.set(ReleaseFeature::Turn, turn);
        seen.set(ReleaseFeature::Asked, asked);
        let (weight, idle) = if class == Retention::EvictFirst { (0, weight) } else { (weight, 0) };
        RetentionSample { seen, class, weight, idle }
    }

    /// Keep long what was asked for twice; of the rest, keep from the second turn on, and let the first go.
    fn wanted(turn: u32, asked: u32) -> Retention {
        match (turn, asked) {
            (_, 2..) => Retention::KeepLong,
            (2.., _) => Retention::Keep,
            _ => Retention::EvictFirst,
        }
    }

    fn samples() -> Vec<RetentionSample> {
        let pairs = (1..9).flat_map(|turn| (0..5).map(move |asked| (turn, asked)));
        let of = |(turn, asked)| sample(turn as f32, asked as f32, wanted(turn, asked), 3);
        pairs.flat_map(|pair| [of(pair); 4]).collect()
    }

    fn config() -> DistilConfig {
        DistilConfig { max_leaves: 8, min_leaf_samples: 1, ..DistilConfig::default() }
    }

    #[test]
    fn a_rule_is_found_again() {
        let tree = RetentionTree::grow(&samples(), &config());
        assert_eq!(tree.leaves(), 3);
        for sample in samples() {
            assert_eq!(tree.retain(&sample.seen), sample.class);
        }
        assert_eq!(tree.ranges[ReleaseFeature::Turn.index()], FeatureRange { min: 1.0, max: 8.0 });
        assert_eq!(tree.classes().len(), 3);
    }

    #[test]
    fn weight_decides_where_there_is_one_leaf() {
        let mut samples = samples();
        samples.push(sample(1.0, 0.0, Retention::Normal, 10_000));
        let tree = RetentionTree::grow(&samples, &DistilConfig { max_leaves: 1, ..config() });
        assert_eq!((tree.leaves(), tree.retain(&samples[0].seen)), (1, Retention::Normal));
    }

    #[test]
    fn answers_can_be_changed_and_what_says_the_same_is_merged() {
        let whole = RetentionTree::grow_whole(&samples(), &config());
        assert!(whole.leaves() >= 3);
        let same = whole.with_classes(&vec![Retention::Keep; whole.leaves()]);
        assert_eq!((same.leaves(), same.merged().leaves()), (whole.leaves(), 1));
        assert_eq!(same.merged().retain(&samples()[0].seen), Retention::Keep);
        for sample in samples() {
            assert_eq!(whole.retain(&sample.seen), whole.merged().retain(&sample.seen));
        }
    }

    #[test]
    fn a_class_pays_or_not_by_the_price_of_room() {
        // Two kinds of requests: of the first one block in five comes back within two turnovers, of the second one in a hundred.
        let of = |turn, back| {
            let mut sample = sample(turn, 0.0, Retention::Keep, back);
            sample.idle = 100 - back;
            sample
        };
        let samples: Vec<RetentionSample> = (0..8).flat_map(|_| [of(2.0, 20), of(1.0, 1)]).collect();
        let tree = RetentionTree::grow_whole(&samples, &DistilConfig { max_leaves: 2, ..config() });
        assert_eq!(tree.leaves(), 2);
        let at = |price| {
            let priced = tree.priced(&samples, price);
            (priced.retain(&samples[0].seen), priced.retain(&samples[1].seen))
        };
        // 20 are worth 20 (1 - 1.5 p), 80 cost 2 p each: it pays below 20 / 190; 1 (1 - 1.5 p) against 198 p below 1 / 199.5.
        assert_eq!(at(0.004), (Retention::Keep, Retention::Keep));
        assert_eq!(at(0.006), (Retention::Keep, Retention::EvictFirst));
        assert_eq!(at(0.104), (Retention::Keep, Retention::EvictFirst));
        assert_eq!(at(0.107), (Retention::EvictFirst, Retention::EvictFirst));
    }

    #[test]
    fn a_release_is_labelled_by_when_it_was_asked_for_again() {
        let seen = ReleaseObservation::of_node(&Observation::ZERO);
        // 36 blocks weigh 6 x 64.
        let released = |asked_at, found| ReleaseSample {
            at: kvtide_envs::time::Micros::ZERO,
            part: kvtide_runtime::Part::Tail,
            seen,
            class: Retention::Normal,
            blocks: 36,
            asked_again: 24,
            found,
            evicted: 1_000,
            asked_at,
        };
        let label = |asked_at, found| {
            let sample = RetentionSample::of_future(&released(asked_at, found), 100);
            (sample.class, sample.weight, sample.idle)
        };
        assert_eq!(label(None, 0), (Retention::EvictFirst, 0, 384));
        assert_eq!(label(Some(1_050), 20), (Retention::Normal, 256, 128));
        assert_eq!(label(Some(1_199), 0), (Retention::Keep, 256, 128));
        assert_eq!(label(Some(1_999), 0), (Retention::KeepLong, 256, 128));
        assert_eq!(label(Some(2_000), 0), (Retention::EvictFirst, 0, 384));
    }

    #[test]
    fn nothing_is_learned_of_nothing() {
        let tree = RetentionTree::grow(&[], &config());
        assert_eq!(tree.leaves(), 1);
        let seen = ReleaseObservation::of_node(&Observation::ZERO);
        assert_eq!((tree.retain(&seen), tree.samples), (Retention::Normal, 0));
        assert_eq!(tree.priced(&[], 0.5).nodes.len(), 1);
    }
}
