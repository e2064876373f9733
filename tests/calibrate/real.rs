//! The real run beside the checkout, from the command line.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kvtide::calibrate::served::{MeasuredRun, Setup, calibrate};
use kvtide_envs::deploy::{Hardware, HardwareProfile};
use serde_json::Value;
use tempfile::tempdir;

use crate::common::{done, lines, refused};

/// The real run beside the checkout, and the load it was given, if they are there.
fn shared() -> Option<[PathBuf; 2]> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces");
    let names = ["measured_vllm_RTX4090_llama3.1-8b.tar.zst", "llmservingsim_sharegpt300_poisson.jsonl.zst"];
    let paths = names.map(|name| folder.join(name));
    if let Some(missing) = paths.iter().find(|path| !path.exists()) {
        let _ = writeln!(io::stderr(), "skipped: {} is not here", missing.display());
        return None;
    }
    Some(paths)
}

/// One call of the binary on the real run: report, profile and plot.
#[test]
fn the_rest_of_a_real_run_is_forecast_from_its_beginning() {
    let Some([measured, load]) = shared() else { return };
    let folder = tempdir().unwrap();
    let [measured, load] = [measured, load].map(|path| path.display().to_string());
    let outputs = ["--profile", "mine.toml", "--plot", "plot.svg", "--json"];
    let run = done(folder.path(), &[&["calibrate", "--measured", &measured, "--load", &load][..], &outputs].concat());
    let [report] = lines(&run.stdout, "calibration").try_into().unwrap();
    let held_out = &report["held_out"];
    let error = |path: &str| held_out.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path}"));
    for (path, target) in [
        ("/output_tok_s/error", 0.02),
        ("/ttft_ms/p50/error", 0.03),
        ("/ttft_ms/p99/error", 0.05),
        ("/tpot_ms/p50/error", 0.03),
        ("/tpot_ms/p99/error", 0.05),
        ("/e2e_ms/p50/error", 0.03),
        ("/e2e_ms/p99/error", 0.05),
        ("/makespan_s/error", 0.01),
        ("/tpot_ms/mean_abs_error", 0.03),
        ("/stalls/worst_error", 0.05),
        ("/curves/running_error", 1.0),
        ("/curves/waiting_error", 1.0),
        ("/curves/kv_usage_error", 0.02),
        ("/curves/output_tokens_error", 0.005),
    ] {
        assert!(error(path).abs() < target, "{path} {}", error(path));
    }
    // Stalls are there where they were measured, and because of preemptions.
    assert!(error("/stalls/slowdown/measured") > 1.5 && error("/stalls/slowdown/error").abs() < 0.02, "{held_out}");
    assert_eq!(held_out["stalls"]["preempted"], held_out["stalls"]["requests"]);
    assert!(error("/stalls/correlation") > 0.99);
    assert!(report["verdicts"].as_array().unwrap().iter().all(|verdict| verdict["met"] == true), "{report}");
    // Without a fit it is nowhere near.
    assert!(report["uncalibrated"]["output_tok_s"]["error"].as_f64().unwrap() < -0.1);
    assert!(run.stderr.contains("later ticks are outside of what was fitted"), "{}", run.stderr);

    // What ships is what this writes.
    let profile = HardwareProfile::read(&folder.path().join("mine.toml")).unwrap();
    let built_in = Hardware::named("rtx-4090-measured").unwrap();
    assert_eq!(profile.hardware.name, "mine");
    for (here, there) in [
        (profile.hardware.compute_efficiency, built_in.compute_efficiency),
        (profile.hardware.bandwidth_efficiency, built_in.bandwidth_efficiency),
        (profile.hardware.step_overhead, built_in.step_overhead),
    ] {
        assert!((here / there - 1.0).abs() < 0.02, "the built-in profile is out of date: {here}, not {there}");
    }
    let simulate = |env: &str| {
        let arguments = ["simulate", "--workload", "chat:rate=2,n=40", "--engine", "v1", "--env", env, "--json"];
        lines(&done(folder.path(), &arguments).stdout, "run").remove(0)
    };
    let (fitted, default) = (simulate("llama-3-8b@mine.toml"), simulate("llama-3-8b@rtx-4090"));
    assert_eq!(fitted["env"], "llama-3-8b@mine");
    assert!(fitted["tpot_ms"]["p50"].as_f64() < default["tpot_ms"]["p50"].as_f64());

    let plot = fs::read_to_string(folder.path().join("plot.svg")).unwrap();
    let referred = plot.matches("http").count();
    assert!(plot.starts_with("<svg") && plot.ends_with("</svg>\n") && referred == 1, "{referred}");
    for text in ["measured", "simulated, calibrated", "forecast", "tokens/s", "TTFT (s)", "KV blocks in use"] {
        assert!(plot.contains(text), "{text}");
    }
}

