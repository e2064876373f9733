//! `kvtide calibrate --device`: a profile from a device's own timings, and again from timings that were kept.

use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use kvtide_envs::cost::{Deployment, Fitted, Hardware, Measured, Profile, Provenance, Schedule, fit, render};
use kvtide_envs::memory::cuda;
use kvtide_envs::sched::{EngineConfig, EngineKind, Setting, SettingError};

use super::calibrate::{CalibrateArgs, write};
use super::output::Output;
use super::{Exit, stop};

#[derive(Debug, Args)]
pub(super) struct TimingsArgs {
    /// Time this GPU instead: decode steps over batch and context, prompts, copies both ways, overlap. Its number; 0 if none
    /// is given.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "0", conflicts_with = "measured")]
    pub(super) device: Option<u32>,
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

/// Points after which what was timed is written down.
const KEEP_EVERY: usize = 10;
/// Largest file of timings that is read, bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Host blocks, if the engine is given none: V1 has no host tier of its own, and copies are timed all the same.
const HOST_BLOCKS: u32 = 1024;

pub(super) fn run(args: &CalibrateArgs) -> anyhow::Result<Exit> {
    ensure!(
        args.timings.device.is_some() || args.timings.timings.is_some(),
        "give a measured run (--measured), a device (--device) or timings of one (--timings)"
    );
    let same = args.profile.is_some() && args.profile == args.timings.timings;
    ensure!(!same, "--profile and --timings are the same file");
    let settings: Vec<Setting> =
        args.set.iter().map(|text| text.parse()).collect::<Result<_, SettingError>>().context("--set")?;
    let env = args.env.as_deref().context("--env MODEL@HARDWARE says which model is timed on what")?;
    let deployment = Deployment::load(env)?.with(&settings)?;
    let engine = deployment.engine(EngineKind::V1).with(&settings)?;
    let engine = EngineConfig { num_cpu_blocks: engine.num_cpu_blocks.max(HOST_BLOCKS), ..engine };
    let measured = match (args.timings.device, &args.timings.timings) {
        (Some(device), kept) => {
            let Some(measured) = measure(device, kept.as_deref(), &deployment, &engine, &args.timings)? else {
                return Ok(Exit::Interrupted);
            };
            measured
        }
        (None, path) => read(path.as_deref().unwrap_or(Path::new("")))?,
    };
    let fitted = fit(&measured, &deployment)?;
    if let Some(path) = &args.profile {
        write(path, &profile(&fitted, path).to_toml())?;
        let model = &deployment.model.name;
        eprintln!("profile written to {}: use it with --env {model}@{}", path.display(), path.display());
    }
    let mut output = Output::new();
    let written = if args.json { output.json("device_calibration", &fitted) } else { output.text(&render(&fitted)) };
    written.and(Ok(Exit::Done))
}

/// Times the device, going on from what was kept; `None` if interrupted.
fn measure(
    device: u32,
    kept: Option<&Path>,
    deployment: &Deployment,
    engine: &EngineConfig,
    args: &TimingsArgs,
) -> anyhow::Result<Option<Measured>> {
    let schedule = Schedule::new(engine, args.points, args.repeats);
    let before = kept.filter(|path| path.exists()).map(read).transpose()?;
    let commit = option_env!("KVTIDE_COMMIT").unwrap_or("unknown");
    let mut timer = cuda::timer(device, deployment, engine, commit)?;
    let mut measured = match before {
        Some(before) => {
            ensure!(
                before.is_of(timer.as_ref(), &schedule),
                "{} has timings of {} on {:?} in blocks of {}, and this is {} on {:?} in blocks of {}: give another --timings",
                kept.unwrap_or(Path::new("")).display(),
                before.about.model,
                before.about.name,
                before.block_size,
                timer.about().model,
                timer.about().name,
                schedule.block_size
            );
            before
        }
        None => Measured::begin(&schedule, timer.as_mut())?,
    };
    let bar = ProgressBar::new(schedule.len() as u64);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} points  {elapsed} elapsed, {eta} left");
    bar.set_style(style.expect("a constant template is valid"));
    let stopped = stop::on_interrupt();
    let mut watch = |done: usize| {
        bar.set_position(done as u64);
        if stopped.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    // Before the first point: a file that cannot be written is found out now.
    keep(kept, &measured)?;
    let mut keep = |measured: &Measured| keep(kept, measured);
    let ended = measured.complete_keeping(&schedule, timer.as_mut(), KEEP_EVERY, &mut watch, &mut keep);
    bar.finish_and_clear();
    if ended?.is_continue() {
        return Ok(Some(measured));
    }
    let kept = kept.map_or_else(
        || "nothing is kept: --timings FILE.json would".to_owned(),
        |path| format!("kept in {}; the same command goes on", path.display()),
    );
    eprintln!("{} of {} points timed, {kept}", measured.len(), schedule.len());
    Ok(None)
}

fn keep(path: Option<&Path>, measured: &Measured) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    write(path, &serde_json::to_string(measured).context("timings")?)
}

fn read(path: &Path) -> anyhow::Result<Measured> {
    let mut text = String::new();
    let file = File::open(path).with_context(|| format!("{}: cannot open", path.display()))?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).with_context(|| format!("{}: cannot read", path.display()))?;
    ensure!(text.len() as u64 <= MAX_BYTES, "{}: longer than {MAX_BYTES} bytes", path.display());
    serde_json::from_str(&text).with_context(|| format!("{}: no timings of a device", path.display()))
}

/// The fitted hardware under the name of its file.
fn profile(fitted: &Fitted, path: &Path) -> Profile {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let hardware = Hardware { name, ..fitted.hardware.clone() };
    Profile { hardware, provenance: Some(Provenance::Timings(fitted.provenance(&today()))) }
}

/// The day of now, UTC: `2026-11-22`.
#[expect(
    clippy::disallowed_methods,
    reason = "the day of a measurement is a fact about the world, and only written down"
)]
fn today() -> String {
    jiff::Timestamp::now().strftime("%F").to_string()
}
