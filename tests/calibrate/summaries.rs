//! Measured summaries: what was simulated is found again, nothing is changed where nothing is fitted, the best budget is named, and
//! every mistake in a file is told with its line.

use std::fs;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use kvtide::calibrate::served::CalibrateError;
use kvtide::calibrate::summaries::{
    CardAccount, CardRuns, FitLoads, Latencies, MeanP95, MeasuredSummaries, SummaryPolicy, judge_card, serve_card,
};
use kvtide::calibrate::{FitScope, FittedConstants};
use kvtide_envs::deploy::{Hardware, HardwareProfile, HostTimes};
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::common::{done, lines, refused};

/// Loads and seeds of the made-up runs.
const RATES: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
const SEEDS: u64 = 2;
const BUDGETS: [u32; 3] = [512, 2048, 8192];

fn go_on() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn phases(rate: f64) -> String {
    format!("20:{rate}")
}

/// Arrivals at `rate` for 20 s, from a generator of our own.
fn arrivals(rate: f64, seed: u64) -> Vec<u64> {
    let mut state = seed.wrapping_mul(7919) as u32 + 17;
    let mut at = 0.0;
    let mut all = Vec::new();
    while at < 20.0 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let share = f64::from(state >> 8) / f64::from(1 << 24);
        at -= (1.0 - share).ln() / rate;
        all.push((at * 1e6) as u64);
    }
    all
}

/// A row with latencies that mean nothing yet.
fn row(rate: f64, seed: u64, budget: u32, policy: &str) -> Value {
    json!({
        "gpu": "A100", "model": "Qwen/Qwen2.5-3B-Instruct", "prompt_tokens": 6000, "output_tokens": 40, "peak_rps": rate,
        "phases": phases(rate), "seed": seed, "requests": arrivals(rate, seed).len(), "policy": policy,
        "max_num_batched_tokens": budget, "max_num_seqs": 64, "e2e_mean_s": 2.0, "e2e_p95_s": 3.0, "ttft_mean_s": 1.0,
        "ttft_p95_s": 1.5, "tpot_mean_s": 0.01, "tpot_p95_s": 0.02, "makespan_s": 30.0, "failed": 0, "noted": "by hand",
    })
}

fn rows() -> Vec<Value> {
    let mut rows = Vec::new();
    for rate in RATES {
        for seed in 0..SEEDS {
            rows.extend(BUDGETS.map(|budget| row(rate, seed, budget, "fixed")));
            rows.push(row(rate, seed, 8192, "ppas"));
        }
    }
    rows
}

fn write(folder: &Path, rows: &[Value]) {
    let line = |row: &Value| format!("{row}\n");
    fs::write(folder.join("runs.jsonl"), rows.iter().map(line).collect::<String>()).unwrap();
    let mut text = String::new();
    for rate in RATES {
        for seed in 0..SEEDS {
            text += &line(&json!({ "phases": phases(rate), "seed": seed, "arrival_us": arrivals(rate, seed) }));
        }
    }
    fs::write(folder.join("arrivals.jsonl"), text).unwrap();
}

fn read(rows: &[Value]) -> MeasuredSummaries {
    let folder = tempdir().unwrap();
    write(folder.path(), rows);
    MeasuredSummaries::read(folder.path()).unwrap()
}

/// A card whose host's share is told apart, and constants unlike those of its profile.
fn card() -> Hardware {
    Hardware { host: Some(HostTimes::default()), ..Hardware::named("a100-80g-datasheet").unwrap() }
}

fn truth() -> FittedConstants {
    let before = FittedConstants::of(&card()).seen_by_clients();
    FittedConstants { compute_efficiency: 0.5, bandwidth_efficiency: 0.9, client: 3.0, ..before }
}

/// The made-up runs as the simulator serves them with `constants`.
fn simulated(constants: &FittedConstants) -> CardRuns {
    simulated_on(&card(), constants)
}

fn simulated_on(card: &Hardware, constants: &FittedConstants) -> CardRuns {
    let mut cards = CardRuns::of(&read(&rows()), None, &[]).unwrap();
    assert_eq!(cards.len(), 1);
    let mut runs = cards.remove(0);
    runs.hardware = card.clone();
    runs.models[0].deployment.hardware = card.clone();
    let served = serve_card(&runs, constants, &go_on).unwrap();
    for (run, latencies) in runs.models[0].runs.iter_mut().zip(served) {
        run.measured = latencies;
    }
    runs
}

