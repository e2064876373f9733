//! Reading a measured run: what is read, and how mistakes are told.

use std::fs;
use std::io::Write;

use kvtide::calibrate::served::{MeasuredEngine, MeasuredFault, MeasuredRun, Setup};
use kvtide_envs::deploy::{EngineKind, Setting};
use serde_json::{Value, json};
use tempfile::tempdir;

use super::made_up::{engine, files, simulated_run, write_run};
use crate::common::{done, lines, refused};

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
    assert_eq!(
        meta(&|meta| meta["engine_kwargs"]["data_parallel_size"] = json!(1000)),
        "run/meta.json: data_parallel_size is 1000: expected 1 to 256"
    );
    assert_eq!(
        meta(&|meta| meta["engine_kwargs"]["pipeline_parallel_size"] = json!(2)),
        "run/meta.json: pipeline_parallel_size is not supported: 2"
    );
    assert_eq!(
        meta(&|meta| meta["engine_kwargs"]["kv_cache_dtype"] = json!("int3")),
        "run/meta.json: kv_cache_dtype is not supported: int3"
    );
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
        let error = MeasuredRun::read(&path.join(name), None).unwrap_err().to_string();
        error.replace(&format!("{}/", path.display()), "")
    };
    // Within the first file, within the second's header, between the first two.
    let second = 512 + files[0].1.len().next_multiple_of(512);
    assert!(error("a.tar", &tar[..2000]).starts_with("a.tar: the archive ends within requests.jsonl"));
    assert!(error("b.tar", &tar[..second + 100]).starts_with("b.tar: not a whole tar archive"));
    assert!(error("c.tar", &tar[..second]).starts_with("c.tar: no timeseries.csv"));
    let (gzip, zstd) = (gzip(&tar), zstd::encode_all(tar.as_slice(), 3).unwrap());
    assert!(error("d.tar.gz", &gzip[..gzip.len() / 2]).contains("requests.jsonl: ends early: the file is cut off"));
    assert!(error("e.tar.zst", &zstd[..zstd.len() / 2]).contains("ends early: the file is cut off"));
    assert!(error("f.tar", files[0].1.as_bytes()).starts_with("f.tar: not a whole tar archive"));
    assert!(error("g.tar", b"").starts_with("g.tar: no requests.jsonl"));
    let twice = [files.clone(), files.clone()].concat();
    assert!(error("h.tar", &archive(&twice)).starts_with("h.tar: more than one measured run"));
    assert!(
        refused(path, &["calibrate", "--measured", "nowhere"]).starts_with("error: nowhere: cannot open: No such file")
    );
    for missing in 0..3 {
        let home = path.join(format!("without-{missing}"));
        write_run(&home, &files);
        fs::remove_file(home.join(files[missing].0)).unwrap();
        let error = MeasuredRun::read(&home, None).unwrap_err();
        assert_eq!(error.fault, MeasuredFault::Missing(files[missing].0));
    }
}

