//! What the Python bindings are held against: `python/tests/observations.json`, snapshots counted request by request
//! and the observations this crate makes of them.
//!
//! `KVTIDE_BLESS=1 cargo test -p kvtide-runtime --test all python_fixture` writes it anew after a change of the schema.

use std::fmt::Write;
use std::path::Path;

use kvtide_runtime::observer::Totals;
use kvtide_runtime::{FEATURES, Observer, RunningRequest, Snapshot, WaitingRequest};

/// Numbers that look like a node's, from a generator of its own so that they never change.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn small(&mut self, limit: u32) -> u32 {
        self.below(u64::from(limit)) as u32
    }
}

fn totals(step: u64, numbers: &mut Numbers) -> Totals {
    Totals {
        steps: 8 * step,
        refused_steps: 3 * step,
        arrivals: 5 * step + numbers.below(5),
        arrived_prompt_tokens: 5_000 * step + numbers.below(5_000),
        completions: 4 * step + numbers.below(4),
        completed_output_tokens: 900 * step + numbers.below(900),
        preemptions: step / 2,
        swapped_blocks: 7 * step,
        tokens: 6_000 * step,
    }
}

fn row(out: &mut String, numbers: impl IntoIterator<Item = Option<u64>>) {
    let cells: Vec<String> =
        numbers.into_iter().map(|number| number.map_or("null".to_owned(), |number| number.to_string())).collect();
    write!(out, "[{}],", cells.join(",")).expect("a string takes everything");
}

/// One snapshot with its requests, as JSON, and counted.
fn shot(step: u64, numbers: &mut Numbers) -> (String, Snapshot) {
    let now_us = 1_700_000_000_000_000 + step * 250_000;
    let mut snapshot = Snapshot {
        now_us,
        block_size: 16,
        num_gpu_blocks: 2_587,
        free_gpu_blocks: numbers.small(2_588),
        evictable_blocks: numbers.small(500),
        num_cpu_blocks: 512,
        free_cpu_blocks: numbers.small(513),
        swapped: numbers.small(4),
        max_num_seqs: 256,
        max_num_batched_tokens: 2_048,
        ttft_target_us: 2_000_000,
        tpot_target_us: 100_000,
        totals: totals(step, numbers),
        ..Snapshot::default()
    };
    let mut running = String::new();
    for _ in 0..numbers.below(12) {
        let generated = numbers.small(200);
        let tokens = 1 + numbers.small(3_000) + generated;
        let request = RunningRequest {
            tokens,
            computed_tokens: if numbers.below(3) == 0 { tokens / 2 } else { tokens - 1 },
            generated_tokens: generated,
            held_blocks: tokens / 17,
            deadline_us: now_us + numbers.below(4_000_000) - 2_000_000,
        };
        snapshot.add_running(&request);
        let RunningRequest { tokens, computed_tokens, generated_tokens, held_blocks, deadline_us } = request;
        let counts = [tokens, computed_tokens, generated_tokens, held_blocks].map(|count| Some(u64::from(count)));
        row(&mut running, counts.into_iter().chain([Some(deadline_us)]));
    }
    let mut waiting = String::new();
    let mut queue = Vec::new();
    // One queue is longer than what is looked at from either end.
    for _ in 0..if step == 3 { 90 } else { numbers.below(20) } {
        let arrival_us = now_us - numbers.below(6_000_000);
        let has_answered = numbers.below(5) == 0;
        let request = WaitingRequest {
            tokens: 1 + numbers.small(4_000),
            arrival_us,
            first_token_deadline_us: (!has_answered).then_some(arrival_us + 2_000_000),
            prefill_us: numbers.below(400_000),
        };
        queue.push(request);
        let deadline = request.first_token_deadline_us;
        row(&mut waiting, [Some(u64::from(request.tokens)), Some(arrival_us), deadline, Some(request.prefill_us)]);
    }
    snapshot.waiting = queue.len() as u32;
    snapshot.look_at_waiting(queue.iter().copied(), queue.iter().rev().copied());
    let s = &snapshot;
    let t = &s.totals;
    let named = [
        ("now_us", now_us),
        ("block_size", s.block_size.into()),
        ("num_gpu_blocks", s.num_gpu_blocks.into()),
        ("free_gpu_blocks", s.free_gpu_blocks.into()),
        ("evictable_blocks", s.evictable_blocks.into()),
        ("num_cpu_blocks", s.num_cpu_blocks.into()),
        ("free_cpu_blocks", s.free_cpu_blocks.into()),
        ("num_swapped", s.swapped.into()),
        ("max_num_seqs", s.max_num_seqs.into()),
        ("max_num_batched_tokens", s.max_num_batched_tokens.into()),
        ("ttft_target_us", s.ttft_target_us),
        ("tpot_target_us", s.tpot_target_us),
        ("total_steps", t.steps),
        ("total_tokens", t.tokens),
        ("total_refused_steps", t.refused_steps),
        ("total_arrivals", t.arrivals),
        ("total_arrived_prompt_tokens", t.arrived_prompt_tokens),
        ("total_completions", t.completions),
        ("total_completed_output_tokens", t.completed_output_tokens),
        ("total_preemptions", t.preemptions),
        ("total_swapped_blocks", t.swapped_blocks),
    ];
    let named: Vec<String> = named.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    let (running, waiting) = (running.trim_end_matches(','), waiting.trim_end_matches(','));
    let json = format!("{{\"numbers\":{{{}}},\n\"running\":[{running}],\n\"waiting\":[{waiting}]", named.join(","));
    (json, snapshot)
}

#[test]
fn python_is_held_against_what_this_crate_makes() {
    let mut numbers = Numbers(1);
    let mut observer = Observer::new();
    let mut shots = Vec::new();
    for step in 0..8 {
        let (json, snapshot) = shot(step, &mut numbers);
        let values: Vec<String> =
            observer.observe(&snapshot).values.iter().map(|&value| f64::from(value).to_string()).collect();
        shots.push(format!("{json},\n\"values\":[{}]}}", values.join(",")));
    }
    let names: Vec<String> = FEATURES.iter().map(|spec| format!("\"{}\"", spec.name)).collect();
    let made = format!("{{\"features\":[{}],\n\"shots\":[\n{}\n]}}\n", names.join(","), shots.join(",\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests/observations.json");
    if std::env::var_os("KVTIDE_BLESS").is_some() {
        std::fs::write(&path, &made).expect("the fixture can be written");
    }
    let kept = std::fs::read_to_string(&path).expect("the fixture is there");
    assert!(kept == made, "{} is not what this crate makes; see the top of this file", path.display());
}
