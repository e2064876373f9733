//! `kvtide evaluate` as a user runs it: loads that are found, capacity, violations, the report.

use std::fs;
use std::path::Path;

use crate::common::{done, kvtide, lines, refused};
use kvtide::evaluate::RunRow;
use serde_json::Value;
use tempfile::tempdir;

/// Chat on a small pool, so that the default begins to fail at a load that is quickly simulated.
const WORLD: [&str; 8] = [
    "evaluate",
    "--workload",
    "chat:rate=3,duration=90,seed=3",
    "--engine",
    "v1",
    "--set",
    "num_gpu_blocks=1500",
    "--json",
];

fn evaluate(folder: &Path, more: &[&str]) -> String {
    done(folder, &[&WORLD[..], more].concat()).stdout
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Whoever reads results finds the policies in them, as they were written.
#[test]
fn results_of_earlier_runs_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/results");
    let mut read = 0;
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.extension().is_none_or(|end| end != "jsonl") {
            continue;
        }
        for (line, text) in (1..).zip(std::fs::read_to_string(&path).unwrap().lines()) {
            let row: Option<RunRow> =
                RunRow::of_line(text).unwrap_or_else(|error| panic!("{}:{line}: {error}", path.display()));
            let Some(row) = row else { continue };
            let (written, line) = (serde_json::to_value(&row).unwrap(), serde_json::from_str::<Value>(text).unwrap());
            // Later ones are in an envelope.
            let before = line.get("data").unwrap_or(&line);
            assert_eq!((&written["policy"], &written["chosen"]), (&before["policy"], &before["chosen"]));
            read += 1;
        }
    }
    assert!(read > 2000, "{read}");
}

#[test]
fn loads_are_found_around_the_knee() {
    let folder = tempdir().unwrap();
    let arguments = ["--loads", "auto", "--seeds", "1..2", "--policy", "default", "--policy", "fixed:0.05"];
    let output = evaluate(folder.path(), &arguments);
    assert_eq!(output, evaluate(folder.path(), &arguments));
    let found = lines(&output, "load");
    let loads: Vec<f64> = found.iter().map(|load| number(&load["load"])).collect();
    assert_eq!(loads.len(), 4);
    assert!(loads.is_sorted(), "{loads:?}");
    for (load, target) in found.iter().zip([0.95, 0.8, 0.6, 0.4]) {
        assert_eq!(number(&load["target"]), target);
        assert!((number(&load["attained"]) - target).abs() < 0.1, "{load}");
    }
    // What was said of the default is what it then attains.
    let default = &lines(&output, "comparison")[0];
    for (at, found) in default["loads"].as_array().unwrap().iter().zip(&found) {
        assert!((number(&at["slo_attainment"]["mean"]) - number(&found["attained"])).abs() < 1e-9, "{at}");
    }
    let text = done(folder.path(), &[&WORLD[..7], &arguments[..]].concat()).stdout;
    assert!(text.contains(&format!("loads by what the default attains: {} (", loads[0])), "{text}");

    // `simulate` finds the same.
    let simulate = [&["simulate"], &WORLD[1..], &arguments[..4]].concat();
    assert_eq!(lines(&done(folder.path(), &simulate).stdout, "load"), found);
}

#[test]
fn in_a_closed_loop_the_load_is_the_number_of_clients() {
    let folder = tempdir().unwrap();
    let at = |load: &str, clients: &str| {
        let output = evaluate(folder.path(), &["--clients", clients, "--load", load, "--policy", "default"]);
        let mut row = lines(&output, "run").remove(0);
        row["load"].take();
        row
    };
    assert_eq!(at("3", "8"), at("1", "24"));
    assert_eq!(at("0.01", "8"), at("1", "1"), "never less than one");
    assert_ne!(at("1", "8")["hash"], at("1", "24")["hash"]);
    let output = evaluate(folder.path(), &["--clients", "16", "--loads", "auto", "--policy", "default"]);
    let loads = lines(&output, "load");
    assert!(loads.iter().any(|load| load["load"].is_number()), "{loads:?}");
}

