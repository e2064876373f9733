//! From a trained network to a decision tree of a few KiB.
//!
//! A [`Teacher`] is imitated where the student will be: the teacher drives first, then the student drives and is
//! corrected (`dagger.rs`); samples carry how much the teacher minds ([`dataset`]); a [`Tree`] is grown from all of them;
//! [`Fidelity`] is measured on further episodes the student drives. The whole is VIPER (Bastani, Pu, Solar-Lezama 2018,
//! "Verifiable Reinforcement Learning via Policy Extraction") with two differences: samples are weighted instead of drawn
//! by their weight, which adds no noise, and the last student is taken, which has seen the most, instead of the best of all.
//! Same seed, same bytes, at any number of threads.

mod bins;
mod config;
mod constant;
mod dagger;
pub mod dataset;
mod fidelity;
mod grow;
mod loss;
mod per_head;
mod prune;
mod retention;
mod split;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::env::{EnvConfig, ServingArena};
use kvtide_envs::seed;
use kvtide_runtime::action::NUM_CHOICES;
use kvtide_runtime::format::FeatureRange;
use kvtide_runtime::{Action, ActionMask, ActionProfile, NUM_FEATURES, Observation, Policy};

pub use config::{DistilConfig, DistilError};
pub use constant::ConstantTeacher;
pub use fidelity::{Fidelity, HeadFidelity};
pub use loss::{Baseline, Loss};
pub use per_head::PerHeadTrees;
pub use retention::{RetentionSample, RetentionTree};
pub use tree::Tree;

use dagger::SamplingPlan;
use dataset::Sample;

use crate::agent::NetworkPolicy;

/// Who is imitated: a policy that can say how sure it is.
pub trait Teacher: Policy + Sync {
    /// An opinion on every choice, head after head, `[NUM_CHOICES]`, in nats: within a head, differences are those of
    /// log-probabilities. Forbidden choices are not looked at.
    fn logits(&self, observation: &Observation, mask: ActionMask) -> [f32; NUM_CHOICES];
}

impl Teacher for NetworkPolicy {
    fn logits(&self, observation: &Observation, mask: ActionMask) -> [f32; NUM_CHOICES] {
        NetworkPolicy::logits(self, observation, mask)
    }
}

/// A tree that imitates its teacher, and how well.
#[derive(Debug, Clone, PartialEq)]
pub struct Student {
    /// The tree.
    pub tree: Tree,
    /// Trees of half as many leaves, a quarter and so on, each cut from the one before, and their agreement with the teacher.
    pub smaller: Vec<(Tree, Fidelity)>,
    /// The same samples and as many leaves in one tree a head, and how well those agree: for comparison, a file holds one
    /// tree.
    pub per_head: (PerHeadTrees, Fidelity),
    /// The heads it decides.
    pub profile: ActionProfile,
    /// Smallest and largest value of every feature over the training samples.
    pub ranges: [FeatureRange; NUM_FEATURES],
    /// Number of training samples.
    pub samples: usize,
    /// Agreement with its teacher.
    pub fidelity: Fidelity,
}

impl Student {
    /// Its tree and those cut from it, the largest first, without those that cut nothing off, each with its agreement.
    pub fn sizes(&self) -> impl Iterator<Item = (&Tree, &Fidelity)> {
        let mut before = usize::MAX;
        let smaller = self.smaller.iter().map(|(tree, fidelity)| (tree, fidelity));
        std::iter::once((&self.tree, &self.fidelity)).chain(smaller).filter(move |(tree, _)| {
            let is_smaller = tree.leaves() < before;
            before = tree.leaves();
            is_smaller
        })
    }

    /// The same student with another of its [`sizes`](Self::sizes).
    #[must_use]
    pub fn with_size(&self, (tree, fidelity): (&Tree, &Fidelity)) -> Student {
        Student { tree: tree.clone(), fidelity: fidelity.clone(), ..self.clone() }
    }

