//! The tier replay beside results and decision logs of the simulator it follows (`../shared/golden/kvmi`): every field equal, every
//! victim the same, in order. Skipped, saying so, where the logs are not.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kvtide_envs::files::Unpacked;
use kvtide_envs::intent::{
    DecisionKind, EventReader, ImportSpec, Latencies, LogLine, Mode, PolicyName, TierCapacity, TierDecision,
    TierReplay, TierResult, TierSetup, read_requests,
};
use serde_json::Value;

use crate::intent::named_events;

fn logs() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/golden/kvmi");
    let is_there = folder.join("result_demo_balanced.json").exists();
    if !is_there {
        let _ = writeln!(io::stderr(), "skipped: no results at {}", folder.display());
    }
    is_there.then_some(folder)
}

fn replayed(path: &Path, policy: PolicyName, capacity: TierCapacity, batch: usize) -> (TierResult, Vec<TierDecision>) {
    let mut reader = EventReader::open(path).unwrap();
    let latencies = Latencies::default();
    let mut replay = TierReplay::new(TierSetup { policy, mode: Mode::Faithful, capacity, latencies, explains: true });
    while !reader.next_batch(batch).unwrap().events.is_empty() {
        replay.run(reader.batch());
    }
    let result = replay.finish(reader.distinct());
    let decisions = replay.explained().into_iter().filter_map(|line| match line {
        LogLine::TierDecision(decision) => Some(*decision),
        LogLine::TierDeadlineMiss(_) => None,
    });
    (result, decisions.collect())
}

/// Rates to 1e-9, all else to the last digit.
fn assert_equal(ours: &TierResult, theirs: &Value, what: &str) {
    let ours = serde_json::to_value(ours).unwrap();
    let mut compared = 0;
    for (field, theirs) in theirs.as_object().unwrap() {
        let Some(ours) = ours.get(field) else { continue };
        let is_equal = match (ours.as_f64(), theirs.as_f64()) {
            (Some(a), Some(b)) if ours.is_f64() => (a - b).abs() <= 1e-9,
            _ => ours == theirs,
        };
        assert!(is_equal, "{what}: {field} is {ours}, not {theirs}");
        compared += 1;
    }
    assert_eq!(compared, 23, "{what}: every field of a result is compared");
}

fn capacity(run: &Value) -> TierCapacity {
    let bytes = |field: &str| run[field].as_u64().unwrap();
    TierCapacity { hbm_bytes: bytes("hbm_capacity_bytes"), dram_bytes: bytes("dram_capacity_bytes") }
}

fn policy(run: &Value) -> PolicyName {
    run["policy_arg"].as_str().unwrap().parse().unwrap()
}

#[test]
fn every_result_and_every_victim_is_the_same() {
    let Some(folder) = logs() else { return };
    let (mut runs, mut victims) = (0, 0);
    for name in ["demo_balanced", "demo_deadline_pressure", "demo_rag_mixed_priority"] {
        let text = std::fs::read_to_string(folder.join(format!("result_{name}.json"))).unwrap();
        let results: Value = serde_json::from_str(&text).unwrap();
        for run in results["runs"].as_array().unwrap() {
            let (policy, capacity) = (policy(run), capacity(run));
            let mb = |bytes: u64| bytes >> 20;
            let what = format!("{name} hbm{} dram{} {policy}", mb(capacity.hbm_bytes), mb(capacity.dram_bytes));
            // Batches of any size give the same.
            let batch = if runs % 2 == 0 { 97 } else { 100_000 };
            let (ours, decisions) = replayed(&folder.join(format!("{name}.jsonl.gz")), policy, capacity, batch);
            assert_equal(&ours, run, &what);
            let log = format!("decisions_{}.jsonl.gz", what.replace(' ', "_"));
            victims += same_victims(&folder.join(log), &decisions, &what);
            runs += 1;
        }
    }
    assert_eq!(runs, 45, "three streams, three pairs of tiers, five policies");
    assert!(victims > 5_000, "{victims}");
}

fn same_victims(log: &Path, decisions: &[TierDecision], what: &str) -> usize {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut Unpacked::open(log).unwrap().reader, &mut text).unwrap();
    let theirs: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (index, (ours, theirs)) in decisions.iter().zip(&theirs).enumerate() {
        let action = match ours.action {
            DecisionKind::Spill => "spill",
            DecisionKind::Evict => "evict",
            DecisionKind::Prefetch => "prefetch",
        };
        let ours = serde_json::json!({
            "step": ours.step, "action": action, "victim_object_id": ours.object_id, "victim_phase": ours.phase,
            "victim_priority": ours.priority, "victim_request_priority": ours.request_priority,
            "victim_deadline_us": ours.deadline_us,
        });
        for (field, ours) in ours.as_object().unwrap() {
            assert_eq!(ours, &theirs[field], "{what}: decision {index}, {field}");
        }
    }
    assert_eq!(decisions.len(), theirs.len(), "{what}: decisions");
    theirs.len()
}

#[test]
fn imported_streams_give_the_same_results() {
    let Some(folder) = logs() else { return };
    let text = std::fs::read_to_string(folder.join("import/results.json")).unwrap();
    let results: Value = serde_json::from_str(&text).unwrap();
    let runs = results.as_array().unwrap();
    for run in runs {
        let (policy, capacity) = (policy(run), capacity(run));
        let file = run["file"].as_str().unwrap();
        let (ours, _) = replayed(&folder.join(file), policy, capacity, 1_000);
        assert_equal(&ours, run, &format!("{file} {} {policy}", run["hbm_mb"]));
    }
    assert_eq!(runs.len(), 30);
}

/// A log of requests becomes the stream that the importer that is followed makes of it, event for event.
#[test]
fn a_log_of_requests_becomes_the_same_events() {
    let Some(folder) = logs() else { return };
    for (block_mib, max_blocks) in [(1, 256), (4, 64)] {
        let requests = read_requests(&folder.join("import/requests.jsonl")).unwrap();
        let spec = ImportSpec { bytes_per_token: 131_072, block_bytes: block_mib << 20, max_blocks };
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sink = io::BufWriter::new(file.reopen().unwrap());
        spec.events(requests).for_each(|event| event.write(&mut sink).unwrap());
        sink.flush().unwrap();
        let theirs = named_events(&folder.join(format!("import/events_blk{block_mib}mb_max{max_blocks}.jsonl.gz")));
        let ours = named_events(file.path());
        for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert_eq!(ours, theirs, "event {index}");
        }
        assert_eq!(ours.len(), theirs.len());
    }
}
