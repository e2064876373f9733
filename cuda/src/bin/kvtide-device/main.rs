//! `kvtide-device`: everything there is to find out about a GPU, in one program that needs no libtorch.
//!
//! It is copied to a machine with a device and no Rust toolchain; `scripts/device-check.sh` runs it there.

mod options;
mod talk;

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{self, ExitCode};
use std::{env, fs};

use clap::{CommandFactory, Parser};
use kvtide_cuda::{
    DeviceComparison, DeviceReport, KernelCheck, ScheduleReport, Section, Speed, about, check_kernels, check_schedules,
    compare, devices, lend, lend_drawn, render, speed_line, timer, traffic,
};
use kvtide_envs::calibrate::{Fitted, Measured, MeasurementPlan, TimingsFile, fit, render as render_fit};
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, EngineConfig, FittedTo, Hardware, HardwareProfile};
use kvtide_envs::env::NodeConfig;
use kvtide_envs::files;
use kvtide_envs::memory::{KvShape, MemoryError, MemorySource};
use kvtide_envs::sched::Slo;
use kvtide_runtime::Host;
use serde::de::DeserializeOwned;

use self::options::{Cli, Command, DeviceOptions};
use self::talk::{milestone, progress, say, show, shown};

/// Points after which a log says how many were timed.
const TELL_EVERY: usize = 20;

fn main() -> ExitCode {
    let Some(command) = Cli::parse().command else {
        show(&Cli::command().render_long_help().to_string());
        return if shown().is_ok() { ExitCode::SUCCESS } else { ExitCode::from(2) };
    };
    match run(&command).and_then(|good| shown().map(|()| good)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::from(2)
        }
    }
}

/// Whether everything that was looked at is as it should be.
fn run(command: &Command) -> Result<bool, String> {
    match command {
        Command::Info(_) => info(),
        Command::Check(options) => Ok(check(options)),
        Command::Speed(options) => speed(options),
        Command::Calibrate(options) => calibrate_alone(options),
        Command::Compare(options) => compare_alone(options),
        Command::All(options) => all(options),
        Command::Part { name, options } => part(options, name),
    }
}

fn info() -> Result<bool, String> {
    let devices = devices();
    show(&format!("{devices} CUDA devices\n"));
    for ordinal in 0..devices {
        let about = about(ordinal).map_err(|error| error.to_string())?;
        let gb = about.memory_bytes as f64 * 1e-9;
        let (name, multiprocessors, driver) = (&about.name, about.multiprocessors, &about.driver);
        show(&format!("{ordinal}: {name}, {gb:.1} GB, {multiprocessors} multiprocessors, {driver}\n"));
    }
    Ok(devices > 0)
}

fn host_schedules(options: &DeviceOptions) -> Section<ScheduleReport> {
    let mut host = |shape: KvShape, _: &EngineConfig| {
        let token_bytes = (shape.block_bytes() / u64::from(shape.block_size)) as u32;
        Ok(MemorySource::Host { token_bytes })
    };
    let mut done = 0;
    let checked = check_schedules(0..options.schedules, &mut host, &mut || {
        done += 1;
        progress(&format!("schedules in host memory {done}/{}", options.schedules));
    });
    progress("");
    checked.map_or_else(|error| Section::Failed(error.to_string()), Section::Done)
}

fn kernel_checks(options: &DeviceOptions) -> Section<Vec<KernelCheck>> {
    if let Some(why) = options.no_device() {
        return Section::Skipped(why);
    }
    let mut checks = Vec::new();
    let checked = check_kernels(options.device, 0..options.seeds, &mut |check| {
        progress(&format!("checked {}", check.name));
        checks.push(check.clone());
    });
    progress("");
    checked.map_or_else(|error| Section::Failed(error.to_string()), |()| Section::Done(checks))
}

fn device_schedules(options: &DeviceOptions) -> Section<ScheduleReport> {
    if let Some(why) = options.no_device() {
        return Section::Skipped(why);
    }
    let mut device = |shape: KvShape, engine: &EngineConfig| lend_drawn(options.device, shape, engine);
    let all = options.schedules.div_ceil(5);
    let mut done = 0;
    let checked = check_schedules(0..all, &mut device, &mut || {
        done += 1;
        progress(&format!("schedules on the device {done}/{all}"));
    });
    progress("");
    checked.map_or_else(|error| Section::Failed(error.to_string()), Section::Done)
}

