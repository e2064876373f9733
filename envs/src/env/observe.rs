//! From the node's state to the raw numbers an [`Observer`](kvtide_runtime::Observer) turns into features.

use kvtide_runtime::Snapshot;
use kvtide_runtime::observer::{GROWTH_STEPS, NEWEST_WINDOW, Totals, WAITING_WINDOW};

use super::Node;
use crate::kv::blocks_for;

/// The state of `node` at this moment. Linear in the number of running requests.
pub fn snapshot(node: &Node) -> Snapshot {
    let scheduler = node.scheduler();
    let config = scheduler.config();
    let now = node.now();
    let mut shot = Snapshot {
        now_us: now.0,
        block_size: config.block_size,
        num_gpu_blocks: scheduler.num_gpu_blocks(),
        free_gpu_blocks: scheduler.free_gpu_blocks(),
        evictable_blocks: scheduler.evictable_blocks(),
        num_cpu_blocks: config.num_cpu_blocks,
        free_cpu_blocks: scheduler.free_cpu_blocks(),
        running: scheduler.running().len() as u32,
        waiting: scheduler.num_waiting() as u32,
        swapped: scheduler.num_swapped() as u32,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        ttft_target_us: node.slo().ttft.0,
        tpot_target_us: node.slo().tpot.0,
        totals: totals(node),
        ..Snapshot::default()
    };
    for &id in scheduler.running() {
        let request = scheduler.view(id);
        for (blocks, steps) in shot.growth_blocks.iter_mut().zip(GROWTH_STEPS) {
            *blocks += request.growth(steps, config.block_size);
        }
        let slack = request.slack(now);
        shot.held_blocks += request.held_blocks;
        shot.behind += u32::from(slack < 0);
        shot.slack_sum_us += slack;
        shot.generated_tokens += u64::from(request.generated);
        shot.pending_prefill_tokens += u64::from(request.pending_prefill());
    }
    for (position, id) in scheduler.waiting().take(WAITING_WINDOW).enumerate() {
        let request = scheduler.view(id);
        let tokens = request.len();
        let blocks = blocks_for(tokens, config.block_size);
        if position == 0 {
            (shot.head_blocks, shot.head_tokens) = (blocks, tokens);
        }
        shot.waiting_blocks += u64::from(blocks);
        shot.waiting_tokens += u64::from(tokens);
        if request.first_token.is_none() {
            shot.oldest_wait_us = shot.oldest_wait_us.max(now.since(request.arrival).0);
            shot.late_waiting += u32::from(now > request.slo.deadline(request.arrival, 0));
        }
    }
    look_at_newest(node, &mut shot);
    shot
}

/// Fills in what arrived last and is still on time: as admission orders understand it, the time to compute the prompt is
/// left.
fn look_at_newest(node: &Node, shot: &mut Snapshot) {
    let scheduler = node.scheduler();
    let (now, config) = (node.now(), scheduler.config());
    let mut least = None;
    for id in scheduler.waiting().rev().take(NEWEST_WINDOW) {
        let request = scheduler.view(id);
        let prefill = config.pricing.prefill(request.len());
        let slack = request.slo.deadline(request.arrival, 0).0.checked_sub(now.0 + prefill.0);
        if let (None, Some(slack)) = (request.first_token, slack) {
            shot.on_time_waiting += 1;
            shot.on_time_blocks += u64::from(blocks_for(request.len(), config.block_size));
            least = Some(least.map_or(slack, |least: u64| least.min(slack)));
        }
    }
    shot.on_time_slack_us = least.unwrap_or(0);
}

fn totals(node: &Node) -> Totals {
    let collector = node.collector();
    Totals {
        steps: collector.steps,
        refused_steps: collector.refused_steps,
        arrivals: collector.records().len() as u64,
        arrived_prompt_tokens: collector.prompt_tokens,
        completions: collector.completed,
        completed_output_tokens: collector.completed_tokens,
        preemptions: collector.preemptions,
        swapped_blocks: collector.swap_in_blocks + collector.swap_out_blocks,
    }
}
