//! `kvtide tune`, end to end, small, and stopped wherever it can be.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use kvtide::distil::DaggerReport;
use kvtide::evaluate::Watch;
use kvtide::train::{self, BestConstant};
use kvtide::tune::{self, Cut, Effort, Settings, Step, Tuning};
use kvtide::world::WorldSpec;
use tempfile::tempdir;

use crate::common::{kvtide, lines, refused};

/// Requests a second on a node that a little more would be too much for, cheap to simulate.
const SMALL: [&str; 6] = ["--env", "qwen2.5-0.5b@rtx-4090", "--set", "num_gpu_blocks=220", "--effort", "smoke"];

fn tune(folder: &Path, arguments: &[&str]) -> (i32, Vec<String>, String) {
    let run = kvtide(folder, &[&["tune"], arguments, &SMALL[..]].concat());
    assert!(run.code == 0 || run.code == 1, "{arguments:?}: {}\n{}", run.code, run.stderr);
    (run.code, run.stdout.lines().map(str::to_owned).collect(), run.stderr)
}

#[test]
fn traffic_becomes_a_table_and_a_verdict_in_five_lines() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let (code, said, talk) =
        tune(path, &["--workload", "uniform:rate=6,duration=90,in=150,out=60,spread=0.5", "--out", "out"]);
    let begins = ["worth deploying: ", "attained: ", "late requests: ", "rests on: ", "next: "];
    assert_eq!(said.len(), 5, "{said:?}\n{talk}");
    assert!(said.iter().zip(begins).all(|(line, begin)| line.starts_with(begin)), "{said:?}");
    assert_eq!(code, i32::from(!said[0].contains("YES")), "{said:?}");
    for file in
        ["policy.kvt", "verdict.json", "report.html", "results.jsonl", "experiment.toml", "policy", "checkpoint"]
    {
        assert!(path.join("out").join(file).exists(), "{file}");
    }
    let verdict: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(path.join("out/verdict.json")).unwrap()).unwrap();
    assert_eq!(verdict["worth_deploying"], code == 0);
    assert_eq!(verdict["lines"][0], said[0]);
    // The page says what began the run, however it was gone on with.
    let page = || fs::read(path.join("out/report.html")).unwrap();
    let first = page();
    // What is done is not done again, and not as something else.
    let again = kvtide(path, &["tune", "--resume", "--out", "out", "--json"]);
    assert_eq!((again.code, &lines(&again.stdout, "verdict")[0]), (code, &verdict));
    assert!(page() == first, "the page is another");
    let other = refused(path, &["tune", "--resume", "--out", "out", "--seed", "2"]);
    assert!(other.contains("begun with another --seed"), "{other}");
    // The experiment is whole: what trains it again gets as far as to see that it is there already.
    let train = refused(path, &["train", "--experiment", "out/experiment.toml", "--out", "out"]);
    assert!(train.contains("checkpoint exists"), "{train}");
}

#[test]
fn what_cannot_be_tuned_is_refused_before_anything_is_written() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let short = refused(path, &["tune", "--workload", "chat:rate=1,duration=59", "--out", "out"]);
    assert!(short.contains("59.0 s: too little") && short.contains("at least 60 s"), "{short}");
    let few = refused(path, &["tune", "--workload", "chat:rate=0.2,duration=100", "--out", "out"]);
    assert!(few.contains("requests: too little"), "{few}");
    let future = refused(path, &["tune", "--versus", "best-fixed"]);
    assert!(future.contains("it knows the future"), "{future}");
    let nothing = refused(path, &["tune", "--resume", "--out", "out"]);
    assert!(nothing.contains("holds no run"), "{nothing}");
    let stdin = refused(path, &["tune", "-"]);
    assert!(stdin.contains("stdin cannot be"), "{stdin}");
    let effort = refused(path, &["tune", "--effort", "huge"]);
    assert!(effort.contains("quick, normal or thorough"), "{effort}");
    assert!(!path.join("out").exists() && !path.join("runs").exists());
    for file in ["precious", "tune.json"] {
        fs::create_dir_all(path.join(file)).unwrap();
        fs::write(path.join(file).join(file), "{}").unwrap();
        let error = refused(path, &["tune", "--workload", "chat:rate=1,duration=90", "--out", file]);
        assert!(error.contains("no folder of kvtide tune"), "{error}");
        assert_eq!(fs::read_to_string(path.join(file).join(file)).unwrap(), "{}");
    }
}

