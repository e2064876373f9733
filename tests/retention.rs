//! The second tree of a table: what a run notes for it, why it decides, and what other engines are told.

use std::fs;
use std::path::Path;

use kvtide::distil::RetentionTree;
use kvtide::export::add_retention;
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::FeatureRange;
use kvtide_runtime::{RELEASE_FEATURES, ReleaseFeature, Retention, TreeNode};
use serde_json::Value;
use tempfile::tempdir;

use crate::common::{done, kvtide, lines, refused};

/// Writes a shipped table with a second tree: heads are kept, tails go first but for those of a very long session.
pub fn retaining(path: &Path) {
    let leaf = |class: Retention| {
        let mut choices = [0; NUM_HEADS];
        choices[0] = class as u8;
        TreeNode::Leaf { choices }
    };
    let split =
        |feature: ReleaseFeature, left, threshold| TreeNode::Split { feature: feature.index() as u8, left, threshold };
    let tree = RetentionTree {
        nodes: vec![
            split(ReleaseFeature::Part, 1, 0.5),
            leaf(Retention::Keep),
            split(ReleaseFeature::Turn, 3, 60.5),
            leaf(Retention::EvictFirst),
            leaf(Retention::Normal),
        ],
        ranges: RELEASE_FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max }),
        samples: 1,
    };
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints/chat-80g/policy.kvt");
    fs::write(path, add_retention(&fs::read(shipped).unwrap(), &tree).unwrap()).unwrap();
}

/// Sessions that come back, in a pool that holds some of them.
const NODE: [&str; 8] = [
    "simulate",
    "--workload",
    "agentic:rate=0.12,duration=200,seed=201",
    "--env",
    "llama-3-8b@h100",
    "--set",
    "num_gpu_blocks=6000",
    "--json",
];

#[test]
fn a_run_notes_what_was_given_back_and_is_the_run_it_would_be() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    retaining(&path.join("policy.kvt"));
    let classes = [&NODE[..], &["--set", "eviction=classes", "--seeds", "1..2"]].concat();
    let policies =
        ["--policy", "fixed:0.05", "--policy", "fixed:0.05,retention=keep/evict-first", "--policy", "table:policy.kvt"];
    let plain = lines(&done(path, &[&classes[..], &policies].concat()).stdout, "run");
    let noting = [&classes[..], &policies, &["--releases", "releases.jsonl"]].concat();
    let run = done(path, &noting);
    let noted = lines(&run.stdout, "run");
    let hashes = |rows: &[Value]| rows.iter().map(|row| row["hash"].to_string()).collect::<Vec<String>>();
    assert_eq!(hashes(&noted), hashes(&plain));
    assert!(run.stderr.contains("what was given back is in releases.jsonl"), "{}", run.stderr);
    let text = fs::read_to_string(path.join("releases.jsonl")).unwrap();
    let releases = lines(&text, "release");
    assert_eq!(releases.len(), text.lines().count());
    for (row, policy) in noted.iter().map(|row| (row, row["policy"].clone())) {
        let of_run = |release: &&Value| release["policy"] == policy && release["seed"] == row["seed"];
        let of_run: Vec<&Value> = releases.iter().filter(of_run).collect();
        // One of each part that has any blocks, of every request: finished once, preempted perhaps.
        let tails = of_run.iter().filter(|release| release["part"] == "tail").count() as u64;
        let counted: u64 = row["retention"]["tails"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
        assert_eq!(tails, counted, "{policy}");
        assert!(tails >= row["completed"].as_u64().unwrap() && of_run.len() as u64 > tails, "{policy}");
        for release in of_run {
            let expected = match (policy.as_str().unwrap(), release["part"].as_str().unwrap()) {
                ("fixed:0.05", _) => "normal",
                (_, "head") => "keep",
                _ => "evict-first",
            };
            // The guard may have set the tree aside.
            let is_table = policy == "table:policy.kvt";
            assert!(release["retention"] == expected || is_table && release["retention"] == "normal", "{release}");
            assert!(release["found"].as_u64() <= release["asked_again"].as_u64(), "{release}");
            assert_eq!(release["evicted_when_asked"].is_null(), release["asked_again"] == 0, "{release}");
            assert_eq!(release["num_gpu_blocks"], 6000);
        }
    }
    assert!(releases.iter().any(|release| release["asked_again"].as_u64() > Some(0)));
    // The same again, byte for byte.
    done(path, &noting);
    assert_eq!(fs::read_to_string(path.join("releases.jsonl")).unwrap(), text);
    // And a line of it is explained.
    let tail = text.lines().find(|line| line.contains("\"part\":\"tail\"")).unwrap();
    fs::write(path.join("one.jsonl"), tail).unwrap();
    let explained = done(path, &["explain", "policy.kvt", "--retention", "--from", "one.jsonl"]).stdout;
    assert!(explained.starts_with("part 1 > 0.5\nturn "), "{explained}");
    assert!(explained.contains(" <= 60.5\nso: retention evict-first (node 3)\n"), "{explained}");
}

