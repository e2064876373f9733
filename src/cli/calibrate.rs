//! `kvtide calibrate`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use kvtide_envs::sched::{Setting, SettingError};

use super::Exit;
use super::output::Output;
use super::timings::{self, TimingsArgs};
use crate::calibrate::{Constant, Curves, Errors, MeasuredRun, Pair, Percentiles, Report, Setup, calibrate, picture};
use crate::export;

#[derive(Debug, Args)]
pub(super) struct CalibrateArgs {
    /// Measured run: a folder or a .tar, .tar.gz or .tar.zst with requests.jsonl, timeseries.csv and meta.json.
    #[arg(long, value_name = "PATH")]
    measured: Option<PathBuf>,
    #[command(flatten)]
    pub(super) timings: TimingsArgs,
    /// Fit to the first so much of the run's time, forecast the rest. Above 0, at most 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.3, allow_negative_numbers = true)]
    fit_fraction: f64,
    /// The load of the run, one request a line with `input_toks` and `input_tok_ids`, so that prompts share what they have
    /// in common. Without it a file beside the run is taken that names as many prompts of the same lengths; `none`: no
    /// prompt shares anything.
    #[arg(long, value_name = "FILE")]
    load: Option<PathBuf>,
    /// Model and hardware to start from, as for `kvtide simulate`. Without it, what the run itself names.
    #[arg(long, value_name = "MODEL@HARDWARE")]
    pub(super) env: Option<String>,
    /// Engine setting or number of the hardware, where the run's own is to be replaced. What is fitted starts there.
    /// Repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Write the fitted hardware, for --env MODEL@FILE. Not written by default.
    #[arg(long, value_name = "FILE.toml")]
    pub(super) profile: Option<PathBuf>,
    /// Draw measured and simulated curves and distributions. Not drawn by default.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// One JSON line on stdout: {"type":"calibration","data":{…}}.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &CalibrateArgs) -> anyhow::Result<Exit> {
    let Some(measured) = &args.measured else { return timings::run(args) };
    let measured_name = name(measured);
    let settings: Vec<Setting> =
        args.set.iter().map(|text| text.parse()).collect::<Result<_, SettingError>>().context("--set")?;
    let (measured, load) = args.read(measured)?;
    let setup = Setup::of(&measured, args.env.as_deref(), &settings)?;
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{pos} simulations  {elapsed}").expect("a constant template is valid"));
    let calibration = calibrate(&measured, &setup, args.fit_fraction, &mut || bar.inc(1));
    bar.finish_and_clear();
    let calibration = calibration?;
    let report = calibration.report(&measured);
    if let Some(path) = &args.profile {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        write(path, &calibration.profile(&measured, &name, &args.command(&measured_name, load.as_deref())).to_toml())?;
        let model = &setup.deployment.model.name;
        eprintln!("profile written to {}: use it with --env {model}@{}", path.display(), path.display());
    }
    if let Some(path) = &args.plot {
        write(path, &picture(&calibration, &report).to_svg())?;
        eprintln!("plot written to {}", path.display());
    }
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    let mut output = Output::new();
    let written = if args.json { output.json("calibration", &report) } else { output.text(&render(&report)) };
    written.and(Ok(Exit::Done))
}

pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    export::save(path, text.as_bytes()).with_context(|| format!("{}: cannot write", path.display()))
}

/// Files beside a run that are looked at for its load, and how large they may be, in bytes.
const MAX_CANDIDATES: usize = 64;
const MAX_CANDIDATE_BYTES: u64 = 16 << 20;

impl CalibrateArgs {
    /// The run, and the load its prompts' tokens come from.
    fn read(&self, run: &Path) -> anyhow::Result<(MeasuredRun, Option<PathBuf>)> {
        match &self.load {
            Some(none) if none.as_os_str() == "none" => Ok((MeasuredRun::read(run, None)?, None)),
            Some(load) => Ok((MeasuredRun::read(run, Some(load))?, Some(load.clone()))),
            None => {
                let measured = MeasuredRun::read(run, None)?;
                for path in beside(run) {
                    // Any other file is refused, most at their first line.
                    if let Ok(measured) = MeasuredRun::read(run, Some(&path)) {
                        eprintln!(
                            "taking {} for the load of the run: its {} prompts have the lengths measured (--load none to \
                             do without)",
                            path.display(),
                            measured.requests.len()
                        );
                        return Ok((measured, Some(path)));
                    }
                }
                Ok((measured, None))
            }
        }
    }