fn judged(runs: &CardRuns, scope: FitScope, loads: FitLoads) -> CardAccount {
    judge_card(runs, "made up", scope, loads, &go_on).unwrap()
}

fn value(account: &CardAccount, name: &str) -> f64 {
    account.report.constants.iter().find(|constant| constant.name == name).unwrap().value
}

#[test]
fn constants_that_are_known_are_found() {
    let runs = simulated(&truth());
    let account = judged(&runs, FitScope::All, FitLoads::Half);
    let near = |name: &str, truth: f64, share: f64| {
        let found = value(&account, name);
        assert!((found / truth - 1.0).abs() < share, "{name} {found}, not {truth}");
    };
    near("compute_efficiency", 0.5, 0.02);
    // Steps are all of a few sequences: the time to read the weights is told from what is exposed of the host by a prior alone.
    near("bandwidth_efficiency", 0.9, 0.1);
    near("client", 3.0, 0.3);
    // On loads it has not seen as well.
    crate::json::documented("clock_report", &account.report);
    let [judged, fitted] =
        [&account.report.models[0].judged, &account.report.models[0].fitted].map(|part| part.clone().unwrap());
    assert_eq!((judged.cells, fitted.cells, judged.runs, account.report.fitted_runs), (2, 2, 12, 12));
    assert!(judged.e2e_mean.median < 0.01 && judged.ttft_mean.median < 0.01, "{judged:?}");
    let best = judged.best.unwrap();
    assert_eq!((best.cells, best.named), (2, 2), "{best:?}");
}

/// Where kernels were measured by shape, what multiplies them is found, and the shares of the peaks stay.
#[test]
fn measured_kernels_are_scaled() {
    let card = Hardware::named("a100-80g").unwrap();
    let before = FittedConstants::of(&card).seen_by_clients();
    let runs = simulated_on(&card, &FittedConstants { products: 1.3, client: 2.0, ..before });
    let account = judged(&runs, FitScope::All, FitLoads::Half);
    let names: Vec<&str> = account.report.constants.iter().map(|constant| constant.name).collect();
    assert_eq!(names, ["products", "prefill", "decode", "exposed", "exposed_sequence", "chunk_overhead", "client"]);
    assert!((value(&account, "products") / 1.3 - 1.0).abs() < 0.05, "{:?}", account.report.constants);
    assert!(account.report.models[0].judged.clone().unwrap().e2e_mean.median < 0.01);
    let products = value(&account, "products");
    assert_eq!(account.hardware.tables.unwrap().scales.products, products);
}

#[test]
fn of_the_host_alone_the_kernels_stay() {
    let before = FittedConstants::of(&card()).seen_by_clients();
    let runs = simulated(&FittedConstants { exposed: 4e-3, client: 5.0, ..before });
    let account = judged(&runs, FitScope::Host, FitLoads::All);
    assert!((value(&account, "exposed") / 4e-3 - 1.0).abs() < 0.1, "{:?}", account.report.constants);
    let names: Vec<&str> = account.report.constants.iter().map(|constant| constant.name).collect();
    assert_eq!(names, ["exposed", "exposed_sequence", "chunk_overhead", "client"]);
    let Hardware { compute_efficiency, bandwidth_efficiency, .. } = account.hardware;
    assert_eq!((compute_efficiency, bandwidth_efficiency), (card().compute_efficiency, card().bandwidth_efficiency));
    assert!(account.report.warnings.iter().any(|warning| warning.contains("fitted to every load")));
}

