//! What is written: looked at before the work, never at the cost of what is read, and whoever stops listening ends nothing.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::{TempDir, tempdir};

use crate::common::{PROGRAM, done, kvtide, lines, refused};

const SEARCH: &str = "name = \"small\"\nprofile = \"watermark\"\nmethod = \"cross-entropy\"\nfallback = 0.02\n[world]\ntrace = \
                      \"chat.jsonl\"\n[episodes]\nfit = 0.7\nlength_s = 20.0\nload = [0.8, 1.2]\n[cross_entropy]\ngenerations = \
                      2\npopulation = 4\nepisodes = 2\n";

/// A trace, a table, an experiment, and a run of it.
fn folder() -> TempDir {
    let folder = tempdir().unwrap();
    let path = folder.path();
    done(path, &["trace", "generate", "chat:rate=3,duration=120", "chat.jsonl"]);
    fs::write(path.join("small.toml"), SEARCH).unwrap();
    done(path, &["train", "--experiment", "small.toml", "--out", "run"]);
    fs::copy(format!("{}/checkpoints/chat-24g/policy.kvt", env!("CARGO_MANIFEST_DIR")), path.join("policy.kvt"))
        .unwrap();
    symlink("chat.jsonl", path.join("link.jsonl")).unwrap();
    fs::hard_link(path.join("chat.jsonl"), path.join("hard.jsonl")).unwrap();
    fs::create_dir(path.join("a-folder")).unwrap();
    folder
}