    /// The ranges with a margin: what the student meets, driving, in further episodes. Samples are a part of what was seen, and
    /// the worst of an ordinary day is seldom among them.
    ///
    /// # Errors
    /// An episode cannot be played, or `stop` was set.
    pub fn widen(
        &mut self,
        env_config: &Arc<EnvConfig>,
        seed: u64,
        episodes: u64,
        stop: &AtomicBool,
    ) -> Result<(), DistilError> {
        let arena = ServingArena::new(env_config)?;
        let seen = dagger::seen(&arena, &self.tree, seed, episodes, stop)?;
        self.ranges = dataset::union(&self.ranges, &seen);
        Ok(())
    }
}

impl Policy for Student {
    fn decide(&self, observation: &Observation, mask: ActionMask) -> Action {
        self.tree.decide(observation, mask)
    }
}

/// An iteration is done.
#[derive(Debug, Clone, PartialEq)]
pub struct DaggerReport {
    /// Which, from 1.
    pub iteration: u64,
    /// Of how many.
    pub iterations: u64,
    /// Training samples so far.
    pub samples: usize,
    /// Leaves of the new student.
    pub leaves: usize,
    /// How far the student that drove agreed with its teacher, before it was corrected; `None` where the teacher drove.
    pub driver: Option<Fidelity>,
}

/// Distils `teacher` on episodes of `env_config`, whose profile says which heads the student decides.
///
/// # Errors
/// A setting is out of range, an episode cannot be played, the teacher's answer is not a number, or `stop` was set.
pub fn distil(
    teacher: &dyn Teacher,
    env_config: &Arc<EnvConfig>,
    config: &DistilConfig,
    progress: &mut dyn FnMut(DaggerReport),
    stop: &AtomicBool,
) -> Result<Student, DistilError> {
    config.validate()?;
    let arena = ServingArena::new(env_config)?;
    let profile = env_config.profile;
    let mut samples: Vec<Sample> = Vec::new();
    let mut student: Option<Tree> = None;
    for iteration in 0..config.iterations() {
        let plan = SamplingPlan {
            seed: seed::derive(config.seed, "distil.iteration", iteration),
            episodes: config.episodes_per_iteration.into(),
            samples: config.samples_per_iteration as usize,
        };
        let visits = match &student {
            None => dagger::play(&arena, &TeacherPolicy(teacher), plan, stop)?,
            Some(student) => dagger::play(&arena, student, plan, stop)?,
        };
        let labelled = dagger::label(teacher, &visits)?;
        let driver = student.as_ref().map(|student| Fidelity::of(student, &labelled, profile));
        samples.extend(labelled);
        if stop.load(Ordering::Relaxed) {
            return Err(DistilError::Stopped);
        }
        let grown = Tree::grow(&samples, config);
        progress(DaggerReport {
            iteration: iteration + 1,
            iterations: config.iterations(),
            samples: samples.len(),
            leaves: grown.leaves(),
            driver,
        });
        student = Some(grown);
    }
    let budgets: Vec<u32> = (0..u32::BITS).map(|halvings| config.max_leaves >> halvings).filter(|&n| n > 0).collect();
    let mut nested = Tree::nested(&samples, config, &budgets);
    let smaller = nested.split_off(1);
    let tree = nested.swap_remove(0);
    let plan = SamplingPlan {
        seed: seed::derive(config.seed, "distil.holdout", 0),
        episodes: config.episodes_per_iteration.into(),
        samples: config.holdout_samples(),
    };
    let held_out = dagger::label(teacher, &dagger::play(&arena, &tree, plan, stop)?)?;
    let fidelity = Fidelity::of(&tree, &held_out, profile);
    let with_fidelity = |tree: Tree| {
        let fidelity = Fidelity::of(&tree, &held_out, profile);
        (tree, fidelity)
    };
    let smaller = smaller.into_iter().map(with_fidelity).collect();
    let alone = PerHeadTrees::grow(&samples, config, profile);
    let agreement = Fidelity::of(&alone, &held_out, profile);
    let per_head = (alone, agreement);
    Ok(Student {
        tree,
        smaller,
        per_head,
        profile,
        ranges: dataset::ranges(samples.iter().map(|sample| &sample.visit.observation)),
        samples: samples.len(),
        fidelity,
    })
}

/// A teacher at the wheel.
struct TeacherPolicy<'a>(&'a dyn Teacher);

impl Policy for TeacherPolicy<'_> {
    fn decide(&self, observation: &Observation, mask: ActionMask) -> Action {
        self.0.decide(observation, mask)
    }
}
