//! A made-up server: our own simulator with constants that are known, recorded as a real one is.

use std::fs;
use std::path::Path;

use kvtide::calibrate::served::{
    FittedConstants, MeasuredEngine, MeasuredRequest, MeasuredRun, MeasuredTick, ObservedRun, Setup, Tick,
};
use serde_json::json;

/// What the made-up server's clocks show at its first arrival: the client's, the engine's, the recorder's.
pub const CLOCKS: [f64; 3] = [1.7e9, 5000.0, 0.3];

/// Constants unlike the profile's, but for the overheads, which a fit can hardly tell from the time to read the weights.
pub const TRUTH: FittedConstants = FittedConstants {
    compute_efficiency: 0.55,
    bandwidth_efficiency: 0.9,
    products: 0.0,
    prefill: 0.0,
    decode: 0.0,
    step_overhead: 3e-3,
    sequence_overhead: 15e-6,
    exposed: 0.0,
    exposed_sequence: 0.0,
    chunk_overhead: 0.0,
    launch: 0.0,
    client: 0.0,
    cold_start: 0.2,
};

/// Its settings.
pub fn engine() -> MeasuredEngine {
    MeasuredEngine {
        version: "vLLM 0.19.0".to_owned(),
        model: "meta-llama/Llama-3.1-8B".to_owned(),
        device: "NVIDIA GeForce RTX 4090".to_owned(),
        devices: 1,
        replicas: 1,
        recorded: "2026-01-01T00:00:00Z".to_owned(),
        num_gpu_blocks: Some(2000),
        block_size: Some(16),
        max_num_seqs: Some(64),
        max_num_batched_tokens: Some(1024),
        max_model_len: Some(4096),
        async_scheduling: true,
        enable_chunked_prefill: true,
        enable_prefix_caching: true,
        scheduler_reserve_full_isl: true,
        long_prefill_token_threshold: 0,
        deployed: Vec::new(),
    }
}

/// A run of a server that is our simulator with `TRUTH`: first hardly any load, then more than it can bear.
pub fn simulated_run() -> MeasuredRun {
    served(unserved_run())
}

/// The same with another model.
pub fn run_of_another_model() -> MeasuredRun {
    let mut run = unserved_run();
    "another".clone_into(&mut run.name);
    "Qwen/Qwen2.5-7B-Instruct".clone_into(&mut run.engine.model);
    served(run)
}

/// The same served by two engines, each with half of the requests.
pub fn run_of_two_engines() -> MeasuredRun {
    let mut run = unserved_run();
    run.engine.replicas = 2;
    for (index, request) in run.requests.iter_mut().enumerate() {
        request.replica = index as u32 % 2;
    }
    served(run)
}

/// What the simulator with `TRUTH` makes of a run.
fn served(mut run: MeasuredRun) -> MeasuredRun {
    let mut whole = ObservedRun::until(&run, f64::INFINITY);
    whole.ticks = (1..=140).map(|t| Tick { at_s: f64::from(t) - CLOCKS[2], ..Tick::default() }).collect();
    let served = Setup::of(&run, None, &[]).unwrap().serve(&TRUTH, &whole).unwrap();
    for (request, stamps) in run.requests.iter_mut().zip(&served.stamps) {
        request.first_token = CLOCKS[1] + stamps.first_s.unwrap();
        request.last_token = CLOCKS[1] + stamps.last_s.unwrap();
    }
    let mut before = Tick::default();
    for (tick, t) in served.ticks.into_iter().zip(1..) {
        let firsts = served.stamps.iter().map(|stamps| stamps.first_s.unwrap()).zip(&run.requests);
        let firsts = firsts.filter(|(first_s, _)| (before.at_s..tick.at_s).contains(first_s));
        run.ticks.push(MeasuredTick {
            t: f64::from(t),
            prompt_tokens: firsts.map(|(_, request)| f64::from(request.prompt_tokens)).sum(),
            output_tokens: tick.output_tokens - before.output_tokens,
            running: tick.running,
            waiting: tick.waiting,
            kv_usage: tick.kv_usage,
        });
        before = tick;
    }
    run
}

/// Its requests, before anything came of them.
fn unserved_run() -> MeasuredRun {
    let mut state = 7_u32;
    let mut draw = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let mut at = 0.0;
    let request = |index: u32| {
        let arrival = at;
        at += if index < 10 { 1.0 } else { 0.15 };
        MeasuredRequest {
            prompt_tokens: 50 + draw(1200),
            output_tokens: 20 + draw(300),
            arrival: CLOCKS[0] + arrival,
            // The engine was busy with something else now and then.
            queued: CLOCKS[1] + arrival + if index.is_multiple_of(5) { 0.0 } else { 1e-3 },
            first_token: f64::INFINITY,
            last_token: f64::INFINITY,
            block_hashes: Vec::new(),
            replica: 0,
        }
    };
    let requests = (0..150).map(request).collect();
    MeasuredRun { name: "simulated".to_owned(), engine: engine(), requests, ticks: Vec::new() }
}

/// The files of a run as a server's bench leaves them.
pub fn files(run: &MeasuredRun) -> [(&'static str, String); 3] {
    let row = |request: &MeasuredRequest| {
        let row = json!({
            "input_toks": request.prompt_tokens, "output_toks": request.output_tokens,
            "arrival_time": request.arrival, "queued_ts": request.queued, "scheduled_ts": null,
            "first_token_ts": request.first_token, "last_token_ts": request.last_token,
            "dp_rank": request.replica,
        });
        format!("{row}\n")
    };
    let tick = |tick: &MeasuredTick| {
        let MeasuredTick { t, prompt_tokens, output_tokens, running, waiting, kv_usage } = tick;
        format!("{t},{prompt_tokens},{output_tokens},{running},{waiting},{}\n", kv_usage * 100.0)
    };
    let header = "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n";
    let ticks: String = run.ticks.iter().map(tick).collect();
    let MeasuredEngine { num_gpu_blocks, block_size, max_num_seqs, .. } = run.engine;
    let meta = json!({
        "model": run.engine.model, "vllm_version": "0.19.0", "started_at": run.engine.recorded,
        "hardware": { "device_name": run.engine.device },
        "kv_cache": { "num_gpu_blocks": num_gpu_blocks, "block_size": block_size },
        "engine_kwargs": {
            "max_num_seqs": max_num_seqs, "max_num_batched_tokens": run.engine.max_num_batched_tokens,
            "max_model_len": run.engine.max_model_len, "tensor_parallel_size": 1,
            "data_parallel_size": run.engine.replicas,
        },
        "resolved_config": {
            "scheduler_config": { "async_scheduling": true, "scheduler_reserve_full_isl": true, "policy": "fcfs" },
        },
    });
    [
        ("requests.jsonl", run.requests.iter().map(row).collect()),
        ("timeseries.csv", format!("{header}{ticks}")),
        ("meta.json", format!("{meta:#}\n")),
    ]
}

/// Writes them into `folder`.
pub fn write_run(folder: &Path, files: &[(&str, String)]) {
    fs::create_dir_all(folder).unwrap();
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
}
