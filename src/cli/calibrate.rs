//! `kvtide calibrate`: a profile from a run that was served, from a device, from its timings as they were kept, or from a database
//! of kernels.

mod summaries;

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use kvtide_envs::calibrate::{KeptError, Measured, MeasurementPlan, TimingsFile};
use kvtide_envs::deploy::{Deployment, EngineConfig, Setting, SettingError};

use summaries::{ScopeName, SummaryArgs};

use super::output::Output;
use super::outputs::Outputs;
use super::perf_db::PerfDbArgs;
use super::{Exit, stop};
use crate::calibrate::Account;
use crate::calibrate::device::{self, DeviceAccount};
use crate::calibrate::served::{MeasuredRun, RunAccount, Setup, calibrate_jointly};
use crate::export;

#[derive(Debug, Args)]
pub(super) struct CalibrateArgs {
    /// Measured run: a folder or a .tar, .tar.gz or .tar.zst with requests.jsonl, timeseries.csv and meta.json. Repeatable:
    /// one fit to all of them, and of each its errors. Or measured summaries: a folder with runs.jsonl and arrivals.jsonl.
    #[arg(long, value_name = "PATH")]
    measured: Vec<PathBuf>,
    #[command(flatten)]
    timings: TimingsArgs,
    #[command(flatten)]
    perf_db: PerfDbArgs,
    /// What is fitted: nothing (the profile as it stands is judged), what the host adds to a step and clients see beside it,
    /// or the kernels as well.
    #[arg(long, value_name = "WHAT", default_value = "all", conflicts_with_all = ["device", "timings"])]
    fit: ScopeName,
    /// Fit to the first so much of the run's time, forecast the rest. Above 0, at most 1; 0.3 unless given.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    fit_fraction: Option<f64>,
    #[command(flatten)]
    summaries: SummaryArgs,
    /// The load of the run, one request a line with `input_toks` and `input_tok_ids`, so that prompts share what they have
    /// in common. Without it a file beside the run is taken that names as many prompts of the same lengths; `none`: no
    /// prompt shares anything. One for each run, in their order, or one `none` for all.
    #[arg(long, value_name = "FILE")]
    load: Vec<PathBuf>,
    /// Model and hardware to start from, as for `kvtide simulate`. Without it, what the run itself names; `@HARDWARE`: the model
    /// that the run names, on that.
    #[arg(long, value_name = "MODEL@HARDWARE")]
    env: Option<String>,
    /// Engine setting or number of the hardware, where the run's own is to be replaced. What is fitted starts there.
    /// Repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE", allow_hyphen_values = true)]
    set: Vec<String>,
    /// Write the fitted hardware, for --env MODEL@FILE. Not written by default.
    #[arg(long, value_name = "FILE.toml")]
    profile: Option<PathBuf>,
    /// Draw measured and simulated curves and distributions. Not drawn by default.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// JSON on stdout: a `calibration` line for each run, of summaries a `clock_report` line for each accelerator, with --perf-db a
    /// `perf_db` line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct TimingsArgs {
    /// Time this GPU instead: decode steps over batch and context, prompts, copies both ways, overlap. Its number; 0 if none
    /// is given.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "0", conflicts_with = "measured")]
    device: Option<u32>,
    /// Timings of a device. With --device they are kept here, and a run that was interrupted goes on; without
    /// it the profile is fitted to what was kept.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["measured", "load", "plot", "fit_fraction"])]
    timings: Option<PathBuf>,
    /// With --device: points that are timed, at most. With fewer than about 400, tiles of matrix products are missed.
    #[arg(long, value_name = "N", default_value_t = 400, requires = "device", value_parser = clap::value_parser!(u32).range(20..=100_000))]
    points: u32,
    /// With --device: repeats of each point, of which the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "device", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
}

