//! Episodes that can be forked where they stand and sent other traffic, and how they are played.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::env::{EnvConfig, EnvError, ResetOptions, ServingEnv};
use kvtide_envs::seed;
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::{Action, ActionMask, Head, Observation};
use rand::RngExt;

use super::{Behaviour, Discount, VarianceError};
use crate::evaluate::Watch;

/// Where episodes begin.
pub trait Branches: Sync {
    /// An episode.
    type Branch: Branch;

    /// The start of the episode of `seed`.
    ///
    /// # Errors
    /// It cannot be drawn.
    fn start(&self, seed: u64) -> Result<Self::Branch, EnvError>;
}

/// An episode under way.
pub trait Branch: Send + Sized {
    /// What is seen now, and what may be chosen.
    fn seen(&self) -> (&Observation, ActionMask);

    /// Obeys `action` until the next decision.
    ///
    /// # Errors
    /// The episode cannot go on.
    fn step(&mut self, action: Action) -> Result<Earned, EnvError>;

    /// The same moment once more; `None` where there cannot be two of it.
    fn fork(&self) -> Option<Self>;

    /// Draws by `seed` anew what has not come yet.
    ///
    /// # Errors
    /// Nothing can be drawn.
    fn redraw_future(&mut self, seed: u64) -> Result<(), EnvError>;
}

/// What a decision came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Earned {
    /// Its reward.
    pub reward: f64,
    /// For how long it was obeyed, seconds of the episode's time.
    pub seconds: f64,
    /// Whether the episode ended with it.
    pub has_ended: bool,
}

/// Episodes of serving nodes.
#[derive(Debug)]
pub struct ServingBranches {
    config: Arc<EnvConfig>,
}

impl ServingBranches {
    /// Of one configuration.
    pub fn new(config: &Arc<EnvConfig>) -> ServingBranches {
        ServingBranches { config: Arc::clone(config) }
    }
}

impl Branches for ServingBranches {
    type Branch = ServingBranch;

    fn start(&self, seed: u64) -> Result<ServingBranch, EnvError> {
        let mut env = ServingEnv::new(Arc::clone(&self.config))?;
        let (observation, info) = env.reset(seed, &ResetOptions::default())?;
        Ok(ServingBranch { env, observation, mask: info.mask, at_s: info.elapsed_s })
    }
}

/// An episode of a serving node.
#[derive(Debug)]
pub struct ServingBranch {
    env: ServingEnv,
    observation: Observation,
    mask: ActionMask,
    at_s: f64,
}

impl Branch for ServingBranch {
    fn seen(&self) -> (&Observation, ActionMask) {
        (&self.observation, self.mask)
    }

    fn step(&mut self, action: Action) -> Result<Earned, EnvError> {
        let step = self.env.step(action)?;
        let seconds = step.info.elapsed_s - self.at_s;
        (self.observation, self.mask, self.at_s) = (step.observation, step.info.mask, step.info.elapsed_s);
        Ok(Earned { reward: f64::from(step.reward), seconds, has_ended: step.terminated || step.truncated })
    }

    fn fork(&self) -> Option<ServingBranch> {
        let ServingBranch { ref env, observation, mask, at_s } = *self;
        Some(ServingBranch { env: env.fork()?, observation, mask, at_s })
    }

    fn redraw_future(&mut self, seed: u64) -> Result<(), EnvError> {
        self.env.redraw_future(seed)
    }
}

/// Who plays what.
pub(super) struct Play<'a, B> {
    pub(super) branches: &'a B,
    pub(super) behaviour: &'a Behaviour,
    pub(super) watch: &'a dyn Watch,
    pub(super) stop: &'a AtomicBool,
}

/// A choice of one head in place of what is sampled, in the first `decisions`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Held {
    pub(super) head: Head,
    pub(super) choice: u8,
    pub(super) decisions: u64,
}

/// What was earned from a moment on.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Sums {
    /// Sum of rewards.
    pub(super) plain: f64,
    /// Discounted by γ.
    pub(super) discounted: f64,
    /// Discounted by γλ: what generalised advantage estimation sees without the help of its critic.
    pub(super) traced: f64,
    /// Decisions, and how long they took.
    pub(super) decisions: u64,
    pub(super) seconds: f64,
}

/// A reward that counts for less than this share of itself is not waited for.
const NEGLIGIBLE: f64 = 0.01;

impl<B: Branches> Play<'_, B> {
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// From the state of `branch` on, under the behaviour whose draws are those of `actions`, until the episode ends, or, with
    /// a discount, until what is left hardly counts; or so many `decisions`.
    pub(super) fn go_on(
        &self,
        branch: &mut B::Branch,
        actions: u64,
        held: Option<Held>,
        discount: Option<Discount>,
        decisions: u64,
    ) -> Result<Sums, VarianceError> {
        let (gamma, lambda) = discount.map_or((1.0, 1.0), |discount| (discount.gamma, discount.lambda));
        let (mut weight, mut traced) = (1.0, 1.0);
        let mut sums = Sums::default();
        let mut draws = [0.0; NUM_HEADS];
        while weight >= NEGLIGIBLE && sums.decisions < decisions {
            let block = sums.decisions / u64::from(self.behaviour.hold);
            if sums.decisions.is_multiple_of(u64::from(self.behaviour.hold)) {
                draws = seed::stream(actions, "variance.actions", block).random();
            }
            let (observation, mask) = branch.seen();
            let mut action = self.behaviour.policy.sample(observation, mask, &draws);
            if let Some(Held { head, choice, decisions }) = held
                && sums.decisions < decisions
                && mask.allows(head, choice)
            {
                let mut choices = action.indices();
                choices[head as usize] = choice;
                action = Action::new(choices).unwrap_or(action);
            }
            let Earned { reward, seconds, has_ended } = branch.step(action)?;
            sums.plain += reward;
            sums.discounted += weight * reward;
            sums.traced += traced * reward;
            sums.seconds += seconds;
            sums.decisions += 1;
            weight *= gamma;
            traced *= gamma * lambda;
            if has_ended {
                break;
            }
        }
        Ok(sums)
    }
}
