//! Fitting: constants that are known are found, and nothing of the future is seen.

use kvtide::calibrate::served::{
    CalibrateError, Fit, FitScope, FittedConstants, MeasuredRun, ObservedRun, RunErrors, RunPart, Setup, calibrate,
    calibrate_jointly, fit,
};

use super::made_up::{CLOCKS, TRUTH, run_of_another_model, run_of_two_engines, simulated_run};

fn fit_until(run: &MeasuredRun, seconds: f64) -> Fit {
    let setup = Setup::of(run, None, &[]).unwrap();
    fit(&setup, &ObservedRun::until(run, run.start() + seconds), &mut || {}).unwrap()
}

#[test]
fn constants_that_are_known_are_found() {
    let run = simulated_run();
    let Fit { constants, objective, .. } = fit_until(&run, 40.0);
    let near = |found: f64, truth: f64, share: f64| assert!((found / truth - 1.0).abs() < share, "{constants:?}");
    near(constants.compute_efficiency, TRUTH.compute_efficiency, 0.01);
    near(constants.bandwidth_efficiency, TRUTH.bandwidth_efficiency, 0.01);
    near(constants.step_overhead, TRUTH.step_overhead, 0.1);
    near(constants.sequence_overhead, TRUTH.sequence_overhead, 0.1);
    near(constants.cold_start, TRUTH.cold_start, 0.1);
    assert!(objective < 0.02, "{objective}");
}

#[test]
fn several_runs_have_one_fit() {
    let runs = [simulated_run(), run_of_another_model()];
    let setups = runs.each_ref().map(|run| Setup::of(run, None, &[]).unwrap());
    let parts: Vec<(&MeasuredRun, &Setup)> = runs.iter().zip(&setups).collect();
    let found = calibrate_jointly(&parts, FitScope::All, 0.3, &mut || {}).unwrap();
    let [one, other] = [0, 1].map(|index| found[index].fit.constants);
    assert_eq!(one, FittedConstants { cold_start: one.cold_start, ..other });
    assert!((one.compute_efficiency / TRUTH.compute_efficiency - 1.0).abs() < 0.02, "{one:?}");
    assert!((one.bandwidth_efficiency / TRUTH.bandwidth_efficiency - 1.0).abs() < 0.02, "{one:?}");
    for (calibration, run) in found.iter().zip(&runs) {
        let report = calibration.report(run);
        // First tokens of a server with little to do are a few steps long: which of them is hit is decided by a thousandth.
        let mut others = report.verdicts.iter().filter(|verdict| !verdict.metric.starts_with("ttft"));
        assert!(others.all(|verdict| verdict.met), "{}: {:?}", report.run, report.verdicts);
    }
    let elsewhere = Setup::of(&runs[1], Some("qwen2.5-7b@a10"), &[]).unwrap();
    let error = calibrate_jointly(&[parts[0], (&runs[1], &elsewhere)], FitScope::All, 0.3, &mut || {}).unwrap_err();
    assert!(matches!(error, CalibrateError::OtherHardware { .. }), "{error}");
}

#[test]
fn engines_beside_each_other_serve_their_own_requests() {
    let run = run_of_two_engines();
    let setup = Setup::of(&run, None, &[]).unwrap();
    let calibration = calibrate(&run, &setup, 0.4, &mut || {}).unwrap();
    let constants = calibration.fit.constants;
    assert!((constants.bandwidth_efficiency / TRUTH.bandwidth_efficiency - 1.0).abs() < 0.02, "{constants:?}");
    let report = calibration.report(&run);
    assert!(report.verdicts.iter().all(|verdict| verdict.met), "{:?}", report.verdicts);
    assert!(report.warnings.iter().any(|warning| warning.starts_with("2 engines serve beside each other")));
    // As one engine, which has half of the pool and of the steps, it is nowhere near.
    let alone = MeasuredRun { engine: simulated_run().engine, ..run };
    let setup = Setup::of(&alone, None, &[]).unwrap();
    let served = setup.serve(&TRUTH, &calibration.whole).unwrap();
    let errors = RunErrors::of(&calibration.whole, &served, RunPart::After(0.0));
    assert!(errors.e2e_ms.unwrap().p50.error > 0.2, "{errors:?}");
}

