//! What an episode may be: traffic, node and targets, and what of them is drawn anew each time.

use std::sync::Arc;

use rand::RngExt;

use super::NodeConfig;
use super::episode::{Drawn, EpisodeSource, ResetOptions};
use super::serving::EnvError;
use crate::cost::CostModel;
use crate::sched::Slo;
use crate::seed;
use crate::trace::Request;
use crate::workload::LengthScale;
use crate::workload::lengths::LENGTH_FACTORS;

/// One world of a curriculum.
#[derive(Debug, Clone)]
pub struct WorldDraw {
    /// How often it is drawn, relative to the others; above 0.
    pub weight: f64,
    /// The node. In a closed loop the load drawn for an episode multiplies its clients, not its traffic.
    pub node: NodeConfig,
    /// Size of the pool relative to the node's, smallest and largest; drawn log-uniformly.
    pub pool: (f64, f64),
    /// What the traffic's lengths are multiplied by, smallest and largest; drawn log-uniformly.
    pub lengths: (f64, f64),
    /// Targets to draw from, evenly, instead of the node's; empty for the node's.
    pub slos: Vec<Slo>,
    /// Prices of steps to draw from, evenly, instead of the node's, whose list of prices of preemptions stays what the engine goes
    /// by; empty for the node's.
    pub clocks: Arc<[CostModel]>,
    /// Traffic, and its load.
    pub episodes: EpisodeSource,
}

impl WorldDraw {
    /// A world of which only the traffic is drawn.
    pub fn new(node: NodeConfig, episodes: EpisodeSource) -> WorldDraw {
        let (pool, lengths) = ((1.0, 1.0), (1.0, 1.0));
        WorldDraw { weight: 1.0, node, pool, lengths, slos: Vec::new(), clocks: Arc::default(), episodes }
    }

    /// Checks what every draw depends on.
    ///
    /// # Errors
    /// A range or a setting that cannot work at its smallest.
    pub fn validate(&self) -> Result<(), EnvError> {
        let (least, most) = self.pool;
        if !(least > 0.0 && least <= most && most <= MAX_POOL) {
            return Err(EnvError::Pool { least, most });
        }
        let (shortest, longest) = self.lengths;
        if !(LENGTH_FACTORS.contains(&shortest) && shortest <= longest && LENGTH_FACTORS.contains(&longest)) {
            return Err(EnvError::Lengths { shortest, longest });
        }
        if !(self.weight > 0.0 && self.weight.is_finite()) {
            return Err(EnvError::Weight(self.weight));
        }
        self.resized(least).engine.validate()?;
        self.resized(most).engine.validate()?;
        self.episodes.validate(self.node.clients.is_some())?;
        Ok(())
    }

    /// The node and the traffic of an episode.
    ///
    /// # Errors
    /// No episode can be drawn.
    pub fn draw(&self, seed: u64, options: &ResetOptions) -> Result<(NodeConfig, Drawn), EnvError> {
        let mut stream = seed::stream(seed, "episode.node", 0);
        let (least, most) = self.pool;
        let mut node = self.resized(least * (most / least).powf(stream.random::<f64>()));
        if !self.slos.is_empty() {
            node.slo = self.slos[stream.random_range(0..self.slos.len())];
        }
        if !self.clocks.is_empty() {
            let mut stream = seed::stream(seed, "episode.clock", 0);
            node.cost = self.clocks[stream.random_range(0..self.clocks.len())].clone();
        }
        let drawn = self.episodes.draw(seed, options, node.clients.is_some())?;
        let drawn = Drawn { requests: self.rescaled(seed, drawn.requests), ..drawn };
        Ok((node.at_load(drawn.load), drawn))
    }

    /// Other traffic for the episode of `seed`, at the `load` it has: `traffic` draws what comes, `seed` what of the node and of
    /// the lengths was drawn once for the whole episode.
    ///
    /// # Errors
    /// No traffic can be drawn.
    pub(super) fn draw_other_traffic(&self, seed: u64, traffic: u64, load: f64) -> Result<Arc<[Request]>, EnvError> {
        let options = ResetOptions { load: Some(load), ..ResetOptions::default() };
        let drawn = self.episodes.draw(traffic, &options, self.node.clients.is_some())?;
        Ok(self.rescaled(seed, drawn.requests))
    }

    /// The traffic of an episode, longer or shorter.
    fn rescaled(&self, seed: u64, requests: Arc<[Request]>) -> Arc<[Request]> {
        let (shortest, longest) = self.lengths;
        let share = seed::stream(seed, "episode.lengths", 0).random::<f64>();
        let factor = shortest * (longest / shortest).powf(share);
        if factor == 1.0 {
            return requests;
        }
        let mut requests = requests.to_vec();
        LengthScale::both(factor).apply(&mut requests);
        requests.into()
    }

    /// The node with a pool of another size, and a longest sequence that fits it.
    fn resized(&self, factor: f64) -> NodeConfig {
        let mut node = self.node.clone();
        node.engine.resize_pool(factor);
        node
    }
}

/// Largest pool relative to the node's.
const MAX_POOL: f64 = 1000.0;

/// Index of the world of an episode.
pub(super) fn drawn_world(worlds: &[WorldDraw], seed: u64) -> usize {
    if worlds.len() == 1 {
        return 0;
    }
    let total: f64 = worlds.iter().map(|world| world.weight).sum();
    let mut left = seed::stream(seed, "episode.world", 0).random::<f64>() * total;
    for (index, world) in worlds.iter().enumerate() {
        left -= world.weight;
        if left < 0.0 {
            return index;
        }
    }
    worlds.len() - 1
}