#[test]
fn arguments_that_make_no_sense_are_told() {
    let folder = tempdir().unwrap();
    write_run(&folder.path().join("run"), &files(&simulated_run()));
    for (arguments, part) in [
        (vec!["--fit-fraction", "0"], "--fit-fraction 0: expected above 0, at most 1"),
        (vec!["--fit-fraction", "1.5"], "--fit-fraction 1.5: expected"),
        (vec!["--fit-fraction", "-1"], "--fit-fraction -1: expected"),
        (vec!["--fit-fraction", "0.01"], "at least 10 and 5 are needed"),
        (vec!["--env", "llama-3-8b@abacus"], "unknown hardware \"abacus\""),
        (vec!["--env", "llama-3-8b@nowhere.toml"], "nowhere.toml: cannot open"),
        (vec!["--set", "speed=9"], "unknown setting \"speed\""),
        (vec!["--set", "compute_efficiency=9"], "compute_efficiency=\"9\": expected a share"),
        (vec!["--set", "dead_ends=faithful"], "with dead_ends=safe"),
        (vec!["--set", "max_model_len=1000"], "the engine takes fewer than 1000"),
        (vec!["--load", "run/timeseries.csv"], "run/timeseries.csv:1: "),
        (vec!["--load", "nowhere.jsonl"], "nowhere.jsonl: cannot open"),
        (vec!["--plot", "nowhere/plot.svg"], "--plot: cannot write nowhere/plot.svg: there is no folder"),
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
    assert_eq!(error(&rows[..90]).fault, MeasuredFault::OtherLoad("90 rows; the run has more requests".to_owned()));
    let longer = [rows.clone(), vec![row(5)]].concat();
    assert_eq!(error(&longer).line, Some(151));
    let mut other = rows;
    other.swap(3, 4);
    assert_eq!(error(&other).line, Some(4));
}

#[test]
fn a_load_beside_the_run_is_found_and_no_other() {
    let folder = tempdir().unwrap();
    let run = simulated_run();
    write_run(&folder.path().join("run"), &files(&run));
    let row = |tokens: u32| format!("{}\n", json!({"input_toks": tokens, "input_tok_ids": vec![1; tokens as usize]}));
    let rows: Vec<String> = run.requests.iter().map(|request| row(request.prompt_tokens)).collect();
    fs::write(folder.path().join("a.jsonl"), rows[1..].concat()).unwrap();
    fs::write(folder.path().join("b.jsonl"), "no load at all").unwrap();
    let knows_tokens = |more: &[&str]| {
        let arguments = [&["calibrate", "--measured", "run", "--json"], more].concat();
        lines(&done(folder.path(), &arguments).stdout, "calibration")[0]["knows_tokens"].as_bool().unwrap()
    };
    assert!(!knows_tokens(&[]), "neither is the load of this run");
    fs::write(folder.path().join("c.jsonl"), rows.concat()).unwrap();
    assert!(knows_tokens(&[]));
    assert!(!knows_tokens(&["--load", "none"]));
}

#[test]
fn the_measured_settings_are_simulated() {
    // Nothing as vLLM has it by default.
    let engine = MeasuredEngine {
        block_size: Some(32),
        max_num_seqs: Some(7),
        async_scheduling: false,
        enable_chunked_prefill: false,
        enable_prefix_caching: false,
        scheduler_reserve_full_isl: false,
        long_prefill_token_threshold: 99,
        max_num_batched_tokens: Some(5000),
        ..engine()
    };
    let run = MeasuredRun { engine: engine.clone(), ..simulated_run() };
    let simulated = Setup::of(&run, None, &[]).unwrap().engine;
    let simulated = MeasuredEngine {
        num_gpu_blocks: Some(simulated.num_gpu_blocks),
        block_size: Some(simulated.block_size),
        max_num_seqs: Some(simulated.max_num_seqs),
        max_num_batched_tokens: Some(simulated.max_num_batched_tokens),
        max_model_len: Some(simulated.max_model_len),
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
    assert_eq!(env("Qwen/Qwen2.5-7B", "NVIDIA A100-SXM4-40GB", 1), named("qwen2.5-7b@a100-40g"));
    assert_eq!(
        env("Qwen/Qwen3-30B-A3B", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 2),
        named("qwen3-30b-a3b@2xrtx-pro-6000")
    );
    assert_eq!(env("Qwen/Qwen2.5-7B", "NVIDIA A10G", 1), None);
    assert_eq!(env("Qwen/Qwen2.5-Math-7B", "NVIDIA H200", 1), None);
}

#[test]
fn what_a_run_does_not_say_is_set_or_taken_from_the_card() {
    let silent = MeasuredEngine { num_gpu_blocks: None, block_size: None, max_model_len: None, ..engine() };
    let run = MeasuredRun { engine: silent, ..simulated_run() };
    let setup = |settings: &[&str]| {
        let settings: Vec<Setting> = settings.iter().map(|text| text.parse().unwrap()).collect();
        Setup::of(&run, None, &settings).unwrap()
    };
    let taken = setup(&[]);
    let card = taken.deployment.engine(EngineKind::V1);
    assert_eq!((taken.engine.num_gpu_blocks, taken.engine.max_model_len), (card.num_gpu_blocks, card.max_model_len));
    assert_eq!(taken.assumed.len(), 3);
    let said = format!(
        "the run does not say num_gpu_blocks: {} is taken, what llama-3-8b@rtx-4090 holds at gpu_memory_utilization 0.9 (--set \
         num_gpu_blocks=N)",
        card.num_gpu_blocks
    );
    assert_eq!(taken.assumed[0], said);
    let half = setup(&["gpu_memory_utilization=0.8", "max_model_len=4000"]);
    assert!(half.engine.num_gpu_blocks < card.num_gpu_blocks && half.engine.max_model_len == 4000);
    assert_eq!(half.assumed.len(), 2);
    let all = setup(&["num_gpu_blocks=2000", "block_size=16", "max_model_len=4096"]);
    assert_eq!((all.engine.num_gpu_blocks, all.assumed.as_slice()), (2000, &[][..]));
}
