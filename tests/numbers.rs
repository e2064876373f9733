//! Numbers that cannot be meant, wherever one can be given: refused at once, with where it stood, what it was and what would do.

use std::fs;
use std::path::Path;

use kvtide::experiment::Experiment;
use tempfile::tempdir;
use toml::{Table, Value};

use crate::common::{done, refused};

/// Every number an experiment can hold, each as it may be.
const EVERY_KEY: &str = r#"
name = "every"
profile = "full"
num_envs = 4
watermarks = [0.01, 0.05]
fallback = 0.05
[world]
workload = "chat:rate=3,duration=120,seed=2"
clients = 8
pool = 0.5
cv = 2.0
session_rate = 20.0
interval = 8
[episodes]
fit = 0.7
length_s = 30.0
load = [0.8, 1.2]
weight = 2.0
pool = [0.5, 1.5]
lengths = [0.5, 2.0]
[[also]]
[also.world]
workload = "chat:rate=3,duration=120,seed=2"
clients = 8
pool = 0.5
cv = 2.0
session_rate = 20.0
[also.episodes]
fit = 0.7
length_s = 30.0
load = [0.8, 1.2]
weight = 2.0
pool = [0.5, 1.5]
lengths = [0.5, 2.0]
[reward]
token = 0.1
[validation]
share = 0.3
episodes = 4
every = 3
[ppo]
total_decisions = 4096
num_steps = 32
value_clip = 0.3
target_kl = 0.02
[ppo.prior]
choices = [1, 0, 1, 0]
probability = 0.8
[cross_entropy]
generations = 3
population = 8
"#;

/// Numbers nobody means, and how they are written back; what is too long to write back is not looked for.
const HOSTILE: [(f64, &str); 5] =
    [(f64::NAN, "nan"), (f64::INFINITY, "inf"), (f64::NEG_INFINITY, "-inf"), (-1.0, "-1"), (1e300, "")];

/// Where numbers stand: keys and indices from the top.
fn numbers(value: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let each: Vec<(String, &Value)> = match value {
        Value::Table(table) => table.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(values) => values.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect(),
        Value::Integer(_) | Value::Float(_) => return found.push(path.clone()),
        _ => return,
    };
    for (key, value) in each {
        path.push(key);
        numbers(value, path, found);
        path.pop();
    }
}

fn at<'a>(value: &'a mut Value, path: &[String]) -> &'a mut Value {
    path.iter().fold(value, |value, key| match value {
        Value::Table(table) => table.get_mut(key).unwrap(),
        Value::Array(values) => &mut values[key.parse::<usize>().unwrap()],
        _ => unreachable!("{key}"),
    })
}

#[test]
fn an_experiment_holds_no_number_that_cannot_be_meant() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("bad.toml");
    let whole = Value::Table(Experiment::parse(EVERY_KEY).unwrap().to_toml().parse::<Table>().unwrap());
    fs::write(&file, toml::to_string(&whole).unwrap()).unwrap();
    Experiment::load(&file).unwrap();
    let mut keys = Vec::new();
    numbers(&whole, &mut Vec::new(), &mut keys);
    assert!(keys.len() > 70, "{}", keys.len());
    for key in &keys {
        let name = key.iter().rev().find(|part| part.parse::<usize>().is_err()).unwrap();
        for (number, written) in HOSTILE {
            // A weight that falls below 0 makes a policy sure by the end.
            if number == -1.0 && key.contains(&"entropy_coef".to_owned()) {
                continue;
            }
            let mut changed = whole.clone();
            let place = at(&mut changed, key);
            *place = if place.is_integer() && number == -1.0 { Value::Integer(-1) } else { Value::Float(number) };
            fs::write(&file, toml::to_string(&changed).unwrap()).unwrap();
            let Err(error) = Experiment::load(&file) else { panic!("{} = {number} is taken", key.join(".")) };
            let said = error.to_string();
            let names = said.contains("bad.toml") && said.contains(&name.replace('_', "-")) || said.contains(name);
            assert!(names, "{} = {number}: {said}", key.join("."));
            assert!(said.to_lowercase().contains(written), "{} = {number}: {said}", key.join("."));
        }
    }
}

