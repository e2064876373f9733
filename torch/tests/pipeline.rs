//! Train, interrupt, resume, export, inspect, evaluate: the whole way with a very small agent.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{PROGRAM, done, kvtide, lines, refused};
use tempfile::tempdir;

/// Twelve iterations of 128 decisions.
const EXPERIMENT: &str = r#"
name = "small"
profile = "core"
num_envs = 4

[world]
workload = "chat:rate=3,duration=300,seed=2"
set = ["num_gpu_blocks=1500"]

[episodes]
fit = 0.7
length_s = 60.0
load = [0.8, 1.2]

[ppo]
total_decisions = 1536
num_steps = 32
num_minibatches = 2
hidden = [16]
"#;

/// The same by cross-entropy search: three generations of eight candidates.
fn search_experiment() -> String {
    let table = "[cross_entropy]\ngenerations = 3\npopulation = 8\nelite = 0.25\nepisodes = 2\n";
    EXPERIMENT.replace("num_envs = 4", "num_envs = 4\nmethod = \"cross-entropy\"") + "\n" + table
}

fn write_experiment(folder: &Path) {
    fs::write(folder.join("small.toml"), EXPERIMENT).unwrap();
}

fn files_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

fn assert_same(whole: &[(String, Vec<u8>)], cut: &[(String, Vec<u8>)]) {
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|file| file.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(whole), names(cut));
    for (whole, cut) in whole.iter().zip(cut) {
        assert!(whole == cut, "{} differs", whole.0);
    }
}

/// Trains into `cut` and interrupts it at whatever moment the signal meets it; at the latest it has finished, which must
/// also resume.
fn interrupt(folder: &Path, experiment: &str) {
    let mut child = Command::new(PROGRAM)
        .args(["train", "--experiment", experiment, "--out", "cut", "--checkpoint-every", "1"])
        .current_dir(folder)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !folder.join("cut/checkpoint/manifest.json").exists() {
        if child.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::yield_now();
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let code = child.wait().unwrap().code();
    assert!(code == Some(130) || code == Some(0), "{code:?}");
}

#[test]
fn an_interrupted_run_resumes_to_the_same_bytes() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    write_experiment(path);
    done(path, &["train", "--experiment", "small.toml", "--out", "whole"]);

    interrupt(path, "small.toml");
    done(path, &["train", "--resume", "--out", "cut"]);
    assert_same(&files_of(&path.join("whole/checkpoint")), &files_of(&path.join("cut/checkpoint")));

    // Nothing is overwritten, and another experiment is not mistaken for this one.
    assert!(refused(path, &["train", "--experiment", "small.toml", "--out", "cut"]).contains("--resume"));
    fs::write(path.join("other.toml"), EXPERIMENT.replace("[16]", "[17]")).unwrap();
    let other = refused(path, &["train", "--experiment", "other.toml", "--resume", "--out", "cut"]);
    assert!(other.contains("another experiment"), "{other}");
    // The same one is.
    done(path, &["train", "--experiment", "small.toml", "--resume", "--out", "cut"]);
}

#[test]
fn the_policy_kept_is_the_best_on_traffic_not_trained_on() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let experiment = EXPERIMENT.replace("[ppo]", "[validation]\nepisodes = 3\nevery = 5\n\n[ppo]");
    fs::write(path.join("small.toml"), experiment).unwrap();
    done(path, &["train", "--experiment", "small.toml", "--out", "whole"]);
    let log = fs::read_to_string(path.join("whole/train.jsonl")).unwrap();
    let judgements = lines(&log, "validation");
    let of = |field: &str| judgements.iter().map(|line| line[field].as_f64().unwrap()).collect::<Vec<_>>();
    // Before learning, every fifth iteration, and at the end.
    assert_eq!(of("iteration"), [0.0, 5.0, 10.0, 12.0]);
    let best = of("attainment").iter().copied().fold(0.0, f64::max);
    assert_eq!(of("best").last(), Some(&best));
    let manifest = fs::read_to_string(path.join("whole/policy/manifest.json")).unwrap();
    assert!(manifest.contains(&format!("\"validation_attainment\": \"{best:.6}\"")), "{manifest}");
    // It decides, and cannot be gone on from.
    assert!(done(path, &["inspect", "whole/policy"]).stdout.contains("small"));
    assert!(!path.join("whole/policy/trainer.json").exists());

    interrupt(path, "small.toml");
    done(path, &["train", "--resume", "--out", "cut"]);
    assert_same(&files_of(&path.join("whole/policy")), &files_of(&path.join("cut/policy")));
}