#[test]
fn what_nobody_looks_at_is_not_noted() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("trace.jsonl"), "").unwrap();
    let with = |more: &[&str]| refused(path, &[&NODE[..], more].concat());
    assert!(with(&["--releases", "a.jsonl"]).contains("--releases: this pool has no classes"));
    let classes = ["--set", "eviction=classes", "--releases", "a.jsonl"];
    let many = with(&[&classes[..], &["--policy", "best-fixed"]].concat());
    assert!(many.contains("--releases: best-fixed is many runs"), "{many}");
    assert!(with(&["--set", "eviction=classes", "--releases", "nowhere/a.jsonl"]).contains("--releases: cannot write"));
    let own = ["simulate", "--trace", "trace.jsonl", "--releases", "trace.jsonl"];
    assert!(refused(path, &own).contains("which is read (--trace)"));
    assert!(!path.join("a.jsonl").exists());
}

#[test]
fn rules_are_written_in_the_terms_of_other_engines() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    retaining(&path.join("policy.kvt"));
    let export = ["export", "--table", "policy.kvt", "--retention", "json", "--out", "rules.json"];
    let run = done(path, &export);
    assert!(run.stderr.contains("written: rules.json, 3 rules, 3 of which can be told when a request is submitted"));
    let read = || -> Value { serde_json::from_str(&fs::read_to_string(path.join("rules.json")).unwrap()).unwrap() };
    let rules = read();
    assert_eq!((&rules["type"], &rules["data"]["has_run"]), (&"retention_rules".into(), &false.into()));
    assert_eq!(rules["data"]["rules"][0]["tensorrt_llm"]["token_range_retention_configs"][0]["priority"], 65);
    done(path, &[&export[..], &["--turnover", "12.5"]].concat());
    let head = read()["data"]["rules"][0]["tensorrt_llm"]["token_range_retention_configs"][0].clone();
    assert_eq!(head["duration_ms"], 25_000);
}

#[test]
fn what_has_no_second_tree_is_refused_by_name() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    retaining(&path.join("policy.kvt"));
    let plain = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints/chat-80g/policy.kvt");
    let plain = plain.to_str().unwrap();
    let none = format!("{plain}: it has no retention tree; `kvtide inspect` shows what it has");
    let export = |table: &str| refused(path, &["export", "--table", table, "--retention", "json", "--out", "r.json"]);
    assert!(export(plain).contains(&none));
    assert!(refused(path, &["explain", plain, "--retention", "turn=2"]).contains(&none));
    assert!(export("nowhere.kvt").contains("nowhere.kvt: "));
    // Made for other observations of a release: the section's first byte after the first tree.
    let mut bytes = fs::read(path.join("policy.kvt")).unwrap();
    let schema = kvtide_runtime::RELEASE_SCHEMA_HASH.to_le_bytes();
    let at = bytes.windows(8).rposition(|window| window == schema).unwrap();
    bytes[at] ^= 1;
    let end = bytes.len() - 4;
    let crc = kvtide_runtime::format::crc32(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
    fs::write(path.join("foreign.kvt"), bytes).unwrap();
    let foreign = export("foreign.kvt");
    assert!(foreign.contains("foreign.kvt: its retention tree: made for schema "), "{foreign}");
    assert!(!path.join("r.json").exists());
    // One or the other.
    for arguments in [
        &["export", "--out", "r.json"][..],
        &["export", "--table", "policy.kvt", "--out", "r.json"],
        &["export", "--checkpoint", "c", "--out", "r.json", "--retention", "json"],
        &["export", "--checkpoint", "c", "--table", "policy.kvt", "--retention", "json", "--out", "r.json"],
        &["export", "--table", "policy.kvt", "--retention", "json", "--out", "r.json", "--leaves", "4"],
        &["export", "--table", "policy.kvt", "--retention", "xml", "--out", "r.json"],
        &["export", "--table", "policy.kvt", "--retention", "json", "--out", "r.json", "--turnover", "0"],
    ] {
        assert_eq!(kvtide(path, arguments).code, 2, "{arguments:?}");
    }
    let onto = refused(path, &["export", "--table", "policy.kvt", "--retention", "json", "--out", "policy.kvt"]);
    assert!(onto.contains("which is read (--table)"), "{onto}");
    assert!(refused(path, &["explain", "policy.kvt", "--retention", "turns=2"]).contains("\"turns\": no such feature"));
}