#[test]
fn clocks_are_brought_to_one() {
    let run = simulated_run();
    let seen = ObservedRun::until(&run, run.start() + 40.0);
    assert!((seen.until_s - 40.0).abs() < 1e-6);
    for (index, request) in run.requests.iter().enumerate().take(seen.requests.len()) {
        assert!((seen.arrival_s(index) - (request.arrival - CLOCKS[0])).abs() < 1e-6);
        let first_s = seen.stamps[index].first_s;
        assert!(first_s.is_none_or(|first_s| (first_s - (request.first_token - CLOCKS[1])).abs() < 1e-6));
    }
    // Ticks are placed between the first tokens they count and those they do not.
    let off = seen.ticks.iter().zip(1..).map(|(tick, t)| (tick.at_s - (f64::from(t) - CLOCKS[2])).abs());
    assert!(off.fold(0.0, f64::max) < 0.05, "{:?}", seen.ticks[0]);
}

/// Everything that happens after `cut` on the engine's clock becomes something else.
fn with_another_future(run: &MeasuredRun, cut: f64) -> MeasuredRun {
    let mut other = run.clone();
    let change = |stamp: &mut f64| {
        if *stamp > cut {
            *stamp = cut + 1e-3 + (*stamp - cut) * 3.0;
        }
    };
    for request in &mut other.requests {
        if request.last_token > cut {
            request.output_tokens = request.output_tokens * 2 + 5;
        }
        if request.queued > cut {
            request.prompt_tokens += 100;
            // As if the engine's clock had been set back meanwhile.
            request.arrival += 0.5;
        }
        change(&mut request.queued);
        change(&mut request.first_token);
        change(&mut request.last_token);
    }
    other.requests.pop();
    // As if the recorder's clock had been set back as well: it counts what was there a little earlier.
    let mut before = 0.0;
    for tick in &mut other.ticks {
        let mut at = tick.t - CLOCKS[2];
        if run.start() + at > cut {
            at -= 0.25;
            let firsts =
                other.requests.iter().filter(|request| (before..at).contains(&(request.first_token - CLOCKS[1])));
            tick.prompt_tokens = firsts.map(|request| f64::from(request.prompt_tokens)).sum();
            tick.output_tokens *= 0.5;
            tick.running += 7.0;
            tick.kv_usage = 0.0;
        }
        before = at;
    }
    other
}

#[test]
fn the_fit_sees_nothing_of_the_future() {
    let run = simulated_run();
    for seconds in [12.0, 20.7] {
        let cut = run.start() + seconds;
        let other = with_another_future(&run, cut);
        assert_ne!(run, other);
        assert_eq!(ObservedRun::until(&run, cut), ObservedRun::until(&other, cut));
        let (here, there) = (fit_until(&run, seconds), fit_until(&other, seconds));
        assert_eq!(format!("{here:?}"), format!("{there:?}"));
    }
    // And does see the past.
    let cut = run.start() + 20.7;
    let other = with_another_future(&run, cut - 5.0);
    assert_ne!(ObservedRun::until(&run, cut), ObservedRun::until(&other, cut));
}

#[test]
fn the_wrong_hardware_is_noticed() {
    let run = simulated_run();
    let calibration = calibrate(&run, &Setup::of(&run, Some("llama-3-8b@a10"), &[]).unwrap(), 0.4, &mut || {}).unwrap();
    let report = calibration.report(&run);
    crate::json::documented("calibration", &report);
    let warned = |text: &str| report.warnings.iter().any(|warning| warning.contains(text));
    assert!(warned("bandwidth_efficiency ended at its bound, 1.000: is llama-3-8b@a10 what was measured?"));
    assert!(warned("output_tok_s is off by -"), "{:?}", report.warnings);
    assert!(warned("the run names llama-3-8b@rtx-4090, and llama-3-8b@a10 is simulated"));
    let names_another = |env| !Setup::of(&run, Some(env), &[]).unwrap().assumed.is_empty();
    assert!(names_another("qwen2.5-7b@rtx-4090") && names_another("llama-3-8b@2xrtx-4090"));
    // The same accelerator with other efficiencies is no other.
    assert!(!names_another("llama-3-8b@rtx-4090-measured") && !names_another("Llama-3.1-8B@RTX-4090"));
}

#[test]
fn a_fit_to_all_of_a_run_forecasts_nothing() {
    let run = simulated_run();
    let calibration = calibrate(&run, &Setup::of(&run, None, &[]).unwrap(), 1.0, &mut || {}).unwrap();
    let report = calibration.report(&run);
    assert_eq!((&report.held_out, report.verdicts.len(), report.ticks_outside), (&None, 0, 0));
    let fit = report.fit.unwrap();
    assert_eq!((fit.requests, fit.finished), (150, 150));
    assert!(report.fitted.e2e_ms.unwrap().p50.error.abs() < 0.02);
}
