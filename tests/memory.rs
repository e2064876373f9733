//! Blocks as bytes, from the command line.

use std::fs;

use crate::common::{done, kvtide, lines, refused};
use tempfile::tempdir;

/// So much pressure on a V0 engine that it swaps.
const SWAPPING: [&str; 12] = [
    "--engine",
    "v0",
    "--workload",
    "chat:rate=6,duration=20,seed=3",
    "--set",
    "num_gpu_blocks=400",
    "--set",
    "num_cpu_blocks=400",
    "--policy",
    "fixed:0,mode=swap",
    "--seeds",
    "1..3",
];

#[test]
fn a_run_on_host_memory_is_the_run_without_and_every_block_is_looked_at() {
    let folder = tempdir().unwrap();
    let run = |more: &[&str]| {
        let arguments: Vec<&str> = ["simulate", "--json"].iter().chain(&SWAPPING).chain(more).copied().collect();
        lines(&done(folder.path(), &arguments).stdout, "run")
    };
    let (modelled, hosted) = (run(&[]), run(&["--memory", "host"]));
    assert_eq!(modelled.len(), 3);
    for (modelled, hosted) in modelled.iter().zip(&hosted) {
        assert_eq!(modelled["hash"], hosted["hash"]);
        assert!(modelled["memory"].is_null());
        let memory = &hosted["memory"];
        assert_eq!(memory["backend"], "host memory");
        assert_eq!(memory["blocks_out"], hosted["swap_out_blocks"]);
        assert_eq!(memory["blocks_in"], hosted["swap_in_blocks"]);
        assert!(memory["round_trips_checked"].as_u64() > Some(50), "{memory}");
    }
    // Another token, other bytes; the same again, the same bytes, at any number of threads.
    let checksums =
        |rows: &[serde_json::Value]| rows.iter().map(|row| row["memory"]["checksum"].clone()).collect::<Vec<_>>();
    assert_ne!(checksums(&run(&["--memory", "host:128"])), checksums(&hosted));
    let numbers = |rows: Vec<serde_json::Value>| -> Vec<serde_json::Value> {
        let without_options = |mut row: serde_json::Value| {
            row.as_object_mut().and_then(|row| row.remove("options"));
            row
        };
        rows.into_iter().map(without_options).collect()
    };
    assert_eq!(numbers(run(&["--memory", "host:64"])), numbers(hosted));

    let mut arguments = vec!["simulate", "--memory", "host"];
    arguments.extend(SWAPPING);
    let text = done(folder.path(), &arguments).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("back from the host, all hold what was written; checksum "), "{text}");
}

#[test]
fn policies_are_judged_on_host_memory_too() {
    let folder = tempdir().unwrap();
    let arguments = [
        "evaluate",
        "--workload",
        "chat:rate=4,duration=20",
        "--memory",
        "host",
        "--policy",
        "default",
        "--policy",
        "fixed:0.05",
        "--json",
    ];
    let rows = lines(&done(folder.path(), &arguments).stdout, "run");
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row["memory"]["blocks_checked"].as_u64() > Some(100)), "{rows:?}");
}

#[test]
fn memory_that_cannot_be_is_said() {
    let folder = tempdir().unwrap();
    let refuse = |memory: &str| {
        let arguments = ["simulate", "--workload", "chat:rate=1,duration=5", "--memory", memory];
        refused(folder.path(), &arguments)
    };
    assert!(refuse("ram").contains("--memory: memory \"ram\": expected modelled, host, host:BYTES"));
    assert!(refuse("host:7").contains("host:7"));
    // Without a driver; where there is one, the model does not fit or runs, and this says nothing.
    #[cfg(feature = "cuda")]
    let why = (kvtide_cuda::devices() == 0).then_some("no CUDA driver");
    #[cfg(not(feature = "cuda"))]
    let why = Some("this kvtide was built without the feature cuda");
    if let Some(why) = why {
        assert!(refuse("cuda").contains(&format!("--memory: {why}")), "{}", refuse("cuda"));
        let calibrate = refused(folder.path(), &["calibrate", "--device", "--env", "llama-3-8b@h200"]);
        assert!(calibrate.contains(why), "{calibrate}");
    }
}

#[test]
fn timings_are_read_or_refused() {
    let folder = tempdir().unwrap();
    let calibrate = |file: &str| refused(folder.path(), &["calibrate", "--timings", file, "--env", "llama-3-8b@h200"]);
    assert!(calibrate("nowhere.json").contains("nowhere.json: cannot open"));
    for (name, text) in
        [("empty.json", ""), ("half.json", "{\"about\":"), ("other.json", "{\"a\":1}"), ("list.json", "[]")]
    {
        fs::write(folder.path().join(name), text).unwrap();
        let error = calibrate(name);
        assert!(error.contains(&format!("{name}: no timings of a device")), "{error}");
    }
    let without = refused(folder.path(), &["calibrate", "--timings", "list.json"]);
    assert!(without.contains("--env"), "{without}");
    let neither = refused(folder.path(), &["calibrate"]);
    assert!(
        neither.contains("--measured") && neither.contains("--device") && neither.contains("--timings"),
        "{neither}"
    );
    let same = ["calibrate", "--timings", "list.json", "--profile", "list.json", "--env", "llama-3-8b@h200"];
    assert!(refused(folder.path(), &same).contains("which is read (--timings)"));
    for ignored in [["--points", "50"], ["--plot", "p.svg"], ["--load", "none"]] {
        let mut arguments = vec!["calibrate", "--timings", "list.json", "--env", "llama-3-8b@h200"];
        arguments.extend(ignored);
        assert_eq!(kvtide(folder.path(), &arguments).code, 2, "{ignored:?}");
    }
}