pub(super) fn run(args: &CalibrateArgs) -> anyhow::Result<Exit> {
    let fraction = args.fraction();
    ensure!(fraction > 0.0 && fraction <= 1.0, "--fit-fraction {fraction}: expected above 0, at most 1");
    args.outputs().check()?;
    if args.perf_db.perf_db.is_some() {
        return args.tell(&args.perf_db.account(&args.settings()?)?);
    }
    ensure!(
        args.profile.is_none() || args.fit != ScopeName::None,
        "--profile with --fit none: nothing is fitted, so that there is nothing to write"
    );
    if args.has_summaries() {
        return args.summaries()?.map_or(Ok(Exit::Interrupted), |account| args.tell(&account));
    }
    args.summaries.check_unused()?;
    if !args.measured.is_empty() {
        return args.tell(&args.served()?);
    }
    match args.timings()? {
        Some((measured, deployment)) => args.tell(&DeviceAccount::of(&measured, &deployment)?),
        None => Ok(Exit::Interrupted),
    }
}

/// What is fitted of a recorded run where nothing else is said.
const FRACTION: f64 = 0.3;

impl CalibrateArgs {
    fn fraction(&self) -> f64 {
        self.fit_fraction.unwrap_or(FRACTION)
    }

    fn outputs(&self) -> Outputs {
        let TimingsArgs { device, timings, .. } = &self.timings;
        let PerfDbArgs { perf_db, model, .. } = &self.perf_db;
        let mut outputs = Outputs::new().reads_env(self.env.as_deref().unwrap_or_default());
        outputs = outputs.reads("--perf-db", perf_db.as_deref()).reads("--model", model.as_deref().map(Path::new));
        for run in &self.measured {
            outputs = outputs.reads("--measured", run.as_path());
        }
        for load in self.load.iter().filter(|load| load.as_os_str() != "none") {
            outputs = outputs.reads("--load", load.as_path());
        }
        let outputs = match (device, timings) {
            (Some(_), timings) => outputs.file("--timings", timings.as_deref()),
            (None, timings) => outputs.reads("--timings", timings.as_deref()),
        };
        outputs.file("--profile", self.profile.as_deref()).file("--plot", self.plot.as_deref())
    }

    fn settings(&self) -> anyhow::Result<Vec<Setting>> {
        self.set.iter().map(|text| text.parse()).collect::<Result<_, SettingError>>().context("--set")
    }

    /// Writes what was asked for: the profile, the picture, and on stdout the numbers or the text.
    fn tell<A: Account>(&self, account: &A) -> anyhow::Result<Exit> {
        if let Some(path) = &self.profile {
            write(path, &account.profile(path).to_toml())?;
            let (model, path) = (account.model(), path.display());
            say!("profile written to {path}: use it with --env {model}@{path}");
        }
        if let Some(path) = &self.plot
            && let Some(figure) = account.picture()
        {
            write(path, &figure.to_svg())?;
            say!("plot written to {}", path.display());
        }
        for warning in account.warnings() {
            warn!("{warning}");
        }
        let mut output = Output::new();
        if self.json {
            account.data().iter().try_for_each(|data| output.json(A::KIND, data))?;
        } else {
            output.text(&account.text())?;
        }
        Ok(Exit::Done)
    }

    /// Fits to runs that were served.
    fn served(&self) -> anyhow::Result<RunAccount> {
        let settings = self.settings()?;
        let is_none = |load: &PathBuf| load.as_os_str() == "none";
        let is_of_each = self.load.is_empty() || self.load.len() == self.measured.len();
        ensure!(
            is_of_each || (self.load.len() == 1 && is_none(&self.load[0])),
            "{} --load for {} --measured: give one for each, or one `none` for all",
            self.load.len(),
            self.measured.len()
        );
        let (mut runs, mut loads) = (Vec::new(), Vec::new());
        for (index, path) in self.measured.iter().enumerate() {
            let load = self.load.get(index).or_else(|| self.load.first().filter(|load| is_none(load)));
            let (run, load) = read(path, load)?;
            runs.push(run);
            loads.push(load);
        }
        let setups: Vec<Setup> =
            runs.iter().map(|run| Setup::of(run, self.env.as_deref(), &settings)).collect::<Result<_, _>>()?;
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{pos} simulations  {elapsed}");
        bar.set_style(style.expect("a constant template is valid"));
        let parts: Vec<(&MeasuredRun, &Setup)> = runs.iter().zip(&setups).collect();
        let calibrations = calibrate_jointly(&parts, self.fit.scope(), self.fraction(), &mut || bar.inc(1));
        bar.finish_and_clear();
        Ok(RunAccount::new(runs, calibrations?, self.command(&loads)))
    }

