//! Learning which cached blocks survive: a second tree for a table, found in two ways, judged beside LRU, shipped only if it gains.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`LearnRetention`]: from a table and an experiment to candidates, judged, and one chosen |
//! | `episodes.rs` | episodes served under a table with somebody to choose classes |
//! | `leaves.rs` | the search: which class each leaf of a tree should have, by what serving attains |
//! | `judge.rs` | what candidates attain and hit on traffic nobody learned from, and which is shipped |
//!
//! **By reuse** (supervision): releases of runs under LRU are labelled by the run's own future with the class that would have
//! served each; a tree is grown that tells them apart by what is seen at the release (a learned Belady: Song et al. 2020, "Learning
//! Relaxed Belady for Content Distribution Network Caching", NSDI, who label by the time of the next request beyond a boundary), and
//! says what pays at a price of room. The price is the one under which most prompt tokens were cached in training.
//! **By attainment** (search): of the largest such tree the questions are kept and the answers searched, by cross-entropy over the
//! classes of its leaves, for what lets the most requests miss no target. Both end as the same tree in the same file.

mod episodes;
mod judge;
mod leaves;

use std::sync::atomic::AtomicBool;

use kvtide_envs::env::{EnvError, ServingArena};
use kvtide_envs::seed;
use kvtide_runtime::format::FormatError;
use kvtide_runtime::{Part, ReleaseFeature, Retention, TreeNode};
use serde::{Deserialize, Serialize};

use crate::distil::{DistilConfig, RetentionSample, RetentionTree};
use crate::evaluate::Watch;
use crate::experiment::{Experiment, ExperimentError};
use crate::export::ExportError;
use crate::world::World;

use episodes::{Episodes, Score};
use leaves::LeafSearch;

pub use judge::{Judged, MOST_LOST, WorldHits};
pub use leaves::{LeafBelief, LeafSearchConfig, SearchedGeneration};

/// Why there is nothing to say.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    /// The experiment's traffic, node or episodes.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// An episode.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The table.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A table of these bytes.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// There is nothing to choose by.
    #[error(
        "the experiment has no [validation]: which tree is shipped is decided on traffic that none was learned from"
    )]
    NoValidation,
    /// Nobody can keep anything.
    #[error("{host} lets no policy choose how long given-back blocks stay cached")]
    Host {
        /// The host's name.
        host: &'static str,
    },
    /// No block outlives its request anywhere.
    #[error("no world of the experiment has a prefix cache whose order is lru or classes: there is nothing to keep")]
    NoCache,
    /// What was kept of a search is of another.
    #[error("the search that is to go on had other leaves: table, experiment or settings have changed since")]
    OtherSearch,
    /// A setting.
    #[error("{field} = {value}: expected {expected}")]
    Setting {
        /// Its name.
        field: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        expected: &'static str,
    },
}

/// How a retention tree is learned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// Root of every stream.
    pub seed: u64,
    /// Sizes of the trees that are grown from labels, leaves.
    pub leaves: Vec<u32>,
    /// Episodes releases are collected in.
    pub releases: u32,
    /// Episodes candidates are judged in.
    pub judged: u32,
    /// What keeping a block for a turnover of the pool costs, in blocks found; `None` for the price under which most is found in
    /// training.
    pub price: Option<f64>,
    /// The search.
    pub search: LeafSearchConfig,
}

impl Default for RetentionConfig {
    fn default() -> RetentionConfig {
        RetentionConfig {
            seed: 1,
            leaves: vec![4, 8, 16, 32],
            releases: 64,
            judged: 96,
            price: None,
            search: LeafSearchConfig::default(),
        }
    }
}

impl RetentionConfig {
    /// Checks every range.
    ///
    /// # Errors
    /// [`RetentionError::Setting`] names the first setting out of range.
    pub fn validate(&self) -> Result<(), RetentionError> {
        let refuse = |field, value: String, expected| Err(RetentionError::Setting { field, value, expected });
        if self.leaves.is_empty() || self.leaves.iter().any(|leaves| !(1..=1024).contains(leaves)) {
            return refuse("leaves", format!("{:?}", self.leaves), "one to 1024 leaves each, at least one size");
        }
        for (field, value) in [("releases", self.releases), ("judged", self.judged)] {
            if !(1..=4096).contains(&value) {
                return refuse(field, value.to_string(), "1 to 4096 episodes");
            }
        }
        if let Some(price) = self.price.filter(|price| !(0.0..=1000.0).contains(price)) {
            return refuse("price", price.to_string(), "0 to 1000 blocks found for a block kept for a turnover");
        }
        self.search.validate()
    }

    /// Episodes overlap, so that many samples are few requests: no leaf is of less than a part of all.
    fn growth(&self, leaves: u32, samples: usize) -> DistilConfig {
        let min_leaf_samples = (samples / LEAST_LEAF).max(64) as u32;
        DistilConfig { max_leaves: leaves, max_depth: 12, min_leaf_samples, seed: self.seed, ..DistilConfig::default() }
    }
}

/// A leaf has at least the samples divided by this.
const LEAST_LEAF: usize = 50;

