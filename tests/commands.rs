//! The commands that need no training, end to end.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::common::{done, kvtide, lines, refused};
use tempfile::tempdir;

/// A file or folder beside the checkout, if it is there.
fn shared(path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(path);
    if path.exists() {
        return Some(path);
    }
    let _ = writeln!(io::stderr(), "skipped: {} is not here", path.display());
    None
}

/// Overload on a small pool: preemptions, refusals and missed targets all occur.
const BUSY: [&str; 6] =
    ["--workload", "chat:rate=3.2,duration=60,seed=3", "--engine", "v0", "--set", "num_gpu_blocks=1500"];

#[test]
fn simulate_gives_the_same_bytes_twice() {
    let folder = tempdir().unwrap();
    let mut arguments = vec!["simulate", "--policy", "default", "--policy", "fixed:0.05", "--seeds", "1..2", "--json"];
    arguments.extend(BUSY);
    let first = done(folder.path(), &arguments);
    assert_eq!(first.stdout, done(folder.path(), &arguments).stdout);
    let rows = lines(&first.stdout, "run");
    assert_eq!(rows.len(), 4);
    for row in &rows {
        for key in [
            "policy",
            "trace",
            "window",
            "load",
            "seed",
            "requests",
            "completed",
            "rejected",
            "slo_attainment",
            "goodput_rps",
            "output_tok_s",
            "preemptions",
            "swap_out_blocks",
            "swap_in_blocks",
            "recomputed_tokens",
            "kv_usage_mean",
            "makespan_s",
            "scheduler_steps",
            "hash",
        ] {
            assert!(!row[key].is_null(), "{key} is missing in {row}");
        }
        for time in ["ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"] {
            let at = |p: &str| row[time][p].as_f64().unwrap();
            assert!(at("p50") <= at("p90") && at("p90") <= at("p95") && at("p95") <= at("p99"), "{row}");
        }
        assert_eq!(row["requests"], row["completed"], "{row}");
    }
    // Same seed, same traffic; other seed, other traffic; other watermark, other course.
    assert_eq!(rows[0]["requests"], rows[2]["requests"]);
    assert_ne!(rows[0]["hash"], rows[1]["hash"]);
    assert_ne!(rows[0]["hash"], rows[2]["hash"]);
    assert!(rows[0]["preemptions"].as_u64() > rows[2]["preemptions"].as_u64());
}

#[test]
fn hindsight_is_at_least_as_good_as_every_watermark_it_chose_from() {
    let folder = tempdir().unwrap();
    let mut arguments =
        vec!["evaluate", "--policy", "default", "--policy", "best-fixed", "--policy", "best-static:core"];
    let fixed = ["fixed:0", "fixed:0.02", "fixed:0.05", "fixed:0.12", "fixed:0.5"];
    for policy in fixed {
        arguments.extend(["--policy", policy]);
    }
    arguments.extend(["--seeds", "1..3", "--json"]);
    arguments.extend(BUSY);
    let run = done(folder.path(), &arguments);
    let comparisons = lines(&run.stdout, "comparison");
    let attained = |policy: &str| {
        let found = comparisons.iter().find(|line| line["policy"] == policy);
        found.unwrap_or_else(|| panic!("no {policy}"))["slo_attainment"].as_f64().unwrap()
    };
    for policy in fixed {
        assert!(attained("best-fixed") >= attained(policy), "{policy}");
    }
    assert!(attained("best-static:core") >= attained("best-fixed"));
    assert_eq!(lines(&run.stdout, "run").len(), 3 * comparisons.len());
    assert!(comparisons[1]["chosen"][0].as_str().unwrap().starts_with("fixed:"));
}

