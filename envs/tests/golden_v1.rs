//! Every decision log of vLLM's V1 scheduler is reproduced, field by field, synchronous and asynchronous.

use std::io::{self, Write};
use std::path::Path;

use kvtide_envs::evict::Eviction;
use kvtide_envs::golden;
use rayon::prelude::*;

#[track_caller]
fn every_log_agrees(folder: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/golden").join(folder);
    if !folder.is_dir() {
        let _ = writeln!(io::stderr(), "skipped: {} is not here", folder.display());
        return;
    }
    let logs = golden::find_logs(&folder).unwrap();
    assert_eq!(logs.len(), 48);
    // Classes of which nobody chooses any are vLLM's queue.
    for eviction in [Eviction::Lru, Eviction::Classes] {
        let reports: Vec<_> = logs.par_iter().map(|log| golden::replay_log_under(log, eviction).unwrap()).collect();
        let diverged: Vec<_> = reports.iter().filter(|report| report.divergence.is_some()).collect();
        assert!(diverged.is_empty(), "{eviction:?}: {} of {} diverge: {diverged:#?}", diverged.len(), reports.len());
    }
}

#[test]
fn every_synchronous_log_agrees() {
    every_log_agrees("vllm-v1");
}

#[test]
fn every_asynchronous_log_agrees() {
    every_log_agrees("vllm-v1-async");
}
