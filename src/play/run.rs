//! One run: a candidate on what a seed drew.

use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::env::{Controller, Node, NodeStatus, RunError, mask, observe};
use kvtide_envs::metrics::{Collector, Percentiles, Summary};
use kvtide_envs::tier::Tier;
use kvtide_runtime::{ActionMask, ActionProfile, Controls, Observer, Policy};

use super::grounds::Start;
use crate::agent::NetworkPolicy;

/// What came of a run, in numbers. Times are of requests that finished; NaN where there are none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Played {
    /// The share of requests that missed no target; of an episode that was cut short, those that had missed none by then. 1 of
    /// no requests.
    pub attainment: f64,
    /// The sum of rewards; NaN where nothing is rewarded, of whole traffic.
    pub returns: f64,
    /// Requests that arrived.
    pub requests: u64,
    /// Those that missed no target.
    pub on_time: u64,
    /// Load factor.
    pub load: f64,
    /// Generated tokens per second.
    pub output_tok_s: f64,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens found in the prefix cache / prompt tokens found or computed.
    pub hit_ratio: f64,
    /// Mean share of GPU blocks in use, over time.
    pub kv_usage: f64,
    /// Median time to first token, milliseconds.
    pub wait_p50_ms: f64,
    /// 99th percentile of the times to first token, milliseconds.
    pub wait_p99_ms: f64,
    /// Longest time to a first token, milliseconds.
    pub longest_wait_ms: f64,
    /// Decisions.
    pub decisions: u64,
    /// Scheduler steps.
    pub steps: u64,
    /// How long it lasted, simulated seconds.
    pub seconds: f64,
    /// Rolling hash of (time, decision): equal for equal runs, and as evaluation has it.
    pub hash: u64,
}

/// A learned policy under the mask it was learned under.
pub(super) struct Learned<'a> {
    policy: &'a NetworkPolicy,
    profile: ActionProfile,
    allowed: ActionMask,
    observer: Observer,
}

impl<'a> Learned<'a> {
    pub(super) fn new(policy: &'a NetworkPolicy, allowed: ActionMask) -> Learned<'a> {
        Learned { policy, profile: policy.profile(), allowed, observer: Observer::new() }
    }
}

impl Controller for Learned<'_> {
    fn control(&mut self, node: &Node) -> Controls {
        let observation = observe(node, &mut self.observer);
        self.policy.decide(&observation, mask(node, self.profile).and(self.allowed)).controls()
    }
}

/// Shown the node after each scheduler step, with the controls it obeyed and how many decisions were taken before those.
pub(super) type Each<'a> = &'a mut dyn FnMut(&Node, &Controls, u64);

/// Plays `start` under `controller`, deciding every `interval` steps; the node as it is then, and what came of it. `None` once
/// `stop` is set.
pub(super) fn run(
    start: &Start,
    controller: &mut dyn Controller,
    interval: u32,
    mut each: Option<Each<'_>>,
    stop: &AtomicBool,
) -> Result<Option<(Node, Played)>, RunError> {
    let retain = controller.retain();
    let mut config = start.config.clone();
    if retain.chooses() && config.host.retains {
        config.engine.class_lru();
    }
    let interval = controller.interval().unwrap_or(interval);
    let mut node = Node::new(&config, start.requests.clone(), Collector::default())
        .expect("the engine settings were validated when they were read");
    node.set_retain(retain);
    let (mut reward, mut returns, mut decisions) = (start.reward.clone(), 0.0, 0_u64);
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let controls = controller.control(&node);
        node.limit_prompts(controller.prompt_limit())?;
        let status = match &mut each {
            None => node.advance(&controls, interval)?,
            Some(each) => node.advance_showing(&controls, interval, |node| each(node, &controls, decisions))?,
        };
        decisions += 1;
        if let Some(reward) = &mut reward {
            returns += f64::from(reward.take(node.collector()));
        }
        match (status, start.end) {
            // A stalled episode is cut short, as an environment cuts it.
            (NodeStatus::Drained, _) | (NodeStatus::Stalled, Some(_)) => break,
            (NodeStatus::Stalled, None) => {
                return Err(RunError::Stalled { at: node.now(), left: node.scheduler().num_open() });
            }
            (NodeStatus::Stepped, end) if end.is_some_and(|end| node.now() >= end) => break,
            (NodeStatus::Stepped, _) => {}
        }
    }
    let returns = if start.reward.is_some() { returns } else { f64::NAN };
    let played = sum_up(&node, start, returns, decisions)?;
    Ok(Some((node, played)))
}

fn sum_up(node: &Node, start: &Start, returns: f64, decisions: u64) -> Result<Played, RunError> {
    let collector = node.collector();
    let summary = match start.end {
        // Played to its end, the accounts must add up.
        None => node.summary()?,
        Some(_) => Summary::of(collector, node.now(), node.scheduler().num_blocks(Tier::Gpu), node.hash()),
    };
    let share = |count: u64| if summary.requests > 0 { count as f64 / summary.requests as f64 } else { 1.0 };
    let (attainment, on_time) = match start.end {
        None => (summary.slo_attainment, collector.attained),
        Some(_) => (share(summary.requests - collector.violations), summary.requests - collector.violations),
    };
    let wait = |percentile: fn(&Percentiles) -> f64| summary.ttft_ms.as_ref().map_or(f64::NAN, percentile);
    Ok(Played {
        attainment,
        returns,
        requests: summary.requests,
        on_time,
        load: start.load,
        output_tok_s: summary.output_tok_s,
        preemptions: summary.preemptions,
        hit_ratio: summary.prefix_hit_ratio,
        kv_usage: summary.kv_usage_mean,
        wait_p50_ms: wait(|ttft| ttft.p50),
        wait_p99_ms: wait(|ttft| ttft.p99),
        longest_wait_ms: summary.longest_wait_ms.unwrap_or(f64::NAN),
        decisions,
        steps: summary.scheduler_steps,
        seconds: summary.makespan_s,
        hash: node.hash(),
    })
}