#[test]
fn mistakes_are_one_line_and_exit_2() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::write(
        path.join("cut.csv"),
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.99",
    )
    .unwrap();
    fs::write(path.join("policy.kvt"), b"not a table at all, whatever its name says").unwrap();
    let cut = refused(path, &["simulate", "--trace", "cut.csv"]);
    assert!(cut.starts_with("error: cut.csv:3: "), "{cut}");
    let unknown = refused(path, &["simulate", "--workload", "chat:rate=1,n=9", "--policy", "lru"]);
    assert!(unknown.starts_with("error: unknown policy \"lru\"; known: default"), "{unknown}");
    let missing = refused(path, &["trace", "stats", "nowhere.csv"]);
    assert!(missing.contains("nowhere.csv") && missing.contains("No such file"), "{missing}");
    for command in [
        vec!["inspect", "policy.kvt"],
        vec!["simulate", "--workload", "chat:rate=1,n=9", "--policy", "table:policy.kvt"],
    ] {
        let corrupt = refused(path, &command);
        assert!(corrupt.contains("policy.kvt"), "{corrupt}");
    }
    for (arguments, part) in [
        (vec!["simulate"], "no traffic"),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--env", "gpt@h100"], "unknown model \"gpt\""),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--env", "llama-3-70b@h100"], "takes more"),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--load", "0"], "--load \"0\""),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--load", "-1"], "--load \"-1\""),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--load", "2,2"], "--load 2 is given twice"),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--seeds", "5..1"], "--seeds"),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--slo", "ttft:0"], "ttft:\"0\""),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--set", "blocks=9"], "unknown setting \"blocks\""),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--policy", "checkpoint:nowhere"], "nowhere"),
        (
            vec!["evaluate", "--workload", "chat:rate=1,n=9", "--policy", "default", "--reference", "fixed:0"],
            "--reference",
        ),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--set", "max_num_seq=9"], "; was max_num_seqs meant?"),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--engine", "v2"], "engine=\"v2\": expected v0 or v1"),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--prefix-cache", "so"], "\"so\": expected on, off or auto"),
        (
            vec!["simulate", "--workload", "chat:rate=1,n=9", "--scale", "up"],
            "`up`: is no way to scale a load: expected thin",
        ),
        (vec!["simulate", "--workload", "chat:rate=1,n=9", "--jitter", "x"], "--jitter: `x`: is not a duration"),
        (
            vec!["simulate", "--workload", "chat:rate=1,n=9", "--memory", "gpu"],
            "memory \"gpu\": expected modelled, host",
        ),
        (
            vec!["simulate", "--workload", "chat:rate=1,n=9", "--clients", "x"],
            "--clients \"x\": expected a whole number",
        ),
        (vec!["simulate", "--workload", "talk:n=9"], "--workload: `talk:n=9`: unknown profile `talk`"),
        (vec!["replay", "--golden", "nowhere"], "nowhere"),
        (
            vec!["calibrate", "--perf-db", "nowhere.whl", "--system", "l4", "--model", "phi-4"],
            if cfg!(feature = "perf-db") { "nowhere.whl: cannot open" } else { "--features perf-db" },
        ),
        (vec!["train", "--experiment", "nowhere.toml", "--out", "x"], "nowhere.toml"),
        (vec!["export", "--checkpoint", "nowhere", "--out", "x.kvt"], "nowhere"),
    ] {
        let error = refused(path, &arguments);
        assert!(error.contains(part) || part == "takes more" && error.contains("take more"), "{arguments:?}: {error}");
    }
}

#[test]
fn what_can_be_set_is_listed() {
    let folder = tempdir().unwrap();
    let list = done(folder.path(), &["simulate", "--set", "help"]).stdout;
    for key in ["num_gpu_blocks", "eviction", "patience", "bandwidth_efficiency"] {
        assert!(list.contains(&format!("\n  {key} ")), "{list}");
    }
}

