//! Habits of the command line: widths, quiet and verbose, what is completed, what is said to who asks for nothing.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{PROGRAM, done, kvtide, lines, refused};
use tempfile::{TempDir, tempdir};
use unicode_width::UnicodeWidthStr;

/// A run on a terminal of so many columns.
fn on_columns(folder: &Path, columns: usize, arguments: &[&str]) -> String {
    let mut command = Command::new(PROGRAM);
    let output = command.args(arguments).current_dir(folder).env("COLUMNS", columns.to_string()).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A folder with a table under a long path of wide letters, a checkpoint and traffic.
fn folder() -> (TempDir, String) {
    let folder = tempdir().unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints/chat-24g");
    let long = format!("策略/{}/chat", "a-rather-long-name-of-a-folder".repeat(3));
    fs::create_dir_all(folder.path().join(&long)).unwrap();
    fs::create_dir_all(folder.path().join("run/policy")).unwrap();
    for entry in fs::read_dir(shipped).unwrap() {
        let file = entry.unwrap();
        fs::copy(file.path(), folder.path().join("run/policy").join(file.file_name())).unwrap();
    }
    // One that stays as it is, whatever ships.
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("runtime/tests/edition1/chat-24g.kvt");
    fs::copy(kept, folder.path().join(&long).join("policy.kvt")).unwrap();
    done(folder.path(), &["trace", "generate", "chat:rate=3,duration=60,seed=3", "chat.jsonl"]);
    (folder, format!("{long}/policy.kvt"))
}

#[test]
fn nothing_is_wider_than_the_terminal() {
    let (folder, table) = folder();
    let policy = format!("table:{table}");
    let long = "fixed:0.01,victim=most-slack,admission=shortest-on-time-first";
    let policies = ["--policy", "default", "--policy", "best-fixed", "--policy", &policy, "--policy", long];
    let world = ["--trace", "chat.jsonl", "--set", "num_gpu_blocks=1200", "--seeds", "1..2"];
    let evaluate = [&["evaluate", "--loads", "auto", "--versus", "best-fixed"], &world[..], &policies[..]].concat();
    let simulate = [&["simulate", "--load", "0.5,1.25"], &world[..], &policies[..]].concat();
    let commands: [&[&str]; 9] = [
        &simulate,
        &evaluate,
        &["inspect", &table],
        &["inspect", "run/policy"],
        &["inspect", "run"],
        &["explain", &table, "oldest_wait=99", "late_waiting=0.1", "progress=0.2", "growth_1=0.9"],
        &["trace", "stats", "chat.jsonl"],
        &["help", "policy"],
        &["help", "workload"],
    ];
    for columns in [80, 120] {
        for arguments in commands {
            let text = on_columns(folder.path(), columns, arguments);
            for line in text.lines() {
                // What cannot be broken stands alone.
                let is_a_word = line.trim_start().split(' ').count() == 1;
                assert!(line.width() <= columns || is_a_word, "{} columns: {line}\n{text}", line.width());
            }
        }
    }
    // What goes to no terminal is as on one of 80.
    let mut piped = Command::new(PROGRAM);
    let piped = piped.args(&evaluate).current_dir(folder.path()).env_remove("COLUMNS").output().unwrap();
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), on_columns(folder.path(), 80, &evaluate));
    // The whole name of a policy stands once in full.
    let wide = on_columns(folder.path(), 400, &evaluate);
    assert_eq!((wide.matches(&policy).count(), wide.matches(long).count()), (1, 1), "{wide}");
}

#[test]
fn quiet_is_quiet_and_verbose_says_with_what() {
    let (folder, _) = folder();
    let evaluate = ["evaluate", "--trace", "chat.jsonl", "--policy", "default", "--out", "runs.jsonl"];
    let run = |more: &[&str]| done(folder.path(), &[&evaluate[..], more].concat());
    assert_eq!((run(&["--quiet"]).stderr.as_str(), run(&[]).stderr.as_str()), ("", ""));
    let verbose = run(&["--verbose", "--set", "num_gpu_blocks=1200"]);
    for said in [
        "kvtide 0.",
        " threads",
        "chat.jsonl: kvtide JSONL, plain",
        "req/s at load 1",
        "engine v1, host vllm-0.33: 1200 blocks of 16 tokens",
        "from the data sheet",
        "asked for: num_gpu_blocks = 1200",
        "runs: 1 runs in ",
    ] {
        assert!(verbose.stderr.contains(said), "{said:?} in {}", verbose.stderr);
    }
    // What is said changes no data but the settings themselves.
    assert_eq!(run(&["--quiet"]).stdout, run(&["-v"]).stdout);
    let train = ["train", "--experiment", "nowhere.toml", "--out", "x", "--quiet"];
    assert!(refused(folder.path(), &train).starts_with("error: "));
}

