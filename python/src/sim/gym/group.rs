//! Environments stepped together by the rules of Gymnasium's vector environments.
//!
//! [`VecEnv`](kvtide_envs::env::VecEnv) is what agents in Rust train on: one seed, one way to go on, buffers that can be saved. This is
//! for who brings an agent along: each environment has a seed of its own, what happens at the end of an episode is chosen, and any of
//! them can be reset alone. An episode of the same seed and actions is the same in both, byte for byte.

use std::sync::{Arc, Mutex, PoisonError};

use kvtide_envs::deploy::DeadEnds;
use kvtide_envs::env::{EnvConfig, EnvError, Episode, Info, Node, ResetOptions, ServingEnv};
use kvtide_envs::seed;
use kvtide_runtime::{Action, Observation};
use pyo3::prelude::*;
use rayon::ThreadPool;

use crate::sim::pool::together;

/// What happens when an episode has ended (Gymnasium 1.1, `AutoresetMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Autoreset {
    /// The next step resets, whatever its action; it has no reward.
    NextStep,
    /// The same step resets: what is seen is the first of the next episode, and the last of the one that ended stands apart.
    SameStep,
    /// Nothing, until somebody resets.
    Disabled,
}

/// What an environment shows after a reset or a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shown {
    /// What is seen now.
    pub observation: Observation,
    /// What the interval was worth; 0 after a reset.
    pub reward: f32,
    /// The episode reached its end.
    pub terminated: bool,
    /// The episode was cut short.
    pub truncated: bool,
    /// Beside them.
    pub info: Info,
}

/// An episode that ended in a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// What was seen last.
    pub observation: Observation,
    /// Beside it.
    pub info: Info,
    /// What it amounted to.
    pub episode: Episode,
}

/// Why a group cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// An environment whose episode ended, or has not begun, was stepped. None was.
    #[error("environment {0} needs a reset")]
    NeedsReset(usize),
    /// The work was stopped with some environments a step ahead of others; they can be reset.
    #[error("stopped in the middle of a step: reset all environments")]
    Stopped,
    /// In an environment.
    #[error("environment {env}: {source}")]
    In {
        /// Which.
        env: usize,
        /// What is wrong.
        source: EnvError,
    },
}

/// Environments of one configuration, stepped in parallel; results do not depend on the number of threads.
#[derive(Debug)]
pub struct Group {
    members: Vec<Member>,
    autoreset: Autoreset,
    /// A step or a reset was not finished.
    torn: bool,
}

#[derive(Debug)]
struct Member {
    env: ServingEnv,
    index: usize,
    /// What its episodes' seeds come from.
    seed: u64,
    /// Episodes begun under it.
    episodes: u64,
    shown: Option<Shown>,
    ended: Option<Ended>,
    /// The episode is over and nobody has begun the next.
    over: bool,
}

impl Group {
    /// `num_envs` environments that wait for their first reset.
    ///
    /// # Errors
    /// As [`VecEnv::new`](kvtide_envs::env::VecEnv::new).
    pub fn new(config: &Arc<EnvConfig>, num_envs: usize, autoreset: Autoreset) -> Result<Group, EnvError> {
        if config.worlds.iter().any(|world| world.node.engine.dead_ends == DeadEnds::Faithful) {
            return Err(EnvError::Faithful);
        }
        if config.memory.is_exclusive() && num_envs > 1 {
            return Err(EnvError::Exclusive(num_envs));
        }
        let mut members = Vec::with_capacity(num_envs);
        for index in 0..num_envs {
            let env = ServingEnv::new(Arc::clone(config))?;
            members.push(Member { env, index, seed: 0, episodes: 0, shown: None, ended: None, over: true });
        }
        Ok(Group { members, autoreset, torn: false })
    }

    /// How many there are.
    pub fn num_envs(&self) -> usize {
        self.members.len()
    }

    /// Begins an episode in each environment that `chosen` says, by its seed in `seeds`, or, without one, the next under the
    /// seed it has. The others stay as they are.
    ///
    /// # Errors
    /// No episode can be drawn as `options` ask. Outside, that somebody pressed Ctrl-C meanwhile.
    ///
    /// # Panics
    /// If `seeds` or `chosen` are not as many as there are environments.
    pub fn reset(
        &mut self,
        py: Python<'_>,
        pool: &ThreadPool,
        (seeds, chosen): (&[Option<u64>], &[bool]),
        options: &ResetOptions,
    ) -> PyResult<Result<(), GroupError>> {
        assert_eq!((seeds.len(), chosen.len()), (self.members.len(), self.members.len()), "one for each environment");
        if self.torn && chosen.contains(&false) {
            return Ok(Err(GroupError::Stopped));
        }
        let asked = self.members.iter_mut().zip(seeds).zip(chosen).filter(|(_, chosen)| **chosen);
        let asked: Vec<(&mut Member, Option<u64>)> = asked.map(|((member, seed), _)| (member, *seed)).collect();
        let was_torn = std::mem::replace(&mut self.torn, true);
        let reset = each(py, pool, asked, |member, seed| {
            member.ended = None;
            if let Some(seed) = seed {
                (member.seed, member.episodes) = (seed, 0);
            }
            member.begin(options)
        })?;
        // Who is refused an episode stays in the one it has.
        self.torn = was_torn && reset.is_err();
        Ok(reset)
    }