/// Its pool's use was not recorded, and nothing is fitted: neither a curve of zeros nor one "calibrated" is shown.
#[test]
fn what_was_not_recorded_and_not_fitted_is_not_shown() {
    let Some([measured, _]) = shared() else { return };
    let path = measured.with_file_name("measured_vllm_RTXPRO6000_llama3.1-8b.tar.zst");
    let folder = tempdir().unwrap();
    let path = path.to_str().unwrap();
    let arguments = ["calibrate", "--measured", path, "--env", "@rtx-pro-6000", "--fit", "none", "--plot", "plot.svg"];
    let text = done(folder.path(), &arguments).stdout;
    assert!(text.contains("simulated as llama-3-8b@rtx-pro-6000") && text.contains("KV usage not recorded"), "{text}");
    assert!(!text.contains("without fit"), "{text}");
    let plot = std::fs::read_to_string(folder.path().join("plot.svg")).unwrap();
    assert!(plot.contains(">simulated<") && !plot.contains("calibrated"));
}

#[test]
fn a_real_run_without_its_prompts_is_forecast_nearly_as_well() {
    let Some([measured, _]) = shared() else { return };
    let run = MeasuredRun::read(&measured, None).unwrap();
    let report = calibrate(&run, &Setup::of(&run, None, &[]).unwrap(), 0.3, &mut || {}).unwrap().report(&run);
    assert_eq!(report.env, "llama-3-8b@rtx-4090");
    assert!(report.verdicts.len() == 6 && report.verdicts.iter().all(|verdict| verdict.met), "{:?}", report.verdicts);
    assert!(report.warnings.iter().any(|warning| warning.contains("--load")), "{:?}", report.warnings);
}

/// Its `meta.json` names neither the pool, nor the longest sequence, nor the card.
#[test]
fn a_real_run_that_says_little_is_calibrated_with_what_the_card_holds() {
    let Some([measured, _]) = shared() else { return };
    let path = measured.with_file_name("measured_vllm_RTXPRO6000_llama3.1-8b.tar.zst");
    if !path.exists() {
        let _ = writeln!(io::stderr(), "skipped: {} is not here", path.display());
        return;
    }
    let run = MeasuredRun::read(&path, None).unwrap();
    let error = Setup::of(&run, None, &[]).unwrap_err().to_string();
    assert!(error.contains("give --env MODEL@HARDWARE"), "{error}");
    let setup = Setup::of(&run, Some("llama-3-8b@rtx-pro-6000"), &[]).unwrap();
    let report = calibrate(&run, &setup, 0.3, &mut || {}).unwrap().report(&run);
    let warned = |part: &str| report.warnings.iter().any(|warning| warning.contains(part));
    assert!(warned("does not say num_gpu_blocks") && warned("does not say max_model_len"), "{:?}", report.warnings);
    assert!(warned("kv_cache_pct is 0 throughout"), "{:?}", report.warnings);
    // The card's figures alone are within a tenth of what was measured; none of the targets is promised of such a run.
    let held_out = report.held_out.unwrap();
    for errors in [&held_out, &report.uncalibrated] {
        let pairs = [errors.output_tok_s.unwrap(), errors.tpot_ms.unwrap().p50, errors.e2e_ms.unwrap().p50];
        assert!(pairs.iter().all(|pair| pair.error.abs() < 0.1), "{errors:?}");
    }
}

#[test]
fn hardware_is_set_like_the_engine() {
    let folder = tempdir().unwrap();
    let simulate = |settings: &[&str]| {
        let arguments = [&["simulate", "--workload", "chat:rate=1,n=30", "--json"], settings].concat();
        lines(&done(folder.path(), &arguments).stdout, "run").remove(0)
    };
    let tpot = |settings: &[&str]| simulate(settings)["tpot_ms"]["p50"].as_f64().unwrap();
    let plain = tpot(&[]);
    assert!(tpot(&["--set", "bandwidth_efficiency=0.4"]) > 1.5 * plain);
    assert!(tpot(&["--set", "step_overhead=0"]) < plain);
    assert_eq!(tpot(&["--set", "pcie_bandwidth=1e9"]), plain);
    let error = refused(folder.path(), &["simulate", "--workload", "chat:rate=1,n=9", "--set", "bandwidth=1"]);
    assert!(error.contains("of the engine: block_size") && error.contains("of the hardware: peak_flops"));
}