#[test]
fn rows_say_what_was_asked_for() {
    let (folder, _) = folder();
    let world =
        ["simulate", "--trace", "chat.jsonl", "--set", "num_gpu_blocks=1200", "--set", "bandwidth_efficiency=0.9"];
    let row = |more: &[&str]| {
        let output = done(folder.path(), &[&world[..], more, &["--json"]].concat()).stdout;
        lines(&output, "run").remove(0)
    };
    let open = row(&["--load", "0.5", "--pool", "0.9", "--jitter", "1s"]);
    assert_eq!(open["set"], serde_json::json!({"num_gpu_blocks": "1200", "bandwidth_efficiency": "0.9"}));
    assert_eq!(open["options"], serde_json::json!({"pool": "0.9", "jitter": "1s"}));
    assert_eq!((&open["engine"], &open["host"]), (&"v1".into(), &"vllm-0.33".into()));
    assert_eq!(open["kvtide"], env!("CARGO_PKG_VERSION"));
    assert_eq!(open["clients"], serde_json::Value::Null);
    // Half of about three a second.
    let offered = open["offered_rps"].as_f64().unwrap();
    assert!((1.0..2.5).contains(&offered), "{offered}");
    let closed = row(&["--load", "2", "--clients", "4"]);
    assert_eq!((&closed["clients"], &closed["offered_rps"]), (&8.into(), &serde_json::Value::Null));
    assert!(closed["options"].is_null(), "{closed}");
}

#[test]
fn who_asks_for_nothing_is_told_what_to_ask_for() {
    let folder = tempdir().unwrap();
    let run = kvtide(folder.path(), &[]);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    assert_eq!(run.stderr.lines().filter(|line| line.starts_with("  kvtide ")).count(), 3, "{}", run.stderr);
    assert!(!run.stderr.contains("error"), "{}", run.stderr);
    let near = kvtide(folder.path(), &["simulat"]);
    assert!(near.code == 2 && near.stderr.contains("'simulate'"), "{}", near.stderr);
    let near = kvtide(folder.path(), &["simulate", "--polcy", "default"]);
    assert!(near.code == 2 && near.stderr.contains("'--policy'"), "{}", near.stderr);
    let help = done(folder.path(), &["--help"]).stdout;
    assert!(help.contains("Exit codes: 0 done; 1 ") && help.contains("kvtide help env|host|policy"), "{help}");
}

#[test]
fn values_are_explained_where_they_are_asked_for() {
    let folder = tempdir().unwrap();
    for (topic, part) in [
        ("env", "rtx-4090"),
        ("host", "sglang-0.5"),
        ("policy", "victim=newest"),
        ("set", "num_gpu_blocks"),
        ("slo", "real-time"),
        ("workload", "lognormal:"),
    ] {
        let text = done(folder.path(), &["help", topic]).stdout;
        assert!(text.contains(part), "{text}");
        assert_eq!(text, done(folder.path(), &["simulate", &format!("--{topic}"), "help"]).stdout);
    }
}

#[test]
fn shells_are_offered_commands_options_and_values() {
    let folder = tempdir().unwrap();
    for (shell, part) in [("bash", "complete -F _kvtide"), ("zsh", "#compdef kvtide"), ("fish", "complete -c kvtide")] {
        // Zsh's has colons behind backslashes.
        let script = done(folder.path(), &["completions", shell]).stdout.replace("\\:", ":");
        for part in [part, "best-static", "llama-3-8b@rtx-4090", "real-time", "sglang-0.5", "chat:rate=2,duration=600"]
        {
            assert!(script.contains(part), "{shell}: {part}");
        }
    }
    // A value need not be one that is offered.
    done(
        folder.path(),
        &["simulate", "--workload", "chat:rate=1,n=9", "--policy", "fixed:0.07", "--slo", "ttft:900,tpot:50"],
    );
    assert_eq!(kvtide(folder.path(), &["completions", "tcsh"]).code, 2);
}