#[test]
fn where_nothing_is_fitted_the_profile_is_judged_as_it_stands() {
    let before = FittedConstants::of(&card()).seen_by_clients();
    let runs = simulated(&before);
    let account = judged(&runs, FitScope::None, FitLoads::All);
    assert_eq!((account.hardware, account.report.simulations, account.report.fitted_runs), (card(), 0, 0));
    assert!(account.report.constants.is_empty() && account.report.models[0].fitted.is_none());
    let part = account.report.models[0].judged.clone().unwrap();
    assert_eq!((part.e2e_mean.worst, part.tpot_p95.unwrap().worst, part.makespan.worst), (0.0, 0.0, 0.0));
    assert_eq!((part.better_of, part.better.unwrap().named), (Some([2048, 8192]), RATES.len()));
    // Twice as slow is told as twice as slow.
    let mut halved = runs.clone();
    let half = |MeanP95 { mean, p95 }| MeanP95 { mean: mean / 2.0, p95: p95 / 2.0 };
    for run in &mut halved.models[0].runs {
        let Latencies { e2e, ttft, tpot, makespan } = run.measured;
        run.measured = Latencies { e2e: half(e2e), ttft: half(ttft), tpot: half(tpot), makespan };
    }
    let part = judged(&halved, FitScope::None, FitLoads::All).report.models[0].judged.clone().unwrap();
    assert!((part.e2e_mean.median - 1.0).abs() < 1e-9 && (part.e2e_mean.bias - 1.0).abs() < 1e-9, "{part:?}");
}

#[test]
fn the_best_budget_is_named_and_what_another_costs() {
    let mut runs = simulated(&FittedConstants::of(&card()).seen_by_clients());
    let before = judged(&runs, FitScope::None, FitLoads::All).report.models[0].cells.clone();
    let best = before[3].best.unwrap();
    assert_eq!((best.measured, best.excess), (best.simulated, 0.0));
    // Measured otherwise: the worst of the budgets is said to be a fifth better than the best.
    let choices: Vec<(u32, f64)> = before[3]
        .choices
        .iter()
        .filter(|choice| choice.policy == SummaryPolicy::Fixed)
        .map(|choice| (choice.max_num_batched_tokens, choice.e2e_mean.measured))
        .collect();
    let (worst, _) = *choices.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    let (_, least) = *choices.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    let is_it = |run: &&mut kvtide::calibrate::summaries::SummaryRun| {
        run.peak_rps == RATES[3] && run.max_num_batched_tokens == worst && run.policy == SummaryPolicy::Fixed
    };
    for run in runs.models[0].runs.iter_mut().filter(is_it) {
        run.measured.e2e.mean = 0.8 * least;
    }
    let after = judged(&runs, FitScope::None, FitLoads::All).report.models[0].clone();
    let found = after.cells[3].best.unwrap();
    assert_eq!((found.measured, found.simulated), (worst, best.simulated));
    assert!((found.excess - 0.25).abs() < 1e-9, "{found:?}");
    let naming = after.judged.unwrap().best.unwrap();
    assert_eq!((naming.cells, naming.named), (4, 3));
    assert!((naming.worst_excess - 0.25).abs() < 1e-9 && (naming.mean_excess - 0.0625).abs() < 1e-9, "{naming:?}");
    // The adaptive policy is compared with the best, and no budget of its own.
    assert!(after.cells.iter().all(|cell| cell.adaptive.is_some() && cell.choices.len() == 4));
}

#[test]
fn a_fit_is_the_same_at_any_number_of_threads_and_can_be_ended() {
    let runs = simulated(&truth());
    let fit = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| serde_json::to_string(&judged(&runs, FitScope::Host, FitLoads::OtherHalf).report).unwrap())
    };
    assert_eq!(fit(1), fit(3));
    let left = AtomicU32::new(100);
    let watch = || match left.load(Ordering::Relaxed) {
        0 => ControlFlow::Break(()),
        some => {
            left.store(some - 1, Ordering::Relaxed);
            ControlFlow::Continue(())
        }
    };
    let ended = judge_card(&runs, "made up", FitScope::Host, FitLoads::All, &watch);
    assert_eq!(ended.unwrap_err(), CalibrateError::Interrupted);
}

