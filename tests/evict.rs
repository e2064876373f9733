//! `kvtide evict replay`: what it finds, what it refuses, and its page.

use std::fs;

use tempfile::tempdir;

use crate::common::{done, lines, refused};

/// Four requests of three blocks of 512 tokens: two histories, of which the first comes back behind the second.
const TRACE: &str = concat!(
    "{\"timestamp\":0,\"input_length\":1536,\"output_length\":1,\"hash_ids\":[1,2,3]}\n",
    "{\"timestamp\":1000,\"input_length\":1536,\"output_length\":1,\"hash_ids\":[4,5,6]}\n",
    "{\"timestamp\":2000,\"input_length\":1536,\"output_length\":1,\"hash_ids\":[1,2,7]}\n",
    "{\"timestamp\":3000,\"input_length\":1700,\"output_length\":1,\"hash_ids\":[1,2,7,8]}\n",
);

#[test]
fn every_policy_is_replayed_and_the_oracle_bounds_them() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("trace.jsonl"), TRACE).unwrap();
    let replay = ["evict", "replay", "--trace", "trace.jsonl", "--capacity", "4,100%", "--json"];
    let rows = lines(&done(path, &[&replay[..], &["--uncached", "1000"]].concat()).stdout, "eviction");
    let of = |policy: &str, capacity: u64| {
        let is = |row: &&serde_json::Value| row["policy"] == policy && row["capacity"] == capacity;
        rows.iter().find(is).unwrap_or_else(|| panic!("{policy} at {capacity}: {rows:?}")).clone()
    };
    // Seven blocks; the last request's fourth is not full.
    for row in &rows {
        assert_eq!((&row["references"], &row["distinct"], &row["block_tokens"]), (&12.into(), &7.into(), &512.into()));
        assert!(row["hits"].as_u64() <= of("belady", row["capacity"].as_u64().unwrap())["hits"].as_u64(), "{row}");
    }
    // With room for everything the second history costs nothing: 2 hits, then 3.
    assert_eq!(of("lru", 7)["hits"], 5);
    assert_eq!(of("lru", 7)["late_requests"], 2);
    // LRU keeps 4 5 6 and 1; Belady keeps 1 and 2 beside what must be there.
    assert_eq!((of("lru", 4)["hits"].clone(), of("belady", 4)["hits"].clone()), (4.into(), 4.into()));
    let partial = lines(&done(path, &[&replay[..], &["--partial", "--policy", "arc"]].concat()).stdout, "eviction");
    assert_eq!((partial.len(), &partial[0]["references"]), (4, &13.into()), "arc and belady at two capacities");
    let objects =
        lines(&done(path, &[&replay[..], &["--as", "objects", "--policy", "lru"]].concat()).stdout, "eviction");
    assert_eq!(objects[0]["hits_of"], "objects");
}

#[test]
fn a_page_shows_every_policy_and_says_the_same_again() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("<b>.jsonl"), TRACE).unwrap();
    let replay = ["evict", "replay", "--trace", "<b>.jsonl", "--capacity", "4,7", "--report", "page.html"];
    let text = done(path, &replay).stdout;
    assert!(text.contains("belady") && text.contains("7 blocks of 512 tokens, 100.0 % of 7 different ones"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let page = fs::read_to_string(path.join("page.html")).unwrap();
    for part in
        ["&lt;b&gt;.jsonl", "w-tinylfu", "ideal 41.7 %", "Requests with more than 4096 tokens uncached", "<path"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("<b>.jsonl"), "{page}");
    done(path, &replay);
    assert_eq!(fs::read_to_string(path.join("page.html")).unwrap(), page);
}

#[test]
fn what_cannot_be_replayed_is_refused_by_name() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("trace.jsonl"), TRACE).unwrap();
    fs::write(path.join("bad.jsonl"), TRACE.replace("[4,5,6]", "[4,5,")).unwrap();
    let replay = ["evict", "replay", "--trace", "trace.jsonl"];
    for (arguments, part) in [
        (&["--capacity", "0"][..], "capacity \"0\": expected blocks such as 820"),
        (&["--capacity", "-3"], "capacity \"-3\""),
        (&["--capacity", "5%,101%"], "capacity \"101%\""),
        (&["--capacity", "99999999999"], "capacity \"99999999999\""),
        (&["--capacity", ""], "capacity \"\""),
        (&["--capacity", "7,100%"], "--capacity: 7 blocks are given twice"),
        (&["--policy", "mru"], "unknown policy \"mru\": expected lru, radix, fifo"),
        (&["--policy", "lru,lru"], "--policy: lru is given twice"),
        (&["--block-size", "0"], "--block-size"),
        (&["--block-size", "4096"], "no prompt has a full block of 4096 tokens"),
        (&["--window", "9s..3s"], "--window"),
        (&["--window", "100s..200s"], "100"),
        (&["--uncached", "-1"], "--uncached"),
        (&["--report", "nowhere/page.html"], "nowhere"),
        (&["--report", "trace.jsonl"], "trace.jsonl"),
    ] {
        let error = refused(path, &[&replay[..], arguments].concat());
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
    assert!(refused(path, &["evict", "replay"]).contains("no traffic"));
    assert!(refused(path, &["evict", "replay", "--trace", "nowhere.jsonl"]).contains("nowhere.jsonl"));
    assert!(refused(path, &["evict", "replay", "--trace", "bad.jsonl"]).contains("bad.jsonl:2"));
}
