//! `lookahead`.

mod foresight;

use kvtide_runtime::{ActionProfile, Controls, Head};

use self::foresight::Foreseen;
pub use self::foresight::{Foresight, Lengths};
use crate::env::{Controller, Future, Node, NodeStatus, mask};
use crate::time::Micros;

/// `lookahead`: tries what it could choose on copies of the node, holds each choice for a while, goes on with a constant, and
/// takes the choice after which the fewest requests have missed a target, in every future that it knows of.
///
/// The rollout algorithm (Tesauro and Galperin 1996; Bertsekas and Tsitsiklis, "Neuro-Dynamic Programming", 1996, section 6.1)
/// over the constant it starts from; with several drawn futures, what planning under uncertainty calls hindsight optimisation
/// (Chong, Givan and Chang 2000). What the copies know of the future is [`Foresight`]: the same rule that knows more is a ladder,
/// which says what knowing is worth to a decision. It is a reference: a decision takes as long as many thousand steps, and with
/// anything but nothing known nobody can run it. It is no upper bound, since it looks no further than its horizon, deviates
/// once at a time, and moves one head after the other.
#[derive(Debug, Clone)]
pub struct Lookahead {
    plan: LookaheadPlan,
    foreseen: Foreseen,
    chosen: Option<Controls>,
    /// When it tries again.
    next: Micros,
}

/// What a [`Lookahead`] tries, and on what.
#[derive(Debug, Clone, PartialEq)]
pub struct LookaheadPlan {
    /// What it knows of the future.
    pub foresight: Foresight,
    /// The heads it moves, one after the other.
    pub heads: Vec<Head>,
    /// What it deviates from, and what the other heads are; `None` for the engine's default.
    pub start: Option<Controls>,
    /// How far it looks. A choice is held for a [twelfth](Self::HELD) of that, and then decided anew.
    pub horizon: Micros,
}

impl LookaheadPlan {
    /// How far it looks unless somebody says otherwise: until most of who is open will be done.
    pub const HORIZON: Micros = Micros(60_000_000);
    /// How often a choice that is held fits into the horizon.
    pub const HELD: u64 = 12;

    /// All heads of a scheduler, from the engine's default.
    pub fn of(foresight: Foresight) -> LookaheadPlan {
        LookaheadPlan { foresight, heads: ActionProfile::Full.heads().to_vec(), start: None, horizon: Self::HORIZON }
    }
}

/// What a choice came to on the copies: less is better. Who has missed a target, then tokens not generated on time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Damage {
    missed: u64,
    on_time_tokens: std::cmp::Reverse<u64>,
}

impl Lookahead {
    /// A controller that has seen nothing yet.
    pub fn new(plan: LookaheadPlan) -> Lookahead {
        Lookahead { foreseen: Foreseen::new(plan.foresight), plan, chosen: None, next: Micros::ZERO }
    }

    /// The best of what one head after the other can be set to, beginning with what it deviates from.
    fn search(&self, node: &Node, futures: &[Option<Future>], start: Controls) -> Controls {
        let mask = mask(node, ActionProfile::Full);
        let mut best = (self.damage(node, futures, &start, &start), start);
        for &head in &self.plan.heads {
            let held = best.1;
            let choices = (0..head.size() as u8).filter(|&choice| mask.allows(head, choice));
            for controls in choices.filter_map(|choice| held.with(head, choice)) {
                if controls != held && !is_idle(node, head, &held, &controls) {
                    let damage = self.damage(node, futures, &controls, &start);
                    if is_better(&damage, &best.0) {
                        best = (damage, controls);
                    }
                }
            }
        }
        best.1
    }

    /// What becomes of the copies, each in a future of its own, if `controls` are held, and `start` after them.
    fn damage(&self, node: &Node, futures: &[Option<Future>], controls: &Controls, start: &Controls) -> Vec<Damage> {
        let of_future = |future: &Option<Future>| {
            let mut fork = future.as_ref().map_or_else(|| node.fork(), |future| node.fork_into(future));
            let (held, end) = (node.now() + self.held(), node.now() + self.plan.horizon);
            let now = |fork: &Node| if fork.now() < held { *controls } else { *start };
            // An engine that dies serves nobody from there on, which its accounts say.
            while fork.now() < end && matches!(fork.advance(&now(&fork), TRIED_STEPS), Ok(NodeStatus::Stepped)) {}
            let accounts = fork.collector();
            let missed = accounts.violations + late_so_far(&fork);
            Damage { missed, on_time_tokens: std::cmp::Reverse(accounts.on_time_tokens) }
        };
        futures.iter().map(of_future).collect()
    }

    fn held(&self) -> Micros {
        Micros((self.plan.horizon.0 / LookaheadPlan::HELD).max(1))
    }
}

/// Better in a future and worse in none: the best of many choices in the mean of a few futures is mostly the luckiest.
fn is_better(damage: &[Damage], than: &[Damage]) -> bool {
    let pairs = || damage.iter().zip(than);
    pairs().all(|(damage, than)| damage <= than) && pairs().any(|(damage, than)| damage < than)
}

/// Steps of a copy until it is looked whether a choice has been held for long enough.
const TRIED_STEPS: u32 = 16;

/// Open requests that have not missed a target for certain, but whose tokens so far came too slowly.
fn late_so_far(node: &Node) -> u64 {
    let is_late = |record: &crate::metrics::Record| {
        let is_slow = record.tpot().is_some_and(|tpot| tpot > record.slo.tpot.as_secs_f64());
        record.phase == crate::sched::Phase::Waiting && !record.violated && is_slow
    };
    node.collector().records().filter(is_late).count() as u64
}

/// Whether two settings of a head are the same to this engine: budgets above its own are its own.
fn is_idle(node: &Node, head: Head, held: &Controls, other: &Controls) -> bool {
    let own = f64::from(node.scheduler().config().max_num_batched_tokens);
    head == Head::Budget && held.budget.min(own) == other.budget.min(own)
}

impl Controller for Lookahead {
    fn control(&mut self, node: &Node) -> Controls {
        if let Some(chosen) = self.chosen.filter(|_| node.now() < self.next) {
            return chosen;
        }
        let start = self.plan.start.unwrap_or_else(|| node.scheduler().default_controls());
        let futures = self.foreseen.futures(node, self.plan.horizon);
        let chosen = self.search(node, &futures, start);
        self.chosen = Some(chosen);
        self.next = node.now() + self.held();
        chosen
    }
}
