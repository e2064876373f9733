//! Policies ready to be judged: what a [`PolicySpec`] names, loaded, and whether a host could run it.

use std::sync::Arc;

use kvtide_envs::baseline::{
    AverageBlocks, BlockPrice, Lookahead, LookaheadPlan, OptFactor, Oracle, PastFuture, Prediction, PrimalDual,
};
use kvtide_envs::deploy::EngineKind;
use kvtide_envs::env::{Controller, EngineDefault, Guarded, NodeConfig, PolicyController, Retaining};
use kvtide_envs::sched::{PromptLimit, PromptPressure, Retain};
use kvtide_runtime::{
    Action, ActionMask, ActionProfile, Controls, GuardConfig, Head, HostMismatch, Observation, Policy, Preemption,
    Retention, Table,
};

use super::{PolicyName, PolicySpec, SpecError};
use crate::checkpoint::{self, NetworkPolicy};
use crate::export;

/// A policy ready to be judged: files are loaded, hindsight is still to come.
#[derive(Debug, Clone)]
pub enum Subject {
    /// Whatever the engine does by itself.
    Default,
    /// One set of controls.
    Controls(Controls),
    /// See [`OptFactor`].
    OptFactor(OptFactor),
    /// See [`AverageBlocks`].
    AverageBlocks(AverageBlocks),
    /// See [`PastFuture`]: the prediction, and the other heads.
    PastFuture(Prediction, Controls),
    /// See [`PrimalDual`]: how its price moves, and the other heads.
    PrimalDual(BlockPrice, Controls),
    /// See [`Oracle`].
    Oracle(Oracle),
    /// See [`Lookahead`].
    Lookahead(Box<LookaheadPlan>),
    /// See [`PromptPressure`].
    PromptPressure(PromptPressure),
    /// A network with its profile.
    Network(Arc<NetworkPolicy>, ActionProfile),
    /// A table, behind a guard as a node runs it.
    Table(Table<'static>),
    /// A table without a guard, which no node runs.
    Unguarded(Table<'static>),
    /// The best constant choice over the heads of a profile, chosen after the fact.
    Hindsight(ActionProfile),
    /// The same, one for everything that is evaluated.
    HindsightOnce(ActionProfile),
    /// The constant that was best on training traffic, as long as it has not been looked for.
    BestTrain,
    /// A constant that was chosen under another name.
    Chosen(Controls),
    /// Another policy with retention classes of its own.
    Retaining(Box<Subject>, [Retention; 2]),
}

/// A network used by many runs at once.
struct Shared(Arc<NetworkPolicy>);

impl Policy for Shared {
    fn decide(&self, observation: &Observation, mask: ActionMask) -> Action {
        self.0.decide(observation, mask)
    }
}

impl Subject {
    /// Loads what the policy needs.
    ///
    /// # Errors
    /// A checkpoint or table cannot be loaded.
    pub fn load(spec: &PolicySpec) -> Result<Subject, SpecError> {
        Ok(match spec {
            PolicySpec::Default => Subject::Default,
            PolicySpec::Fixed(controls) => Subject::Controls(*controls),
            PolicySpec::OptFactor(factor) => Subject::OptFactor(OptFactor { factor: *factor }),
            PolicySpec::AverageBlocks(blocks) => Subject::AverageBlocks(AverageBlocks { blocks: *blocks }),
            PolicySpec::PastFuture(prediction, heads) => Subject::PastFuture(*prediction, *heads),
            PolicySpec::PrimalDual(price, heads) => Subject::PrimalDual(*price, *heads),
            PolicySpec::Oracle(heads) => Subject::Oracle(Oracle { controls: Some(*heads) }),
            PolicySpec::Lookahead(plan) => Subject::Lookahead(plan.clone()),
            PolicySpec::PromptPressure(rule) => Subject::PromptPressure(*rule),
            PolicySpec::Checkpoint(path) => {
                let policy = checkpoint::load_policy(path)?;
                let profile = policy.profile();
                Subject::Network(Arc::new(policy), profile)
            }
            PolicySpec::Table(path) => Subject::Table(export::load_table(path)?),
            PolicySpec::BestFixed => Subject::Hindsight(ActionProfile::Watermark),
            PolicySpec::BestStatic(profile) => Subject::Hindsight(*profile),
            PolicySpec::BestStaticOnce(profile) => Subject::HindsightOnce(*profile),
            PolicySpec::BestTrain(_) => Subject::BestTrain,
            PolicySpec::Retaining(policy, classes) => Subject::Retaining(Box::new(Subject::load(policy)?), *classes),
        })
    }

    /// The same without its guard, if it is a table.
    #[must_use]
    pub fn unguarded(self) -> Subject {
        match self {
            Subject::Table(table) => Subject::Unguarded(table),
            Subject::Retaining(policy, classes) => Subject::Retaining(Box::new(policy.unguarded()), classes),
            other => other,
        }
    }

    /// The table it is, if it is one.
    pub fn table(&self) -> Option<&Table<'static>> {
        match self {
            Subject::Table(table) | Subject::Unguarded(table) => Some(table),
            Subject::Retaining(policy, _) => policy.table(),
            _ => None,
        }
    }

    /// Whether the host of `node` lets it decide what it decides, and shows what it decides by: a table a node would refuse
    /// when it is loaded has no result there. Without its guard only the heads are looked at.
    ///
    /// # Errors
    /// [`SpecError::Unfit`] with what the host lacks, or [`SpecError::PromptLimit`] with what its engine does, about the policy
    /// called `name`.
    pub fn check(&self, name: &PolicyName, node: &NodeConfig) -> Result<(), SpecError> {
        if let Subject::Retaining(policy, _) = self {
            let mut engine = node.engine.clone();
            engine.class_lru();
            if !node.host.retains || !engine.has_eviction_classes() {
                return Err(SpecError::NoClasses { policy: name.clone() });
            }
            return policy.check(name, node);
        }
        let unfit = |source| SpecError::Unfit { policy: name.clone(), source };
        if let Subject::Table(table) = self {
            let tolerance = GuardConfig::default().range_tolerance;
            return node.host.check(table, node.engine.enable_prefix_caching, tolerance).map_err(unfit);
        }
        if let Subject::PromptPressure(rule) = self {
            let limit = PromptLimit::Pressure(*rule);
            limit.check(&node.engine).map_err(|source| SpecError::PromptLimit { policy: name.clone(), source })?;
            if !node.host.limits_prompts {
                return Err(unfit(HostMismatch::PromptLimit { host: node.host.name }));
            }
        }
        if matches!(self, Subject::Lookahead(_)) && node.engine.engine != EngineKind::V1 {
            return Err(SpecError::NoCopies { policy: name.clone() });
        }
        let controls = match self {
            Subject::Controls(controls)
            | Subject::Chosen(controls)
            | Subject::PastFuture(_, controls)
            | Subject::PrimalDual(_, controls) => Some(*controls),
            Subject::Oracle(Oracle { controls }) => *controls,
            Subject::Lookahead(plan) => plan.start,
            _ => None,
        };
        if controls.is_some_and(|controls| controls.preemption == Preemption::Swap) && !node.host.has_host_tier {
            return Err(unfit(HostMismatch::Swap { host: node.host.name }));
        }
        let default = node.engine.default_controls();
        // Every host has a watermark.
        let moved = |controls: &Controls| {
            let is_moved = |&head: &Head| head != Head::Watermark && controls.get(head) != default.get(head);
            Head::ALL.into_iter().filter(is_moved).collect::<Vec<Head>>()
        };
        if let Some((head, why)) = controls.as_ref().and_then(|controls| without_effect(&moved(controls), node)) {
            return Err(SpecError::NoEffect { policy: name.clone(), head: head.name(), why });
        }
        let decided = match self {
            Subject::Network(_, profile) | Subject::Hindsight(profile) | Subject::HindsightOnce(profile) => {
                profile.heads().to_vec()
            }
            Subject::Lookahead(plan) => plan.heads.clone(),
            Subject::Unguarded(table) => table.heads().to_vec(),
            _ => controls.as_ref().map(moved).unwrap_or_default(),
        };
        let foreign = decided.into_iter().find(|head| !node.host.decides(*head));
        foreign.map_or(Ok(()), |head| Err(unfit(HostMismatch::Head { host: node.host.name, head })))
    }

    /// What was learned, and the heads it decides; `None` for what was not learned.
    pub fn policy(&self) -> Option<(&dyn Policy, ActionProfile)> {
        match self {
            Subject::Network(policy, profile) => Some((policy.as_ref(), *profile)),
            Subject::Table(table) | Subject::Unguarded(table) => Some((table, table.profile())),
            Subject::Retaining(policy, _) => policy.policy(),
            _ => None,
        }
    }

    /// A fresh controller for one run; `None` for a constant that is still to be chosen, which is many runs.
    pub fn controller(&self) -> Option<Box<dyn Controller + Send>> {
        Some(match self {
            Subject::Default => Box::new(EngineDefault),
            Subject::Controls(controls) | Subject::Chosen(controls) => Box::new(*controls),
            Subject::OptFactor(rule) => Box::new(*rule),
            Subject::AverageBlocks(rule) => Box::new(*rule),
            Subject::PastFuture(prediction, heads) => Box::new(PastFuture::new(*prediction, Some(*heads))),
            Subject::PrimalDual(price, heads) => Box::new(PrimalDual::new(*price, Some(*heads))),
            Subject::Oracle(oracle) => Box::new(*oracle),
            Subject::Lookahead(plan) => Box::new(Lookahead::new(LookaheadPlan::clone(plan))),
            Subject::PromptPressure(rule) => Box::new(*rule),
            Subject::Network(policy, profile) => Box::new(PolicyController::new(Shared(Arc::clone(policy)), *profile)),
            Subject::Table(table) => {
                Box::new(Retaining::new(Guarded::new(*table), Retain::Guarded(table.trusted_retention())))
            }
            Subject::Unguarded(table) => {
                let retain = table.retention().map_or(Retain::NORMAL, |tree| Retain::Policy(Arc::new(tree)));
                Box::new(Retaining::new(PolicyController::new(*table, table.profile()), retain))
            }
            Subject::Hindsight(_) | Subject::HindsightOnce(_) | Subject::BestTrain => return None,
            Subject::Retaining(policy, classes) => {
                Box::new(Retaining::new(policy.controller()?, Retain::Always(*classes)))
            }
        })
    }
}

/// The first of the heads a constant sets that the engine of `node` keeps to itself, and why it does. What was learned is masked
/// there; who names a number expects something of it.
fn without_effect(moved: &[Head], node: &NodeConfig) -> Option<(Head, &'static str)> {
    let keeps = |head: Head| match head {
        Head::Budget if !node.engine.obeys_budget() => {
            Some("only engine v1 with enable_chunked_prefill has steps of fewer tokens than max_num_batched_tokens")
        }
        Head::Eviction if !node.engine.has_eviction_classes() => Some("its pool has one order for all cached blocks"),
        _ => None,
    };
    moved.iter().find_map(|&head| Some((head, keeps(head)?)))
}
