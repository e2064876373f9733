//! One run in full: a row for each request and for each scheduler step.

use std::sync::atomic::AtomicBool;

use kvtide_envs::env::Node;
use kvtide_envs::sched::Phase;
use kvtide_envs::tier::Tier;
use kvtide_envs::time::Micros;
use kvtide_runtime::Controls;

use super::run::{Played, run};
use super::{Candidates, Grounds, PlayError, there};

/// A request, as it was when the run ended. Times are simulated seconds; NaN for what did not happen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestRow {
    /// When it arrived.
    pub arrival_s: f64,
    /// When its first token appeared.
    pub first_token_s: f64,
    /// When its latest token appeared.
    pub last_token_s: f64,
    /// From arrival to first token.
    pub wait_s: f64,
    /// Mean time per token after the first.
    pub per_token_s: f64,
    /// Longest gap between two tokens.
    pub longest_stall_s: f64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens it was given.
    pub output_tokens: u32,
    /// Whether all of it was served.
    pub finished: bool,
    /// Whether it was dropped because it can never fit.
    pub rejected: bool,
    /// Whether it met its targets, all at once.
    pub attained: bool,
}

/// The node after a scheduler step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepRow {
    /// When it is, simulated seconds.
    pub time_s: f64,
    /// Prompt tokens of the step planned last.
    pub prefill_tokens: u32,
    /// Requests that decode in it.
    pub decodes: u32,
    /// Requests it preempts.
    pub preempted: u32,
    /// Running requests.
    pub running: u32,
    /// Waiting requests.
    pub waiting: u32,
    /// Requests whose blocks are on the host.
    pub swapped: u32,
    /// GPU blocks in use.
    pub used_blocks: u32,
    /// Cached GPU blocks nobody uses.
    pub evictable_blocks: u32,
    /// All GPU blocks.
    pub num_blocks: u32,
    /// The share of them that admission leaves free.
    pub watermark: f64,
    /// Number of the decision that is obeyed, from 0.
    pub decision: u64,
}

/// A run in full.
#[derive(Debug, Clone, PartialEq)]
pub struct RunTable {
    /// What came of it.
    pub played: Played,
    /// In the order of arrival.
    pub requests: Vec<RequestRow>,
    /// In the order of time.
    pub steps: Vec<StepRow>,
}

/// Plays the only candidate in a world with a seed and notes everything. `None` once `stop` is set.
///
/// # Errors
/// As [`play`](super::play).
pub fn run_table(
    grounds: &Grounds,
    candidates: Candidates<'_>,
    world: usize,
    seed: u64,
    stop: &AtomicBool,
) -> Result<Option<RunTable>, PlayError> {
    there(grounds, &[world])?;
    candidates.check(grounds, &[world])?;
    if candidates.len() != 1 {
        return Err(PlayError::Candidate(format!("{} candidates, where one is run", candidates.len())));
    }
    let start = grounds.draw(world, seed)?;
    let mut steps: Vec<StepRow> = Vec::new();
    let mut each = |node: &Node, controls: &Controls, decision: u64| steps.push(step(node, controls, decision));
    let ran = candidates
        .with(0, grounds, |controller| run(&start, controller, grounds.interval(), Some(&mut each), stop))
        .ok_or_else(|| PlayError::Candidate("a candidate of no space".to_owned()))?;
    let (candidate, name) = (candidates.name(0), grounds.names()[world].clone());
    let ran = ran.map_err(|source| PlayError::Run { candidate, world: name, seed, source: Box::new(source) })?;
    let Some((node, played)) = ran else { return Ok(None) };
    let prompts = start.requests.iter().map(|request| request.prompt_tokens);
    let requests = node.collector().records().zip(prompts).map(|(record, prompt_tokens)| RequestRow {
        arrival_s: record.arrival.as_secs_f64(),
        first_token_s: record.first_token.map_or(f64::NAN, Micros::as_secs_f64),
        last_token_s: record.first_token.map_or(f64::NAN, |_| record.last_token.as_secs_f64()),
        wait_s: record.ttft().map_or(f64::NAN, Micros::as_secs_f64),
        per_token_s: record.tpot().unwrap_or(f64::NAN),
        longest_stall_s: record.longest_stall.as_secs_f64(),
        prompt_tokens,
        output_tokens: record.tokens,
        finished: record.phase == Phase::Finished,
        rejected: record.phase == Phase::Rejected,
        attained: record.attained(),
    });
    Ok(Some(RunTable { played, requests: requests.collect(), steps }))
}

fn step(node: &Node, controls: &Controls, decision: u64) -> StepRow {
    let (scheduler, plan) = (node.scheduler(), node.plan());
    let num_blocks = scheduler.num_blocks(Tier::Gpu);
    StepRow {
        time_s: node.now().as_secs_f64(),
        prefill_tokens: plan.prefills.iter().map(|prefill| prefill.tokens).sum(),
        decodes: plan.cohort,
        preempted: plan.preempted.len() as u32,
        running: scheduler.running().len() as u32,
        waiting: scheduler.num_waiting() as u32,
        swapped: scheduler.num_on_host() as u32,
        used_blocks: num_blocks - scheduler.free_blocks(Tier::Gpu),
        evictable_blocks: scheduler.evictable_blocks(),
        num_blocks,
        watermark: controls.watermark,
        decision,
    }
}