/// Names and bytes of everything there is.
fn everything(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.path().display().to_string();
        if entry.path().is_dir() {
            found.extend(everything(&entry.path()));
        } else {
            found.push((name, fs::read(entry.path()).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn every_output_is_looked_at_before_the_work() {
    let folder = folder();
    let path = folder.path();
    let before = everything(path);
    // Every option that names an output, in a command that is in order without it.
    for (command, option) in [
        ("evaluate --trace chat.jsonl --policy default", "--out"),
        ("evaluate --trace chat.jsonl --policy default", "--report"),
        ("export --checkpoint run/policy", "--out"),
        ("export --checkpoint run/policy --out new.kvt", "--rust"),
        ("export --checkpoint run/policy --out new.kvt", "--frontier"),
        ("calibrate --measured chat.jsonl", "--profile"),
        ("calibrate --measured chat.jsonl", "--plot"),
        ("inspect policy.kvt", "--svg"),
        ("trace convert chat.jsonl", ""),
        ("trace generate chat:rate=1,n=9", ""),
    ] {
        for (output, part) in [
            ("no/such/file", "there is no folder no/such"),
            ("a-folder", "it is a folder"),
            ("small.toml/a", "there is no folder"),
        ] {
            let line = format!("{command} {option} {output}");
            let error = refused(path, &line.split_whitespace().collect::<Vec<_>>());
            let name = if option.is_empty() { "OUTPUT" } else { option };
            assert!(
                error.contains(&format!("{name}: cannot write {output}")) && error.contains(part),
                "{line}: {error}"
            );
        }
    }
    let train = refused(path, &["train", "--experiment", "small.toml", "--out", "chat.jsonl"]);
    assert!(train.contains("--out: cannot write chat.jsonl: it is a file, not a folder"), "{train}");
    let below = refused(path, &["train", "--experiment", "small.toml", "--out", "chat.jsonl/a/b"]);
    assert!(below.contains("is not a folder"), "{below}");
    assert!(everything(path) == before);
}

#[test]
fn what_is_read_is_never_written_over() {
    let folder = folder();
    let path = folder.path();
    let before = everything(path);
    for (line, part) in [
        ("trace convert chat.jsonl chat.jsonl", "OUTPUT chat.jsonl: that is chat.jsonl, which is read (INPUT)"),
        ("trace convert chat.jsonl ./a-folder/../chat.jsonl", "which is read (INPUT)"),
        ("trace convert chat.jsonl link.jsonl", "which is read (INPUT)"),
        ("trace convert link.jsonl chat.jsonl", "which is read (INPUT)"),
        ("trace convert chat.jsonl hard.jsonl", "which is read (INPUT)"),
        ("evaluate --trace chat.jsonl --policy default --out link.jsonl", "which is read (--trace)"),
        ("evaluate --trace chat.jsonl --policy default --report hard.jsonl", "which is read (--trace)"),
        ("evaluate --trace chat.jsonl --policy table:policy.kvt --out policy.kvt", "which is read (--policy)"),
        ("evaluate --trace chat.jsonl --policy checkpoint:run/policy --out run/policy/manifest.json", "(--policy)"),
        ("evaluate --trace chat.jsonl --policy default --out a --report a", "--out writes there as well"),
        ("evaluate --trace chat.jsonl --policy default --out a --report a-folder/../a", "--out writes there as well"),
        ("export --checkpoint run/policy --out run/policy", "it is a folder"),
        ("export --checkpoint run/policy --out run/policy/weights.safetensors", "which is read (--checkpoint)"),
        ("export --checkpoint run/policy --out chat.jsonl", "which is read (--trace)"),
        ("export --checkpoint run/policy --out a --rust a", "--out writes there as well"),
        ("export --checkpoint run/policy --out a --frontier ./a", "--out writes there as well"),
        ("export --checkpoint run/policy --out /dev/null", "no ordinary file"),
        ("calibrate --measured chat.jsonl --plot chat.jsonl", "which is read (--measured)"),
        ("calibrate --measured a-folder --load chat.jsonl --profile chat.jsonl", "which is read (--load)"),
        ("calibrate --measured a-folder --profile a --plot a", "--profile writes there as well"),
        ("inspect policy.kvt --svg policy.kvt", "which is read (PATH)"),
    ] {
        let error = refused(path, &line.split_whitespace().collect::<Vec<_>>());
        assert!(error.contains(part), "{line}: {error}");
    }
    assert!(everything(path) == before);
    // A table may lie where its checkpoint does, and runs may go into a pipe.
    done(path, &["export", "--checkpoint", "run/policy", "--out", "run/policy/policy.kvt", "--max-loss", "100"]);
    done(path, &["evaluate", "--trace", "chat.jsonl", "--policy", "default", "--out", "/dev/null"]);
}

/// Every command that says anything, in order; `{}` is a name of its own.
const COMMANDS: [&str; 14] = [
    "--version",
    "frobnicate",
    "simulate --trace nowhere",
    "trace stats chat.jsonl",
    "trace convert chat.jsonl {}.jsonl",
    "trace generate chat:rate=1,n=9 {}.jsonl",
    "simulate --trace chat.jsonl --policy default --policy table:policy.kvt --env llama-3-8b@h100",
    "evaluate --trace chat.jsonl --policy default --policy best-fixed --out {}.jsonl --report {}.html",
    "train --experiment small.toml --out {}",
    "export --checkpoint run/policy --out {}.kvt --rust {}.rs --frontier {}.svg --max-loss 100 --episodes 2 --leaves 8",
    "inspect policy.kvt --svg {}.svg",
    "explain policy.kvt oldest_wait=0.5",
    "calibrate --measured nowhere",
    "replay --golden nowhere",
];

fn arguments(command: &str, name: &str) -> Vec<String> {
    command.replace("{}", name).split_whitespace().map(str::to_owned).collect()
}

/// The files a command left under `name`, by what follows it.
fn left(folder: &Path, name: &str) -> Vec<(String, Vec<u8>)> {
    let of_it = |(path, bytes): (String, Vec<u8>)| {
        Some((path.strip_prefix(&format!("{}/{name}", folder.display()))?.to_owned(), bytes))
    };
    // Speeds and times of day are in logs.
    let is_result = |(path, _): &(String, Vec<u8>)| !path.contains("train.jsonl") && !path.contains("tensorboard");
    everything(folder).into_iter().filter_map(of_it).filter(is_result).collect()
}

#[test]
fn nobody_has_to_listen_for_the_work_to_be_done() {
    let folder = folder();
    let path = folder.path();
    for (index, command) in COMMANDS.iter().enumerate() {
        let normal = format!("normal{index}");
        let arguments_of = |name: &str| arguments(command, name);
        let expected = kvtide(path, &arguments_of(&normal).iter().map(String::as_str).collect::<Vec<_>>());
        for mode in ["full", "closed"] {
            let name = format!("{mode}{index}");
            let mut tool = Command::new(PROGRAM);
            tool.args(arguments_of(&name)).current_dir(path).stdout(Stdio::piped());
            match mode {
                "full" => tool.stderr(File::options().write(true).open("/dev/full").unwrap()),
                // A pipe whose other end nobody reads.
                _ => tool.stderr(std::io::pipe().unwrap().1),
            };
            let run = tool.output().unwrap();
            assert_eq!(run.status.code(), Some(expected.code), "{command} with stderr {mode}");
            assert_eq!(String::from_utf8_lossy(&run.stdout).replace(&name, &normal), expected.stdout, "{command}");
            let (ours, theirs) = (left(path, &name), left(path, &normal));
            let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
            assert_eq!(names(&ours), names(&theirs), "{command} with stderr {mode}");
        }
    }
}

#[test]
fn a_stdout_that_fails_is_an_error_and_costs_no_file() {
    let folder = folder();
    let path = folder.path();
    for (index, command) in COMMANDS.iter().enumerate() {
        let normal = format!("normal{index}");
        let expected = kvtide(path, &arguments(command, &normal).iter().map(String::as_str).collect::<Vec<_>>());
        if expected.stdout.is_empty() {
            continue;
        }
        for (mode, code) in [("full", 2), ("closed", 0)] {
            let name = format!("{mode}{index}");
            let mut tool = Command::new(PROGRAM);
            tool.args(arguments(command, &name)).current_dir(path).stderr(Stdio::piped());
            match mode {
                "full" => tool.stdout(File::options().write(true).open("/dev/full").unwrap()),
                _ => tool.stdout(std::io::pipe().unwrap().1),
            };
            let run = tool.output().unwrap();
            let said = String::from_utf8_lossy(&run.stderr);
            assert_eq!(run.status.code(), Some(code), "{command} with stdout {mode}: {said}");
            assert!(!said.contains("panicked"), "{command}: {said}");
            let names = |name: &str| left(path, name).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
            assert_eq!(names(&name), names(&normal), "{command} with stdout {mode}");
        }
    }
    // Every run is there, though nobody read the first.
    let line = "evaluate --trace chat.jsonl --load 0.5,0.7 --seeds 1..3 --policy default --json --out all.jsonl";
    let mut tool = Command::new(PROGRAM);
    tool.args(line.split_whitespace()).current_dir(path).stdout(std::io::pipe().unwrap().1);
    assert_eq!(tool.status().unwrap().code(), Some(0));
    assert_eq!(lines(&fs::read_to_string(path.join("all.jsonl")).unwrap(), "run").len(), 6);
}