#[test]
fn violations_and_capacity_are_compared() {
    let folder = tempdir().unwrap();
    let arguments = [
        "--loads",
        "auto",
        "--seeds",
        "1..3",
        "--policy",
        "default",
        "--policy",
        "best-fixed",
        "--policy",
        "best-static:full",
        "--policy",
        "past-future",
        "--policy",
        "oracle,admission=shortest-on-time-first",
    ];
    let output = evaluate(folder.path(), &arguments);
    let comparisons = lines(&output, "comparison");
    assert_eq!(comparisons[3]["policy"], "past-future");
    for line in &comparisons {
        let yardsticks: Vec<&str> =
            line["against"].as_array().unwrap().iter().map(|one| one["than"].as_str().unwrap()).collect();
        let expected = ["default", "best-fixed", "best-static:full"];
        assert_eq!(yardsticks, expected.into_iter().filter(|name| line["policy"] != *name).collect::<Vec<_>>());
        let mean = &line["slo_attainment_mean"];
        assert!(number(&mean["low"]) <= number(&mean["mean"]) && number(&mean["mean"]) <= number(&mean["high"]));
        assert!(line["capacity"]["load"].is_number(), "{line}");
        // Three seeds of a generator are three traces, whatever the loads, and every load counts.
        assert_eq!((&mean["traces"], &mean["draws"], &mean["stretches"]), (&3.into(), &3.into(), &Value::Null));
        assert_eq!((line["runs"].as_u64(), line["repeated"].as_u64()), (Some(12), Some(0)));
        assert_eq!(line["against"][0]["longest_waits"].as_array().unwrap().len(), 4);
    }
    // Hindsight is never worse than what it chose from.
    let share = |line: usize| number(&comparisons[line]["against"][0]["fewer_violations"]["mean"]);
    assert!(share(1) >= 0.0 && share(2) >= share(1) && share(2) > 0.2, "{} {}", share(1), share(2));

    // Found by bisection, the default's capacity lies where straight lines put it, or nearly.
    let bisected =
        evaluate(folder.path(), &["--loads", "auto", "--seeds", "1..3", "--policy", "default", "--capacity"]);
    let bisected = &lines(&bisected, "comparison")[0]["capacity"];
    let interpolated = number(&comparisons[0]["capacity"]["load"]);
    assert!((number(&bisected["load"]) / interpolated - 1.0).abs() < 0.1, "{bisected} {interpolated}");
    assert_eq!(bisected["bound"], "exact");
}

#[test]
fn a_report_is_one_page_that_says_the_same_twice() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let hostile = "<img src=x onerror=alert(1)>&\"'.jsonl";
    done(path, &["trace", "generate", "chat:rate=3,duration=60,seed=3", "plain.jsonl"]);
    let rows = fs::read_to_string(path.join("plain.jsonl")).unwrap();
    let named = rows.lines().enumerate().map(|(index, row)| {
        let tenant = ["acme", "</table><script>alert(2)</script>"][index % 2];
        row.replacen('{', &format!("{{\"tenant\":\"{tenant}\",\"slo_class\":\"a&b\\u0007\","), 1) + "\n"
    });
    fs::write(path.join(hostile), named.collect::<String>()).unwrap();
    let report = |name: &str| {
        let mut arguments = vec!["evaluate", "--trace", hostile, "--engine", "v1", "--set", "num_gpu_blocks=1500"];
        arguments.extend(["--loads", "0.8,1.1", "--seeds", "1..2", "--policy", "default", "--policy", "best-fixed"]);
        arguments.extend(["--policy", "oracle", "--report", name]);
        let run = done(path, &arguments);
        assert!(run.stderr.contains("the report is in"), "{}", run.stderr);
        fs::read_to_string(path.join(name)).unwrap()
    };
    fs::create_dir(path.join("a")).unwrap();
    let page = report("a/report.html");
    // But for the name of the page in the command, as the other one has it.
    assert_eq!(page.replace("a/report.html", "again.html"), report("again.html"));

    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    for needless in ["<script ", "<img", "<link", "http:", "https:", "url(", "@import", "NaN", "inf ", "\u{7}"] {
        assert!(!page.contains(needless), "{needless}");
    }
    for needed in [
        "kvtide evaluate --trace",
        "&lt;img src=x onerror=alert(1)&gt;&amp;&quot;&#39;",
        "&lt;/table&gt;&lt;script&gt;alert(2)&lt;/script&gt;",
        "a&amp;b\u{fffd}",
        "<h2>Violations and capacity</h2>",
        "<h2>By class</h2>",
        "<h2>By tenant</h2>",
        "longest wait",
        "Preemptions so far",
        "Time between tokens",
    ] {
        assert!(page.contains(needed), "{needed}");
    }
    // The one script is the page's own, and the day is the one that is given.
    assert_eq!(page.matches("<script").count(), 1);
    assert!(page.contains("Made on <time datetime=\"2023-11-14\">2023-11-14</time>"));
    // Every element that is opened is closed.
    for element in
        ["svg", "table", "tr", "td", "th", "div", "g", "p", "dl", "section", "nav", "header", "main", "script"]
    {
        let count = |text: &str| page.matches(text).count();
        let opened = count(&format!("<{element}>")) + count(&format!("<{element} "));
        assert_eq!(opened, count(&format!("</{element}>")), "{element}");
    }
    let left: Vec<_> = fs::read_dir(path.join("a")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["report.html"]);
}

