//! One environment: a serving node under memory pressure.

use std::sync::Arc;

use kvtide_runtime::{Action, ActionMask, ActionProfile, Observation, Observer};

use super::draw::{WorldDraw, drawn_world};
use super::episode::ResetOptions;
use super::observe::observe;
use super::reward::{Reward, RewardWeights};
use super::{Episode, Node, NodeError, NodeStatus, Served, mask};
use crate::deploy::ConfigError;
use crate::memory::{MemoryError, MemorySource};
use crate::metrics::Collector;
use crate::sched::v0::EngineError;
use crate::seed::RunHash;
use crate::workload::WorkloadError;

/// What an environment is made of.
#[derive(Debug, Clone)]
pub struct EnvConfig {
    /// What an episode may be, at least one; drawn anew at each reset.
    pub worlds: Vec<WorldDraw>,
    /// Heads the agent decides.
    pub profile: ActionProfile,
    /// Choices the agent may take, of those the engine can carry out.
    pub allowed: ActionMask,
    /// What is rewarded.
    pub reward: RewardWeights,
    /// Scheduler steps between decisions.
    pub decision_interval: u32,
    /// What the blocks of its nodes are made of.
    pub memory: MemorySource,
}

impl EnvConfig {
    /// What may be chosen in each of its worlds, whatever the episode.
    ///
    /// # Errors
    /// A scheduler setting.
    pub fn masks(&self) -> Result<Vec<ActionMask>, EnvError> {
        let masks = self.worlds.iter().map(|world| {
            let node = Node::new(&world.node, Arc::new([]), Collector::default())?;
            Ok(self.mask(&node))
        });
        masks.collect()
    }

    /// What may be chosen on `node`.
    fn mask(&self, node: &Node) -> ActionMask {
        mask(node, self.profile).and(self.allowed)
    }
}

/// Why an environment cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// A scheduler setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No episode can be drawn.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A faithful engine died.
    #[error("the engine died in an episode: {0}; train with dead_ends=safe")]
    Engine(EngineError),
    /// There is no memory for a node, or it failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Several environments on one device.
    #[error("{0} environments on one device, which serves one node at a time; train with num_envs = 1")]
    Exclusive(usize),
    /// A faithful engine in a vector of environments.
    #[error("dead_ends=faithful engines can die in the middle of an episode; train with dead_ends=safe")]
    Faithful,
    /// Pool sizes out of order or range.
    #[error("pool = [{least}, {most}]: expected 0 < smallest <= largest <= 1000, relative to the engine's")]
    Pool {
        /// Smallest factor.
        least: f64,
        /// Largest factor.
        most: f64,
    },
    /// Factors of lengths out of order or range.
    #[error("lengths = [{shortest}, {longest}]: expected 0.01 <= shortest <= longest <= 100")]
    Lengths {
        /// Smallest factor.
        shortest: f64,
        /// Largest factor.
        longest: f64,
    },
    /// A weight out of range.
    #[error("weight = {0}: expected a number above 0")]
    Weight(f64),
    /// Nothing to draw an episode from.
    #[error("an environment needs at least one world")]
    NoWorld,
    /// `step` before `reset`, or after the episode's end.
    #[error("step was called on an environment that needs a reset")]
    NeedsReset,
    /// A choice the mask forbids.
    #[error("action {action:?} takes a choice its mask {mask:?} forbids")]
    Forbidden {
        /// The action.
        action: Action,
        /// The mask of that moment.
        mask: ActionMask,
    },
}

impl From<NodeError> for EnvError {
    fn from(error: NodeError) -> EnvError {
        match error {
            NodeError::Engine(error) => EnvError::Engine(error),
            NodeError::Memory(error) => EnvError::Memory(error),
        }
    }
}