#[test]
fn a_checkpoint_becomes_a_table_that_decides_alike_everywhere() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    write_experiment(path);
    done(path, &["train", "--experiment", "small.toml", "--out", "run"]);
    let export = |out: &str| {
        let arguments = [
            "export",
            "--checkpoint",
            "run/checkpoint",
            "--out",
            out,
            "--rust",
            "policy.rs",
            "--leaves",
            "32",
            "--episodes",
            "4",
            "--max-loss",
            "100",
        ];
        done(path, &arguments).stderr
    };
    let said = export("policy.kvt");
    assert!(said.contains("agrees with its teacher") && said.contains("on 4 unseen episodes: "), "{said}");
    export("again.kvt");
    assert_eq!(fs::read(path.join("policy.kvt")).unwrap(), fs::read(path.join("again.kvt")).unwrap());
    assert!(fs::read_to_string(path.join("policy.rs")).unwrap().contains("pub static POLICY: Table<'static>"));

    let text = done(path, &["inspect", "policy.kvt"]).stdout;
    assert!(text.contains("core") && text.contains("free_fraction") && text.contains("small"), "{text}");
    let json = lines(&done(path, &["inspect", "policy.kvt", "--json"]).stdout, "table");
    assert_eq!(json.len(), 1);
    assert!(json[0]["metadata"]["loss.points"].as_str().unwrap().contains('['), "{}", json[0]);
    done(path, &["inspect", "policy.kvt", "--svg", "tree.svg"]);
    assert!(fs::read_to_string(path.join("tree.svg")).unwrap().starts_with("<svg "));

    // A table that is not good enough is not written.
    let gate =
        ["export", "--checkpoint", "run/checkpoint", "--out", "no.kvt", "--episodes", "2", "--frontier", "size.svg"];
    let strict = kvtide(path, &[&gate[..], &["--max-loss", "-101"]].concat());
    assert_eq!(strict.code, 1, "{}", strict.stderr);
    assert!(strict.stderr.contains("points lost are more than --max-loss -101"), "{}", strict.stderr);
    let alike = kvtide(path, &[&gate[..], &["--max-loss", "100", "--min-fidelity", "1", "--leaves", "1"]].concat());
    assert!(alike.code == 1 && alike.stderr.contains("less than --min-fidelity 1"), "{}", alike.stderr);
    assert!(!path.join("no.kvt").exists() && path.join("size.svg").exists());
    assert!(strict.stdout.starts_with("leaves  node bytes"), "{}", strict.stdout);
    assert!(
        refused(path, &["export", "--checkpoint", "run/checkpoint", "--out", "x.kvt", "--max-loss", "nan"])
            .contains("--max-loss")
    );

    // Whatever is observed, a decision can be explained, and what is observed must be a feature.
    let all = lines(&done(path, &["inspect", "policy.kvt", "--json"]).stdout, "table").remove(0);
    let middle = |feature: &serde_json::Value| format!("{}={}", feature["name"].as_str().unwrap(), feature["min"]);
    let given: Vec<String> = all["features"].as_array().unwrap().iter().map(middle).collect();
    let arguments: Vec<&str> = ["explain", "policy.kvt"].into_iter().chain(given.iter().map(String::as_str)).collect();
    assert!(done(path, &arguments).stdout.contains("so: watermark "));
    assert!(refused(path, &["explain", "policy.kvt", "freedom=1"]).contains("no such feature"));
    assert!(refused(path, &["explain", "policy.kvt", "waiting=many"]).contains("is no number"));
    assert!(done(path, &["inspect", "run/checkpoint"]).stdout.contains("1536 decisions in 12 iterations"));

    let judged = done(
        path,
        &[
            "evaluate",
            "--workload",
            "chat:rate=3,duration=120",
            "--set",
            "num_gpu_blocks=1500",
            "--seeds",
            "11..12",
            "--policy",
            "default",
            "--policy",
            "checkpoint:run/checkpoint",
            "--policy",
            "table:policy.kvt",
            "--json",
        ],
    );
    assert_eq!(lines(&judged.stdout, "run").len(), 6);
    let comparisons = lines(&judged.stdout, "comparison");
    assert_eq!(comparisons[2]["policy"], "table:policy.kvt");
    assert_eq!(comparisons[0]["reference"], "default");

    // Another world than the one it was trained in is pointed out.
    let elsewhere = done(
        path,
        &["evaluate", "--workload", "chat:rate=3,duration=30", "--interval", "16", "--policy", "table:policy.kvt"],
    );
    assert!(elsewhere.stderr.contains("was trained with interval 8 and is judged with 16"), "{}", elsewhere.stderr);
    done(path, &["trace", "generate", "chat:rate=3,duration=300", "other.jsonl"]);
    let other = ["export", "--checkpoint", "run/checkpoint", "--out", "x.kvt", "--trace", "other.jsonl"];
    assert!(refused(path, &other).contains("other traffic"));

    // One flipped byte anywhere, and neither is believed.
    let mut bytes = fs::read(path.join("policy.kvt")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path.join("bad.kvt"), &bytes).unwrap();
    assert!(refused(path, &["inspect", "bad.kvt"]).contains("bad.kvt"));
    let weights = path.join("run/checkpoint/weights.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&weights, &bytes).unwrap();
    assert!(refused(path, &["inspect", "run/checkpoint"]).contains("weights.safetensors"));
}

