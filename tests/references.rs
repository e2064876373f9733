//! The references of an evaluation side by side: a constant chosen on training traffic, once for everything, and anew for each load.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::{done, kvtide, lines, refused};
use tempfile::tempdir;

const EXPERIMENT: &str = r#"
name = "small"
profile = "watermark"
method = "cross-entropy"

[world]
workload = "chat:rate=3,duration=90,seed=3"
set = ["num_gpu_blocks=1500"]

[episodes]
fit = 1.0
length_s = 40.0
load = [0.8, 1.2]

# Of another card, which is not judged.
[[also]]
[also.world]
workload = "chat:rate=3,duration=90"
env = "llama-3-8b@h100"

[also.episodes]
fit = 1.0
length_s = 40.0
load = [1.0, 1.0]
"#;

const WORLD: [&str; 12] = [
    "evaluate",
    "--workload",
    "chat:rate=3,duration=60",
    "--set",
    "num_gpu_blocks=1500",
    "--loads",
    "0.9,1.2",
    "--seeds",
    "5..6",
    "--policy",
    "default",
    "--json",
];

const REFERENCES: [&str; 8] = [
    "--policy",
    "best-fixed",
    "--policy",
    "best-train:small.toml",
    "--policy",
    "best-static-once:watermark",
    "--out",
    "runs.jsonl",
];

fn evaluate(folder: &Path, more: &[&str]) -> String {
    done(folder, &[&WORLD[..], &REFERENCES[..], more].concat()).stdout
}

/// Attainment by policy and load, and what was chosen.
type ByCell = BTreeMap<(String, String), (f64, Option<String>)>;

fn by_cell(stdout: &str) -> ByCell {
    let mut cells = ByCell::new();
    for run in lines(stdout, "run") {
        let key = (run["policy"].as_str().unwrap().to_owned(), run["load"].to_string());
        let cell = cells.entry(key).or_insert((0.0, None));
        cell.0 += run["slo_attainment"].as_f64().unwrap() / 2.0;
        cell.1 = run["chosen"].as_str().map(str::to_owned);
    }
    cells
}

#[test]
fn one_constant_for_all_is_no_better_than_one_for_each_and_the_best_of_those_that_are_one() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("small.toml"), EXPERIMENT).unwrap();
    let output = evaluate(folder.path(), &[]);
    let cells = by_cell(&output);
    let at = |policy: &str, load: &str| cells[&(policy.to_owned(), load.to_owned())].clone();
    let loads = ["0.9", "1.2"];
    for policy in ["best-train:small.toml", "best-static-once:watermark"] {
        let chosen = loads.map(|load| at(policy, load).1.unwrap());
        assert_eq!(chosen[0], chosen[1], "{policy}");
        for load in loads {
            assert!(at(policy, load).0 <= at("best-fixed", load).0, "{policy} at {load}");
        }
    }
    let mean = |policy: &str| loads.map(|load| at(policy, load).0).iter().sum::<f64>();
    // Nothing that is the same at every load beats it on the very draws.
    for policy in ["default", "best-train:small.toml"] {
        assert!(mean("best-static-once:watermark") >= mean(policy), "{policy}: {cells:?}");
    }
    let once = at("best-static-once:watermark", "0.9").1.unwrap();
    let again = done(folder.path(), &[&WORLD[..], &["--policy", &once]].concat()).stdout;
    let again = by_cell(&again);
    assert!(
        loads
            .iter()
            .all(|load| again[&(once.clone(), (*load).to_owned())].0 == at("best-static-once:watermark", load).0)
    );
    // Everybody is compared with them, and it is said which they are.
    for comparison in lines(&output, "comparison") {
        let than: Vec<&str> =
            comparison["against"].as_array().unwrap().iter().map(|one| one["than"].as_str().unwrap()).collect();
        for policy in ["default", "best-fixed", "best-train:small.toml", "best-static-once:watermark"] {
            assert_eq!(than.contains(&policy), comparison["policy"] != *policy, "{than:?}");
        }
        let is_chosen = comparison["policy"] != "default";
        assert_eq!(comparison.get("chosen").is_some_and(|chosen| !chosen.as_array().unwrap().is_empty()), is_chosen);
    }
}

#[test]
fn what_was_chosen_once_is_not_chosen_again() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("small.toml"), EXPERIMENT).unwrap();
    let output = evaluate(folder.path(), &[]);
    let runs = folder.path().join("runs.jsonl");
    let whole = fs::read_to_string(&runs).unwrap();
    for cut in [whole.lines().count() / 3, whole.lines().count() - 9] {
        let part: String = whole.lines().take(cut).map(|line| line.to_owned() + "\n").collect();
        fs::write(&runs, part).unwrap();
        assert_eq!(evaluate(folder.path(), &["--resume"]), output);
        assert_eq!(fs::read_to_string(&runs).unwrap(), whole, "cut at line {cut}");
    }
    // Trained on anything else, it is another policy.
    fs::write(&runs, whole.lines().take(9).map(|line| line.to_owned() + "\n").collect::<String>()).unwrap();
    fs::write(folder.path().join("small.toml"), EXPERIMENT.replace("0.8, 1.2", "0.5, 0.6")).unwrap();
    let error = refused(folder.path(), &[&WORLD[..], &REFERENCES[..], &["--resume"]].concat());
    assert!(error.contains("the training of best-train:small.toml"), "{error}");
}

#[test]
fn who_asks_for_training_that_is_not_there_is_told() {
    let folder = tempdir().unwrap();
    let error = refused(folder.path(), &[&WORLD[..], &["--policy", "best-train"]].concat());
    assert!(error.contains("best on which training?"), "{error}");
    let error = refused(folder.path(), &[&WORLD[..], &["--policy", "best-train:no.toml"]].concat());
    assert!(error.contains("no.toml"), "{error}");
    let error = refused(folder.path(), &[&WORLD[..], &["--policy", "best-train:."]].concat());
    assert!(error.contains("no checkpoint is there"), "{error}");
    fs::write(folder.path().join("bad.toml"), "name = 3").unwrap();
    let error = refused(folder.path(), &[&WORLD[..], &["--policy", "best-train:bad.toml"]].concat());
    assert!(error.contains("bad.toml") && error.contains("line 1"), "{error}");
    let said = kvtide(folder.path(), &["help", "policy"]).stdout;
    assert!(said.contains("best-train[:PATH]") && said.contains("best-static-once[:PROFILE]"), "{said}");
}
