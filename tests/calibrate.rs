//! Calibration: reading a measured run, finding constants that are known, seeing nothing of the future, and the real run.

mod common;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use common::{done, lines, refused};
use kvtide::calibrate::{
    Constants, Fault, Fit, MeasuredEngine, MeasuredRequest, MeasuredRun, MeasuredTick, Seen, Setup, Tick, calibrate,
    fit,
};
use kvtide_envs::cost::{Hardware, Profile};
use serde_json::{Value, json};
use tempfile::tempdir;

/// What the made-up server's clocks show at its first arrival: the client's, the engine's, the recorder's.
const CLOCKS: [f64; 3] = [1.7e9, 5000.0, 0.3];

/// Constants unlike the profile's, but for the overheads, which a fit can hardly tell from the time to read the weights.
const TRUTH: Constants = Constants {
    compute_efficiency: 0.55,
    bandwidth_efficiency: 0.9,
    step_overhead: 3e-3,
    sequence_overhead: 15e-6,
    cold_start: 0.2,
};

fn engine() -> MeasuredEngine {
    MeasuredEngine {
        version: "vLLM 0.19.0".to_owned(),
        model: "meta-llama/Llama-3.1-8B".to_owned(),
        device: "NVIDIA GeForce RTX 4090".to_owned(),
        devices: 1,
        recorded: "2026-01-01T00:00:00Z".to_owned(),
        num_gpu_blocks: 2000,
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
    let mut run = unserved_run();
    let mut whole = Seen::until(&run, f64::INFINITY);
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
        }
    };
    let requests = (0..150).map(request).collect();
    MeasuredRun { name: "simulated".to_owned(), engine: engine(), requests, ticks: Vec::new() }
}

fn fit_until(run: &MeasuredRun, seconds: f64) -> Fit {
    let setup = Setup::of(run, None, &[]).unwrap();
    fit(&setup, &Seen::until(run, run.start() + seconds), &mut || {}).unwrap()
}

#[test]
fn constants_that_are_known_are_found() {
    let run = simulated_run();
    let Fit { constants, objective, .. } = fit_until(&run, 40.0);
    let near = |found: f64, truth: f64, share: f64| assert!((found / truth - 1.0).abs() < share, "{constants:?}");
    near(constants.compute_efficiency, TRUTH.compute_efficiency, 0.01);
    near(constants.bandwidth_efficiency, TRUTH.bandwidth_efficiency, 0.01);
    near(constants.step_overhead, TRUTH.step_overhead, 0.1);
    near(constants.sequence_overhead, TRUTH.sequence_overhead, 0.1);
    near(constants.cold_start, TRUTH.cold_start, 0.1);
    assert!(objective < 0.02, "{objective}");
}

#[test]
fn clocks_are_brought_to_one() {
    let run = simulated_run();
    let seen = Seen::until(&run, run.start() + 40.0);
    assert!((seen.until_s - 40.0).abs() < 1e-6);
    for (index, request) in run.requests.iter().enumerate().take(seen.requests.len()) {
        assert!((seen.arrival_s(index) - (request.arrival - CLOCKS[0])).abs() < 1e-6);
        let first_s = seen.stamps[index].first_s;
        assert!(first_s.is_none_or(|first_s| (first_s - (request.first_token - CLOCKS[1])).abs() < 1e-6));
    }
    // Ticks are placed between the first tokens they count and those they do not.
    let off = seen.ticks.iter().zip(1..).map(|(tick, t)| (tick.at_s - (f64::from(t) - CLOCKS[2])).abs());
    assert!(off.fold(0.0, f64::max) < 0.05, "{:?}", seen.ticks[0]);
}