    /// The command that does the same again, without what it only writes.
    fn command(&self, measured: &str, load: Option<&Path>) -> String {
        let mut command = format!("kvtide calibrate --measured {measured}");
        if let Some(load) = load {
            let _ = write!(command, " --load {}", name(load));
        }
        let _ = write!(command, " --fit-fraction {}", self.fit_fraction);
        if let Some(env) = &self.env {
            let _ = write!(command, " --env {env}");
        }
        for setting in &self.set {
            let _ = write!(command, " --set {setting}");
        }
        command
    }
}

/// JSON Lines in the folder that a run lies in, by name.
fn beside(measured: &Path) -> Vec<PathBuf> {
    let folder = measured.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_candidate = |path: &PathBuf| {
        let name = name(path);
        let is_small = path.metadata().is_ok_and(|about| about.is_file() && about.len() <= MAX_CANDIDATE_BYTES);
        is_small && [".jsonl", ".jsonl.gz", ".jsonl.zst"].iter().any(|ending| name.ends_with(ending))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = entries.filter(is_candidate).collect();
    paths.sort();
    paths.truncate(MAX_CANDIDATES);
    paths
}

/// A file without the folders of whoever ran this.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

type Latency = fn(&Errors) -> Option<Percentiles>;

/// A calibration for people.
fn render(report: &Report) -> String {
    let mut text = String::new();
    let Report { run, engine, model, device, env, fit, .. } = report;
    let _ = writeln!(text, "{run}: {} requests in {:.1} s", report.requests, report.makespan_s);
    let _ = writeln!(text, "  {engine}, {model} on {device}, simulated as {env}");
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
    let _ = writeln!(text, "\n{:22}{:>10}{:>10}", "constant", "fitted", "before");
    for constant in &report.constants {
        text.push_str(&render_constant(constant));
    }
    let part = if report.held_out.is_some() { format!("after {:.1} s", fit.until_s) } else { "all of it".to_owned() };
    let _ = writeln!(
        text,
        "\n{part:16}{:>12}{:>12}{:>10}{:>14}{:>16}",
        "measured", "simulated", "error", "without fit", "in fitted part"
    );
    render_errors(&mut text, report);
    text
}

fn render_constant(constant: &Constant) -> String {
    let Constant { name, value, default, unit, meaning } = constant;
    let show = |value: f64| match *unit {
        "s" if value > 0.0 && value < 1e-3 => format!("{:.1} us", value * 1e6),
        "s" => format!("{:.2} ms", value * 1e3),
        _ => format!("{value:.3}"),
    };
    format!("{name:22}{:>10}{:>10}  {meaning}\n", show(*value), show(*default))
}

fn render_errors(text: &mut String, report: &Report) {
    let main = report.held_out.as_ref().unwrap_or(&report.fitted);
    let mut row = |name: &str, of: &dyn Fn(&Errors) -> Option<Pair>| {
        let Some(Pair { measured, simulated, error }) = of(main) else { return };
        let other =
            |errors: &Errors| of(errors).map_or_else(String::new, |pair| format!("{:+.2} %", pair.error * 100.0));
        let _ = writeln!(
            text,
            "{name:16}{measured:>12.1}{simulated:>12.1}{:>10}{:>14}{:>16}",
            format!("{:+.2} %", error * 100.0),
            other(&report.uncalibrated),
            other(&report.fitted)
        );
    };
    row("output tokens/s", &|errors| errors.output_tok_s);
    row("makespan s", &|errors| errors.makespan_s);
    let latencies: [(&str, Latency); 3] =
        [("TTFT", |errors| errors.ttft_ms), ("TPOT", |errors| errors.tpot_ms), ("E2E", |errors| errors.e2e_ms)];
    for (name, of) in latencies {
        row(&format!("{name} p50 ms"), &|errors| Some(of(errors)?.p50));
        row(&format!("{name} p90 ms"), &|errors| Some(of(errors)?.p90));
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
        let _ = writeln!(text, "targets (throughput 2 %, medians of TTFT and E2E 3 %, 99th percentiles 5 %): {met}");
    }
    let _ = writeln!(
        text,
        "simulated: {} preemptions, {} tokens dropped by them, {} found in the prefix cache",
        report.preemptions, report.recomputed_tokens, report.prefix_hit_tokens
    );
}

fn render_curves(text: &mut String, curves: &Curves) {
    let _ = writeln!(
        text,
        "\ncurves, mean absolute error over {} ticks: running {:.2} (of {:.1}), waiting {:.2} (of {:.1}), KV usage {:.2} \
         points (of {:.1} %), tokens so far {:.2} % of all",
        curves.ticks,
        curves.running_error,
        curves.running_mean,
        curves.waiting_error,
        curves.waiting_mean,
        curves.kv_usage_error * 100.0,
        curves.kv_usage_mean * 100.0,
        curves.output_tokens_error * 100.0
    );
}