/// The error of a folder whose first row has `field` set to `value`, without the folder.
fn error(change: impl Fn(&mut Vec<Value>)) -> String {
    let folder = tempdir().unwrap();
    let mut rows = rows();
    change(&mut rows);
    write(folder.path(), &rows);
    let error = MeasuredSummaries::read(folder.path()).unwrap_err().to_string();
    error.replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn mistakes_are_told_with_file_line_and_value() {
    let with = |field: &'static str, value: Value| error(|rows| rows[1][field] = value.clone());
    assert_eq!(with("prompt_tokens", json!(0)), "runs.jsonl:2: prompt_tokens is 0: expected 1 to 16777216");
    assert_eq!(with("max_num_seqs", json!(99_999)), "runs.jsonl:2: max_num_seqs is 99999: expected 1 to 65536");
    assert_eq!(with("policy", json!("random")), "runs.jsonl:2: policy is random: expected fixed or ppas");
    assert_eq!(
        with("e2e_mean_s", json!(-1.0)),
        "runs.jsonl:2: e2e_mean_s is -1.0: expected seconds, from 0.000001 to a year"
    );
    assert_eq!(
        with("tpot_p95_s", json!(0.0)),
        "runs.jsonl:2: tpot_p95_s is 0.0: expected seconds, from 0.000001 to a year"
    );
    assert_eq!(
        with("tpot_mean_s", json!(1e-300)),
        "runs.jsonl:2: tpot_mean_s is 1e-300: expected seconds, from 0.000001 to a year"
    );
    assert_eq!(with("ttft_mean_s", json!(2.5)), "runs.jsonl:2: ttft_mean_s is 2.5: expected at most e2e_mean_s");
    assert_eq!(with("peak_rps", json!(0)), "runs.jsonl:2: peak_rps is 0: expected requests a second, above 0");
    assert_eq!(with("seed", json!(7)), "runs.jsonl:2: arrivals.jsonl has no arrivals of seed 7 at 20:0.5");
    assert!(with("requests", json!(1)).starts_with("runs.jsonl:2: requests is 1, and arrivals.jsonl has "));
    assert!(with("gpu", json!(3)).starts_with("runs.jsonl:2: invalid type: integer `3`, expected a string"));
    assert!(
        error(|rows| drop(rows[2].as_object_mut().unwrap().remove("model")))
            .contains("runs.jsonl:3: missing field `model`")
    );
    assert_eq!(error(Vec::clear), "runs.jsonl: no runs");
    assert_eq!(
        error(|rows| rows.iter_mut().for_each(|row| row["failed"] = json!(1))),
        "runs.jsonl: no runs in which no request failed"
    );
    let folder = tempdir().unwrap();
    write(folder.path(), &rows());
    let arrivals = |text: &str| {
        fs::write(folder.path().join("arrivals.jsonl"), text).unwrap();
        let error = MeasuredSummaries::read(folder.path()).unwrap_err().to_string();
        error.replace(&format!("{}/", folder.path().display()), "")
    };
    let line = r#"{"phases": "20:0.5", "seed": 0, "arrival_us": [5, 9]}"#;
    assert_eq!(
        arrivals(&format!("\n{line}\n{line}")),
        "arrivals.jsonl:3: arrivals of seed 0 at 20:0.5 are given twice"
    );
    assert_eq!(
        arrivals(&line.replace("5, 9", "9000001, 5000003")),
        "arrivals.jsonl:1: the clock runs backwards: arrival_us 5000003 is before the one before it, 9000001"
    );
    assert_eq!(arrivals(&line.replace("5, 9", "")), "arrivals.jsonl:1: no arrivals");
    fs::remove_file(folder.path().join("arrivals.jsonl")).unwrap();
    let error = MeasuredSummaries::read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("arrivals.jsonl: cannot open"), "{error}");
}

#[test]
fn runs_with_failed_requests_are_passed_over_and_said() {
    let mut rows = rows();
    rows[1]["failed"] = json!(2);
    let summaries = read(&rows);
    assert_eq!((summaries.runs.len(), summaries.failed), (rows.len() - 1, vec![2]));
    rows[0].as_object_mut().unwrap().remove("peak_rps");
    assert_eq!(read(&rows).runs[0].peak_rps, 0.5);
}