/// Prices of room that are tried, in blocks found for a block kept for a turnover.
///
/// What comes back at all differs by a factor of two or three between requests of one service, so that between keeping everything and
/// keeping nothing there is not much: the steps are small where most traffic has its price.
const PRICES: [f64; 14] = [0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.19, 0.22, 0.26, 0.32, 0.4];

/// How a candidate was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Nobody chooses: what every engine does.
    Lru,
    /// The same for every head and the same for every tail: the best of them on what is trained on.
    Constant,
    /// Grown from labels.
    Reuse,
    /// Searched by what serving attains.
    Attainment,
}

/// A tree that could be shipped, or none.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// How it was found.
    pub origin: Origin,
    /// `lru`, `constant keep/normal`, `reuse 16`, `attainment 16`.
    pub name: String,
    /// `None` for LRU.
    pub tree: Option<RetentionTree>,
}

/// What came of it: every candidate as it was judged, LRU first, and the place of the one to ship.
#[derive(Debug, Clone, PartialEq)]
pub struct Learned {
    /// Releases that were labelled, and how many of each class in the order of [`Retention::ALL`].
    pub labels: (usize, [usize; 4]),
    /// The price of room that trees were grown for.
    pub price: f64,
    /// Candidates and what they are worth.
    pub judged: Vec<(Candidate, Judged)>,
    /// `None` where LRU is as good.
    pub chosen: Option<usize>,
}

/// Who is told how it comes along.
pub trait RetentionListener {
    /// Many episodes are about to be played for this: who watches them, until it is dropped.
    fn watch(&self, doing: &'static str) -> Box<dyn Watch + '_>;

    /// So much was attained and found in training at a price of room.
    fn priced(&self, price: f64, attained: f64, hits: f64);

    /// A generation of the search is done: what is kept to go on from.
    ///
    /// # Errors
    /// It could not be kept.
    fn searched(&self, progress: &LeafBelief, generation: &SearchedGeneration) -> Result<(), ExportError>;
}

/// Learning a retention tree for a table.
#[derive(Clone, Copy)]
pub struct LearnRetention<'a> {
    /// Traffic, nodes and targets.
    pub experiment: &'a Experiment,
    /// The first of its worlds.
    pub world: &'a World,
    /// The table, whose heads decide everything else, behind its guard.
    pub table: &'a [u8],
    /// How.
    pub config: &'a RetentionConfig,
    /// Where a search that was interrupted goes on.
    pub resumed: Option<&'a LeafBelief>,
    /// Who is told.
    pub listener: &'a dyn RetentionListener,
    /// Ends it once set.
    pub stop: &'a AtomicBool,
}

