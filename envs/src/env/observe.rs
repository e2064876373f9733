//! From the node's state to the raw numbers an [`Observer`](kvtide_runtime::Observer) turns into features.

use kvtide_runtime::observer::Totals;
use kvtide_runtime::{Observation, Observer, Snapshot};

use super::Node;
use crate::tier::Tier;

/// What a policy sees of `node`: the features as its host shows them.
pub fn observe(node: &Node, observer: &mut Observer) -> Observation {
    let mut observation = observer.observe(&snapshot(node));
    node.host().show(&mut observation);
    observation
}

/// The state of `node` at this moment. Linear in the number of running requests.
pub fn snapshot(node: &Node) -> Snapshot {
    let scheduler = node.scheduler();
    let config = scheduler.config();
    let mut shot = Snapshot {
        now_us: node.now().0,
        block_size: config.block_size,
        num_gpu_blocks: scheduler.num_blocks(Tier::Gpu),
        free_gpu_blocks: scheduler.free_blocks(Tier::Gpu),
        evictable_blocks: scheduler.evictable_blocks(),
        num_cpu_blocks: scheduler.num_blocks(Tier::Host),
        free_cpu_blocks: scheduler.free_blocks(Tier::Host),
        swapped: scheduler.num_on_host() as u32,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        ttft_target_us: node.slo().ttft.0,
        tpot_target_us: node.slo().tpot.0,
        totals: totals(node),
        ..Snapshot::default()
    };
    shot.add_all_running(scheduler.running().iter().map(|&id| scheduler.view(id).running()));
    scheduler.look_at_waiting(&mut shot);
    shot
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
        swapped_blocks: collector.swapped_blocks(),
        tokens: collector.batched_tokens,
    }
}
