//! What the tool does about libtorch, which it does not link: it hands over to a program that does.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::PROGRAM;
use tempfile::tempdir;

const EXPERIMENT: &str = r#"
name = "small"
profile = "core"
num_envs = 4
[world]
workload = "chat:rate=3,duration=120,seed=2"
[episodes]
fit = 0.7
length_s = 30.0
load = [0.8, 1.2]
[ppo]
total_decisions = 1536
num_steps = 32
num_minibatches = 2
"#;

/// The tool, copied into `folder` and asked there to train by PPO.
fn train(folder: &Path) -> Output {
    fs::write(folder.join("small.toml"), EXPERIMENT).unwrap();
    fs::copy(PROGRAM, folder.join("kvtide")).unwrap();
    let arguments = ["train", "--experiment", "small.toml", "--out", "run"];
    Command::new(folder.join("kvtide")).args(arguments).current_dir(folder).output().unwrap()
}

#[test]
fn the_tool_links_no_libtorch() {
    let program = fs::read(PROGRAM).unwrap();
    for library in ["libtorch_cpu.so", "libc10.so"] {
        assert!(!program.windows(library.len()).any(|bytes| bytes == library.as_bytes()), "{library}");
    }
}

#[test]
fn training_by_ppo_is_handed_over_with_all_that_was_asked_for() {
    let folder = tempdir().unwrap();
    let program = folder.path().join("kvtide-train");
    fs::write(&program, "#!/bin/sh\necho trains: \"$@\"\nexit 7\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let Output { status, stdout, .. } = train(folder.path());
    assert_eq!(String::from_utf8_lossy(&stdout), "trains: train --experiment small.toml --out run\n");
    assert_eq!(status.code(), Some(7));
    assert!(!folder.path().join("run").exists(), "nothing was begun before");
}

#[test]
fn who_has_no_libtorch_is_told_what_can_be_done() {
    let folder = tempdir().unwrap();
    let Output { status, stderr, .. } = train(folder.path());
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("kvtide-train") && said.contains("cross-entropy") && said.lines().count() == 1, "{said}");
    let tune = ["tune", "--method", "ppo", "--workload", "chat:rate=1,duration=90", "--out", "tune"];
    let tune = Command::new(folder.path().join("kvtide")).args(tune).current_dir(folder.path()).output().unwrap();
    assert!(tune.status.code() == Some(2) && !folder.path().join("tune").exists(), "nothing is left behind");
}
