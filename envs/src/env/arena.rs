//! Whole episodes under one policy each, on any number of threads: what a search judges its candidates in.
//!
//! [`Arena::play`] plays by observation and action, as an agent does; [`ServingArena::serve`] by a [`Controller`], as a node is
//! steered, whose say on [retention](crate::sched::Retain) is heard too.

use std::sync::{Arc, Mutex, PoisonError};

use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::{Action, ActionMask, Observation};

use super::draw::drawn_world;
use super::episode::ResetOptions;
use super::serving::{EnvConfig, EnvError, ServingEnv};
use super::{Controller, Episode, Node, NodeStatus, Served};
use crate::deploy::DeadEnds;
use crate::memory::MemorySource;
use crate::metrics::Collector;
use crate::sched::{ReleaseSample, V1};

/// Somewhere episodes are played. An episode depends on its seed and the decisions alone, not on the thread or on what was
/// played before.
pub trait Arena: Sync {
    /// Plays the episode of `seed` to its end, obeying `decide`, which obeys the mask.
    ///
    /// # Errors
    /// The episode cannot be drawn, or an action was forbidden.
    fn play(&self, seed: u64, decide: &mut dyn FnMut(&Observation, ActionMask) -> Action) -> Result<Episode, EnvError>;

    /// Which choices of each head some episode allows: bit *i* of a head's word stands for choice *i*.
    fn choices(&self) -> [u32; NUM_HEADS];

    /// What is done where nobody decides.
    fn default_action(&self) -> Action;
}

/// Episodes of serving nodes. As many environments are made as threads play at once, and used again.
#[derive(Debug)]
pub struct ServingArena {
    config: Arc<EnvConfig>,
    idle: Mutex<Vec<ServingEnv>>,
    choices: [u32; NUM_HEADS],
}

impl ServingArena {
    /// Episodes of one configuration.
    ///
    /// # Errors
    /// Those of [`ServingEnv::new`]; a faithful engine is refused, because it can die in the middle of an episode.
    pub fn new(config: &Arc<EnvConfig>) -> Result<ServingArena, EnvError> {
        if config.worlds.iter().any(|world| world.node.engine.dead_ends == DeadEnds::Faithful) {
            return Err(EnvError::Faithful);
        }
        // Masks do not depend on what blocks are made of.
        let modelled = EnvConfig { memory: MemorySource::Modelled, ..EnvConfig::clone(config) };
        let mut env = ServingEnv::new(Arc::new(modelled))?;
        let mut choices = [0; NUM_HEADS];
        // A mask depends on the node alone, so the first of an episode is that of all.
        for world in 0..config.worlds.len() {
            let (_, info) = env.reset(0, &ResetOptions { world: Some(world), ..ResetOptions::default() })?;
            choices.iter_mut().zip(info.mask.words()).for_each(|(all, word)| *all |= word);
        }
        Ok(ServingArena { config: Arc::clone(config), idle: Mutex::new(Vec::new()), choices })
    }

    /// As [`play`](Arena::play), but `decide` may end the episode where it is, by deciding nothing.
    ///
    /// # Errors
    /// As [`play`](Arena::play).
    pub fn play_while(
        &self,
        seed: u64,
        decide: &mut dyn FnMut(&Observation, ActionMask) -> Option<Action>,
    ) -> Result<Episode, EnvError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut env = idle.map_or_else(|| ServingEnv::new(Arc::clone(&self.config)), Ok)?;
        let (mut observation, info) = env.reset(seed, &ResetOptions::default())?;
        let mut mask = info.mask;
        while let Some(action) = decide(&observation, mask) {
            let step = env.step(action)?;
            if step.terminated || step.truncated {
                break;
            }
            (observation, mask) = (step.observation, step.info.mask);
        }
        let episode = env.episode(0).ok_or(EnvError::NeedsReset)?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(env);
        Ok(episode)
    }
}

/// An episode that a controller steered, and what its prefix cache did.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedEpisode {
    /// How it went; nothing is rewarded.
    pub episode: Episode,
    /// Prompt tokens of everybody who was admitted, as often as they were.
    pub prompt_tokens: u64,
    /// How many of those the GPU's prefix cache had.
    pub hit_tokens: u64,
    /// Blocks of the node's pool.
    pub num_gpu_blocks: u32,
    /// Cached blocks that were evicted.
    pub evicted: u64,
    /// Decisions about classes, and how many of them its guard took back.
    pub releases: (u64, u64),
    /// What became of each release, if that was asked for.
    pub samples: Vec<ReleaseSample>,
}

/// When an episode under a controller is given up.
pub type Stopped<'a> = &'a (dyn Fn() -> bool + Sync);

impl ServingArena {
    /// Serves the episode of `seed` under `controller`, in a pool with classes where that chooses any and its host lets it; with
    /// what became of each release if `is_collecting`. `None` once `stopped` says so.
    ///
    /// # Errors
    /// The episode cannot be drawn.
    pub fn serve(
        &self,
        seed: u64,
        controller: &mut dyn Controller,
        is_collecting: bool,
        stopped: Stopped<'_>,
    ) -> Result<Option<ServedEpisode>, EnvError> {
        let world = drawn_world(&self.config.worlds, seed);
        let (mut config, drawn) = self.config.worlds[world].draw(seed, &ResetOptions::default())?;
        let retain = controller.retain();
        if retain.chooses() && config.host.retains {
            config.engine.class_lru();
        }
        let mut node = Node::new(&config, drawn.requests, Collector::default())?;
        node.set_retain(retain);
        if is_collecting {
            node.collect_releases();
        }
        let interval = controller.interval().unwrap_or(self.config.decision_interval);
        let mut decisions = 0;
        loop {
            if stopped() {
                return Ok(None);
            }
            let controls = controller.control(&node);
            decisions += 1;
            let status = node.advance(&controls, interval)?;
            if status != NodeStatus::Stepped || node.now() >= drawn.end {
                break;
            }
        }
        let collector = node.collector();
        let requests = collector.records().len() as u64;
        let served = Served {
            requests,
            on_time: requests - collector.violations,
            output_tok_s: collector.output_tokens as f64 / node.now().as_secs_f64().max(1e-9),
            preemptions: collector.preemptions,
            load: drawn.load,
            world,
        };
        let v1 = node.scheduler().with_classes();
        let report = v1.and_then(V1::retention_report).unwrap_or_default();
        let chosen = report.heads.iter().chain(&report.tails).sum();
        Ok(Some(ServedEpisode {
            episode: Episode { env: 0, episode_return: 0.0, decisions, served },
            prompt_tokens: collector.prefix_hit_tokens + collector.host_hit_tokens + collector.prefilled_tokens,
            hit_tokens: collector.prefix_hit_tokens,
            num_gpu_blocks: config.engine.num_gpu_blocks,
            evicted: report.evicted_blocks.iter().sum(),
            releases: (chosen, report.fallbacks),
            samples: v1.map(|v1| v1.releases().to_vec()).unwrap_or_default(),
        }))
    }
}

impl Arena for ServingArena {
    fn play(&self, seed: u64, decide: &mut dyn FnMut(&Observation, ActionMask) -> Action) -> Result<Episode, EnvError> {
        self.play_while(seed, &mut |observation, mask| Some(decide(observation, mask)))
    }

    fn choices(&self) -> [u32; NUM_HEADS] {
        self.choices
    }

    fn default_action(&self) -> Action {
        self.config.worlds[0].node.engine.engine.default_action()
    }
}