fn speeds(options: &DeviceOptions, deployment: &Deployment, each: &mut dyn FnMut(&Speed)) -> Section<Vec<Speed>> {
    if let Some(why) = options.no_device() {
        return Section::Skipped(why);
    }
    let mut speeds = Vec::new();
    let measured = kvtide_cuda::speeds(options.device, deployment, &mut |speed| {
        each(speed);
        speeds.push(speed.clone());
    });
    measured.map_or_else(|error| Section::Failed(error.to_string()), |()| Section::Done(speeds))
}

/// The fit. What it is fitted to is kept in `timings` as it comes, so that a run that was cut off goes on, and another fit
/// needs no device.
fn fitted(options: &DeviceOptions, deployment: &Deployment, timings: Option<&Path>) -> Section<Fitted> {
    if let Some(why) = options.no_device() {
        return Section::Skipped(why);
    }
    let timed = || -> Result<Fitted, Box<dyn Error>> { Ok(fit(&measured(options, deployment, timings)?, deployment)?) };
    timed().map_or_else(|error| Section::Failed(error.to_string()), Section::Done)
}

fn measured(
    options: &DeviceOptions,
    deployment: &Deployment,
    timings: Option<&Path>,
) -> Result<Measured, Box<dyn Error>> {
    let engine = options.engine(deployment)?;
    let mut timer = timer(options.device, deployment, &engine, &options.commit)?;
    let schedule = MeasurementPlan::new(&engine, options.points, options.repeats);
    let mut watch = |done: usize| {
        let tell = if done.is_multiple_of(TELL_EVERY) { milestone } else { progress };
        tell(&format!("timed {done}/{}", schedule.len()));
        ControlFlow::Continue(())
    };
    let (measured, _) = TimingsFile::open(timings)?.complete(&schedule, timer.as_mut(), &mut watch)?;
    milestone(&format!("timed {}/{}", measured.len(), schedule.len()));
    Ok(measured)
}

fn comparisons(options: &DeviceOptions, deployment: &Deployment) -> Section<Vec<DeviceComparison>> {
    if let Some(why) = options.no_device() {
        return Section::Skipped(why);
    }
    let compared = || -> Result<Vec<DeviceComparison>, String> {
        let engine = options.engine(deployment)?;
        let cost = CostModel::new(deployment, engine.block_size);
        let config = NodeConfig { engine, cost, slo: Slo::default(), clients: None, host: Host::KVTIDE };
        let memory = lend(options.device, deployment, &config.engine).map_err(|error| error.to_string())?;
        let mut all = Vec::new();
        for workload in &options.workloads {
            progress(&format!("serving {workload}"));
            let spec = workload.parse().map_err(|error| format!("--workload {workload}: {error}"))?;
            let requests = traffic(&spec).map_err(|error| format!("--workload {workload}: {error}"))?;
            let name = format!("{workload} on {}, {}", deployment.name(), options.engine.name());
            let compared = compare(&name, &config, &requests, &memory).map_err(|error| error.to_string())?;
            all.push(compared);
        }
        progress("");
        Ok(all)
    };
    compared().map_or_else(Section::Failed, Section::Done)
}

fn check(options: &DeviceOptions) -> bool {
    let report = DeviceReport {
        host_schedules: host_schedules(options),
        kernels: kernel_checks(options),
        device_schedules: device_schedules(options),
        ..empty(options)
    };
    show(&render(&report));
    !report.has_failed()
}

fn speed(options: &DeviceOptions) -> Result<bool, String> {
    let deployment = options.deployment()?;
    match speeds(options, &deployment, &mut |speed| show(&(speed_line(speed) + "\n"))) {
        Section::Done(_) | Section::Unasked => Ok(true),
        Section::Skipped(why) | Section::Failed(why) => Err(why),
    }
}

fn calibrate_alone(options: &DeviceOptions) -> Result<bool, String> {
    let deployment = options.deployment()?;
    match fitted(options, &deployment, None) {
        Section::Done(fitted) => {
            if let Some(path) = &options.out {
                write(path, &profile(&fitted, path, options).to_toml())?;
                say(&format!("profile written to {}", path.display()));
            }
            show(&render_fit(&fitted));
            Ok(true)
        }
        Section::Skipped(why) | Section::Failed(why) => Err(why),
        Section::Unasked => Ok(true),
    }
}

fn compare_alone(options: &DeviceOptions) -> Result<bool, String> {
    let deployment = options.deployment()?;
    let report = DeviceReport { comparisons: comparisons(options, &deployment), ..empty(options) };
    if let Section::Skipped(why) | Section::Failed(why) = &report.comparisons {
        return Err(why.clone());
    }
    show(&render(&report));
    Ok(report.missed().is_empty())
}

