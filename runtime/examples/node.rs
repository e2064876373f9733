//! A node in outline: it counts its requests, asks a guarded table, and admits by what it says.
//!
//! `cargo run -p kvtide-runtime --example node -- checkpoints/chat-24g/policy.kvt`; without a file it runs on the fallback.

use std::env;
use std::fs;

use kvtide_runtime::{ActionMask, Guard, GuardConfig, Observer, RunningRequest, Snapshot, Table, WaitingRequest};

const BLOCK_SIZE: u32 = 16;
const NUM_BLOCKS: u32 = 400;
const TTFT_US: u64 = 2_000_000;
const TPOT_US: u64 = 100_000;
const STEP_US: u64 = 30_000;
const OUTPUT_TOKENS: u32 = 120;
/// Steps between decisions, as tables are trained with.
const INTERVAL: u64 = 8;

fn main() {
    let bytes = env::args().nth(1).and_then(|path| fs::read(path).ok()).unwrap_or_default();
    let mut guard = Guard::new(Table::parse(&bytes), GuardConfig::default());
    let mut observer = Observer::new();
    let mut snapshot = Snapshot {
        block_size: BLOCK_SIZE,
        num_gpu_blocks: NUM_BLOCKS,
        max_num_seqs: 32,
        max_num_batched_tokens: 2048,
        ttft_target_us: TTFT_US,
        tpot_target_us: TPOT_US,
        ..Snapshot::default()
    };
    let (mut running, mut waiting): (Vec<RunningRequest>, Vec<WaitingRequest>) = (Vec::new(), Vec::new());
    let mut reserve = 0;
    for step in 0..400_u64 {
        let now_us = step * STEP_US;
        if step % 4 == 0 {
            let first_token_deadline_us = Some(now_us + TTFT_US);
            waiting.push(WaitingRequest {
                tokens: 300,
                arrival_us: now_us,
                first_token_deadline_us,
                prefill_us: 40_000,
            });
            snapshot.totals.arrivals += 1;
            snapshot.totals.arrived_prompt_tokens += 300;
        }
        let free = NUM_BLOCKS - running.iter().map(|request| request.held_blocks).sum::<u32>();
        if step % INTERVAL == 0 {
            let seen = fill(&snapshot, now_us, free, &running, &waiting);
            // An age of 0: it was observed just now.
            let controls = guard.decide(&observer.observe(&seen), 0, ActionMask::ALL);
            reserve = (controls.watermark * f64::from(NUM_BLOCKS)) as u32;
        }
        snapshot.totals.steps += 1;
        snapshot.totals.refused_steps += u64::from(admit(&mut running, &mut waiting, free, reserve));
        decode(&mut running, &mut snapshot);
    }
    let counters = guard.counters();
    println!("{} running, {} waiting, {reserve} blocks left free", running.len(), waiting.len());
    println!("{} decisions, {} of them the table's", counters.decisions, counters.table_decisions);
    if let Some(reason) = guard.last_fallback() {
        println!("the last one fell back: {}", reason.name());
    }
}

/// What the scheduler knows at this moment.
fn fill(totals: &Snapshot, now_us: u64, free: u32, running: &[RunningRequest], waiting: &[WaitingRequest]) -> Snapshot {
    let mut seen = Snapshot { now_us, free_gpu_blocks: free, ..*totals };
    (seen.running, seen.waiting) = (running.len() as u32, waiting.len() as u32);
    seen.add_all_running(running.iter().copied());
    seen.look_at_waiting(waiting.iter().copied(), waiting.iter().rev().copied());
    seen
}

/// Admits from the head while the watermark allows it; whether somebody was refused.
fn admit(running: &mut Vec<RunningRequest>, waiting: &mut Vec<WaitingRequest>, mut free: u32, reserve: u32) -> bool {
    while let Some(head) = waiting.first().copied() {
        // With room for the whole answer: this outline does not preempt.
        let blocks = (head.tokens + OUTPUT_TOKENS).div_ceil(BLOCK_SIZE);
        if blocks + reserve > free {
            return true;
        }
        free -= blocks;
        let (tokens, held_blocks) = (head.tokens, blocks);
        let deadline_us = head.arrival_us + TTFT_US;
        running.push(RunningRequest { tokens, computed_tokens: tokens, generated_tokens: 0, held_blocks, deadline_us });
        waiting.remove(0);
    }
    false
}

/// Everybody who runs gets a token; who has enough of them leaves.
fn decode(running: &mut Vec<RunningRequest>, snapshot: &mut Snapshot) {
    for request in &mut *running {
        request.tokens += 1;
        request.computed_tokens = request.tokens - 1;
        request.generated_tokens += 1;
        request.deadline_us += TPOT_US;
    }
    let before = running.len();
    running.retain(|request| request.generated_tokens < OUTPUT_TOKENS);
    let done = (before - running.len()) as u64;
    snapshot.totals.completions += done;
    snapshot.totals.completed_output_tokens += done * u64::from(OUTPUT_TOKENS);
}
