//! What was finished is kept, however a command ends, and gone on from.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::tempdir;

use crate::common::{PROGRAM, done, kvtide, lines, refused};

/// Three seeds at two loads, hindsight among the policies.
const EVALUATE: [&str; 15] = [
    "evaluate",
    "--workload",
    "chat:rate=3.2,duration=90",
    "--seeds",
    "1..3",
    "--load",
    "1,1.3",
    "--policy",
    "best-static:core",
    "--policy",
    "default",
    "--policy",
    "best-fixed",
    "--policy",
    "past-future",
];

fn evaluate<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&EVALUATE[..], more].concat()
}

/// Starts the tool, listening to signals even where whoever runs the tests does not, as in the background of a script.
fn start(folder: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT,TERM,HUP", PROGRAM])
        .args(arguments)
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until `file` has so many lines, or the process has ended.
fn wait_for_lines(child: &mut Child, file: &Path, count: usize) {
    while child.try_wait().unwrap().is_none() {
        if fs::read_to_string(file).is_ok_and(|text| text.lines().count() >= count) {
            return;
        }
        std::thread::yield_now();
    }
}

fn send(child: &Child, signal: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap().success());
}

#[test]
fn an_evaluation_that_was_killed_goes_on_to_what_it_would_have_been() {
    let folder = tempdir().unwrap();
    let (whole, cut) = (folder.path().join("whole"), folder.path().join("cut"));
    fs::create_dir(&whole).unwrap();
    fs::create_dir(&cut).unwrap();
    let arguments = evaluate(&["--out", "runs.jsonl", "--report", "page.html", "--versus", "default"]);
    let expected = done(&whole, &arguments);

    let file = cut.join("runs.jsonl");
    for (signal, count) in [("KILL", 2), ("KILL", 300), ("TERM", 420), ("KILL", 900)] {
        let more = if file.exists() { vec!["--resume"] } else { Vec::new() };
        let mut child = start(&cut, &[&arguments[..], &more].concat());
        wait_for_lines(&mut child, &file, count);
        let _ = child.try_wait().unwrap().is_none().then(|| send(&child, signal));
        child.wait().unwrap();
        let (kept, all) = (fs::read_to_string(&file).unwrap(), fs::read_to_string(whole.join("runs.jsonl")).unwrap());
        let lines = kept.rfind('\n').map_or(0, |end| end + 1);
        assert!(all.starts_with(&kept[..lines]), "{signal} at {count}: whole lines, in their order");
    }
    // As many threads as there are differ from one.
    let run = Command::new(PROGRAM)
        .args(&arguments)
        .arg("--resume")
        .env("RAYON_NUM_THREADS", "1")
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .current_dir(&cut)
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(String::from_utf8(run.stdout).unwrap(), expected.stdout);
    for name in ["runs.jsonl", "page.html"] {
        assert!(fs::read(cut.join(name)).unwrap() == fs::read(whole.join(name)).unwrap(), "{name}");
    }
    assert_eq!(fs::read_dir(&cut).unwrap().count(), 2, "no lock is left");

    // Once more: everything is there, nothing is run, nothing is written.
    let again = done(&cut, &[&arguments[..], &["--resume", "--json"]].concat());
    assert_eq!(lines(&again.stdout, "run").len(), 24);
    assert!(again.stderr.contains("24 runs are in runs.jsonl already"), "{}", again.stderr);
    assert!(fs::read(&file).unwrap() == fs::read(whole.join("runs.jsonl")).unwrap());
}

#[test]
fn runs_of_something_else_are_not_gone_on_from() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    done(path, &["trace", "generate", "chat:rate=1,n=20,seed=1", "one.jsonl"]);
    done(path, &["trace", "generate", "chat:rate=1,n=20,seed=2", "two.jsonl"]);
    let table = format!("{}/checkpoints/chat-24g/policy.kvt", env!("CARGO_MANIFEST_DIR"));
    fs::copy(&table, path.join("a.kvt")).unwrap();
    let first =
        ["evaluate", "--trace", "one.jsonl", "--policy", "default", "--policy", "table:a.kvt", "--out", "a.jsonl"];
    done(path, &first);
    let other = |arguments: &[&str], part: &str| {
        let error = refused(path, arguments);
        assert!(error.contains("a.jsonl: its runs are of ") && error.contains(part), "{arguments:?}: {error}");
    };
    let resume = [&first[..], &["--resume"]].concat();
    other(&[&resume[..], &["--slo", "chat"]].concat(), "slo ttft:2000");
    other(&[&resume[..], &["--set", "max_num_seqs=7"]].concat(), "setting max_num_seqs 256, and asked for is 7");
    other(&[&resume[..], &["--set", "bandwidth_efficiency=0.7"]].concat(), "hardware ");
    other(&[&resume[..], &["--seeds", "1..2"]].concat(), "seeds 1, and asked for is 1,2");
    other(&[&resume[..], &["--load", "0.5"]].concat(), "loads 1, and asked for is 0.5");
    other(&[&resume[..], &["--guard", "off"]].concat(), "guard on, and asked for is off");
    other(&[&resume[..], &["--policy", "fixed:0.1"]].concat(), "policies default table:a.kvt, and");
    // The same names, and other contents.
    fs::copy(path.join("two.jsonl"), path.join("one.jsonl")).unwrap();
    other(&resume, "traffic ");
    done(path, &["trace", "generate", "chat:rate=1,n=20,seed=1", "one.jsonl"]);
    fs::copy(table.replace("chat-24g", "agentic"), path.join("a.kvt")).unwrap();
    other(&resume, "the file of table:a.kvt ");
    fs::write(path.join("a.jsonl"), "{\"policy\":\"default\"}\n").unwrap();
    assert!(refused(path, &resume).contains("a.jsonl:1: not the runs of an evaluation"));
}