impl LearnRetention<'_> {
    /// Collects, grows, searches, judges and chooses. `None` if stopped.
    ///
    /// # Errors
    /// [`RetentionError`].
    pub fn run(&self) -> Result<Option<Learned>, RetentionError> {
        self.config.validate()?;
        let training = self.experiment.env_config(self.world)?;
        let validation = self.experiment.validation_config(self.world)?.ok_or(RetentionError::NoValidation)?;
        let host = training.worlds.first().map(|world| world.node.host);
        if let Some(host) = host.filter(|host| !host.retains) {
            return Err(RetentionError::Host { host: host.name });
        }
        let has_classes = |world: &kvtide_envs::env::WorldDraw| {
            let mut engine = world.node.engine.clone();
            engine.class_lru();
            engine.has_eviction_classes()
        };
        if !training.worlds.iter().any(has_classes) {
            return Err(RetentionError::NoCache);
        }
        let (training, validation) = (ServingArena::new(&training)?, ServingArena::new(&validation)?);
        let training = Episodes { arena: &training, table: self.table, stop: self.stop };
        let validation = Episodes { arena: &validation, ..training };

        let Some(samples) = self.labelled(&training)? else { return Ok(None) };
        let labels = Retention::ALL.map(|class| samples.iter().filter(|sample| sample.class == class).count());
        let mut candidates = vec![Candidate { origin: Origin::Lru, name: "lru".to_owned(), tree: None }];
        let Some(constant) = self.constant(&training, &samples)? else { return Ok(None) };
        candidates.push(constant);
        let Some(price) = self.price(&training, &samples)? else { return Ok(None) };
        let of_request = self.config.leaves.iter().map(|&leaves| ("reuse", self.grown(&samples, leaves, price)));
        let of_node = self.config.leaves.iter().max().map(|&leaves| {
            let whole = RetentionTree::grow_whole(&samples, &self.config.growth(leaves, samples.len()));
            ("reuse and node", whole.priced(&samples, price))
        });
        for (kind, tree) in of_request.chain(of_node) {
            let tree = tree.merged();
            if candidates.iter().all(|known| known.tree.as_ref().is_none_or(|known| known.nodes != tree.nodes)) {
                let name = format!("{kind} {}", tree.leaves());
                candidates.push(Candidate { origin: Origin::Reuse, name, tree: Some(tree) });
            }
        }
        let Some(searched) = self.searched(&training, &samples, price)? else { return Ok(None) };
        let name = format!("attainment {}", searched.leaves());
        candidates.push(Candidate { origin: Origin::Attainment, name, tree: Some(searched) });

        let watch = self.listener.watch("judging");
        let judged = judge::judge(&validation, &candidates, self.config, &*watch)?;
        let Some(judged) = judged else { return Ok(None) };
        let judged: Vec<(Candidate, Judged)> = candidates.into_iter().zip(judged).collect();
        let chosen = judge::choose(&judged);
        Ok(Some(Learned { labels: (samples.len(), labels), price, judged, chosen }))
    }

    /// Releases under LRU, with the classes that would have been best.
    fn labelled(&self, training: &Episodes<'_>) -> Result<Option<Vec<RetentionSample>>, RetentionError> {
        let watch = self.listener.watch("collecting releases");
        let root = seed::derive(self.config.seed, "retention.releases", 0);
        training.labelled(root, self.config.releases, &*watch)
    }

    /// The best of the constants, which are trees of one question: head or tail.
    fn constant(
        &self,
        training: &Episodes<'_>,
        samples: &[RetentionSample],
    ) -> Result<Option<Candidate>, RetentionError> {
        let watch = self.listener.watch("looking at constants");
        let ranges = RetentionTree::grow_whole(samples, &self.config.growth(1, samples.len()));
        let pairs = Retention::ALL.into_iter().flat_map(|head| Retention::ALL.map(|tail| [head, tail]));
        let pairs: Vec<[Retention; 2]> = pairs.collect();
        let trees: Vec<RetentionTree> = pairs.iter().map(|&pair| by_part(&ranges, pair)).collect();
        let (root, episodes) = (seed::derive(self.config.seed, "retention.constants", 0), self.config.search.episodes);
        watch.planned(trees.len() * episodes as usize);
        let scores = training.scores(&trees, root, episodes, &*watch)?;
        let Some(scores) = scores else { return Ok(None) };
        let best = (0..trees.len()).max_by(|&a, &b| scores[a].total_cmp(scores[b]).then(b.cmp(&a)));
        Ok(best.map(|best| {
            let ([head, tail], tree) = (pairs[best], &trees[best]);
            Candidate { origin: Origin::Constant, name: format!("constant {head}/{tail}"), tree: Some(tree.merged()) }
        }))
    }

    fn grown(&self, samples: &[RetentionSample], leaves: u32, price: f64) -> RetentionTree {
        RetentionTree::grow_by_request(samples, &self.config.growth(leaves, samples.len())).priced(samples, price)
    }

    /// The price of room under which most is found in training.
    fn price(&self, training: &Episodes<'_>, samples: &[RetentionSample]) -> Result<Option<f64>, RetentionError> {
        if self.config.price.is_some() {
            return Ok(self.config.price);
        }
        let watch = self.listener.watch("looking for the price of room");
        let leaves = self.config.leaves.iter().copied().max().unwrap_or(1);
        let whole = RetentionTree::grow_by_request(samples, &self.config.growth(leaves, samples.len()));
        let trees = PRICES.map(|price| whole.priced(samples, price));
        let (root, episodes) = (seed::derive(self.config.seed, "retention.prices", 0), self.config.search.episodes);
        watch.planned(trees.len() * episodes as usize);
        let scores = training.scores(&trees, root, episodes, &*watch)?;
        for (price, score) in PRICES.iter().zip(scores.iter().flatten()) {
            self.listener.priced(*price, score.attained, score.hits);
        }
        let best = |scores: Vec<Score>| {
            (0..PRICES.len()).max_by(|&a, &b| scores[a].hits.total_cmp(&scores[b].hits).then(b.cmp(&a)))
        };
        Ok(scores.and_then(best).map(|best| PRICES[best]))
    }

    /// The tree of the search's size with the answers that attain most.
    fn searched(
        &self,
        training: &Episodes<'_>,
        samples: &[RetentionSample],
        price: f64,
    ) -> Result<Option<RetentionTree>, RetentionError> {
        let config = &self.config.search;
        let tree = self.grown(samples, config.leaves, price);
        let mut search = match self.resumed {
            Some(resumed) => LeafSearch::resume(tree, resumed.clone()).ok_or(RetentionError::OtherSearch)?,
            None => LeafSearch::around(tree),
        };
        let watch = self.listener.watch("searching");
        watch.planned(search.episodes_left(config));
        while search.progress.generation < config.generations {
            let Some(generation) = search.advance(training, self.config.seed, config, &*watch)? else {
                return Ok(None);
            };
            self.listener.searched(&search.progress, &generation)?;
        }
        Ok(Some(search.tree().merged()))
    }
}

/// The tree that asks for the part alone.
fn by_part(ranges: &RetentionTree, [head, tail]: [Retention; 2]) -> RetentionTree {
    let feature = ReleaseFeature::Part.index() as u8;
    let leaf = ranges.nodes[0];
    let split = TreeNode::Split { feature, left: 1, threshold: f32::from(Part::Head as u8) + 0.5 };
    let whole = RetentionTree { nodes: vec![split, leaf, leaf], ..ranges.clone() };
    whole.with_classes(&[head, tail])
}