    /// Takes one action in each environment.
    ///
    /// # Errors
    /// An environment needs a reset, and then none was stepped; or an action is forbidden. Outside, that somebody pressed Ctrl-C
    /// meanwhile.
    ///
    /// # Panics
    /// If there are not as many actions as environments.
    pub fn step(&mut self, py: Python<'_>, pool: &ThreadPool, actions: &[Action]) -> PyResult<Result<(), GroupError>> {
        assert_eq!(actions.len(), self.members.len(), "one action for each environment");
        if self.torn {
            return Ok(Err(GroupError::Stopped));
        }
        let autoreset = self.autoreset;
        let waits = |member: &&Member| member.shown.is_none() || (member.over && autoreset != Autoreset::NextStep);
        if let Some(member) = self.members.iter().find(waits) {
            return Ok(Err(GroupError::NeedsReset(member.index)));
        }
        let asked: Vec<(&mut Member, Action)> = self.members.iter_mut().zip(actions.iter().copied()).collect();
        // Who leaves by an exception leaves some of them where the others are not.
        self.torn = true;
        let stepped = each(py, pool, asked, |member, action| member.step(action, autoreset))?;
        self.torn = stepped.is_err();
        Ok(stepped)
    }

    /// What each shows.
    ///
    /// # Panics
    /// Before the first reset.
    pub fn shown(&self) -> impl ExactSizeIterator<Item = &Shown> {
        self.members.iter().map(|member| member.shown.as_ref().expect("it was reset"))
    }

    /// Episodes that ended in the last step, in the order of the environments.
    pub fn ended(&self) -> impl Iterator<Item = &Ended> {
        self.members.iter().filter_map(|member| member.ended.as_ref())
    }

    /// Whether the next step of environment `env` resets it, whatever the action.
    pub fn resets_next(&self, env: usize) -> bool {
        self.autoreset == Autoreset::NextStep && self.members[env].over
    }

    /// Whether every environment can be looked at: each was reset once, and the last step was finished.
    pub fn is_whole(&self) -> bool {
        !self.torn && self.members.iter().all(|member| member.shown.is_some())
    }

    /// The node of environment `env`; `None` before its first reset.
    pub fn node(&self, env: usize) -> Option<&Node> {
        self.members[env].env.node()
    }

    /// What the episode of environment `env` amounts to so far; `None` before its first reset.
    pub fn episode(&self, env: usize) -> Option<Episode> {
        self.members[env].env.episode(env)
    }
}

/// The seed of episode number `episode`, from 0, of an environment that was reset by `seed`.
pub fn episode_seed(seed: u64, episode: u64) -> u64 {
    seed::derive(seed, "episode", episode)
}

impl Member {
    fn begin(&mut self, options: &ResetOptions) -> Result<(), GroupError> {
        let begun = self.env.reset(episode_seed(self.seed, self.episodes), options);
        let (observation, info) = begun.map_err(|source| GroupError::In { env: self.index, source })?;
        self.episodes += 1;
        self.over = false;
        self.shown = Some(Shown { observation, reward: 0.0, terminated: false, truncated: false, info });
        Ok(())
    }

    fn step(&mut self, action: Action, autoreset: Autoreset) -> Result<(), GroupError> {
        self.ended = None;
        if self.over {
            return self.begin(&ResetOptions::default());
        }
        let step = self.env.step(action).map_err(|source| GroupError::In { env: self.index, source })?;
        let shown = Shown {
            observation: step.observation,
            reward: step.reward,
            terminated: step.terminated,
            truncated: step.truncated,
            info: step.info,
        };
        self.over = step.terminated || step.truncated;
        self.shown = Some(shown);
        if !self.over {
            return Ok(());
        }
        let episode = self.env.episode(self.index);
        self.ended = episode.map(|episode| Ended { observation: step.observation, info: step.info, episode });
        if autoreset == Autoreset::SameStep {
            self.begin(&ResetOptions::default())?;
            let begun = self.shown.map(|begun| Shown { observation: begun.observation, info: begun.info, ..shown });
            self.shown = begun;
        }
        Ok(())
    }
}

/// Does `work` with each of `asked`, in as many threads as `pool` has. Of several errors, that of the first environment.
fn each<T: Send>(
    py: Python<'_>,
    pool: &ThreadPool,
    asked: Vec<(&mut Member, T)>,
    work: impl Fn(&mut Member, T) -> Result<(), GroupError> + Sync,
) -> PyResult<Result<(), GroupError>> {
    // Several at a time, so that threads seldom wait for each other here; few enough that none is left with much.
    let portion = (asked.len() / (4 * pool.current_num_threads())).max(1);
    let helpers = (asked.len() - 1) / portion;
    let (asked, failed) = (Mutex::new(asked.into_iter()), Mutex::new(None::<(usize, GroupError)>));
    together(py, pool, helpers, |stopped| {
        loop {
            let taken: Vec<(&mut Member, T)> =
                asked.lock().unwrap_or_else(PoisonError::into_inner).by_ref().take(portion).collect();
            if taken.is_empty() {
                return;
            }
            for (member, with) in taken {
                if stopped() {
                    return;
                }
                let index = member.index;
                if let Err(error) = work(member, with) {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if failed.as_ref().is_none_or(|(known, _)| index < *known) {
                        *failed = Some((index, error));
                    }
                }
            }
        }
    })?;
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(failed.map_or(Ok(()), |(_, error)| Err(error)))
}
