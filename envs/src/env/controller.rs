//! Whoever steers a node: a policy that ships, or a reference that may look at more than a policy sees.

use kvtide_runtime::{ActionMask, ActionProfile, Controls, Head, Observer, Policy, Preemption};

use super::observe::observe;
use super::{Node, NodeError, NodeStatus};
use crate::memory::MemoryError;
use crate::metrics::{GuardReport, Summary, Unreconciled};
use crate::sched::{PromptLimit, PromptLimitError, Retain};

/// Steers a node. Asked once per decision interval.
pub trait Controller {
    /// What the scheduler shall obey until the next decision.
    fn control(&mut self, node: &Node) -> Controls;

    /// Scheduler steps between decisions, if it must be asked more often than the others: a rule that belongs into a
    /// scheduler is asked in every step.
    fn interval(&self) -> Option<u32> {
        None
    }

    /// How prompts are limited until the next decision, beside what it controls; only V1 can obey more than the budget.
    fn prompt_limit(&self) -> PromptLimit {
        PromptLimit::Budget
    }

    /// Who chooses the classes of given-back blocks, asked once at the beginning of a run.
    fn retain(&self) -> Retain {
        Retain::NORMAL
    }

    /// What its guard did so far; `None` where nothing is guarded.
    fn guard(&self) -> Option<GuardReport> {
        None
    }
}

/// What the engine does when nobody tells it otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineDefault;

impl Controller for EngineDefault {
    fn control(&mut self, node: &Node) -> Controls {
        node.scheduler().default_controls()
    }
}

/// The same controls for ever.
impl Controller for Controls {
    fn control(&mut self, _: &Node) -> Controls {
        *self
    }
}

/// Whoever steers, wherever it is kept.
impl<C: Controller + ?Sized> Controller for Box<C> {
    fn control(&mut self, node: &Node) -> Controls {
        (**self).control(node)
    }

    fn interval(&self) -> Option<u32> {
        (**self).interval()
    }

    fn prompt_limit(&self) -> PromptLimit {
        (**self).prompt_limit()
    }

    fn retain(&self) -> Retain {
        (**self).retain()
    }

    fn guard(&self) -> Option<GuardReport> {
        (**self).guard()
    }
}

/// The one adapter that makes a [`Policy`] a [`Controller`]. A table ships behind a guard: see [`Guarded`](super::Guarded).
#[derive(Debug, Clone)]
pub struct PolicyController<P> {
    policy: P,
    profile: ActionProfile,
    observer: Observer,
}

impl<P: Policy> PolicyController<P> {
    /// `policy` deciding the heads of `profile`, the others at the engine's defaults.
    pub fn new(policy: P, profile: ActionProfile) -> PolicyController<P> {
        PolicyController { policy, profile, observer: Observer::new() }
    }
}

impl<P: Policy> Controller for PolicyController<P> {
    fn control(&mut self, node: &Node) -> Controls {
        let observation = observe(node, &mut self.observer);
        self.policy.decide(&observation, mask(node, self.profile)).controls()
    }
}

/// A controller with somebody else to choose the classes of given-back blocks.
pub struct Retaining<C> {
    controller: C,
    retain: Retain,
}

impl<C: Controller> Retaining<C> {
    /// `controller`, with `retain` in place of what it brings along.
    pub fn new(controller: C, retain: Retain) -> Retaining<C> {
        Retaining { controller, retain }
    }
}

impl<C: Controller> Controller for Retaining<C> {
    fn control(&mut self, node: &Node) -> Controls {
        self.controller.control(node)
    }

    fn interval(&self) -> Option<u32> {
        self.controller.interval()
    }

    fn prompt_limit(&self) -> PromptLimit {
        self.controller.prompt_limit()
    }

    fn retain(&self) -> Retain {
        self.retain.clone()
    }

    fn guard(&self) -> Option<GuardReport> {
        self.controller.guard()
    }
}

/// What the engine of `node` can carry out, restricted to `profile`.
pub fn mask(node: &Node, profile: ActionProfile) -> ActionMask {
    let mut mask = ActionMask::ALL;
    if node.scheduler().config().num_cpu_blocks == 0 || !node.host().has_host_tier {
        mask =
            mask.forbid(Head::Preemption, Preemption::Swap as u8).forbid(Head::Preemption, Preemption::Cheaper as u8);
    }
    let config = node.scheduler().config();
    let default = config.engine.default_action();
    if !config.obeys_budget() {
        mask = mask.pin(Head::Budget, default.get(Head::Budget));
    }
    if !config.has_eviction_classes() {
        mask = mask.pin(Head::Eviction, default.get(Head::Eviction));
    }
    profile.restrict(node.host().restrict(mask, default), default)
}

/// Why a run has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The engine died, or its memory failed.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// There is no memory for its blocks.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The engine cannot limit prompts.
    #[error(transparent)]
    PromptLimit(#[from] PromptLimitError),
    /// The engine will never serve what is left.
    #[error("the engine stalled at {at} with {left} requests it will never serve (set dead_ends=safe)")]
    Stalled {
        /// The environment's time when nothing moved any more.
        at: crate::time::Micros,
        /// Requests waiting, running or swapped.
        left: usize,
    },
    /// A defect of the simulator.
    #[error(transparent)]
    Unreconciled(#[from] Unreconciled),
}

/// Runs `node` to its end under `controller`, deciding every `interval` steps, unless the controller has an interval of its
/// own, and when something is first refused.
///
/// # Errors
/// The engine died or stalled, or cannot limit prompts as it is told, or the accounts do not add up.
pub fn run(node: &mut Node, controller: &mut dyn Controller, interval: u32) -> Result<Summary, RunError> {
    let interval = controller.interval().unwrap_or(interval);
    node.set_retain(controller.retain());
    loop {
        let controls = controller.control(node);
        node.limit_prompts(controller.prompt_limit())?;
        match node.advance(&controls, interval)? {
            NodeStatus::Stepped => {}
            NodeStatus::Drained => return Ok(Summary { guard: controller.guard(), ..node.summary()? }),
            NodeStatus::Stalled => {
                return Err(RunError::Stalled { at: node.now(), left: node.scheduler().num_open() });
            }
        }
    }
}