#[test]
fn each_signal_keeps_what_is_finished_and_has_its_code() {
    let folder = tempdir().unwrap();
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let name = format!("{signal}.jsonl");
        // Far longer than anybody waits.
        let long = ["evaluate", "--workload", "chat:rate=3,duration=400", "--seeds", "1..400", "--policy", "default"];
        let mut child = start(folder.path(), &[&long[..], &["--out", &name]].concat());
        let file = folder.path().join(&name);
        wait_for_lines(&mut child, &file, 3);
        send(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
        assert!(lines(&fs::read_to_string(&file).unwrap(), "run").len() >= 2);
        assert!(refused(folder.path(), &[&long[..], &["--out", &name]].concat()).contains("go on with --resume"));
    }
}

#[test]
fn a_replay_of_evictions_keeps_the_capacities_it_has_finished() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let capacities = (100..4000).map(|blocks| blocks.to_string()).collect::<Vec<String>>().join(",");
    let mut replay = Command::new("env");
    replay.args(["--default-signal=INT,TERM,HUP", PROGRAM, "evict", "replay", "--policy", "lru,arc", "--json"]);
    replay.args(["--workload", "agentic:rate=0.2,duration=30m", "--capacity", &capacities, "--report", "page.html"]);
    let out = path.join("rows.jsonl");
    replay.current_dir(path).stdout(fs::File::create(&out).unwrap()).stderr(Stdio::null());
    let mut child = replay.spawn().unwrap();
    wait_for_lines(&mut child, &out, 6);
    send(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let rows = lines(&fs::read_to_string(&out).unwrap(), "eviction");
    assert!(rows.len() >= 6 && rows.len() < 3 * 3900 && rows.len().is_multiple_of(3), "{}", rows.len());
    let last = rows[rows.len() - 1]["capacity"].as_u64().unwrap();
    assert_eq!(last, 99 + rows.len() as u64 / 3);
    // The page is of what was finished, too.
    let page = fs::read_to_string(path.join("page.html")).unwrap();
    assert!(page.contains("belady") && page.contains(&last.to_string()));
}

#[test]
fn what_is_to_be_ignored_stays_ignored() {
    let folder = tempdir().unwrap();
    let long = "evaluate --workload chat:rate=3,duration=400 --seeds 1..400 --policy default --out runs.jsonl";
    let shell = format!("trap '' HUP; exec {PROGRAM} {long}");
    let mut child = Command::new("sh")
        .args(["-c", &shell])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let file = folder.path().join("runs.jsonl");
    wait_for_lines(&mut child, &file, 2);
    send(&child, "HUP");
    let before = fs::read_to_string(&file).unwrap().lines().count();
    wait_for_lines(&mut child, &file, before + 3);
    assert!(child.try_wait().unwrap().is_none(), "it goes on");
    send(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("runs are kept in runs.jsonl; the same command with --resume goes on"), "{said}");
}

/// A small search, which needs no libtorch.
const SEARCH: &str = r#"
name = "small"
profile = "watermark"
method = "cross-entropy"
fallback = 0.02
[world]
workload = "chat:rate=3,duration=120,seed=2"
[episodes]
fit = 0.7
length_s = 30.0
load = [0.8, 1.2]
[cross_entropy]
generations = 40
population = 8
episodes = 4
noise = 0.0
"#;

#[test]
fn a_run_that_is_killed_at_any_moment_leaves_what_can_be_gone_on_from() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("small.toml"), SEARCH).unwrap();
    let train = ["train", "--experiment", "small.toml", "--checkpoint-every", "1", "--out"];
    done(path, &[&train[..], &["whole"]].concat());
    let log = path.join("cut/train.jsonl");
    let mut child = start(path, &[&train[..], &["cut"]].concat());
    for count in [2, 9, 21] {
        wait_for_lines(&mut child, &log, count);
        let _ = child.kill();
        child.wait().unwrap();
        if path.join("cut/checkpoint").exists() {
            done(path, &["inspect", "cut/checkpoint"]);
        }
        child = start(path, &["train", "--resume", "--checkpoint-every", "1", "--out", "cut"]);
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    for name in ["checkpoint/manifest.json", "checkpoint/search.json", "policy/manifest.json"] {
        assert!(
            fs::read(path.join("cut").join(name)).unwrap() == fs::read(path.join("whole").join(name)).unwrap(),
            "{name}"
        );
    }

    // A table is whole or not there, whenever its making ends.
    for wait in [0, 200_000, 2_000_000] {
        let mut child = start(path, &["export", "--checkpoint", "whole/policy", "--out", "a.kvt", "--max-loss", "100"]);
        (0..wait).for_each(|_| std::hint::spin_loop());
        let _ = child.kill();
        child.wait().unwrap();
        assert!(!path.join("a.kvt").exists() || kvtide(path, &["inspect", "a.kvt"]).code == 0);
    }
    done(path, &["export", "--checkpoint", "whole/policy", "--out", "a.kvt", "--max-loss", "100"]);
}

