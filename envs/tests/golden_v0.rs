//! Every decision log of vLLM's V0 scheduler is reproduced, field by field.

use std::io::{self, Write};
use std::path::Path;

use kvtide_envs::golden;

#[test]
fn every_log_agrees() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/golden/vllm-v0");
    if !folder.is_dir() {
        let _ = writeln!(io::stderr(), "skipped: {} is not here", folder.display());
        return;
    }
    let logs = golden::find_logs(&folder).unwrap();
    assert_eq!(logs.len(), 57);
    let reports: Vec<_> = logs.iter().map(|log| golden::replay_log(log).unwrap()).collect();
    let diverged: Vec<_> = reports.iter().filter(|report| report.divergence.is_some()).collect();
    assert!(diverged.is_empty(), "{} of {} diverge: {diverged:#?}", diverged.len(), reports.len());
}
