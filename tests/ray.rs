//! What the tool says where Ray cannot help it. That it comes to the same bytes with it is `python/tests/test_ray.py`'s.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::PROGRAM;
use tempfile::tempdir;

const SEARCH: &str = r#"
name = "small"
profile = "core"
method = "cross-entropy"
fallback = 0.0
[world]
workload = "chat:rate=3,duration=120,seed=2"
[episodes]
fit = 0.7
length_s = 30.0
load = [0.8, 1.2]
[cross_entropy]
generations = 1
population = 4
episodes = 1
"#;

/// `kvtide` with `arguments`, and `script` for a Python.
fn with_python(folder: &Path, script: &str, arguments: &[&str]) -> Output {
    let python = folder.join("python");
    fs::write(&python, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&python, Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.join("small.toml"), SEARCH).unwrap();
    Command::new(PROGRAM).args(arguments).current_dir(folder).env("KVTIDE_PYTHON", python).output().unwrap()
}

const TRAIN: [&str; 7] = ["train", "--experiment", "small.toml", "--out", "run", "--ray", "auto"];
const EVALUATE: [&str; 8] =
    ["evaluate", "--workload", "chat:rate=2,n=30", "--policy", "default", "--json", "--ray", "auto"];

/// Refused with one line, and nothing begun.
fn refused(script: &str, arguments: &[&str]) -> String {
    let folder = tempdir().unwrap();
    let Output { status, stdout, stderr } = with_python(folder.path(), script, arguments);
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!((status.code(), stdout.len()), (Some(2), 0), "{said}");
    assert!(!folder.path().join("run/checkpoint").exists());
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn what_is_missing_is_named() {
    let missing = "echo \"/usr/bin/python3: Error while finding module specification for 'kvtide.ray.serve' \
                   (ModuleNotFoundError: No module named 'kvtide')\" >&2; exit 1";
    let build = "read hello; echo '{\"refused\":\"the wheel is of build a, the tool of b\"}'";
    let junk = "read hello; echo hello; sleep 1";
    for arguments in [&TRAIN[..], &EVALUATE[..]] {
        let said = refused(missing, arguments);
        assert!(said.contains("has no kvtide wheel with kvtide.ray: pip install 'kvtide[ray]'"), "{said}");
        let said = refused(build, arguments);
        assert!(said.starts_with("error: --ray auto: Ray at auto: the wheel is of build a, the tool of b"), "{said}");
        let said = refused("exit 0", arguments);
        assert!(said.contains("Ray at auto: it ended"), "{said}");
        let said = refused(junk, arguments);
        assert!(said.contains("it says \"hello\""), "{said}");
    }
}

#[test]
fn a_python_that_is_not_there_is_named() {
    let folder = tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    let output = command.args(EVALUATE).current_dir(folder.path()).env("KVTIDE_PYTHON", "/nowhere/python").output();
    let Output { status, stderr, .. } = output.unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("cannot start /nowhere/python: No such file") && said.contains("KVTIDE_PYTHON"), "{said}");
}

#[test]
fn whoever_goes_away_in_the_middle_is_missed() {
    let leaves = "read hello; echo '{\"ready\":2}'; read setting; read task; echo 'it had enough' >&2; exit 3";
    for arguments in [&TRAIN[..], &EVALUATE[..]] {
        let folder = tempdir().unwrap();
        let Output { status, stderr, .. } = with_python(folder.path(), leaves, arguments);
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(2), "{said}");
        assert!(said.contains("it ended: it had enough"), "{said}");
    }
}

#[test]
fn a_task_without_a_result_is_an_error() {
    let fails =
        "read hello; echo '{\"ready\":2}'; read setting; echo '{\"number\":0,\"failed\":\"no such trace\"}'; cat";
    let said = refused(fails, &EVALUATE);
    assert!(said.contains("policy default, window all, load 1, seed 1: no such trace"), "{said}");
}

#[test]
fn what_cannot_be_spread_is_refused_before_anybody_is_asked() {
    let never = "echo asked >&2; exit 1";
    let said = refused(never, &["evaluate", "--trace", "-", "--policy", "default", "--ray", "auto"]);
    assert!(said.contains("standard input cannot be sent") || said.contains("stdin"), "{said}");
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("ppo.toml"), SEARCH.replace("method = \"cross-entropy\"\n", "")).unwrap();
    let arguments = ["train", "--experiment", "ppo.toml", "--out", "run", "--ray", "auto"];
    let Output { stderr, .. } = with_python(folder.path(), never, &arguments);
    let said = String::from_utf8(stderr).unwrap();
    assert!(!said.contains("asked") && said.contains("PPO"), "{said}");
}