#[test]
fn what_the_run_would_take_away_before_it_reads_it_is_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let traffic = ["--workload", "uniform:rate=6,duration=90,in=150,out=60,spread=0.5"];
    tune(path, &[&traffic[..], &["--out", "out"]].concat());
    let left = || fs::read(path.join("out/policy.kvt")).unwrap();
    let before = left();
    symlink(path.join("out"), path.join("again")).unwrap();
    for policy in ["table:out/policy.kvt", "table:./out/../again/policy.kvt", "checkpoint:out/policy"] {
        for out in ["out", "again"] {
            let error = refused(path, &[&["tune"], &traffic[..], &["--out", out, "--versus", policy], &SMALL].concat());
            assert!(error.contains("--versus") && error.contains("takes that away before it begins"), "{error}");
        }
    }
    assert_eq!(left(), before);
    let missing = ["--out", "new", "--versus", "table:no.kvt"];
    let error = refused(path, &[&["tune"], &traffic[..], &missing, &SMALL].concat());
    assert!(error.contains("no.kvt") && !path.join("new").exists(), "{error}");
    // Judged against a table that is found from anywhere.
    fs::rename(path.join("out/policy.kvt"), path.join("today.kvt")).unwrap();
    let (code, ..) = tune(path, &[&traffic[..], &["--out", "new", "--versus", "table:today.kvt"]].concat());
    fs::create_dir(path.join("elsewhere")).unwrap();
    let resumed = kvtide(&path.join("elsewhere"), &["tune", "--resume", "--out", "../new"]);
    assert_eq!(resumed.code, code, "{}", resumed.stderr);
    let error = refused(path, &["tune", "--resume", "--out", "new", "--versus", "table:out/policy.kvt"]);
    assert!(error.contains("begun with another --versus"), "{error}");
}

#[test]
fn traffic_that_cannot_be_read_or_drawn_again_is_refused_before_the_work() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    for counted in [&["chat:rate=5,n=800"][..], &["chat:rate=5,n=800", "--clients", "40"]] {
        let error = refused(path, &[&["tune", "--workload"], counted].concat());
        assert!(error.contains("give duration= instead of n="), "{error}");
    }
    for once in ["/dev/stdin", "/dev/null", "-"] {
        let error = refused(path, &["tune", once, "--method", "ppo"]);
        assert!(error.contains("traffic is read more than once, and ") && error.contains("give a file"), "{error}");
    }
    // Every prompt is longer than the pool.
    let row = |n: usize| format!("{n},60000,10\n");
    let rows: String = (0..200).map(row).collect();
    fs::write(path.join("long.csv"), format!("arrival_s,prompt_tokens,output_tokens\n{rows}")).unwrap();
    let error = refused(path, &["tune", "long.csv", "--effort", "smoke", "--quiet"]);
    assert!(error.contains("completed none of") && error.contains("the smallest has 60010 tokens"), "{error}");
}

#[test]
fn a_no_is_a_no_though_nobody_reads_it() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let workload = ["--workload", "uniform:rate=6,duration=90,in=150,out=60,spread=0.5", "--out", "out"];
    let (code, ..) = tune(path, &workload);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut again = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    let ended = again.args(["tune", "--resume", "--out", "out"]).current_dir(path).stdout(writer).status().unwrap();
    assert_eq!((code, ended.code()), (1, Some(1)));
}

/// A trace of requests at these moments, in milliseconds, and the world it is served in.
fn world_of(folder: &Path, arrivals_ms: impl Iterator<Item = u64>) -> WorldSpec {
    let row = |ms: u64| format!("{{\"arrival_us\": {}, \"prompt_tokens\": 100, \"output_tokens\": 20}}\n", ms * 1000);
    let path = folder.join("trace.jsonl");
    fs::write(&path, arrivals_ms.map(row).collect::<String>()).unwrap();
    WorldSpec { trace: Some(path), env: "qwen2.5-0.5b@rtx-4090".parse().unwrap(), ..WorldSpec::default() }
}

#[test]
fn traffic_of_any_length_from_a_minute_up_is_cut_to_whole_seconds() {
    let folder = tempdir().unwrap();
    for span_s in [60, 61, 90, 127, 300, 428, 429, 3_000] {
        for rest_ms in [0, 1, 999] {
            let last = span_s * 1000 + rest_ms;
            let world = world_of(folder.path(), (0..=last / 500).map(|n| n * 500).chain([last])).world().unwrap();
            let cut = Cut::of(&world, 300).unwrap();
            assert!(cut.train.length().0 >= cut.episode_s * 1_000_000, "{span_s}: {cut:?}");
            assert!(cut.validation.length().0 >= cut.episode_s * 1_000_000, "{span_s}: {cut:?}");
            assert!(cut.train.end == cut.validation.start && cut.validation.end == cut.judged.start, "{cut:?}");
            assert!(
                cut.judged.start.0.is_multiple_of(1_000_000) && cut.judged.end.0.is_multiple_of(1_000_000),
                "{cut:?}"
            );
            assert!(cut.judged.end >= world.span().unwrap() && cut.episode_s >= 10, "{span_s}: {cut:?}");
        }
    }
}

