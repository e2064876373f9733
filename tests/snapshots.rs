//! What a user sees, as it was when somebody last looked at it and found it good: help, tables, the page.
//!
//! A difference fails the test and shows both texts. Meant as it is now, it is taken over with
//! `INSTA_UPDATE=always cargo test --test all -- snapshots`, and the diff of `tests/snapshots` is read before it is committed.
//!
//! Texts that name a build are shown without it. Everything else is the same wherever and whenever it is run: the width is
//! given, runs follow from their seeds, and paths are relative to a folder of the test.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{done, lines};
use tempfile::{TempDir, tempdir};

/// Compares `text` with what is kept under `name`.
fn same(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// `kvtide … --help` on a terminal 100 columns wide, without colours.
fn help(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    let output = command.args(arguments).arg("--help").env("COLUMNS", "100").env("NO_COLOR", "1").output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that a help lists.
fn listed(help: &str) -> Vec<&str> {
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // What is further in goes on describing.
    let named = commands.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    named.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

/// Every command's help, and that of commands below it, by the name it is kept under.
fn helps(command: &[&str], found: &mut Vec<(String, String)>) {
    let text = help(command);
    for name in listed(&text) {
        helps(&[command, &[name]].concat(), found);
    }
    found.push(([&["help"], command].concat().join("-"), text));
}

#[test]
fn help_of_every_command() {
    let mut found = Vec::new();
    helps(&[], &mut found);
    for (name, text) in &found {
        same(name, text);
    }
    let kept = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots")).unwrap();
    let is_help = |name: &str| name.strip_suffix(".snap").is_some_and(|name| name.starts_with("help"));
    let kept = kept.filter(|entry| is_help(&entry.as_ref().unwrap().file_name().to_string_lossy())).count();
    assert_eq!(kept, found.len(), "commands and their help in tests/snapshots");
}

/// A folder with `policy.kvt`, `checkpoint` and half a minute of traffic that names tenants and classes.
fn folder() -> TempDir {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints/chat-24g");
    fs::create_dir(path.join("checkpoint")).unwrap();
    for entry in fs::read_dir(shipped).unwrap() {
        let file = entry.unwrap();
        fs::copy(file.path(), path.join("checkpoint").join(file.file_name())).unwrap();
    }
    fs::copy(path.join("checkpoint/policy.kvt"), path.join("policy.kvt")).unwrap();
    done(path, &["trace", "generate", "chat:rate=3,duration=60,seed=3", "plain.jsonl"]);
    let rows = fs::read_to_string(path.join("plain.jsonl")).unwrap();
    let named = rows.lines().enumerate().map(|(index, row)| {
        let names = format!("{{\"tenant\":\"{}\",\"slo_class\":\"chat\",", ["acme", "b&b"][index % 2]);
        row.replacen('{', &names, 1) + "\n"
    });
    fs::write(path.join("traffic.jsonl"), named.collect::<String>()).unwrap();
    folder
}

#[test]
fn what_tables_and_checkpoints_hold() {
    let folder = folder();
    let shown = |arguments: &[&str]| done(folder.path(), arguments).stdout;
    same("inspect-table", &shown(&["inspect", "policy.kvt"]));
    same("inspect-checkpoint", &shown(&["inspect", "checkpoint"]));
    let table = &lines(&shown(&["inspect", "policy.kvt", "--json"]), "table")[0];
    let middle = |feature: &serde_json::Value| format!("{}={}", feature["name"].as_str().unwrap(), feature["min"]);
    let given: Vec<String> = table["features"].as_array().unwrap().iter().map(middle).collect();
    let arguments: Vec<&str> = ["explain", "policy.kvt"].into_iter().chain(given.iter().map(String::as_str)).collect();
    same("explain", &shown(&arguments));
    done(folder.path(), &["inspect", "policy.kvt", "--svg", "tree.svg"]);
    same("inspect-tree", &fs::read_to_string(folder.path().join("tree.svg")).unwrap());
}

#[test]
fn what_runs_print() {
    let folder = folder();
    let world = ["--workload", "chat:rate=3.2,duration=60,seed=3", "--set", "num_gpu_blocks=1500"];
    let policies = ["--policy", "default", "--policy", "best-fixed", "--policy", "table:policy.kvt"];
    let shown = |command: &str, more: &[&str]| {
        done(folder.path(), &[&[command], &world[..], &policies[..], more].concat()).stdout
    };
    same("simulate", &shown("simulate", &["--engine", "v1", "--seeds", "1"]));
    same("evaluate", &shown("evaluate", &["--engine", "v1", "--loads", "0.8,1.1", "--seeds", "1..3"]));
    same("trace-stats", &done(folder.path(), &["trace", "stats", "traffic.jsonl"]).stdout);
}

/// The report of a small evaluation that has everything: a table, tenants, classes, gains over another policy.
fn report() -> String {
    let folder = folder();
    let mut arguments = vec!["evaluate", "--trace", "traffic.jsonl", "--engine", "v1", "--set", "num_gpu_blocks=1500"];
    arguments.extend(["--loads", "0.8,1.1", "--seeds", "1..2", "--policy", "default", "--policy", "best-fixed"]);
    arguments.extend(["--policy", "table:policy.kvt", "--versus", "best-fixed", "--report", "report.html"]);
    done(folder.path(), &arguments);
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    let (before, after) = page.split_once(", commit ").unwrap();
    let (commit, after) = after.split_once(';').unwrap();
    assert!(!commit.contains('<'), "{commit}");
    before.replace(concat!("kvtide ", env!("CARGO_PKG_VERSION")), "kvtide VERSION") + ", commit COMMIT;" + after
}

#[test]
fn what_the_page_says() {
    same("report-text", &text_of(&report()));
}

/// The text of a page: what stands between its tags, a line each.
fn text_of(page: &str) -> String {
    let mut text = String::new();
    for piece in page.split('<').skip(1) {
        let (tag, words) = piece.split_once('>').unwrap();
        let words = words.trim();
        if !words.is_empty() && !["style", "script"].contains(&tag) {
            text.push_str(words);
            text.push('\n');
        }
    }
    [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")]
        .iter()
        .fold(text, |text, (escaped, letter)| text.replace(escaped, letter))
}
