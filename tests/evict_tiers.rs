//! `kvtide evict compare`, `import` and `explain`: what they find, what they refuse, and the page.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::tempdir;

use crate::common::{PROGRAM, done, lines, refused};

#[test]
fn every_policy_is_compared_under_both_rules_in_every_size() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let compare = ["evict", "compare", "--profile", "deadline_pressure", "--hbm-mb", "2,4", "--dram-mb", "1,64"];
    let rows = lines(&done(path, &[&compare[..], &["--json"]].concat()).stdout, "tier");
    assert_eq!(rows.len(), 5 * 2 * 4);
    let of = |policy: &str, mode: &str, hbm: u64, dram: u64| {
        let is = |row: &&serde_json::Value| {
            row["policy"] == policy
                && row["mode"] == mode
                && row["hbm_capacity_bytes"] == hbm << 20
                && row["dram_capacity_bytes"] == dram << 20
        };
        rows.iter().find(is).unwrap().clone()
    };
    assert!(
        of("lru", "faithful", 2, 64)["miss_count"].as_u64() > of("deadline", "faithful", 2, 64)["miss_count"].as_u64()
    );
    assert_eq!(of("lru", "faithful", 2, 64)["policy_name"], "LRU");
    // What is evicted beyond DRAM is computed again.
    let total = |dram| of("lru", "corrected", 2, dram)["total_latency_us"].as_u64().unwrap();
    assert!(total(1) > total(64));
    let chosen = ["--policies", "intent,lru", "--mode", "corrected", "--json"];
    let some = lines(&done(path, &[&compare[..], &chosen].concat()).stdout, "tier");
    assert_eq!(some.iter().map(|row| row["policy"].as_str().unwrap()).collect::<Vec<_>>()[..2], ["intent", "lru"]);
    assert_eq!(some.len(), 8);
    // What an access takes can be given.
    let dear = done(path, &[&compare[..], &["--policies", "lru", "--miss-us", "90000", "--json"]].concat()).stdout;
    let dear = lines(&dear, "tier");
    assert!(dear[0]["total_latency_us"].as_u64() > of("lru", "faithful", 2, 1)["total_latency_us"].as_u64());
    // Written down and read back, a profile is the same stream.
    done(path, &["evict", "import", "--profile", "deadline_pressure", "events.jsonl.zst"]);
    let read = ["evict", "compare", "--events", "events.jsonl.zst", "--hbm-mb", "2", "--dram-mb", "1", "--json"];
    let read = lines(&done(path, &read).stdout, "tier");
    assert_eq!(read[0]["total_latency_us"], of("lru", "faithful", 2, 1)["total_latency_us"]);
    let text = done(path, &compare).stdout;
    assert!(text.contains("HBM 2 MiB, DRAM 64 MiB") && text.contains("corrected"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_page_shows_both_rules_and_says_the_same_again() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let compare = ["evict", "compare", "--profile", "rag_mixed_priority:turns=60", "--report", "page.html"];
    done(path, &compare);
    let page = fs::read_to_string(path.join("page.html")).unwrap();
    for part in
        ["Late decode steps, faithful", "HBM in use, MiB, corrected", "room in HBM", "predictive", "<path", "six rules"]
    {
        assert!(page.contains(part), "{part}");
    }
    done(path, &compare);
    assert_eq!(fs::read_to_string(path.join("page.html")).unwrap(), page);
    // A name of a file is text.
    let requests = "{\"request_id\":\"a\",\"arrival_ms\":3,\"prompt_tokens\":100,\"generated_tokens\":20}\n";
    fs::write(path.join("requests.jsonl"), requests).unwrap();
    done(path, &["evict", "import", "--requests", "requests.jsonl", "<b>.jsonl"]);
    done(path, &["evict", "compare", "--events", "<b>.jsonl", "--hbm-mb", "4", "--report", "page.html"]);
    let page = fs::read_to_string(path.join("page.html")).unwrap();
    assert!(page.contains("&lt;b&gt;.jsonl") && !page.contains("<b>.jsonl"));
}

#[test]
fn decisions_are_written_and_asked() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let compare = ["evict", "compare", "--profile", "deadline_pressure", "--hbm-mb", "2", "--json"];
    let quiet = lines(&done(path, &compare).stdout, "tier");
    let explained = lines(&done(path, &[&compare[..], &["--decisions", "why.jsonl.zst"]].concat()).stdout, "tier");
    let without_speed = |rows: &[serde_json::Value]| {
        rows.iter().map(|row| (row["eviction_count"].clone(), row["total_latency_us"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(without_speed(&quiet), without_speed(&explained));
    let ask = |more: &[&str]| done(path, &[&["evict", "explain", "why.jsonl.zst"], more].concat()).stdout;
    let lru = ["--policy", "lru", "--mode", "faithful", "--json"];
    let all = ask(&lru);
    let decisions = lines(&all, "tier_decision");
    assert_eq!(decisions.len() as u64, explained[0]["eviction_count"].as_u64().unwrap());
    // Which decisions cost a deadline?
    let costly = ask(&[&lru[..], &["--deadlines"]].concat());
    let missed = lines(&costly, "tier_deadline_miss");
    assert_eq!(missed.len() as u64, explained[0]["deadline_misses"].as_u64().unwrap());
    let numbers: Vec<_> = lines(&costly, "tier_decision").iter().map(|line| line["number"].clone()).collect();
    let waited = missed.iter().flat_map(|miss| miss["waited_for"].as_array().unwrap());
    let mut named: Vec<_> =
        waited.map(|waited| waited["decision"].clone()).filter(|number| !number.is_null()).collect();
    named.sort_by_key(serde_json::Value::as_u64);
    named.dedup();
    assert_eq!(numbers, named);
    // Why did that block go?
    let block = missed[0]["waited_for"][0]["object_id"].as_str().unwrap();
    let about = lines(&ask(&[&lru[..], &["--block", block]].concat()), "tier_decision");
    assert!(!about.is_empty() && about.iter().all(|line| line["object_id"] == block));
    let text = ask(&["--policy", "deadline", "--mode", "corrected", "--limit", "1"]);
    assert!(text.contains("because: ") && text.contains("stayed: ") && text.contains("score "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let nobody = done(path, &["evict", "explain", "why.jsonl.zst", "--block", "nobody"]);
    assert!(nobody.stderr.contains("nothing of what is asked for is about nobody"), "{}", nobody.stderr);
    let within = lines(&ask(&[&lru[..], &["--steps", "500..520"]].concat()), "tier_decision");
    assert!(within.iter().all(|line| (500..=520).contains(&line["step"].as_u64().unwrap())), "{within:?}");
}

#[test]
fn what_cannot_be_compared_is_refused_by_name() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    done(path, &["evict", "compare", "--profile", "balanced:turns=5", "--decisions", "why.jsonl"]);
    let requests = "{\"request_id\":\"a\",\"arrival_ms\":3,\"prompt_tokens\":100,\"generated_tokens\":20}\n";
    fs::write(path.join("requests.jsonl"), requests).unwrap();
    done(path, &["evict", "import", "--requests", "requests.jsonl", "events.jsonl"]);
    let events = fs::read_to_string(path.join("events.jsonl")).unwrap();
    fs::write(path.join("bad.jsonl"), events.replacen("\"PREFILL\"", "\"ASLEEP\"", 1)).unwrap();
    fs::write(path.join("empty.jsonl"), "").unwrap();
    let compare = |arguments: &[&str]| refused(path, &[&["evict", "compare"], arguments].concat());
    for (arguments, part) in [
        (&[][..], "no stream: give --events FILE or --profile PROFILE"),
        (&["--events", "events.jsonl"], "--hbm-mb: give the MiB of HBM"),
        (&["--events", "events.jsonl", "--hbm-mb", "0"], "--hbm-mb \"0\": expected MiB, above 0"),
        (&["--events", "events.jsonl", "--hbm-mb", "-2"], "--hbm-mb \"-2\""),
        (&["--events", "events.jsonl", "--hbm-mb", "2,2"], "--hbm-mb: 2 is given twice"),
        (&["--events", "events.jsonl", "--hbm-mb", "2", "--dram-mb", "nan"], "--dram-mb \"nan\""),
        (
            &["--events", "events.jsonl", "--hbm-mb", "2", "--policies", "mru"],
            "unknown policy \"mru\": expected lru, hotcold",
        ),
        (&["--events", "events.jsonl", "--hbm-mb", "2", "--policies", "lru,lru"], "--policies: lru is given twice"),
        (&["--events", "bad.jsonl", "--hbm-mb", "2"], "bad.jsonl:1: intent.phase `ASLEEP` is not PREFILL"),
        (&["--events", "empty.jsonl", "--hbm-mb", "2"], "empty.jsonl: no events"),
        (&["--events", "nowhere.jsonl", "--hbm-mb", "2"], "nowhere.jsonl: cannot open"),
        (&["--events", "events.jsonl", "--hbm-mb", "2", "--decisions", "events.jsonl"], "which is read (--events)"),
        (&["--events", "events.jsonl", "--hbm-mb", "2", "--report", "no/page.html"], "there is no folder"),
        (&["--profile", "balanced:blocks=0"], "blocks `0` is not a whole number from 1 to 65536"),
        (&["--profile", "calm"], "expected one of balanced"),
        (&["--profile", "balanced", "--miss-us", "-1"], "--miss-us"),
    ] {
        let error = compare(arguments);
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
    let explain = |arguments: &[&str]| refused(path, &[&["evict", "explain"], arguments].concat());
    assert!(explain(&["events.jsonl"]).contains("events.jsonl:1: not a decision"));
    assert!(explain(&["why.jsonl", "--steps", "9..3"]).contains("--steps \"9..3\""));
    assert!(explain(&["why.jsonl", "--policy", "mru"]).contains("unknown policy \"mru\""));
    assert!(explain(&["-"]).contains("give a file"));
    let import = |arguments: &[&str]| refused(path, &[&["evict", "import", "--requests"], arguments].concat());
    assert!(import(&["events.jsonl", "out.jsonl"]).contains("events.jsonl:1: no field `request_id`"));
    assert!(refused(path, &["evict", "import", "out.jsonl"]).contains("--requests"));
    assert!(import(&["requests.jsonl", "requests.jsonl"]).contains("which is read"));
    assert!(import(&["requests.jsonl", "out.jsonl", "--model", "nobody"]).contains("--model"));
    assert!(!path.join("out.jsonl").exists());
}

/// Whoever asks for an end gets it, and no half of a result.
#[test]
fn an_interrupted_comparison_leaves_nothing() {
    let folder = tempdir().unwrap();
    let compare =
        ["evict", "compare", "--events", "-", "--hbm-mb", "1", "--decisions", "why.jsonl", "--report", "page.html"];
    let mut child = Command::new(PROGRAM)
        .args(compare)
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let event = "{\"step\":1,\"event_type\":\"MISS\",\"intent\":{\"object_id\":\"a\",\"request_id\":\"r\",\"phase\":\"IDLE\",\
                 \"priority\":\"COLD\",\"current_tier\":\"HBM\",\"allowed_tiers\":[\"HBM\"],\"size_bytes\":1}}\n";
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(event.repeat(20_000).as_bytes()).unwrap();
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    // It looks at the flag between batches; the pipe goes on until it has ended.
    while stdin.write_all(event.repeat(1_000).as_bytes()).is_ok() {}
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(143));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

fn golden() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/golden/kvmi");
    if folder.is_dir() {
        return Some(folder);
    }
    let _ = writeln!(std::io::stderr(), "skipped: {} is not here", folder.display());
    None
}

/// The whole way of a log of requests, beside the results of the simulator that is followed.
#[test]
fn an_imported_log_gives_the_results_that_are_known() {
    let Some(golden) = golden() else { return };
    let folder = tempdir().unwrap();
    let path = folder.path();
    let known: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(golden.join("import/results.json")).unwrap()).unwrap();
    let requests = golden.join("import/requests.jsonl").display().to_string();
    for (block, most) in [("1", "256"), ("4", "64")] {
        let import =
            ["evict", "import", "--requests", &requests, "events.jsonl.gz", "--block-mb", block, "--max-blocks", most];
        done(path, &import);
        let compare =
            ["evict", "compare", "--events", "events.jsonl.gz", "--hbm-mb", "512,1024,2048", "--dram-mb", "8192"];
        let rows = lines(&done(path, &[&compare[..], &["--mode", "faithful", "--json"]].concat()).stdout, "tier");
        let file = format!("import/events_blk{block}mb_max{most}.jsonl.gz");
        let known: Vec<_> = known.as_array().unwrap().iter().filter(|known| known["file"] == file.as_str()).collect();
        assert_eq!((rows.len(), known.len()), (15, 15));
        for (row, known) in rows.iter().zip(known) {
            for (field, known) in known.as_object().unwrap() {
                let Some(ours) = row.get(field) else { continue };
                let is_equal = match (ours.as_f64(), known.as_f64()) {
                    (Some(a), Some(b)) => (a - b).abs() <= 1e-9,
                    _ => ours == known,
                };
                assert!(is_equal, "{file} {}: {field} is {ours}, not {known}", row["policy"]);
            }
        }
    }
}