#[test]
fn a_gap_where_traffic_would_be_cut_moves_the_cut() {
    let folder = tempdir().unwrap();
    let cut = |arrivals: &dyn Fn(u64) -> bool| {
        let world = world_of(folder.path(), (0..=1000).filter(|n| arrivals(*n)).map(|n| n * 100)).world().unwrap();
        Cut::of(&world, 300).map_err(Box::new)
    };
    // Nothing from 45 s to 99 s, and a burst in the last second.
    assert!(cut(&|n| !(450..990).contains(&n)).is_ok());
    // Pauses all over, bursts of 2 s every 20 s.
    assert!(cut(&|n| n % 200 < 20).is_ok());
    let error = cut(&|n| n < 100 || n == 1000).unwrap_err().to_string();
    assert!(error.contains("which is what there would be to") && error.contains("record longer"), "{error}");
}

/// Stops a run where it is told to.
struct Stopper<'a> {
    stop: &'a AtomicBool,
    /// At the beginning of this step, or when so many runs are done in it.
    at: Option<(Step, usize)>,
    step: Cell<Option<Step>>,
}

struct Counter<'a> {
    stop: &'a AtomicBool,
    left: Option<std::sync::atomic::AtomicUsize>,
}

impl Watch for Counter<'_> {
    fn planned(&self, _: usize) {}

    fn done(&self) {
        if let Some(left) = &self.left
            && left.fetch_sub(1, Ordering::Relaxed) == 1
        {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

impl train::Listener for Stopper<'_> {
    fn watch(&self) -> Box<dyn Watch + '_> {
        let runs =
            self.at.filter(|(step, runs)| self.step.get() == Some(*step) && *runs > 0).map(|(_, runs)| runs.into());
        Box::new(Counter { stop: self.stop, left: runs })
    }

    fn found(&self, _: BestConstant) {}
}

impl tune::Listener for Stopper<'_> {
    fn begins(&self, step: Step) {
        self.step.set(Some(step));
        if self.at == Some((step, 0)) {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn finds(&self, _: &str) {}

    fn grows(&self, _: &DaggerReport) {
        // A table grows: in the middle of its step.
        if self.at == Some((Step::Table, 1)) {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs in `out` from its beginning or from where it was stopped; whether it came to its end.
fn run(world: &WorldSpec, out: &Path, resume: bool, at: Option<(Step, usize)>) -> bool {
    let settings = Settings {
        effort: Effort::Smoke,
        seed: 3,
        method: kvtide::experiment::Method::CrossEntropy,
        clock_spread: Some(2),
        profile: None,
        versus: "default".parse().unwrap(),
        world: world.clone(),
    };
    let resolved = world.world().unwrap();
    let progress = if resume {
        tune::resumed(out).unwrap()
    } else {
        let progress = tune::begin(settings, &resolved, out, "kvtide tune").unwrap();
        progress.begin(out).unwrap();
        progress
    };
    let stop = AtomicBool::new(false);
    let stopper = Stopper { stop: &stop, at, step: Cell::new(None) };
    let tuning = Tuning { world: &resolved, out, tensors: None, listener: &stopper, stop: &stop };
    tuning.run(progress).unwrap().is_some()
}

#[test]
fn a_run_stopped_anywhere_goes_on_to_the_same_bytes() {
    let folder = tempdir().unwrap();
    // Bursts of ten requests every 2 s, too many at once for the pool.
    let arrivals = (0..70 * 10).map(|n| n / 10 * 1000 + n % 10 * 7);
    let mut world = world_of(folder.path(), arrivals);
    world.set = vec!["num_gpu_blocks=220".parse().unwrap()];
    let out = folder.path().join("out");
    let files = ["policy.kvt", "results.jsonl", "experiment.toml", "verdict.json", "report.html", "tune.json"];
    let left = || files.map(|file| fs::read(out.join(file)).unwrap());
    assert!(run(&world, &out, false, None));
    let whole = left();
    let stops = [
        (Step::Loads, 0),
        (Step::Loads, 3),
        (Step::Heads, 0),
        (Step::Heads, 5),
        (Step::Training, 0),
        (Step::Table, 0),
        (Step::Table, 1),
        (Step::Judging, 0),
        (Step::Judging, 40),
    ];
    // Stopped again and again, each time later than before.
    fs::remove_dir_all(&out).unwrap();
    for (index, at) in stops.into_iter().enumerate() {
        assert!(!run(&world, &out, index > 0, Some(at)), "{at:?} did not stop it");
        let settings = tune::resumed(&out).unwrap().settings;
        let unfinished = tune::begin(settings, &world.world().unwrap(), &out, "").unwrap_err();
        assert!(unfinished.to_string().contains("go on with --resume"), "{unfinished}");
    }
    assert!(run(&world, &out, true, None));
    for ((file, now), then) in files.iter().zip(left()).zip(&whole) {
        assert!(now == *then, "{file} differs");
    }
}