#[test]
fn a_recorded_trace_is_one_trace_however_often_it_is_drawn() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    done(path, &["trace", "generate", "chat:rate=4,duration=420,seed=3", "t.jsonl"]);
    let world = ["evaluate", "--trace", "t.jsonl", "--set", "num_gpu_blocks=1500", "--loads", "0.6,0.8"];
    let policies = [
        "--seeds",
        "1..3",
        "--policy",
        "default",
        "--policy",
        "fixed:0.03",
        "--versus",
        "fixed:0.03",
        "--report",
        "r.html",
    ];
    let output = done(path, &[&world[..], &policies[..], &["--json"]].concat()).stdout;
    let run = &lines(&output, "run")[0];
    assert_eq!(run["recorded"], true);
    let requests: f64 = run["stretches"]["counts"].as_array().unwrap().iter().map(|one| number(&one[0])).sum();
    assert_eq!(requests, number(&run["requests"]));
    let comparison = &lines(&output, "comparison")[1];
    let gain = &comparison["against"][0]["gain"];
    assert_eq!((&gain["traces"], &gain["draws"], &gain["stretches"]), (&1.into(), &3.into(), &4.into()));
    let default = &lines(&output, "comparison")[0];
    assert_eq!(default["against"][0]["than"], "fixed:0.03");
    assert!(default["against"][0]["worst_load"]["gain"].is_number());

    let text = done(path, &[&world[..], &policies[..]].concat()).stdout;
    for part in ["1 trace, 3 draws, 4 stretches", "violations over every load run: 0.6, 0.8", "gain over fixed:0.03"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let page = fs::read_to_string(path.join("r.html")).unwrap();
    assert!(page.contains("Gains over fixed:0.03") && page.contains("1 trace, 3 draws, 4 stretches"));
}

#[test]
fn runs_that_are_the_same_again_count_once() {
    let folder = tempdir().unwrap();
    // Eight clients, whichever of the two.
    let arguments = ["--clients", "8", "--loads", "1,1.01,2", "--seeds", "1..2", "--policy", "default"];
    let output = evaluate(folder.path(), &arguments);
    let line = &lines(&output, "comparison")[0];
    assert_eq!((line["runs"].as_u64(), line["repeated"].as_u64()), (Some(4), Some(2)));
    let text = done(folder.path(), &[&WORLD[..7], &arguments[..]].concat()).stdout;
    assert!(text.contains("2 draws are earlier ones again, run for run, and counted once"), "{text}");
}

#[test]
fn a_learned_policy_is_explained() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let experiment = r#"
name = "small"
profile = "core"
num_envs = 4
method = "cross-entropy"
[world]
workload = "chat:rate=3,duration=300,seed=2"
set = ["num_gpu_blocks=1500"]
[episodes]
fit = 0.7
length_s = 60.0
load = [0.8, 1.2]
[cross_entropy]
generations = 3
population = 8
elite = 0.25
episodes = 2
"#;
    fs::write(path.join("small.toml"), experiment).unwrap();
    done(path, &["train", "--experiment", "small.toml", "--out", "run"]);
    done(
        path,
        &["export", "--checkpoint", "run/checkpoint", "--out", "policy.kvt", "--leaves", "16", "--max-loss", "100"],
    );
    let mut arguments = vec!["evaluate", "--workload", "chat:rate=3,duration=90", "--set", "num_gpu_blocks=1500"];
    arguments.extend(["--seeds", "11", "--policy", "default", "--policy", "table:policy.kvt", "--report", "r.html"]);
    done(path, &arguments);
    let page = fs::read_to_string(path.join("r.html")).unwrap();
    for needed in ["What the decisions depend on", "choices taken", "asked for in", "<b>table:policy.kvt</b> attains"] {
        assert!(page.contains(needed), "{needed}");
    }
    // A minute and a half is no interval, and is not given out for one.
    assert!(page.contains("[no interval]") && page.contains("1 trace, 1 draw, 1 stretch"));
}

#[test]
fn mistakes_are_named_before_anything_is_run() {
    let folder = tempdir().unwrap();
    let world = ["evaluate", "--workload", "chat:rate=1,n=9", "--policy", "default"];
    for (more, part) in [
        (["--report", "nowhere/report.html"], "there is no folder nowhere"),
        (["--loads", "auto,1"], "--load \"auto\""),
        (["--policy", "oracle:3"], "unknown policy \"oracle:3\""),
        (["--policy", "past-future:1.5"], "\"1.5\" is not a quantile"),
        (["--policy", "ppas:0,2048"], "policy \"ppas:0,2048\": \"0\" is not a number of prompts from 1"),
        (["--policy", "ppas:2"], "policy \"ppas:2\": \"2\" is not N,CAP"),
        (["--policy", "ppas:2,junk"], "\"junk\" is not a number of tokens from 1"),
        (["--versus", "fixed:0.03"], "--versus fixed:0.03 is not one of the policies"),
    ] {
        let error = refused(folder.path(), &[&world[..], &more[..]].concat());
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(kvtide(folder.path(), &["evaluate", "--workload", "chat:rate=1,n=9"]).code, 2);
}
