//! Calibration: reading a measured run, finding constants that are known, seeing nothing of the future, and the real run.

mod common;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use common::{done, lines, refused};
use kvtide::calibrate::{
    Constants, Fault, Fit, MeasuredEngine, MeasuredRequest, MeasuredRun, MeasuredTick, Seen, Setup, calibrate, fit,
};
use kvtide_envs::cost::{Hardware, Profile};
use serde_json::{Value, json};
use tempfile::tempdir;

/// What the made-up server's clocks show at its first arrival: the client's, the engine's, the recorder's.
const CLOCKS: [f64; 3] = [1.7e9, 5000.0, 0.3];

/// Constants unlike the profile's.
const TRUTH: Constants = Constants {
    compute_efficiency: 0.55,
    bandwidth_efficiency: 0.9,
    step_overhead: 3.3e-3,
    sequence_overhead: 14e-6,
    cold_start: 0.2,
};

fn engine() -> MeasuredEngine {
    MeasuredEngine {
        version: "vLLM 0.19.0".to_owned(),
        model: "meta-llama/Llama-3.1-8B".to_owned(),
        device: "NVIDIA GeForce RTX 4090".to_owned(),
        devices: 1,
        recorded: "2026-01-01T00:00:00Z".to_owned(),
        num_gpu_blocks: 900,
        block_size: 16,
        max_num_seqs: 64,
        max_num_batched_tokens: 1024,
        max_model_len: 4096,
        async_scheduling: true,
        enable_chunked_prefill: true,
        enable_prefix_caching: true,
        scheduler_reserve_full_isl: true,
        long_prefill_token_threshold: 0,
    }
}

/// A run of a server that is our simulator with `TRUTH`: first hardly any load, then more than it can bear.
fn simulated_run() -> MeasuredRun {
    let mut state = 7_u32;
    let mut draw = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let mut at = 0.0;
    let mut requests = Vec::new();
    for index in 0..150 {
        let (prompt_tokens, output_tokens) = (50 + draw(1200), 20 + draw(300));
        let mut request = MeasuredRequest {
            prompt_tokens,
            output_tokens,
            arrival: CLOCKS[0] + at,
            queued: CLOCKS[1] + at,
            first_token: 0.0,
            last_token: 0.0,
            block_hashes: Vec::new(),
        };
        // Nothing is known of its tokens yet.
        (request.first_token, request.last_token) = (request.queued + 1.0, request.queued + 2.0);
        requests.push(request);
        at += if index < 25 { 1.0 } else { 0.25 };
    }
    let tick = |second: u32| MeasuredTick {
        t: f64::from(second),
        prompt_tokens: 0.0,
        output_tokens: 0.0,
        running: 0.0,
        waiting: 0.0,
        kv_usage: 0.0,
    };
    let mut run =
        MeasuredRun { name: "simulated".to_owned(), engine: engine(), requests, ticks: (1..=120).map(tick).collect() };
    let whole = Seen::whole(&run, Seen::until(&run, f64::INFINITY).clock);
    let served = Setup::of(&run, None, &[]).unwrap().serve(&TRUTH, &whole).unwrap();
    for (request, stamps) in run.requests.iter_mut().zip(&served.stamps) {
        request.first_token = CLOCKS[1] + stamps.first_s.unwrap();
        request.last_token = CLOCKS[1] + stamps.last_s.unwrap();
    }
    record_ticks(&mut run, &served.ticks);
    run
}

/// Fills in the ticks, which the recorder takes at whole seconds of its own clock.
fn record_ticks(run: &mut MeasuredRun, _: &[kvtide::calibrate::Tick]) {
    let tick_times: Vec<f64> = run.ticks.iter().map(|tick| tick.t - CLOCKS[2]).collect();
    let ticks = served_at(run, &tick_times);
    let (mut known, mut before) = (0.0, 0.0);
    for (tick, served) in run.ticks.iter_mut().zip(ticks) {
        let at = tick.t - CLOCKS[2];
        let firsts = run.requests.iter().filter(|request| (before..at).contains(&(request.first_token - CLOCKS[1])));
        tick.prompt_tokens = firsts.map(|request| f64::from(request.prompt_tokens)).sum();
        tick.output_tokens = served.output_tokens - known;
        (tick.running, tick.waiting, tick.kv_usage) = (served.running, served.waiting, served.kv_usage);
        (known, before) = (served.output_tokens, at);
    }
}

fn served_at(_: &MeasuredRun, _: &[f64]) -> Vec<kvtide::calibrate::Tick> {
    Vec::new()
}