/// Everything that happens after `cut` on the engine's clock becomes something else.
fn with_another_future(run: &MeasuredRun, cut: f64) -> MeasuredRun {
    let mut other = run.clone();
    let change = |stamp: &mut f64| {
        if *stamp > cut {
            *stamp = cut + 1e-3 + (*stamp - cut) * 3.0;
        }
    };
    for request in &mut other.requests {
        if request.last_token > cut {
            request.output_tokens = request.output_tokens * 2 + 5;
        }
        if request.queued > cut {
            request.prompt_tokens += 100;
            // As if the engine's clock had been set back meanwhile.
            request.arrival += 0.5;
        }
        change(&mut request.queued);
        change(&mut request.first_token);
        change(&mut request.last_token);
    }
    other.requests.pop();
    // As if the recorder's clock had been set back as well: it counts what was there a little earlier.
    let mut before = 0.0;
    for tick in &mut other.ticks {
        let mut at = tick.t - CLOCKS[2];
        if run.start() + at > cut {
            at -= 0.25;
            let firsts =
                other.requests.iter().filter(|request| (before..at).contains(&(request.first_token - CLOCKS[1])));
            tick.prompt_tokens = firsts.map(|request| f64::from(request.prompt_tokens)).sum();
            tick.output_tokens *= 0.5;
            tick.running += 7.0;
            tick.kv_usage = 0.0;
        }
        before = at;
    }
    other
}

#[test]
fn the_fit_sees_nothing_of_the_future() {
    let run = simulated_run();
    for seconds in [12.0, 20.7] {
        let cut = run.start() + seconds;
        let other = with_another_future(&run, cut);
        assert_ne!(run, other);
        assert_eq!(Seen::until(&run, cut), Seen::until(&other, cut));
        let (here, there) = (fit_until(&run, seconds), fit_until(&other, seconds));
        assert_eq!(format!("{here:?}"), format!("{there:?}"));
    }
    // And does see the past.
    let cut = run.start() + 20.7;
    let other = with_another_future(&run, cut - 5.0);
    assert_ne!(Seen::until(&run, cut), Seen::until(&other, cut));
}

#[test]
fn the_measured_settings_are_simulated() {
    // Nothing as vLLM has it by default.
    let engine = MeasuredEngine {
        block_size: 32,
        max_num_seqs: 7,
        async_scheduling: false,
        enable_chunked_prefill: false,
        enable_prefix_caching: false,
        scheduler_reserve_full_isl: false,
        long_prefill_token_threshold: 99,
        max_num_batched_tokens: 5000,
        ..engine()
    };
    let run = MeasuredRun { engine: engine.clone(), ..simulated_run() };
    let simulated = Setup::of(&run, None, &[]).unwrap().engine;
    let simulated = MeasuredEngine {
        num_gpu_blocks: simulated.num_gpu_blocks,
        block_size: simulated.block_size,
        max_num_seqs: simulated.max_num_seqs,
        max_num_batched_tokens: simulated.max_num_batched_tokens,
        max_model_len: simulated.max_model_len,
        async_scheduling: simulated.async_scheduling,
        enable_chunked_prefill: simulated.enable_chunked_prefill,
        enable_prefix_caching: simulated.enable_prefix_caching,
        scheduler_reserve_full_isl: simulated.scheduler_reserve_full_isl,
        long_prefill_token_threshold: simulated.long_prefill_token_threshold,
        ..engine.clone()
    };
    assert_eq!(engine, simulated);
    let setting = "max_num_seqs=9".parse().unwrap();
    assert_eq!(Setup::of(&run, None, &[setting]).unwrap().engine.max_num_seqs, 9);
}

#[test]
fn what_was_measured_is_known_by_its_names() {
    let env = |model: &str, device: &str, devices| {
        MeasuredEngine { model: model.to_owned(), device: device.to_owned(), devices, ..engine() }.env()
    };
    let named = |name: &str| Some(name.to_owned());
    assert_eq!(engine().env(), named("llama-3-8b@rtx-4090"));
    let instruct = "meta-llama/Meta-Llama-3-70B-Instruct";
    assert_eq!(env(instruct, "NVIDIA H100 80GB HBM3", 4), named("llama-3-70b@4xh100"));
    assert_eq!(env("Qwen/Qwen2.5-7B-Instruct", "NVIDIA A10", 1), named("qwen2.5-7b@a10"));
    assert_eq!(env("Qwen/Qwen2.5-7B", "NVIDIA A100-SXM4-80GB", 1), named("qwen2.5-7b@a100-80g"));
    assert_eq!(env("Qwen/Qwen2.5-7B", "NVIDIA A100-SXM4-40GB", 1), None);
    assert_eq!(env("Qwen/Qwen2.5-72B", "NVIDIA H200", 1), None);
}

