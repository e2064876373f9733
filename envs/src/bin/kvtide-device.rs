//! `kvtide-device`: everything there is to find out about a GPU, in one program that needs no libtorch.
//!
//! It is copied to a machine with a device and no Rust toolchain; `scripts/device-check.sh` runs it there.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use kvtide_envs::cost::{
    CostModel, Deployment, Fitted, Hardware, Profile, Provenance, Schedule, fit, measure, render as render_fit,
};
use kvtide_envs::device::{
    Comparison, Report, ScheduleReport, Section, check_schedules, compare, render, speed_line, traffic,
};
use kvtide_envs::env::NodeConfig;
use kvtide_envs::memory::cuda::{self, KernelCheck, Speed};
use kvtide_envs::memory::{KvShape, MemoryError, MemoryKind, MemorySource};
use kvtide_envs::sched::{EngineConfig, EngineKind, Slo};

const USAGE: &str = "\
usage: kvtide-device COMMAND [OPTION VALUE]...

commands
  info        the devices the driver knows
  check       kernels against references, random schedules on real blocks; in host memory alone without a device
  speed       speeds of block copies, checksums and attention, beside ceilings measured in the same call
  calibrate   time steps and copies, fit a hardware profile, report errors on points held out
  compare     serve traffic on the device and in the model
  all         all of these into --out: report.md, report.json, profile.toml, timings.json; what cannot be done is skipped

options
  --device N        which device (0)
  --env MODEL@HW    model and hardware; HW may be a profile FILE.toml (llama-3-8b@h200)
  --engine v0|v1    whose scheduling is compared (v1)
  --seeds N         seeds of each kernel check (20)
  --schedules N     random schedules (1000)
  --points N        points that are timed, at most (400)
  --repeats N       repeats of each (5)
  --workload SPEC   traffic that is compared, repeatable (chat:rate=12,duration=20s and reasoning:rate=3,duration=20s)
  --date DAY        day that is written into reports and profiles
  --commit ID       what this was built from
  --out PATH        where reports and profiles go: a folder for all, a file for calibrate
";

struct Options {
    device: u32,
    env: String,
    engine: EngineKind,
    seeds: u64,
    schedules: u64,
    points: u32,
    repeats: u32,
    workloads: Vec<String>,
    date: String,
    commit: String,
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let command = args.first().map_or("", String::as_str);
    if matches!(command, "" | "help" | "--help" | "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let done = Options::parse(&args[1..]).and_then(|options| match command {
        "info" => info(),
        "check" => Ok(check(&options)),
        "speed" => speed(&options),
        "calibrate" => calibrate_alone(&options),
        "compare" => compare_alone(&options),
        "all" => all(&options),
        other => Err(format!("unknown command {other:?}; kvtide-device help lists them")),
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

impl Options {
    fn parse(args: &[String]) -> Result<Options, String> {
        let mut options = Options {
            device: 0,
            env: "llama-3-8b@h200".to_owned(),
            engine: EngineKind::V1,
            seeds: 20,
            schedules: 1000,
            points: 400,
            repeats: 5,
            workloads: Vec::new(),
            date: "unknown".to_owned(),
            commit: "unknown".to_owned(),
            out: None,
        };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            let wrong = |expected: &str| format!("{name} {value:?}: expected {expected}");
            match name.as_str() {
                "--device" => options.device = value.parse().map_err(|_| wrong("the number of a device"))?,
                "--env" => options.env.clone_from(value),
                "--engine" => options.engine = value.parse().map_err(|_| wrong("v0 or v1"))?,
                "--seeds" => options.seeds = value.parse().map_err(|_| wrong("a number of seeds"))?,
                "--schedules" => options.schedules = value.parse().map_err(|_| wrong("a number of schedules"))?,
                "--points" => options.points = value.parse().map_err(|_| wrong("a number of points"))?,
                "--repeats" => {
                    let repeats = value.parse().ok().filter(|repeats| (1..=1000).contains(repeats));
                    options.repeats = repeats.ok_or_else(|| wrong("a number from 1 to 1000"))?;
                }
                "--workload" => options.workloads.push(value.clone()),
                "--date" => options.date.clone_from(value),
                "--commit" => options.commit.clone_from(value),
                "--out" => options.out = Some(PathBuf::from(value)),
                _ => return Err(format!("unknown option {name:?}; kvtide-device help lists them")),
            }
        }
        if options.workloads.is_empty() {
            options.workloads =
                ["chat:rate=12,duration=20s", "reasoning:rate=3,duration=20s"].map(str::to_owned).to_vec();
        }
        Ok(options)
    }

    fn deployment(&self) -> Result<Deployment, String> {
        Deployment::load(&self.env).map_err(|error| error.to_string())
    }

    /// Why there is no device, or nothing.
    fn no_device(&self) -> Option<String> {
        let devices = cuda::devices();
        (self.device >= devices).then(|| match devices {
            0 => "no CUDA device: there is no driver, or it knows none".to_owned(),
            devices => format!("no CUDA device {}: the driver knows {devices}", self.device),
        })
    }
}

fn info() -> Result<bool, String> {
    let devices = cuda::devices();
    println!("{devices} CUDA devices");
    for ordinal in 0..devices {
        let about = cuda::about(ordinal).map_err(|error| error.to_string())?;
        let gb = about.memory_bytes as f64 * 1e-9;
        println!("{ordinal}: {}, {gb:.1} GB, {} multiprocessors, {}", about.name, about.multiprocessors, about.driver);
    }
    Ok(devices > 0)
}

/// A line of progress that the next one overwrites; nothing where nobody looks.
fn progress(text: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
        let _ = io::stderr().flush();
    }
}