#[test]
fn a_run_that_is_extended_is_the_one_planned_for_as_long_where_nothing_goes_by_its_length() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("steady.toml"), format!("{EXPERIMENT}anneal = false\n")).unwrap();
    done(path, &["train", "--experiment", "steady.toml", "--out", "whole"]);
    done(path, &["train", "--experiment", "steady.toml", "--out", "cut", "--decisions", "768"]);
    let extended = done(path, &["train", "--resume", "--out", "cut", "--decisions", "1536"]);
    assert!(extended.stderr.contains("the run is the one planned for as many"), "{}", extended.stderr);
    for part in ["checkpoint", "policy"] {
        assert_same(&files_of(&path.join("whole").join(part)), &files_of(&path.join("cut").join(part)));
    }
    assert!(refused(path, &["train", "--resume", "--out", "cut", "--decisions", "768"]).contains("are fewer"));

    write_experiment(path);
    done(path, &["train", "--experiment", "small.toml", "--out", "falling", "--decisions", "768"]);
    let extended = done(path, &["train", "--resume", "--out", "falling", "--decisions", "1536"]);
    assert!(extended.stderr.contains("learning_rate went by 768 until here and goes by 1536"), "{}", extended.stderr);
    let manifest = &lines(&done(path, &["inspect", "falling/policy", "--json"]).stdout, "checkpoint")[0];
    assert_eq!(manifest["metadata"]["extended"], "from 768 to 1536 decisions after 768");
    assert_eq!((&manifest["decisions"], &manifest["config"]["total_decisions"]), (&1536.into(), &1536.into()));
}

#[test]
fn a_search_is_trained_resumed_judged_and_exported_like_any_other() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("search.toml"), search_experiment()).unwrap();
    let trained = done(path, &["train", "--experiment", "search.toml", "--out", "whole"]);
    assert!(trained.stderr.contains("1/3 generations") && trained.stderr.contains("score"), "{}", trained.stderr);
    let log = fs::read_to_string(path.join("whole/train.jsonl")).unwrap();
    let generations = lines(&log, "iteration");
    assert_eq!(generations.len(), 3);
    assert_eq!(generations[0]["start"], generations[0]["mean"]);
    for (number, line) in (1..).zip(&generations) {
        assert_eq!(line["iteration"], number);
        assert!(line["best"].as_f64() >= line["elite"].as_f64(), "{line}");
        assert!(line["episodes"]["metrics"]["slo_attainment"].as_f64().is_some(), "{line}");
    }

    interrupt(path, "search.toml");
    done(path, &["train", "--resume", "--out", "cut"]);
    assert_same(&files_of(&path.join("whole/policy")), &files_of(&path.join("cut/policy")));
    assert!(!path.join("whole/policy/search.json").exists());
    assert_same(&files_of(&path.join("whole/checkpoint")), &files_of(&path.join("cut/checkpoint")));
    done(path, &["train", "--experiment", "search.toml", "--resume", "--out", "cut"]);
    fs::write(path.join("other.toml"), search_experiment().replace("elite = 0.25", "elite = 0.5")).unwrap();
    let other = refused(path, &["train", "--experiment", "other.toml", "--resume", "--out", "cut"]);
    assert!(other.contains("another experiment"), "{other}");

    let text = done(path, &["inspect", "whole/checkpoint"]).stdout;
    assert!(text.contains("3 generations of a cross-entropy search") && text.contains("search.json"), "{text}");
    done(path, &["export", "--checkpoint", "whole/checkpoint", "--out", "policy.kvt", "--leaves", "8"]);
    assert!(done(path, &["inspect", "policy.kvt"]).stdout.contains("cross-entropy, "));
    let judged = ["evaluate", "--workload", "chat:rate=3,duration=60", "--set", "num_gpu_blocks=1500", "--json"];
    let policies = ["--policy", "default", "--policy", "checkpoint:whole/checkpoint", "--policy", "table:policy.kvt"];
    let judged = done(path, &[&judged[..], &policies[..]].concat());
    assert_eq!(lines(&judged.stdout, "run").len(), 3);
}