/// The files of a run as a server's bench leaves them.
fn files(run: &MeasuredRun) -> [(&'static str, String); 3] {
    let row = |request: &MeasuredRequest| {
        let row = json!({
            "input_toks": request.prompt_tokens, "output_toks": request.output_tokens,
            "arrival_time": request.arrival, "queued_ts": request.queued, "scheduled_ts": null,
            "first_token_ts": request.first_token, "last_token_ts": request.last_token,
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

fn write_run(folder: &Path, files: &[(&str, String)]) {
    fs::create_dir_all(folder).unwrap();
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
}

fn archive(files: &[(&str, String)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, text) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, format!("run/{name}"), text.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn folders_and_archives_are_read_alike() {
    let folder = tempdir().unwrap();
    let run = simulated_run();
    let files = files(&run);
    write_run(&folder.path().join("deep/inner"), &files);
    let tar = archive(&files);
    fs::write(folder.path().join("run.tar"), &tar).unwrap();
    fs::write(folder.path().join("run.tar.gz"), gzip(&tar)).unwrap();
    fs::write(folder.path().join("run.tar.zst"), zstd::encode_all(tar.as_slice(), 3).unwrap()).unwrap();
    for name in ["deep/inner", "deep", "run.tar", "run.tar.gz", "run.tar.zst"] {
        let read = MeasuredRun::read(&folder.path().join(name), None).unwrap();
        assert_eq!(read.engine, run.engine, "{name}");
        assert_eq!(read.requests, run.requests, "{name}");
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(read.ticks.iter().zip(&run.ticks).all(|(a, b)| near(a.kv_usage, b.kv_usage) && a.t == b.t), "{name}");
    }
}

/// Reads a run after `change`, and gives what is wrong without the folder.
fn fault(change: impl FnOnce(&mut [(&'static str, String); 3])) -> String {
    let folder = tempdir().unwrap();
    let mut files = files(&simulated_run());
    change(&mut files);
    write_run(folder.path(), &files);
    let error = MeasuredRun::read(folder.path(), None).unwrap_err().to_string();
    error.replace(&folder.path().display().to_string(), "run")
}

/// `text` with its line `number`, from 1, changed.
fn line(text: &mut String, number: usize, change: impl FnOnce(&str) -> String) {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[number - 1] = change(&lines[number - 1]);
    *text = lines.join("\n");
}

fn with(row: &str, key: &str, value: Value) -> String {
    let mut row: Value = serde_json::from_str(row).unwrap();
    row[key] = value;
    row.to_string()
}

#[test]
fn bad_rows_are_told_with_file_line_and_value() {
    let request = |change: fn(&str) -> String| fault(|files| line(&mut files[0].1, 7, change));
    assert!(request(|row| row[..30].to_owned()).starts_with("run/requests.jsonl:7: EOF while parsing"));
    assert_eq!(
        request(|row| with(row, "output_toks", json!(0))),
        "run/requests.jsonl:7: output_toks is 0: expected 1 to 1048576"
    );
    assert!(request(|row| with(row, "first_token_ts", Value::Null)).starts_with("run/requests.jsonl:7: invalid type"));
    assert!(
        request(|row| with(row, "input_toks", json!(-3)))
            .starts_with("run/requests.jsonl:7: invalid value: integer `-3`")
    );
    assert_eq!(
        request(|row| with(row, "first_token_ts", json!(4000.0))).replace(char::is_numeric, "9"),
        "run/requests.jsonl:9: the clock runs backwards: first_token_ts 9999 is before queued_ts 9999.999"
    );
    assert!(
        request(|row| with(row, "last_token_ts", json!(5006.1)))
            .contains("last_token_ts 5006.1 is before first_token_ts")
    );
    let tick = |change: fn(&str) -> String| fault(|files| line(&mut files[1].1, 5, change));
    assert_eq!(
        tick(|row| row.replacen('4', "2.5", 1)),
        "run/timeseries.csv:5: the clock runs backwards: t 2.5 is before t of the row above 3"
    );
    assert_eq!(tick(|_| "4,0,0,1".to_owned()), "run/timeseries.csv:5: 4 values in a row, 6 columns in the header");
    assert_eq!(tick(|_| "4,0,0,1,0,130".to_owned()), "run/timeseries.csv:5: kv_cache_pct is 130: expected per cent");
    assert!(tick(|_| "4,0,x,1,0,13".to_owned()).starts_with("run/timeseries.csv:5: gen_throughput is `x`"));
    assert_eq!(
        fault(|files| line(&mut files[1].1, 1, |header| header.replace("waiting", "queue"))),
        "run/timeseries.csv:1: column waiting is missing in the header"
    );
    assert_eq!(fault(|files| files[1].1.truncate(64)), "run/timeseries.csv: no ticks");
    assert_eq!(fault(|files| files[0].1.clear()), "run/requests.jsonl: no requests");
}

#[test]
fn a_server_that_is_not_simulated_is_refused() {
    let meta = |change: &dyn Fn(&mut Value)| {
        fault(|files| {
            let mut meta = serde_json::from_str(&files[2].1).unwrap();
            change(&mut meta);
            files[2].1 = meta.to_string();
        })
    };
    assert_eq!(meta(&|meta| meta["kv_cache"] = json!({})), "run/meta.json: num_gpu_blocks is missing");
    assert_eq!(
        meta(&|meta| meta["kv_cache"]["block_size"] = json!(0)),
        "run/meta.json: block_size is 0: expected at least 1"
    );
    assert_eq!(
        meta(&|meta| meta["resolved_config"]["scheduler_config"]["policy"] = json!("priority")),
        "run/meta.json: policy is not supported: \"priority\""
    );
    assert!(
        meta(&|meta| meta["resolved_config"]["speculative_config"] = json!({"model": "small"}))
            .starts_with("run/meta.json: speculative_config is not supported")
    );
    assert!(fault(|files| files[2].1.truncate(40)).starts_with("run/meta.json:"));
}

#[test]
fn damaged_archives_and_missing_files_are_told() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let files = files(&simulated_run());
    let tar = archive(&files);
    let error = |name: &str, bytes: &[u8]| {
        fs::write(path.join(name), bytes).unwrap();
        refused(path, &["calibrate", "--measured", name])
    };
    // Within the first file, within the second's header, between the first two.
    let second = 512 + files[0].1.len().next_multiple_of(512);
    assert!(error("a.tar", &tar[..2000]).starts_with("error: a.tar: the archive ends within requests.jsonl"));
    assert!(error("b.tar", &tar[..second + 100]).starts_with("error: b.tar: not a whole tar archive"));
    assert!(error("c.tar", &tar[..second]).starts_with("error: c.tar: no timeseries.csv"));
    let (gzip, zstd) = (gzip(&tar), zstd::encode_all(tar.as_slice(), 3).unwrap());
    assert!(error("d.tar.gz", &gzip[..gzip.len() / 2]).contains("d.tar.gz: "));
    assert!(error("e.tar.zst", &zstd[..zstd.len() / 2]).contains("e.tar.zst: "));
    assert!(error("f.tar", files[0].1.as_bytes()).starts_with("error: f.tar: not a whole tar archive"));
    assert!(error("g.tar", b"").starts_with("error: g.tar: no requests.jsonl"));
    let twice = [files.clone(), files.clone()].concat();
    assert!(error("h.tar", &archive(&twice)).starts_with("error: h.tar: more than one measured run"));
    assert!(
        refused(path, &["calibrate", "--measured", "nowhere"]).starts_with("error: nowhere: cannot open: No such file")
    );
    for missing in 0..3 {
        let home = path.join(format!("without-{missing}"));
        write_run(&home, &files);
        fs::remove_file(home.join(files[missing].0)).unwrap();
        let error = MeasuredRun::read(&home, None).unwrap_err();
        assert_eq!(error.fault, Fault::Missing(files[missing].0));
    }
}

#[test]
fn arguments_that_make_no_sense_are_told() {
    let folder = tempdir().unwrap();
    write_run(&folder.path().join("run"), &files(&simulated_run()));
    for (arguments, part) in [
        (vec!["--fit-fraction", "0"], "fit fraction 0: expected a number above 0, at most 1"),
        (vec!["--fit-fraction", "1.5"], "fit fraction 1.5"),
        (vec!["--fit-fraction", "-1"], "fit fraction -1"),
        (vec!["--fit-fraction", "0.01"], "at least 10 and 5 are needed"),
        (vec!["--env", "llama-3-8b@abacus"], "unknown hardware \"abacus\""),
        (vec!["--env", "llama-3-8b@nowhere.toml"], "nowhere.toml: cannot open"),
        (vec!["--set", "speed=9"], "unknown setting \"speed\""),
        (vec!["--set", "compute_efficiency=9"], "compute_efficiency=\"9\": expected a share"),
        (vec!["--set", "engine=v0"], "only engine=v1"),
        (vec!["--set", "max_model_len=1000"], "the engine takes fewer than 1000"),
        (vec!["--load", "run/timeseries.csv"], "run/timeseries.csv:1: "),
        (vec!["--load", "nowhere.jsonl"], "nowhere.jsonl: cannot open"),
        (vec!["--plot", "nowhere/plot.svg"], "nowhere/plot.svg: cannot write"),
    ] {
        let error = refused(folder.path(), &[vec!["calibrate", "--measured", "run"], arguments.clone()].concat());
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
}

#[test]
fn the_load_of_another_run_is_told() {
    let folder = tempdir().unwrap();
    let run = simulated_run();
    write_run(&folder.path().join("run"), &files(&run));
    let row = |tokens: u32| format!("{}\n", json!({"input_toks": tokens, "input_tok_ids": vec![1; tokens as usize]}));
    let rows: Vec<String> = run.requests.iter().map(|request| row(request.prompt_tokens)).collect();
    let path = folder.path().join("load.jsonl");
    let read = |rows: &[String]| {
        fs::write(&path, rows.concat()).unwrap();
        MeasuredRun::read(&folder.path().join("run"), Some(&path))
    };
    let read_run = read(&rows).unwrap();
    for (request, read) in run.requests.iter().zip(&read_run.requests) {
        assert_eq!(read.block_hashes.len(), request.prompt_tokens as usize / 16);
    }
    let error = |rows: &[String]| read(rows).unwrap_err();
    assert_eq!(error(&rows[..90]).fault, Fault::OtherLoad("90 rows; the run has more requests".to_owned()));
    let longer = [rows.clone(), vec![row(5)]].concat();
    assert_eq!(error(&longer).line, Some(151));
    let mut other = rows;
    other.swap(3, 4);
    assert_eq!(error(&other).line, Some(4));
}

/// The real run beside the checkout, and the load it was given, if they are there.
fn shared() -> Option<[PathBuf; 2]> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces");
    let names = ["measured_vllm_RTX4090_llama3.1-8b.tar.zst", "llmservingsim_sharegpt300_poisson.jsonl.zst"];
    let paths = names.map(|name| folder.join(name));
    if let Some(missing) = paths.iter().find(|path| !path.exists()) {
        let _ = writeln!(io::stderr(), "skipped: {} is not here", missing.display());
        return None;
    }
    Some(paths)
}

/// One call of the binary on the real run: report, profile and plot.
#[test]
fn the_rest_of_a_real_run_is_forecast_from_its_beginning() {
    let Some([measured, load]) = shared() else { return };
    let folder = tempdir().unwrap();
    let [measured, load] = [measured, load].map(|path| path.display().to_string());
    let outputs = ["--profile", "mine.toml", "--plot", "plot.svg", "--json"];
    let run = done(folder.path(), &[&["calibrate", "--measured", &measured, "--load", &load][..], &outputs].concat());
    let [report] = lines(&run.stdout, "calibration").try_into().unwrap();
    let held_out = &report["held_out"];
    let error = |path: &str| held_out.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path}"));
    for (path, target) in [
        ("/output_tok_s/error", 0.02),
        ("/ttft_ms/p50/error", 0.03),
        ("/ttft_ms/p99/error", 0.05),
        ("/tpot_ms/p50/error", 0.03),
        ("/tpot_ms/p99/error", 0.05),
        ("/e2e_ms/p50/error", 0.03),
        ("/e2e_ms/p99/error", 0.05),
        ("/makespan_s/error", 0.01),
        ("/tpot_ms/mean_abs_error", 0.03),
        ("/stalls/worst_error", 0.05),
        ("/curves/running_error", 1.0),
        ("/curves/waiting_error", 1.0),
        ("/curves/kv_usage_error", 0.02),
        ("/curves/output_tokens_error", 0.005),
    ] {
        assert!(error(path).abs() < target, "{path} {}", error(path));
    }
    // Stalls are there where they were measured, and because of preemptions.
    assert!(error("/stalls/slowdown/measured") > 1.5 && error("/stalls/slowdown/error").abs() < 0.02, "{held_out}");
    assert_eq!(held_out["stalls"]["preempted"], held_out["stalls"]["requests"]);
    assert!(error("/stalls/correlation") > 0.99);
    assert!(report["verdicts"].as_array().unwrap().iter().all(|verdict| verdict["met"] == true), "{report}");
    // Without a fit it is nowhere near.
    assert!(report["uncalibrated"]["output_tok_s"]["error"].as_f64().unwrap() < -0.1);
    assert!(run.stderr.contains("later ticks are outside of what was fitted"), "{}", run.stderr);

    // What ships is what this writes.
    let profile = Profile::read(&folder.path().join("mine.toml")).unwrap();
    let built_in = Hardware::named("rtx-4090-measured").unwrap();
    assert_eq!(profile.hardware.name, "mine");
    for (here, there) in [
        (profile.hardware.compute_efficiency, built_in.compute_efficiency),
        (profile.hardware.bandwidth_efficiency, built_in.bandwidth_efficiency),
        (profile.hardware.step_overhead, built_in.step_overhead),
    ] {
        assert!((here / there - 1.0).abs() < 0.02, "the built-in profile is out of date: {here}, not {there}");
    }
    let simulate = |env: &str| {
        let arguments = ["simulate", "--workload", "chat:rate=2,n=40", "--engine", "v1", "--env", env, "--json"];
        lines(&done(folder.path(), &arguments).stdout, "run").remove(0)
    };
    let (fitted, default) = (simulate("llama-3-8b@mine.toml"), simulate("llama-3-8b@rtx-4090"));
    assert_eq!(fitted["env"], "llama-3-8b@mine");
    assert!(fitted["tpot_ms"]["p50"].as_f64() < default["tpot_ms"]["p50"].as_f64());

    let plot = fs::read_to_string(folder.path().join("plot.svg")).unwrap();
    let referred = plot.matches("http").count();
    assert!(plot.starts_with("<svg") && plot.ends_with("</svg>\n") && referred == 1, "{referred}");
    for text in ["measured", "simulated, calibrated", "forecast", "tokens/s", "TTFT (s)", "KV blocks in use"] {
        assert!(plot.contains(text), "{text}");
    }
}

#[test]
fn a_real_run_without_its_prompts_is_forecast_nearly_as_well() {
    let Some([measured, _]) = shared() else { return };
    let run = MeasuredRun::read(&measured, None).unwrap();
    let report = calibrate(&run, &Setup::of(&run, None, &[]).unwrap(), 0.3, &mut || {}).unwrap().report(&run);
    assert_eq!(report.env, "llama-3-8b@rtx-4090");
    assert!(report.verdicts.len() == 6 && report.verdicts.iter().all(|verdict| verdict.met), "{:?}", report.verdicts);
    assert!(report.warnings.iter().any(|warning| warning.contains("--load")), "{:?}", report.warnings);
}

#[test]
fn a_fit_to_all_of_a_run_forecasts_nothing() {
    let run = simulated_run();
    let calibration = calibrate(&run, &Setup::of(&run, None, &[]).unwrap(), 1.0, &mut || {}).unwrap();
    let report = calibration.report(&run);
    assert_eq!((&report.held_out, report.verdicts.len(), report.ticks_outside), (&None, 0, 0));
    assert_eq!((report.fit.requests, report.fit.finished), (150, 150));
    assert!(report.fitted.e2e_ms.unwrap().p50.error.abs() < 0.02);
}

#[test]
fn hardware_is_set_like_the_engine() {
    let folder = tempdir().unwrap();
    let simulate = |settings: &[&str]| {
        let arguments = [&["simulate", "--workload", "chat:rate=1,n=30", "--json"], settings].concat();
        lines(&done(folder.path(), &arguments).stdout, "run").remove(0)
    };
    let tpot = |settings: &[&str]| simulate(settings)["tpot_ms"]["p50"].as_f64().unwrap();
    let plain = tpot(&[]);
    assert!(tpot(&["--set", "bandwidth_efficiency=0.4"]) > 1.5 * plain);
    assert!(tpot(&["--set", "step_overhead=0"]) < plain);
    assert_eq!(tpot(&["--set", "pcie_bandwidth=1e9"]), plain);
    let error = refused(folder.path(), &["simulate", "--workload", "chat:rate=1,n=9", "--set", "bandwidth=1"]);
    assert!(error.contains("of the engine: engine, block_size") && error.contains("of the hardware: peak_flops"));
}