#[test]
fn one_draw_is_not_given_out_as_certain() {
    let folder = tempdir().unwrap();
    let mut arguments = vec!["evaluate", "--policy", "default", "--policy", "fixed:0.05", "--json"];
    arguments.extend(BUSY);
    let gain = |arguments: &[&str]| {
        lines(&done(folder.path(), arguments).stdout, "comparison").remove(1)["slo_attainment_gain"].take()
    };
    let one = gain(&arguments);
    assert!(one["mean"].is_number() && one["low"].is_null() && one["high"].is_null(), "{one}");
    // Cut into three it is still one trace, and too short a one.
    let cut = gain(&[&arguments[..], &["--windows", "3"]].concat());
    assert!(cut["traces"] == 1 && cut["low"].is_null(), "{cut}");
    arguments.extend(["--seeds", "1..3"]);
    let three = gain(&arguments);
    assert!(three["traces"] == 3 && three["low"].as_f64() < three["high"].as_f64(), "{three}");
}

#[test]
fn traffic_that_does_not_depend_on_the_seed_is_run_once() {
    let folder = tempdir().unwrap();
    done(folder.path(), &["trace", "generate", "chat:rate=2,duration=60", "chat.jsonl"]);
    let run = done(folder.path(), &["simulate", "--trace", "chat.jsonl", "--seeds", "1..3", "--json"]);
    assert_eq!(lines(&run.stdout, "run").len(), 1);
    assert!(run.stderr.contains("the traffic is the same for every seed"), "{}", run.stderr);
    let half =
        done(folder.path(), &["simulate", "--trace", "chat.jsonl", "--load", "0.5", "--seeds", "1..3", "--json"]);
    assert_eq!(lines(&half.stdout, "run").len(), 3);
}

#[test]
fn a_generated_trace_is_served_like_its_generator() {
    let folder = tempdir().unwrap();
    let spec = "chat:rate=2,duration=120,seed=4";
    done(folder.path(), &["trace", "generate", spec, "chat.jsonl.zst"]);
    done(folder.path(), &["trace", "convert", "chat.jsonl.zst", "again.jsonl"]);
    let stats = done(folder.path(), &["trace", "stats", "again.jsonl", "--json"]);
    let stats = &lines(&stats.stdout, "trace")[0];
    let served = |traffic: [&str; 2]| {
        let run = done(folder.path(), &["simulate", traffic[0], traffic[1], "--seeds", "4", "--json"]);
        lines(&run.stdout, "run").remove(0)
    };
    let (file, generator) = (served(["--trace", "again.jsonl"]), served(["--workload", spec]));
    // A trace starts with its first arrival, a generator a little before; nothing else differs.
    for key in ["requests", "scheduler_steps", "slo_attainment", "ttft_ms", "e2e_ms", "preemptions"] {
        assert_eq!(file[key], generator[key], "{key}");
    }
    assert_eq!(stats["requests"], file["requests"]);
    let text = done(folder.path(), &["trace", "stats", "again.jsonl"]).stdout;
    assert!(text.contains("requests") && text.contains("prompt"), "{text}");
}

#[test]
fn recorded_decision_logs_are_reproduced() {
    let Some(golden) = shared("golden/vllm-v0") else { return };
    let run = done(&golden, &["replay", "--golden", ".", "--json"]);
    assert_eq!(lines(&run.stdout, "replay").len(), 57);
    assert_eq!(lines(&run.stdout, "summary")[0]["agree"], 57);
}

#[test]
fn a_recorded_trace_is_served() {
    let Some(trace) = shared("traces/azure2023_conv_first40min.csv.zst") else { return };
    let trace = trace.to_str().unwrap();
    let folder = tempdir().unwrap();
    let arguments = ["simulate", "--trace", trace, "--load", "0.25", "--window", "0s..300s", "--json"];
    let first = done(folder.path(), &arguments);
    assert_eq!(first.stdout, done(folder.path(), &arguments).stdout);
    let row = &lines(&first.stdout, "run")[0];
    assert_eq!(row["trace"], "azure2023_conv_first40min.csv.zst");
    assert!(row["slo_attainment"].as_f64().unwrap() > 0.9, "{row}");
}