/// Facts beside observation and reward; nothing a policy may see.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Info {
    /// Choices allowed for the next action.
    pub mask: ActionMask,
    /// Load of the episode.
    pub load: f64,
    /// Simulated time into the episode, seconds.
    pub elapsed_s: f64,
    /// Hash of everything that happened in the episode.
    pub hash: u64,
}

/// Gymnasium's five-part result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// What is seen now.
    pub observation: Observation,
    /// What the interval was worth.
    pub reward: f32,
    /// Every request of the episode is done.
    pub terminated: bool,
    /// The episode's time is over.
    pub truncated: bool,
    /// Beside them.
    pub info: Info,
}

/// A serving node as an environment. Each episode is a window of traffic on a node that starts empty; it is cut short
/// (`truncated`) when the window's time is over, and reaches its end (`terminated`) only if every request is done before.
#[derive(Debug)]
pub struct ServingEnv {
    config: Arc<EnvConfig>,
    /// Mean answer of each world, tokens.
    mean_outputs: Vec<f64>,
    running: Option<RunningEpisode>,
}

#[derive(Debug)]
struct RunningEpisode {
    node: Node,
    observer: Observer,
    observation: Observation,
    reward: Reward,
    mask: ActionMask,
    seed: u64,
    end: crate::time::Micros,
    load: f64,
    world: usize,
    decisions: u64,
    episode_return: f64,
    done: bool,
}

impl ServingEnv {
    /// An environment that waits for its first reset.
    ///
    /// # Errors
    /// The settings are out of range, or the source has no request.
    pub fn new(config: Arc<EnvConfig>) -> Result<ServingEnv, EnvError> {
        if config.worlds.is_empty() {
            return Err(EnvError::NoWorld);
        }
        let mut mean_outputs = Vec::with_capacity(config.worlds.len());
        for world in &config.worlds {
            world.validate()?;
            mean_outputs.push(world.episodes.mean_output()?);
        }
        Ok(ServingEnv { config, mean_outputs, running: None })
    }

    /// Starts the episode of `seed`.
    ///
    /// # Errors
    /// No episode can be drawn.
    pub fn reset(&mut self, seed: u64, options: &ResetOptions) -> Result<(Observation, Info), EnvError> {
        let config = &self.config;
        let index =
            options.world.map_or_else(|| drawn_world(&config.worlds, seed), |index| index % config.worlds.len());
        let (node_config, drawn) = config.worlds[index].draw(seed, options)?;
        // A device serves one node at a time: the last one gives it back first.
        self.running = None;
        let node = Node::new(&node_config, drawn.requests, Collector::default())?
            .with_memory(config.memory.memory(&node_config.engine)?);
        let interval = config.decision_interval;
        let mean_output = self.mean_outputs[index];
        let reward = Reward::new(config.reward, &node_config.engine, &node_config.cost, interval, mean_output);
        let mut running = RunningEpisode {
            mask: config.mask(&node),
            node,
            observer: Observer::new(),
            observation: Observation::ZERO,
            reward,
            seed,
            end: drawn.end,
            load: drawn.load,
            world: index,
            decisions: 0,
            episode_return: 0.0,
            done: false,
        };
        running.observation = observe(&running.node, &mut running.observer);
        let first = (running.observation, running.info());
        self.running = Some(running);
        Ok(first)
    }