/// What bash offers after `words`, if bash is here.
fn offered(folder: &Path, words: &str) -> Option<Vec<String>> {
    let script = format!(
        "source completions\nCOMP_WORDS=({words})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}}-1))\n\
         _kvtide kvtide \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let output = Command::new("bash").args(["--norc", "-c", &script]).current_dir(folder).output().ok()?;
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn bash_completes() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("completions"), done(folder.path(), &["completions", "bash"]).stdout).unwrap();
    let Some(commands) = offered(folder.path(), "kvtide sim") else { return };
    assert_eq!(commands, ["simulate"]);
    let best = ["best-fixed", "best-static", "best-static-once", "best-train"];
    assert_eq!(offered(folder.path(), "kvtide simulate --policy be").unwrap(), best);
    assert!(offered(folder.path(), "kvtide evaluate --env llama-3-70b").unwrap().len() > 3);
}

#[test]
fn every_command_has_a_page() {
    let folder = tempdir().unwrap();
    done(folder.path(), &["man", "--out", "man/man1"]);
    let page = |name: &str| fs::read_to_string(folder.path().join("man/man1").join(name)).unwrap();
    let help = done(folder.path(), &["--help"]).stdout;
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = commands.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<&str> =
        names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(page(&format!("kvtide-{name}.1")).contains(".SH SYNOPSIS"), "{name}");
    }
    assert!(page("kvtide-trace-stats.1").contains("kvtide trace stats"));
    assert_eq!(done(folder.path(), &["man"]).stdout, page("kvtide.1"));
    assert!(page("kvtide-simulate.1").contains("Examples"));
    refused(folder.path(), &["man", "--out", "/dev/null/man"]);
}

/// `kvtide explain` with `stdin`.
fn explained(folder: &Path, arguments: &[&str], stdin: &str) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("explain").args(arguments).current_dir(folder);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_row_is_explained() {
    let (folder, table) = folder();
    let path = folder.path();
    let text = done(path, &["explain", &table, "oldest_wait=0.5", "late_waiting=0.1"]).stdout;
    let row = "{\"oldest_wait\": 0.5, \"late_waiting\": 0.1}";
    let from = |stdin: &str| {
        let output = explained(path, &[&table, "--from", "-"], stdin);
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(from(row), (Some(0), text.clone(), String::new()));
    // A line with an observation, such as its own.
    let json = done(path, &["explain", &table, "oldest_wait=0.5", "late_waiting=0.1", "--json"]).stdout;
    assert_eq!(from(&json).1, text);
    assert_eq!(from(&format!("{row}\n{row}\n")).1, format!("{text}\n{text}"));
    // The command line has the last word.
    fs::write(path.join("row.json"), "{\"oldest_wait\": 9, \"late_waiting\": null}").unwrap();
    assert_eq!(
        done(path, &["explain", &table, "--from", "row.json", "oldest_wait=0.5", "late_waiting=0.1"]).stdout,
        text
    );
    let unknown = done(path, &["explain", &table, "--from", "row.json"]).stdout;
    assert!(unknown.contains("beware: late_waiting cannot be NaN; it counts as 0"), "{unknown}");
    for (stdin, parts) in [
        ("{\"oldest\": 1, \"younger\": 2}", ["\"oldest\", \"younger\": no such feature; known: ", "oldest_wait"]),
        (
            "{\"oldest_wait\": 0.5}",
            ["asks for late_waiting, which is not given", "decides by oldest_wait, late_waiting"],
        ),
        ("{\"oldest_wait\": \"x\"}", ["stdin: expected", "oldest_wait: \"x\" is no number"]),
        ("", ["stdin: nothing in it", "expected {"]),
        ("[1]", ["stdin: expected", "not an object"]),
    ] {
        let (code, out, error) = from(stdin);
        assert_eq!((code, out.as_str(), error.lines().count()), (Some(2), "", 1), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn a_run_says_what_it_is_and_what_to_do_next() {
    let (folder, _) = folder();
    let path = folder.path();
    let text = done(path, &["inspect", "run"]).stdout;
    for part in [
        "the run chat-24g",
        "cross-entropy search, 20 generations",
        "how good",
        "kvtide export --checkpoint run/policy",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    fs::copy(path.join("run/policy/policy.kvt"), path.join("run/policy.kvt")).unwrap();
    assert!(done(path, &["inspect", "run"]).stdout.contains("table:run/policy.kvt"));
    fs::write(path.join("run/policy.kvt"), "damaged").unwrap();
    assert!(done(path, &["inspect", "run"]).stdout.contains("damaged or of another build"));
    assert!(refused(path, &["inspect", "run", "--svg", "x.svg"]).contains("has no tree"));
}