    /// The command that does the same again, without what it only writes.
    fn command(&self, loads: &[Option<PathBuf>]) -> String {
        let mut command = "kvtide calibrate".to_owned();
        for measured in &self.measured {
            let _ = write!(command, " --measured {}", name(measured));
        }
        if loads.iter().any(Option::is_some) {
            for load in loads {
                let _ = write!(command, " --load {}", load.as_deref().map_or_else(|| "none".to_owned(), name));
            }
        }
        let _ = write!(command, " --fit-fraction {}", self.fraction());
        if self.fit == ScopeName::Host {
            command.push_str(" --fit host");
        }
        if let Some(env) = &self.env {
            let _ = write!(command, " --env {env}");
        }
        for setting in &self.set {
            let _ = write!(command, " --set {setting}");
        }
        command
    }
}

/// A run, and the load its prompts' tokens come from.
fn read(run: &Path, load: Option<&PathBuf>) -> anyhow::Result<(MeasuredRun, Option<PathBuf>)> {
    match load {
        Some(none) if none.as_os_str() == "none" => Ok((MeasuredRun::read(run, None)?, None)),
        Some(load) => Ok((MeasuredRun::read(run, Some(load))?, Some(load.clone()))),
        None => {
            let (measured, load) = MeasuredRun::read_with_load_beside(run)?;
            if let Some(path) = &load {
                say!(
                    "taking {} for the load of the run: its {} prompts have the lengths measured (--load none to do \
                     without)",
                    path.display(),
                    measured.requests.len()
                );
            }
            Ok((measured, load))
        }
    }
}

impl CalibrateArgs {
    /// Timings of a device, taken now or kept, and what was timed; `None` if interrupted.
    fn timings(&self) -> anyhow::Result<Option<(Measured, Deployment)>> {
        let TimingsArgs { device, timings, .. } = &self.timings;
        ensure!(
            device.is_some() || timings.is_some(),
            "give a measured run (--measured), a device (--device), timings of one (--timings) or a database of kernels (--perf-db)"
        );
        let settings = self.settings()?;
        let env = self.env.as_deref().context("--env MODEL@HARDWARE says which model is timed on what")?;
        let deployment = Deployment::load_with(env, &settings)?;
        let engine = device::engine(&deployment, &settings)?;
        let measured = match (device, timings) {
            (Some(device), _) => self.timings.measure(*device, &deployment, &engine)?,
            (None, path) => Some(Measured::read(path.as_deref().unwrap_or(Path::new("")))?),
        };
        Ok(measured.map(|measured| (measured, deployment)))
    }
}

impl TimingsArgs {
    /// Times the device, going on from what was kept; `None` if interrupted.
    fn measure(&self, device: u32, deployment: &Deployment, engine: &EngineConfig) -> anyhow::Result<Option<Measured>> {
        let schedule = MeasurementPlan::new(engine, self.points, self.repeats);
        let kept = TimingsFile::open(self.timings.as_deref())?;
        let mut timer = crate::device::timer(device, deployment, engine)?;
        let bar = ProgressBar::new(schedule.len() as u64);
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} points  {elapsed} elapsed, {eta} left");
        bar.set_style(style.expect("a constant template is valid"));
        let stopped = stop::on_interrupt();
        let mut watch = |done: usize| {
            bar.set_position(done as u64);
            if stopped.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let completed = kept.complete(&schedule, timer.as_mut(), &mut watch);
        bar.finish_and_clear();
        let (measured, ended) = completed.map_err(|error| match error {
            KeptError::Other { .. } => anyhow!("{error}: give another --timings"),
            error => error.into(),
        })?;
        if ended.is_continue() {
            return Ok(Some(measured));
        }
        let kept = self.timings.as_deref().map_or_else(
            || "nothing is kept: --timings FILE.json would".to_owned(),
            |path| format!("kept in {}; the same command goes on", path.display()),
        );
        say!("{} of {} points timed, {kept}", measured.len(), schedule.len());
        Ok(None)
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    export::save(path, text.as_bytes()).with_context(|| format!("{}: cannot write", path.display()))
}

/// A file without the folders of whoever ran this.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