    /// Obeys `action` for one decision interval.
    ///
    /// # Errors
    /// The episode is over, the action is forbidden, or a faithful engine died.
    pub fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let running = self.running.as_mut().filter(|running| !running.done).ok_or(EnvError::NeedsReset)?;
        if running.mask.repair(action) != action {
            return Err(EnvError::Forbidden { action, mask: running.mask });
        }
        let progress = running.node.advance(&action.controls(), self.config.decision_interval);
        // A dead engine has lost a request: there is no going on with it.
        let progress = progress.inspect_err(|_| running.done = true)?;
        let observation = observe(&running.node, &mut running.observer);
        running.observation = observation;
        let reward = running.reward.take(running.node.collector());
        running.mask = self.config.mask(&running.node);
        running.decisions += 1;
        running.episode_return += f64::from(reward);
        let terminated = progress == NodeStatus::Drained;
        // A stalled faithful engine would earn nothing for ever: its episode is cut short as well.
        let truncated = !terminated && (running.node.now() >= running.end || progress == NodeStatus::Stalled);
        running.done = terminated || truncated;
        if running.done {
            running.node.release_memory();
        }
        Ok(Step { observation, reward, terminated, truncated, info: running.info() })
    }

    /// The same environment once more, in the same moment of the same episode, from here on each on its own. `None` where the
    /// blocks of its node are more than numbers.
    pub fn fork(&self) -> Option<ServingEnv> {
        let running = match &self.running {
            None => None,
            Some(running) => Some(running.fork()?),
        };
        Some(ServingEnv { config: Arc::clone(&self.config), mean_outputs: self.mean_outputs.clone(), running })
    }

    /// From here on other traffic comes than would have, drawn anew by `seed` from the same world at the same load; what has
    /// arrived stays as it is. Nothing before the first reset.
    ///
    /// # Errors
    /// No traffic can be drawn.
    pub fn redraw_future(&mut self, seed: u64) -> Result<(), EnvError> {
        if let Some(running) = &mut self.running {
            let world = &self.config.worlds[running.world];
            let requests = world.draw_other_traffic(running.seed, seed, running.load)?;
            running.node.replace_future(&requests);
        }
        Ok(())
    }

    /// What the episode amounted to so far; `None` before the first reset.
    pub fn episode(&self, env: usize) -> Option<Episode> {
        let running = self.running.as_ref()?;
        let collector = running.node.collector();
        let requests = collector.records().len() as u64;
        let seconds = running.node.now().as_secs_f64().max(1e-9);
        Some(Episode {
            env,
            episode_return: running.episode_return,
            decisions: running.decisions,
            served: Served {
                requests,
                on_time: requests - collector.violations,
                output_tok_s: collector.output_tokens as f64 / seconds,
                preemptions: collector.preemptions,
                load: running.load,
                world: running.world,
            },
        })
    }

    /// What was seen last, and what may be chosen now; `None` before the first reset.
    pub fn seen(&self) -> Option<(Observation, ActionMask)> {
        self.running.as_ref().map(|running| (running.observation, running.mask))
    }

    /// Simulated time into the episode, seconds; 0 before the first reset.
    pub fn elapsed_s(&self) -> f64 {
        self.running.as_ref().map_or(0.0, |running| running.node.now().as_secs_f64())
    }

    /// The node of the current episode.
    pub fn node(&self) -> Option<&Node> {
        self.running.as_ref().map(|running| &running.node)
    }

    /// Tells one episode and its course from another: a hash of the traffic drawn for it, of which a policy knows nothing,
    /// and of everything that happened. 0 before the first reset.
    pub fn fingerprint(&self) -> u64 {
        let Some(running) = &self.running else { return 0 };
        let mut hash = RunHash::default();
        hash.absorb(running.node.hash());
        for request in running.node.requests() {
            hash.absorb(request.arrival.0);
            hash.absorb(u64::from(request.prompt_tokens) << 32 | u64::from(request.output_tokens));
        }
        hash.value()
    }

    /// The settings.
    pub fn config(&self) -> &EnvConfig {
        &self.config
    }
}

impl RunningEpisode {
    fn fork(&self) -> Option<RunningEpisode> {
        if self.node.has_memory() {
            return None;
        }
        Some(RunningEpisode {
            node: self.node.fork(),
            observer: self.observer.clone(),
            reward: self.reward.clone(),
            ..*self
        })
    }

    fn info(&self) -> Info {
        Info { mask: self.mask, load: self.load, elapsed_s: self.node.now().as_secs_f64(), hash: self.node.hash() }
    }
}