/// Statistics of one client who sends two short requests a second for twenty minutes.
fn write_client(folder: &Path, rates: &str) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("chunk-0-trace.csv"), rates).unwrap();
    let lengths = "{\"0\": {\"input_tokens\": \"{100: 1.0}\", \"output_tokens\": \"{20: 0.5, 40: 0.5}\"}}";
    fs::write(folder.join("chunk-0-dataset.json"), lengths).unwrap();
}

#[test]
fn statistics_of_clients_are_served_and_described() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    write_client(&path.join("day"), "0,2.0,1.5,Gamma,1,1\n600,2.0,1.5,Gamma,1,1\n");
    let serve = ["simulate", "--trace", "day", "--window", "300..360", "--load", "0.5", "--seeds", "1..2", "--json"];
    let run = done(path, &serve);
    assert_eq!(run.stdout, done(path, &serve).stdout);
    let rows = lines(&run.stdout, "run");
    assert!(rows.len() == 2 && rows[0]["trace"] == "day" && rows[0]["requests"] != rows[1]["requests"], "{rows:?}");
    let stats = &lines(&done(path, &["trace", "stats", "day", "--json"]).stdout, "clients")[0];
    assert_eq!((&stats["clients"], &stats["output_tokens"]["mean"]), (&1.into(), &30.0.into()));
    let shown = done(path, &["trace", "stats", "day"]).stdout;
    assert!(shown.contains("ServeGen statistics") && shown.contains("2400 expected at load 1"), "{shown}");

    let convert = refused(path, &["trace", "convert", "day", "day.jsonl"]);
    assert!(convert.contains("holds statistics of clients, not requests"), "{convert}");
    write_client(&path.join("bad"), "0,2.0,1.5,Gamma,1,1\n600,many,1.5,Gamma,1,1\n");
    for command in [["simulate", "--trace", "bad"], ["trace", "stats", "bad"]] {
        let bad = refused(path, &command);
        assert!(bad.ends_with("chunk-0-trace.csv:2: rate `many` is not a number"), "{bad}");
    }
}

#[test]
fn traffic_can_be_shorter_and_burstier_and_says_so() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    done(path, &["trace", "generate", "chat:rate=2,duration=60,seed=1", "chat.jsonl"]);
    let name = |arguments: &[&str]| {
        let run = done(path, &[&["simulate", "--json", "--lengths", "0.5:2", "--cv", "4"], arguments].concat());
        lines(&run.stdout, "run")[0]["trace"].as_str().unwrap().to_owned()
    };
    assert_eq!(name(&["--trace", "chat.jsonl"]), "chat.jsonl, cv 4, lengths 0.5:2");
    let generated = name(&["--workload", "chat:rate=2,duration=60,seed=1"]);
    assert_eq!(generated, "chat:rate=2,duration=60s,cv=4,lengths=0.5:2,seed=1");
    let heavy = name(&["--clients", "8", "--workload", "lognormal:n=30,in=100,in_p95=250,out=300,out_p95=900"]);
    assert!(heavy.starts_with("lognormal:rate=inf,n=30,in=100,in_p95=250,out=300,out_p95=900"), "{heavy}");
    for (option, value, part) in [("--lengths", "0", "length factor 0"), ("--cv", "21", "cv")] {
        for traffic in [["--trace", "chat.jsonl"], ["--workload", "chat:rate=2,n=9"]] {
            let error = refused(path, &["simulate", option, value, traffic[0], traffic[1]]);
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn help_names_every_command() {
    let folder = tempdir().unwrap();
    let help = done(folder.path(), &["--help"]).stdout;
    for command in ["tune", "trace", "simulate", "train", "evaluate", "export", "inspect", "replay", "evict"] {
        assert!(help.contains(command), "{help}");
        assert!(done(folder.path(), &[command, "--help"]).stdout.contains("Usage: kvtide"));
    }
    assert_eq!(kvtide(folder.path(), &["frobnicate"]).code, 2);
}