#[test]
fn a_wrong_search_is_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    for (from, to, part) in [
        ("elite = 0.25", "elite = 1.5", "bad.toml: cross_entropy.elite = 1.5: must be in (0, 1)"),
        ("population = 8", "population = 2", "cross_entropy.population = 2"),
        ("episodes = 2", "episodes = 0", "cross_entropy.episodes = 0"),
        ("elite = 0.25", "elites = 0.25", "unknown field `elites`"),
        ("episodes = 2", "objective = \"throughput\"", "unknown variant `throughput`"),
        ("method = \"cross-entropy\"", "method = \"genetic\"", "unknown variant `genetic`"),
        ("\"num_gpu_blocks=1500\"", "\"dead_ends=faithful\"", "train with dead_ends=safe"),
    ] {
        assert!(search_experiment().contains(from), "{from}");
        fs::write(path.join("bad.toml"), search_experiment().replace(from, to)).unwrap();
        let error = refused(path, &["train", "--experiment", "bad.toml", "--out", "run"]);
        assert!(error.contains(part), "{to}: {error}");
        assert!(!path.join("run").exists());
    }
    fs::write(path.join("search.toml"), search_experiment()).unwrap();
    let decisions = refused(path, &["train", "--experiment", "search.toml", "--out", "run", "--decisions", "1000"]);
    assert!(decisions.contains("cross_entropy.generations"), "{decisions}");
}

#[test]
fn a_wrong_experiment_is_refused_with_its_line() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    for (from, to, part) in [
        ("num_envs = 4", "num_envs = 0", "bad.toml: num_envs = 0: expected 1 to 4096"),
        ("length_s = 60.0", "length_s = 1e6", "episodes.length_s = 1000000"),
        ("hidden = [16]", "hiden = [16]", "bad.toml: line 19: unknown field `hiden`"),
        ("profile = \"core\"", "profile = \"all\"", "watermark, core, full or cache"),
        ("num_minibatches = 2", "num_minibatches = 5", "num_minibatches"),
        ("num_envs = 4", "num_envs = 4\nprior = \"fixed:0.07\"", "0.07 is none of"),
        (
            "num_envs = 4",
            "num_envs = 4\nwithout = [\"grwth_8\"]",
            "bad.toml: without = grwth_8: expected names of features",
        ),
        ("num_steps = 32", "num_steps = 32\nhold = 0", "bad.toml: ppo.hold = 0"),
        ("[ppo]", "[validation]\nshare = 1.0\n[ppo]", "validation.share = 1: expected above 0, below 1"),
        ("num_envs = 4", "num_envs = 4\nprior = \"default\"", "search or a fixed: policy"),
        ("\"num_gpu_blocks=1500\"", "\"dead_ends=faithful\"", "train with dead_ends=safe"),
    ] {
        assert!(EXPERIMENT.contains(from), "{from}");
        fs::write(path.join("bad.toml"), EXPERIMENT.replace(from, to)).unwrap();
        let error = refused(path, &["train", "--experiment", "bad.toml", "--out", "run"]);
        assert!(error.contains(part), "{to}: {error}");
        assert!(!path.join("run/checkpoint").exists());
    }
    assert_eq!(kvtide(path, &["train", "--resume", "--out", "run"]).code, 2);
}