/// Options that take numbers, after the rest of a command that is in order, each with values nobody means.
const OPTIONS: [(&str, &[&str], &[&str]); 29] = [
    (SIMULATE, &["--session-rate"], &["0", "-1", "nan", "inf", "1e300"]),
    (SIMULATE, &["--pool"], &["0", "-1", "nan", "inf", "1e300"]),
    (SIMULATE, &["--cv"], &["-1", "nan", "inf", "1e300"]),
    (SIMULATE, &["--interval", "--clients"], &["0", "-1", "nan", "1e300"]),
    (SIMULATE, &["--windows"], &["0", "-1", "nan", "1e300"]),
    (SIMULATE, &["--lengths"], &["0", "-1", "nan", "inf", "1e300", "1:inf"]),
    (SIMULATE, &["--load"], &["0", "-1", "nan", "inf", "1e300"]),
    (SIMULATE, &["--seeds"], &["-1", "nan", "1..0", "0..1000000000"]),
    (SIMULATE, &["--jitter"], &["-1", "nan", "inf", "1e300"]),
    (SIMULATE, &["--window"], &["0..0", "5..1", "-1..5", "nan..inf"]),
    (SIMULATE, &["--slo"], &["ttft:0", "ttft:-1", "ttft:nan", "tpot:inf", "stall:1e300"]),
    (SIMULATE, &["--memory"], &["host:0", "host:-1", "host:nan"]),
    (
        SIMULATE,
        &["--policy"],
        &["fixed:nan", "fixed:-1", "fixed:2", "opt-factor:inf", "avg-blocks:-1", "past-future:nan"],
    ),
    (SIMULATE, &["--set"], &["watermark=nan", "patience=-1", "bandwidth_efficiency=0", "pcie_bandwidth=inf"]),
    (SIMULATE, &["--set"], &["max_num_seqs=-1", "num_gpu_blocks=1e300", "max_num_batched_tokens=nan"]),
    (
        "simulate",
        &["--workload"],
        &["chat:rate=0,n=9", "chat:rate=nan,n=9", "chat:rate=1,n=0", "chat:rate=1,n=9,cv=inf"],
    ),
    ("evaluate --workload chat:rate=1,n=9 --policy default", &["--windows", "--pool"], &["0", "-1"]),
    ("train --experiment good.toml --out run", &["--decisions", "--checkpoint-every"], &["0", "-1", "nan"]),
    ("train --experiment good.toml --out run", &["--seed"], &["-1", "nan"]),
    ("train --experiment search.toml --out run", &["--generations"], &["0", "-1", "1e300", "99999999"]),
    ("export --checkpoint none --out a.kvt", &["--leaves", "--episodes"], &["0", "-1", "nan", "99999999"]),
    ("trace stats chat.jsonl", &["--session-rate"], &["0", "-1", "nan", "inf"]),
    ("trace stats chat.jsonl", &["--sessions", "--session-seed"], &["-1", "nan"]),
    ("trace generate", &[""], &["chat:rate=-1,n=9 a", "chat:rate=1,n=-1 a"]),
    ("calibrate --measured none", &["--fit-fraction"], &["0", "-1", "nan", "inf", "2"]),
    ("calibrate --device", &["--points", "--repeats"], &["0", "-1", "nan"]),
    ("bench", &["--repeats"], &["0", "-1", "nan"]),
    ("inspect policy.kvt", &["--rules"], &["-1", "nan"]),
    ("inspect policy.kvt --svg a.svg", &["--depth"], &["-1", "nan"]),
];

const SIMULATE: &str = "simulate --workload chat:rate=1,n=9";

/// A small experiment of one of the methods.
fn write_experiment(path: &Path, method: &str) {
    let text = format!(
        "name = \"good\"\nprofile = \"core\"\nmethod = \"{method}\"\nnum_envs = 4\n[world]\nworkload = \
         \"chat:rate=3,duration=120\"\n[episodes]\nfit = 0.7\nlength_s = 30.0\nload = [0.8, 1.2]\n"
    );
    fs::write(path, text).unwrap();
}

#[test]
fn no_option_takes_a_number_that_cannot_be_meant() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    done(path, &["trace", "generate", "chat:rate=1,n=9", "chat.jsonl"]);
    fs::copy(format!("{}/checkpoints/agentic/policy.kvt", env!("CARGO_MANIFEST_DIR")), path.join("policy.kvt"))
        .unwrap();
    write_experiment(&path.join("good.toml"), "ppo");
    write_experiment(&path.join("search.toml"), "cross-entropy");
    let before = fs::read_dir(path).unwrap().count();
    for (command, options, values) in OPTIONS {
        for (option, value) in options.iter().flat_map(|option| values.iter().map(move |value| (option, value))) {
            let line = format!("{command} {option} {value}");
            let arguments: Vec<&str> = line.split_whitespace().collect();
            let error = refused(path, &arguments);
            let key = option.trim_start_matches("--");
            let named = error.contains(key) || error.contains(&key.replace('-', "_"));
            let part = value.rsplit(['=', ':', ' ']).next().unwrap();
            // Of a range, the end that is wrong.
            let is_shown = |end: &str| error.to_lowercase().contains(&end.to_lowercase());
            let shown = part.split("..").any(is_shown) || part == "a" || part == "1e300";
            assert!(named && shown, "{line}: {error}");
        }
    }
    assert_eq!(fs::read_dir(path).unwrap().count(), before, "nothing is begun");
}