#[test]
fn a_run_has_its_folder_to_itself_and_a_dead_one_has_it_no_longer() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("long.toml"), SEARCH.replace("generations = 40", "generations = 100000")).unwrap();
    let train = ["train", "--experiment", "long.toml", "--checkpoint-every", "1", "--out", "run"];
    let mut first = start(path, &train);
    wait_for_lines(&mut first, &path.join("run/train.jsonl"), 2);
    let resume = ["train", "--resume", "--out", "run"];
    let error = kvtide(path, &resume);
    let holder = format!("process {} on ", first.id());
    assert!(
        error.code == 2 && error.stderr.contains("run is being written by") && error.stderr.contains(&holder),
        "{}",
        error.stderr
    );
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(path.join("run/.lock").exists(), "what a dead process leaves");
    let mut second = start(path, &resume);
    let count = fs::read_to_string(path.join("run/train.jsonl")).unwrap().lines().count();
    wait_for_lines(&mut second, &path.join("run/train.jsonl"), count + 1);
    send(&second, "TERM");
    assert_eq!(second.wait().unwrap().code(), Some(143));
    assert!(!path.join("run/.lock").exists());

    // And a file of runs.
    let long = ["evaluate", "--workload", "chat:rate=3,duration=400", "--seeds", "1..400", "--policy", "default"];
    let long = [&long[..], &["--out", "runs.jsonl"]].concat();
    let mut first = start(path, &long);
    wait_for_lines(&mut first, &path.join("runs.jsonl"), 2);
    let error = refused(path, &[&long[..], &["--resume"]].concat());
    assert!(error.contains("runs.jsonl is being written by process "), "{error}");
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn a_search_that_is_extended_is_the_one_planned_for_as_long() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("small.toml"), SEARCH.replace("generations = 40", "generations = 6")).unwrap();
    let train = ["train", "--experiment", "small.toml", "--out"];
    done(path, &[&train[..], &["whole"]].concat());
    done(path, &[&train[..], &["cut", "--generations", "2"]].concat());
    let extended = done(path, &["train", "--resume", "--out", "cut", "--generations", "6"]);
    assert!(
        extended.stderr.contains("going on to 6 generations instead of 2: the run is the one"),
        "{}",
        extended.stderr
    );
    for name in ["checkpoint/manifest.json", "checkpoint/search.json", "policy/manifest.json"] {
        assert!(
            fs::read(path.join("cut").join(name)).unwrap() == fs::read(path.join("whole").join(name)).unwrap(),
            "{name}"
        );
    }
    let shorter = refused(path, &["train", "--resume", "--out", "cut", "--generations", "3"]);
    assert!(shorter.contains("cut/checkpoint has 6 generations behind it, and 3 are fewer"), "{shorter}");
    assert!(refused(path, &["train", "--resume", "--out", "cut", "--decisions", "9"]).contains("--generations"));
    fs::write(path.join("other.toml"), SEARCH.replace("generations = 40", "generations = 7")).unwrap();
    let other = ["train", "--experiment", "other.toml", "--resume", "--out", "cut"];
    let error = refused(path, &other);
    assert!(error.contains("cross_entropy.generations = 6, given is 7") && error.contains("--generations"), "{error}");
    done(path, &[&other[..], &["--generations", "7"]].concat());

    // Noise that falls to nothing by the end has fallen by another end.
    fs::write(
        path.join("noisy.toml"),
        SEARCH.replace("generations = 40\n", "generations = 2\n").replace("noise = 0.0", "noise = 0.1"),
    )
    .unwrap();
    done(path, &["train", "--experiment", "noisy.toml", "--out", "noisy"]);
    let extended = done(path, &["train", "--resume", "--out", "noisy", "--generations", "3"]);
    assert!(
        extended.stderr.contains("warning: going on to 3 generations instead of 2: noise went by 2"),
        "{}",
        extended.stderr
    );
    for checkpoint in ["noisy/checkpoint", "noisy/policy"] {
        let manifest = &lines(&done(path, &["inspect", checkpoint, "--json"]).stdout, "checkpoint")[0];
        assert_eq!(manifest["metadata"]["extended"], "from 2 to 3 generations after 2");
    }
    // It is said of it for good.
    done(path, &["train", "--resume", "--out", "noisy"]);
    let manifest = fs::read_to_string(path.join("noisy/checkpoint/manifest.json")).unwrap();
    assert!(manifest.contains("from 2 to 3 generations after 2"), "{manifest}");
}
