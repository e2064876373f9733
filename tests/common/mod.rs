//! Running the binary as a user would.

use std::path::Path;
use std::process::{Command, Output};

/// The program under test: `kvtide`, or `kvtide-train` where that is the one whose tests these are.
pub const PROGRAM: &str = match (option_env!("CARGO_BIN_EXE_kvtide"), option_env!("CARGO_BIN_EXE_kvtide-train")) {
    (Some(program), _) | (None, Some(program)) => program,
    (None, None) => panic!("cargo names the programs of a package to its tests"),
};

/// What a run of the binary came to.
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `kvtide` with `arguments` in `folder`.
pub fn kvtide(folder: &Path, arguments: &[&str]) -> Run {
    let mut command = Command::new(PROGRAM);
    // The day that a page says it was made.
    command.args(arguments).current_dir(folder).env("SOURCE_DATE_EPOCH", "1700000000");
    let Output { status, stdout, stderr } = command.output().unwrap();
    Run {
        code: status.code().unwrap_or(-1),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

/// Runs `kvtide` and expects it to succeed.
pub fn done(folder: &Path, arguments: &[&str]) -> Run {
    let run = kvtide(folder, arguments);
    assert_eq!(run.code, 0, "kvtide {arguments:?}\n{}\n{}", run.stdout, run.stderr);
    run
}

/// Runs `kvtide` and expects exit code 2, nothing on stdout and one line on stderr, which is returned.
pub fn refused(folder: &Path, arguments: &[&str]) -> String {
    let run = kvtide(folder, arguments);
    assert_eq!(run.code, 2, "kvtide {arguments:?}\n{}\n{}", run.stdout, run.stderr);
    assert_eq!(run.stdout, "", "kvtide {arguments:?}");
    assert_eq!(run.stderr.lines().count(), 1, "kvtide {arguments:?}\n{}", run.stderr);
    run.stderr.trim().to_owned()
}

/// Lines of JSON Lines output of one type, their `data`.
pub fn lines(stdout: &str, kind: &str) -> Vec<serde_json::Value> {
    let parse = |line| serde_json::from_str::<serde_json::Value>(line).unwrap();
    stdout.lines().map(parse).filter(|line| line["type"] == kind).map(|mut line| line["data"].take()).collect()
}
