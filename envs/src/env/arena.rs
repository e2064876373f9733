//! Whole episodes under one policy each, on any number of threads: what a search judges its candidates in.

use std::sync::{Arc, Mutex, PoisonError};

use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::{Action, ActionMask, Observation};

use super::Episode;
use super::episode::ResetOptions;
use super::serving::{EnvConfig, EnvError, ServingEnv};
use crate::deploy::DeadEnds;
use crate::memory::MemorySource;

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
