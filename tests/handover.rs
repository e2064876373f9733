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

/// A `kvtide-train` of our own beside the tool.
fn write_program(folder: &Path, script: &str) {
    let program = folder.join("kvtide-train");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
}

/// A program that says it is of this build.
fn same_build() -> String {
    let version = Command::new(PROGRAM).arg("--version").output().unwrap().stdout;
    format!("[ \"$1\" = --version ] && echo '{}' && exit 0", String::from_utf8(version).unwrap().trim())
}

#[test]
fn training_by_ppo_is_handed_over_with_all_that_was_asked_for() {
    let folder = tempdir().unwrap();
    write_program(folder.path(), &format!("{}\necho trains: \"$@\"\nexit 7", same_build()));
    let Output { status, stdout, stderr } = train(folder.path());
    assert_eq!(String::from_utf8_lossy(&stderr), "");
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

#[test]
fn a_program_of_another_build_is_told_from_one_of_this() {
    let folder = tempdir().unwrap();
    write_program(folder.path(), "[ \"$1\" = --version ] && echo kvtide 0.0.9 && exit 0\nexit 7");
    let Output { status, stderr, .. } = train(folder.path());
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(7));
    assert!(said.starts_with("warning: ") && said.contains("is of another build (kvtide 0.0.9)"), "{said}");
}

#[test]
fn a_program_without_its_libtorch_is_one_line_and_exit_2() {
    let folder = tempdir().unwrap();
    write_program(folder.path(), "echo 'error while loading shared libraries: libtorch_cpu.so' >&2\nexit 127");
    let Output { status, stderr, .. } = train(folder.path());
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!((status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(
        said.contains("kvtide-train does not start") && said.contains("libtorch_cpu.so") && said.contains("make setup"),
        "{said}"
    );
}

#[test]
fn signals_reach_whoever_it_was_handed_over_to() {
    let folder = tempdir().unwrap();
    write_program(folder.path(), &format!("{}\ntrap 'exit 77' TERM\n: > ready\nwhile :; do :; done", same_build()));
    fs::write(folder.path().join("small.toml"), EXPERIMENT).unwrap();
    fs::copy(PROGRAM, folder.path().join("kvtide")).unwrap();
    let mut child = Command::new(folder.path().join("kvtide"))
        .args(["train", "--experiment", "small.toml", "--out", "run"])
        .current_dir(folder.path())
        .spawn()
        .unwrap();
    while !folder.path().join("ready").exists() {
        std::thread::yield_now();
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(77));
}