#[test]
fn the_command_tells_what_it_cannot_do() {
    let folder = tempdir().unwrap();
    let runs = folder.path().join("made-up");
    fs::create_dir(&runs).unwrap();
    write(&runs, &rows());
    let with =
        |arguments: &[&str]| refused(folder.path(), &[&["calibrate", "--measured", "made-up"], arguments].concat());
    assert!(with(&["--fit", "none", "--profile", "a.toml"]).contains("nothing is fitted"));
    assert!(with(&["--fit", "none", "--fit-loads", "half"]).contains("nothing is fitted"));
    assert!(with(&["--fit-fraction", "0.5"]).contains("--fit-loads"));
    assert!(with(&["--load", "none"]).contains("--load"));
    assert!(with(&["--only", "card=A100"]).contains("\"card=A100\": expected KEY=VALUE"));
    assert!(with(&["--only", "gpu=H100"]).contains("--only gpu=H100 leaves no run"));
    assert!(
        with(&["--set", "max_model_len=6000"])
            .contains("runs.jsonl:1: 6040 tokens of prompt and answer, and the engine takes at most 6000")
    );
    assert!(with(&["--set", "dead_ends=faithful"]).contains("only engine=v1"));
    let error = with(&["--set", "max_num_batched_tokens=64"]);
    assert!(error.contains("--set max_num_batched_tokens=64: each run of measured summaries says its own"), "{error}");
    let mut other = rows();
    other[0]["model"] = json!("nobody/knows");
    write(&runs, &other);
    let error = with(&[]);
    assert!(error.contains("runs.jsonl:1: no model is known as \"nobody/knows\"; give --env path"), "{error}");
    let error = with(&["--env", "qwen2.5-3b@h100"]);
    assert!(error.contains("names one model, and the runs are of 2"), "{error}");
    other[0] = row(0.5, 0, 512, "fixed");
    other[0]["gpu"] = json!("abacus");
    write(&runs, &other);
    assert!(with(&[]).contains("no accelerator is known as \"abacus\"; give --env @HARDWARE"));
    let error = with(&["--profile", "a.toml", "--env", "@h100"]);
    assert!(error.contains("the runs are of 2: pick one (--only gpu=A100)"), "{error}");
}

/// Written, read and used: what is fitted as a profile, and what is told as JSON and as a picture.
#[test]
fn a_profile_a_picture_and_json_are_written() {
    let folder = tempdir().unwrap();
    let runs = folder.path().join("made-up");
    fs::create_dir(&runs).unwrap();
    write(&runs, &rows());
    let arguments = [
        "calibrate",
        "--measured",
        "made-up",
        "--only",
        "peak=0.5,peak=1",
        "--fit",
        "host",
        "--fit-loads",
        "half",
        "--json",
        "--profile",
        "mine.toml",
        "--plot",
        "plot.svg",
    ];
    let run = done(folder.path(), &arguments);
    let [report] = lines(&run.stdout, "clock_report").try_into().unwrap();
    assert_eq!((&report["gpu"], &report["hardware"]), (&json!("A100"), &report["hardware"]));
    assert_eq!(report["models"][0]["cells"].as_array().unwrap().len(), 2);
    let profile = HardwareProfile::read(&folder.path().join("mine.toml")).unwrap();
    assert_eq!(HardwareProfile::parse(&profile.to_toml()), Ok(profile));
    let written = fs::read_to_string(folder.path().join("mine.toml")).unwrap();
    assert!(written.contains("[summaries]") && written.contains("--fit host --fit-loads half"), "{written}");
    let plot = fs::read_to_string(folder.path().join("plot.svg")).unwrap();
    for text in ["measured", "simulated", "2048 tokens", "ppas", "mean E2E (s)"] {
        assert!(plot.contains(text), "{text}");
    }
    // It is judged as it was written.
    let again =
        ["calibrate", "--measured", "made-up", "--only", "peak=0.5,peak=1", "--fit", "none", "--env", "@mine.toml"];
    let text = done(folder.path(), &again).stdout;
    assert!(text.contains("simulated as qwen2.5-3b@mine") && text.contains("nothing fitted"), "{text}");
}

/// The 330 runs beside the checkout, if they are there.
fn shared() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/measured/token-budget");
    if !path.join("runs.jsonl").exists() {
        let _ = writeln!(io::stderr(), "skipped: {} is not here", path.display());
        return None;
    }
    Some(path)
}

#[test]
fn the_published_runs_are_read_and_their_latencies_add_up() {
    let Some(path) = shared() else { return };
    let summaries = MeasuredSummaries::read(&path).unwrap();
    assert_eq!((summaries.runs.len(), summaries.failed.len()), (330, 0));
    for run in &summaries.runs {
        let Latencies { e2e, ttft, tpot, .. } = run.measured;
        let off = e2e.mean - ttft.mean - f64::from(run.output_tokens - 1) * tpot.mean;
        assert!(off.abs() < 3e-5, "line {}: {off}", run.line);
    }
    let cards = CardRuns::of(&summaries, None, &[]).unwrap();
    let names: Vec<(&str, usize)> = cards.iter().map(|card| (card.gpu.as_str(), card.models.len())).collect();
    assert_eq!(names, [("A100", 1), ("RTX5090", 2)]);
}