fn host_schedules(options: &Options) -> Section<ScheduleReport> {
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

fn kernel_checks(options: &Options) -> Section<Vec<KernelCheck>> {
    if let Some(why) = options.no_device() {
        return Section::Skipped(why);
    }
    let mut checks = Vec::new();
    let checked = cuda::check_kernels(options.device, 0..options.seeds, &mut |check| {
        progress(&format!("checked {}", check.name));
        checks.push(check.clone());
    });
    progress("");
    checked.map_or_else(|error| Section::Failed(error.to_string()), |()| Section::Done(checks))
}

fn device_schedules(options: &Options) -> Section<ScheduleReport> {
    if let Some(why) = options.no_device() {
        return Section::Skipped(why);
    }
    let mut device = |shape: KvShape, engine: &EngineConfig| {
        let backend = cuda::open_drawn(options.device, shape, engine)?;
        Ok(MemorySource::lend(backend, shape, engine))
    };
    let mut done = 0;
    let checked = check_schedules(0..options.schedules, &mut device, &mut || {
        done += 1;
        progress(&format!("schedules on the device {done}/{}", options.schedules));
    });
    progress("");
    checked.map_or_else(|error| Section::Failed(error.to_string()), Section::Done)
}

fn speeds(options: &Options, deployment: &Deployment, each: &mut dyn FnMut(&Speed)) -> Section<Vec<Speed>> {
    if let Some(why) = options.no_device() {
        return Section::Skipped(why);
    }
    let mut speeds = Vec::new();
    let measured = cuda::speeds(options.device, deployment, &mut |speed| {
        each(speed);
        speeds.push(speed.clone());
    });
    measured.map_or_else(|error| Section::Failed(error.to_string()), |()| Section::Done(speeds))
}

/// The fit; what it was fitted to goes to `timings`, so that it can be fitted again without the device.
fn fitted(options: &Options, deployment: &Deployment, timings: Option<&Path>) -> Section<Fitted> {
    if let Some(why) = options.no_device() {
        return Section::Skipped(why);
    }
    let engine = swapping(deployment.engine(options.engine));
    let timed = || -> Result<Fitted, String> {
        let mut timer =
            cuda::timer(options.device, deployment, &engine, &options.commit).map_err(|error| error.to_string())?;
        let schedule = Schedule::new(&engine, options.points, options.repeats);
        let all = schedule.len();
        let measured = measure(&schedule, timer.as_mut(), &mut |done| progress(&format!("timed {done}/{all}")));
        progress("");
        let measured = measured.map_err(|error| error.to_string())?;
        if let Some(path) = timings {
            write(path, &serde_json::to_string(&measured).map_err(|error| error.to_string())?)?;
        }
        fit(&measured, deployment).map_err(|error| error.to_string())
    };
    timed().map_or_else(Section::Failed, Section::Done)
}

/// Host blocks of an engine that is given none: V1 has no host tier of its own, and copies are timed all the same.
const HOST_BLOCKS: u32 = 1024;

fn swapping(mut engine: EngineConfig) -> EngineConfig {
    engine.num_cpu_blocks = engine.num_cpu_blocks.max(HOST_BLOCKS);
    engine
}

fn comparisons(options: &Options, deployment: &Deployment) -> Section<Vec<Comparison>> {
    if let Some(why) = options.no_device() {
        return Section::Skipped(why);
    }
    let compared = || -> Result<Vec<Comparison>, String> {
        let engine = swapping(deployment.engine(options.engine));
        let cost = CostModel::new(deployment, engine.block_size);
        let config = NodeConfig { engine, cost, slo: Slo::default(), clients: None };
        let kind = MemoryKind::Cuda { ordinal: options.device };
        let memory = MemorySource::open(kind, deployment, &config.engine).map_err(|error| error.to_string())?;
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

fn check(options: &Options) -> bool {
    let report = Report {
        host_schedules: host_schedules(options),
        kernels: kernel_checks(options),
        device_schedules: device_schedules(options),
        ..empty(options)
    };
    print!("{}", render(&report));
    !report.has_failed()
}

fn speed(options: &Options) -> Result<bool, String> {
    let deployment = options.deployment()?;
    match speeds(options, &deployment, &mut |speed| println!("{}", speed_line(speed))) {
        Section::Done(_) | Section::Unasked => Ok(true),
        Section::Skipped(why) | Section::Failed(why) => Err(why),
    }
}

fn calibrate_alone(options: &Options) -> Result<bool, String> {
    let deployment = options.deployment()?;
    match fitted(options, &deployment, None) {
        Section::Done(fitted) => {
            print!("{}", render_fit(&fitted));
            if let Some(path) = &options.out {
                write(path, &profile(&fitted, path, options).to_toml())?;
                eprintln!("profile written to {}", path.display());
            }
            Ok(true)
        }
        Section::Skipped(why) | Section::Failed(why) => Err(why),
        Section::Unasked => Ok(true),
    }
}

fn compare_alone(options: &Options) -> Result<bool, String> {
    let deployment = options.deployment()?;
    let report = Report { comparisons: comparisons(options, &deployment), ..empty(options) };
    if let Section::Skipped(why) | Section::Failed(why) = &report.comparisons {
        return Err(why.clone());
    }
    print!("{}", render(&report));
    Ok(report.missed().is_empty())
}

fn all(options: &Options) -> Result<bool, String> {
    let folder = options.out.clone().ok_or("all needs --out FOLDER")?;
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let deployment = options.deployment()?;
    let mut report = empty(options);
    // Written after each part: a run that is cut off leaves what it found.
    let save = |report: &Report| -> Result<(), String> {
        let json = serde_json::to_string_pretty(report).map_err(|error| error.to_string())?;
        write(&folder.join("report.json"), &json)?;
        write(&folder.join("report.md"), &render(report))
    };
    report.host_schedules = host_schedules(options);
    save(&report)?;
    report.kernels = kernel_checks(options);
    save(&report)?;
    report.device_schedules = device_schedules(options);
    save(&report)?;
    report.speeds = speeds(options, &deployment, &mut |speed| eprintln!("{}", speed_line(speed)));
    save(&report)?;
    report.fitted = fitted(options, &deployment, Some(&folder.join("timings.json")));
    save(&report)?;
    report.comparisons = match &report.fitted {
        Section::Done(fitted) => {
            let path = folder.join("profile.toml");
            let profile = profile(fitted, &path, options);
            write(&path, &profile.to_toml())?;
            comparisons(options, &Deployment { hardware: profile.hardware, ..deployment })
        }
        Section::Skipped(why) => Section::Skipped(why.clone()),
        Section::Failed(_) | Section::Unasked => comparisons(options, &deployment),
    };
    save(&report)?;
    print!("{}", render(&report));
    Ok(!report.has_failed())
}

/// The fitted hardware under the name of its file.
fn profile(fitted: &Fitted, path: &Path, options: &Options) -> Profile {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let hardware = Hardware { name, ..fitted.hardware.clone() };
    Profile { hardware, provenance: Some(Provenance::Timings(fitted.provenance(&options.date))) }
}

/// A report of nothing.
fn empty(options: &Options) -> Report {
    let about: Option<Result<_, MemoryError>> = options.no_device().is_none().then(|| cuda::about(options.device));
    let about = about.and_then(Result::ok);
    Report {
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
    let beside = path.with_extension("tmp");
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    written.map_err(|error| format!("{}: cannot write: {error}", path.display()))
}