/// One part of a report, as data in --out.
fn part(options: &DeviceOptions, name: &str) -> Result<bool, String> {
    let path = options.out.as_deref().ok_or("part needs --out FILE")?;
    let deployment = options.deployment()?;
    let json = match name {
        "host-schedules" => serde_json::to_string(&host_schedules(options)),
        "kernels" => serde_json::to_string(&kernel_checks(options)),
        "device-schedules" => serde_json::to_string(&device_schedules(options)),
        "speeds" => serde_json::to_string(&speeds(options, &deployment, &mut |speed| milestone(&speed_line(speed)))),
        "fitted" => serde_json::to_string(&fitted(options, &deployment, Some(&path.with_file_name("timings.json")))),
        "comparisons" => serde_json::to_string(&comparisons(options, &deployment)),
        _ => return Err(format!("unknown part {name:?}")),
    };
    write(path, &json.map_err(|error| error.to_string())?)?;
    Ok(true)
}

/// A part, by this program in a process of its own. `env` stands for --env, if it is another.
fn run_part<T: DeserializeOwned>(options: &DeviceOptions, folder: &Path, name: &str, env: Option<&str>) -> Section<T> {
    milestone(&format!("{name} …"));
    let path = folder.join(format!("{name}.part"));
    let run = || -> Result<Section<T>, String> {
        let program = env::current_exe().map_err(|error| error.to_string())?;
        let mut command = process::Command::new(program);
        command.args(["part", name]).args(options.args()).arg("--out").arg(&path);
        command.args(env.iter().flat_map(|env| ["--env", env]));
        let status = command.status().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("its process ended with {status}"));
        }
        read_json(&path)
    };
    let section = run().unwrap_or_else(Section::Failed);
    let _ = fs::remove_file(&path);
    section
}

fn all(options: &DeviceOptions) -> Result<bool, String> {
    let folder = options.out.clone().ok_or("all needs --out FOLDER")?;
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let deployment = options.deployment()?;
    let mut report = empty(options);
    // Written after each part, the dearest to a device first: a run that is cut off leaves what it found.
    let save = |report: &DeviceReport| -> Result<(), String> {
        let json = serde_json::to_string_pretty(report).map_err(|error| error.to_string())?;
        write(&folder.join("report.json"), &json)?;
        write(&folder.join("report.md"), &render(report))
    };
    report.kernels = run_part(options, &folder, "kernels", None);
    save(&report)?;
    report.speeds = run_part(options, &folder, "speeds", None);
    save(&report)?;
    report.fitted = run_part(options, &folder, "fitted", None);
    let profile_path = folder.join("profile.toml");
    let mut fitted_env = None;
    if let Section::Done(fitted) = &report.fitted {
        write(&profile_path, &profile(fitted, &profile_path, options).to_toml())?;
        fitted_env = Some(format!("{}@{}", deployment.model.name, profile_path.display()));
    }
    save(&report)?;
    report.comparisons = run_part(options, &folder, "comparisons", fitted_env.as_deref());
    save(&report)?;
    report.device_schedules = run_part(options, &folder, "device-schedules", None);
    save(&report)?;
    report.host_schedules = run_part(options, &folder, "host-schedules", None);
    save(&report)?;
    show(&render(&report));
    Ok(!report.has_failed())
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The fitted hardware under the name of its file.
fn profile(fitted: &Fitted, path: &Path, options: &DeviceOptions) -> HardwareProfile {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let hardware = Hardware { name, ..fitted.hardware.clone() };
    HardwareProfile { hardware, provenance: Some(FittedTo::Timings(fitted.provenance(&options.date))) }
}

/// A report of nothing.
fn empty(options: &DeviceOptions) -> DeviceReport {
    let about: Option<Result<_, MemoryError>> = options.no_device().is_none().then(|| about(options.device));
    let about = about.and_then(Result::ok);
    DeviceReport {
        device: about.as_ref().map(|about| about.name.clone()),
        driver: about.map(|about| about.driver),
        date: options.date.clone(),
        commit: options.commit.clone(),
        host_schedules: Section::Unasked,
        kernels: Section::Unasked,
        device_schedules: Section::Unasked,
        speeds: Section::Unasked,
        fitted: Section::Unasked,
        comparisons: Section::Unasked,
    }
}

/// Written beside its place and renamed.
fn write(path: &Path, text: &str) -> Result<(), String> {
    files::replace(path, text.as_bytes()).map_err(|error| format!("{}: cannot write: {error}", path.display()))
}
