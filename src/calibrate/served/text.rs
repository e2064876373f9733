//! A calibration to a served run as text: constants, errors of what was held out and of what was fitted, curves, stalls.

use std::fmt::Write;

use super::report::targets;
use super::{CalibrationReport, Curves, FitRange, FittedConstant, Pair, PairedPercentiles, RunErrors};

type LatencyErrors = fn(&RunErrors) -> Option<PairedPercentiles>;

/// A calibration for people.
pub(super) fn render(report: &CalibrationReport) -> String {
    let mut text = String::new();
    let CalibrationReport { run, engine, model, device, env, fit, .. } = report;
    let _ = writeln!(text, "{run}: {} requests in {:.1} s", report.requests, report.makespan_s);
    let _ = writeln!(text, "  {engine}, {model} on {device}, simulated as {env}");
    match fit {
        Some(fit) => render_fit(&mut text, fit),
        None => text.push_str("  nothing fitted: the profile as it stands\n"),
    }
    if !report.constants.is_empty() {
        let _ = writeln!(text, "\n{:22}{:>10}{:>10}", "constant", "fitted", "before");
    }
    for constant in &report.constants {
        text.push_str(&render_constant(constant));
    }
    let part = match fit {
        Some(fit) if report.held_out.is_some() => format!("after {:.1} s", fit.until_s),
        _ => "all of it".to_owned(),
    };
    let _ = write!(text, "\n{part:16}{:>12}{:>12}{:>10}", "measured", "simulated", "error");
    let _ =
        if fit.is_some() { writeln!(text, "{:>14}{:>16}", "without fit", "in fitted part") } else { writeln!(text) };
    render_errors(&mut text, report);
    text
}

fn render_fit(text: &mut String, fit: &FitRange) {
    let percent = |[low, high]: [f64; 2]| format!("{:.0} to {:.0} %", low * 100.0, high * 100.0);
    let _ = writeln!(
        text,
        "  fitted to the first {:.1} s ({:.0} %): {} arrived, {} finished; {:.0} to {:.0} running, {:.0} to {:.0} \
         waiting, KV usage {}",
        fit.until_s,
        fit.fraction * 100.0,
        fit.requests,
        fit.finished,
        fit.running[0],
        fit.running[1],
        fit.waiting[0],
        fit.waiting[1],
        percent(fit.kv_usage),
    );
}

fn render_constant(constant: &FittedConstant) -> String {
    let FittedConstant { name, value, default, unit, meaning } = constant;
    let show = |value: f64| match *unit {
        "s" if value > 0.0 && value < 1e-3 => format!("{:.1} us", value * 1e6),
        "s" => format!("{:.2} ms", value * 1e3),
        _ => format!("{value:.3}"),
    };
    format!("{name:22}{:>10}{:>10}  {meaning}\n", show(*value), show(*default))
}

fn render_errors(text: &mut String, report: &CalibrationReport) {
    let main = report.held_out.as_ref().unwrap_or(&report.fitted);
    let mut row = |name: &str, of: &dyn Fn(&RunErrors) -> Option<Pair>| {
        let Some(Pair { measured, simulated, error }) = of(main) else { return };
        let other =
            |errors: &RunErrors| of(errors).map_or_else(String::new, |pair| format!("{:+.2} %", pair.error * 100.0));
        let error = format!("{:+.2} %", error * 100.0);
        let _ = write!(text, "{name:16}{measured:>12.1}{simulated:>12.1}{error:>10}");
        // Without a fit there is nothing beside it.
        let _ = if report.fit.is_some() {
            writeln!(text, "{:>14}{:>16}", other(&report.uncalibrated), other(&report.fitted))
        } else {
            writeln!(text)
        };
    };
    row("output tokens/s", &|errors| errors.output_tok_s);
    row("makespan s", &|errors| errors.makespan_s);
    let latencies: [(&str, LatencyErrors); 3] =
        [("TTFT", |errors| errors.ttft_ms), ("TPOT", |errors| errors.tpot_ms), ("E2E", |errors| errors.e2e_ms)];
    for (name, of) in latencies {
        row(&format!("{name} mean ms"), &|errors| Some(of(errors)?.mean));
        row(&format!("{name} p50 ms"), &|errors| Some(of(errors)?.p50));
        row(&format!("{name} p90 ms"), &|errors| Some(of(errors)?.p90));
        row(&format!("{name} p95 ms"), &|errors| Some(of(errors)?.p95));
        row(&format!("{name} p99 ms"), &|errors| Some(of(errors)?.p99));
    }
    if let Some(curves) = main.curves {
        render_curves(text, &curves);
    }
    if let Some(stalls) = main.stalls {
        let _ = writeln!(
            text,
            "\nthe {} requests with the longest TPOT: {:.2} times the median, {:.2} simulated; {} of them preempted, the \
             worst off by {:.1} %",
            stalls.requests,
            stalls.slowdown.measured,
            stalls.slowdown.simulated,
            stalls.preempted,
            stalls.worst_error * 100.0
        );
    }
    let missed = report.verdicts.iter().filter(|verdict| !verdict.met).count();
    if !report.verdicts.is_empty() {
        let met = if missed == 0 { "all met".to_owned() } else { format!("{missed} missed") };
        let [throughput, median, tail] = targets(report.scope).map(|share| (share * 100.0).round());
        let _ = writeln!(
            text,
            "targets (throughput {throughput} %, medians of TTFT and E2E {median} %, 99th percentiles {tail} %): {met}"
        );
    }
    let _ = writeln!(
        text,
        "simulated: {} preemptions, {} tokens dropped by them, {} found in the prefix cache",
        report.preemptions, report.recomputed_tokens, report.prefix_hit_tokens
    );
}

fn render_curves(text: &mut String, curves: &Curves) {
    let kv_usage = if curves.kv_usage_mean > 0.0 {
        format!("{:.2} points (of {:.1} %)", curves.kv_usage_error * 100.0, curves.kv_usage_mean * 100.0)
    } else {
        "not recorded".to_owned()
    };
    let _ = writeln!(
        text,
        "\ncurves, mean absolute error over {} ticks: running {:.2} (of {:.1}), waiting {:.2} (of {:.1}), KV usage \
         {kv_usage}, tokens so far {:.2} % of all",
        curves.ticks,
        curves.running_error,
        curves.running_mean,
        curves.waiting_error,
        curves.waiting_mean,
        curves.output_tokens_error * 100.0
    );
}
