//! The decision logs that are part of the repository are reproduced, field by field, on any clone.

use std::path::Path;

use kvtide_envs::evict::Eviction;
use kvtide_envs::golden::{self, RunReport};

fn replayed(folder: &str, eviction: Eviction) -> Vec<RunReport> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(folder);
    golden::find_logs(&folder).unwrap().iter().map(|log| golden::replay_log_under(log, eviction).unwrap()).collect()
}

#[track_caller]
fn agrees(folder: &str, runs: &[&str], version: &str) {
    let reports = replayed(folder, Eviction::Lru);
    let names: Vec<_> = reports.iter().map(|report| report.run.trim_end_matches(".json.gz")).collect();
    assert_eq!(names, runs, "the logs of {folder}");
    for report in &reports {
        assert!(report.version.starts_with(version), "{}: {}", report.run, report.version);
        assert_eq!(report.divergence, None, "{folder}/{}", report.run);
    }
}

#[test]
fn v0_swaps_recomputes_and_stalls_as_vllm_does() {
    agrees("vllm-v0", &["chunked_1705", "lockstep_1601", "mixed_1300"], "vllm 0.6.6");
}

#[test]
fn v1_caches_preempts_and_livelocks_as_vllm_does() {
    agrees("vllm-v1", &["edge_2201", "mixed_1301", "same_1701"], "vllm 0.33");
}

#[test]
fn v1_a_step_ahead_decides_as_vllm_does() {
    agrees("vllm-v1-async", &["edge_2203", "lockstep_1901"], "vllm 0.33");
}

/// Classes of which nobody chooses any are vLLM's queue, physical blocks included.
#[test]
fn v1_with_classes_decides_as_vllm_does() {
    for folder in ["vllm-v1", "vllm-v1-async"] {
        for report in replayed(folder, Eviction::Classes) {
            assert_eq!(report.divergence, None, "{folder}/{}", report.run);
        }
    }
}
