//! `kvtide-device`: everything there is to find out about a GPU, in one program that needs no libtorch.
//!
//! It is copied to a machine with a device and no Rust toolchain; `scripts/device-check.sh` runs it there.

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use kvtide_envs::cost::{
    CostModel, Deployment, Fitted, Hardware, Measured, Profile, Provenance, Schedule, fit, render as render_fit,
};
use kvtide_envs::device::{
    Comparison, Report, ScheduleReport, Section, check_schedules, compare, render, speed_line, traffic,
};
use kvtide_envs::env::NodeConfig;
use kvtide_envs::files;
use kvtide_envs::memory::cuda::{self, KernelCheck, Speed};
use kvtide_envs::memory::{KvShape, MemoryError, MemoryKind, MemorySource};
use kvtide_envs::sched::{EngineConfig, EngineKind, Setting, SettingError, Slo};
use kvtide_envs::workload::SyntheticSpec;
use kvtide_runtime::Host;
use serde::de::DeserializeOwned;

const USAGE: &str = "\
usage: kvtide-device COMMAND [OPTION VALUE]...

commands
  info        the devices the driver knows
  check       kernels against references, random schedules on real blocks; in host memory alone without a device
  speed       speeds of block copies, checksums and attention, beside ceilings measured in the same call
  calibrate   time steps and copies, fit a hardware profile, report errors on points held out
  compare     serve traffic on the device and in the model
  all         all of these into --out: report.md, report.json, profile.toml, timings.json; what cannot be done is skipped.
              Each part in a process of its own, so that a device lost in one does not take the others along

options
  --device N        which device (0)
  --env MODEL@HW    model and hardware; HW may be a profile FILE.toml (llama-3-8b@h200)
  --engine v0|v1    whose scheduling is compared (v1)
  --set KEY=VALUE   engine setting under vLLM's name, such as num_gpu_blocks=4000; repeatable
  --seeds N         seeds of each kernel check (20)
  --schedules N     random schedules in host memory (1000); a fifth of them on the device
  --points N        points that are timed, at most (400)
  --repeats N       repeats of each (5)
  --workload SPEC   traffic that is compared, repeatable (chat:rate=12,duration=20s and reasoning:rate=3,duration=6s)
  --date DAY        day that is written into reports and profiles
  --commit ID       what this was built from
  --out PATH        where reports and profiles go: a folder for all, a file for calibrate
";

/// Host blocks of an engine that is given fewer.
const HOST_BLOCKS: u32 = 1024;
/// Points after which what was timed is written down.
const KEEP_EVERY: usize = 20;

struct Options {
    device: u32,
    env: String,
    engine: EngineKind,
    settings: Vec<Setting>,
    seeds: u64,
    schedules: u64,
    points: u32,
    repeats: u32,
    workloads: Vec<String>,
    date: String,
    commit: String,
    out: Option<PathBuf>,
    /// All of them as they were given, but --out.
    args: Vec<String>,
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let command = args.first().map_or("", String::as_str);
    if matches!(command, "" | "help" | "--help" | "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    // Undocumented: how `all` calls itself.
    let (name, rest) = match (command, args.get(1)) {
        ("part", Some(name)) => (name.as_str(), &args[2..]),
        _ => ("", &args[1..]),
    };
    let done = Options::parse(rest).and_then(|options| match command {
        "part" => part(&options, name),
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
            settings: Vec::new(),
            seeds: 20,
            schedules: 1000,
            points: 400,
            repeats: 5,
            workloads: Vec::new(),
            date: "unknown".to_owned(),
            commit: "unknown".to_owned(),
            out: None,
            args: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            if name != "--out" {
                options.args.extend([name.clone(), value.clone()]);
            }
            let wrong = |expected: &str| format!("{name} {value:?}: expected {expected}");
            match name.as_str() {
                "--device" => options.device = value.parse().map_err(|_| wrong("the number of a device"))?,
                "--env" => options.env.clone_from(value),
                "--engine" => options.engine = value.parse().map_err(|_| wrong("v0 or v1"))?,
                "--set" => {
                    let setting = value.parse().map_err(|error: SettingError| format!("--set: {error}"))?;
                    options.settings.push(setting);
                }
                "--seeds" => options.seeds = at_least_one(value).ok_or_else(|| wrong("a number of seeds"))?,
                "--schedules" => {
                    options.schedules = at_least_one(value).ok_or_else(|| wrong("a number of schedules"))?;
                }
                "--points" => {
                    let points = at_least_one(value).and_then(|points| u32::try_from(points).ok());
                    options.points = points.filter(|points| *points >= 20).ok_or_else(|| wrong("20 points or more"))?;
                }
                "--repeats" => {
                    let repeats = value.parse().ok().filter(|repeats| (1..=1000).contains(repeats));
                    options.repeats = repeats.ok_or_else(|| wrong("a number from 1 to 1000"))?;
                }
                "--workload" => {
                    value.parse::<SyntheticSpec>().map_err(|error| format!("--workload {value}: {error}"))?;
                    options.workloads.push(value.clone());
                }
                "--date" => options.date.clone_from(value),
                "--commit" => options.commit.clone_from(value),
                "--out" => options.out = Some(PathBuf::from(value)),
                _ => return Err(format!("unknown option {name:?}; kvtide-device help lists them")),
            }
        }
        if options.workloads.is_empty() {
            options.workloads =
                ["chat:rate=12,duration=20s", "reasoning:rate=3,duration=6s"].map(str::to_owned).to_vec();
        }
        Ok(options)
    }

    fn deployment(&self) -> Result<Deployment, String> {
        let deployment = Deployment::load(&self.env).and_then(|deployment| deployment.with(&self.settings));
        deployment.map_err(|error| error.to_string())
    }

    /// The engine vLLM would start there, with host blocks: V1 has no host tier of its own, and swaps are looked at all the
    /// same.
    fn engine(&self, deployment: &Deployment) -> Result<EngineConfig, String> {
        let mut engine = deployment.engine(self.engine);
        engine.num_cpu_blocks = engine.num_cpu_blocks.max(HOST_BLOCKS);
        engine.with(&self.settings).map_err(|error| format!("--set: {error}"))
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

fn at_least_one(text: &str) -> Option<u64> {
    text.parse().ok().filter(|count| *count >= 1)
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

/// A line that a log keeps too.
fn milestone(text: &str) {
    progress("");
    eprintln!("{text}");
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
    let all = options.schedules.div_ceil(5);
    let mut done = 0;
    let checked = check_schedules(0..all, &mut device, &mut || {
        done += 1;
        progress(&format!("schedules on the device {done}/{all}"));
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

/// The fit. What it is fitted to is kept in `timings` as it comes, so that a run that was cut off goes on, and another fit
/// needs no device.
fn fitted(options: &Options, deployment: &Deployment, timings: Option<&Path>) -> Section<Fitted> {
    if let Some(why) = options.no_device() {
        return Section::Skipped(why);
    }
    let timed = || -> Result<Fitted, Box<dyn Error>> { Ok(fit(&measured(options, deployment, timings)?, deployment)?) };
    timed().map_or_else(|error| Section::Failed(error.to_string()), Section::Done)
}

fn measured(options: &Options, deployment: &Deployment, timings: Option<&Path>) -> Result<Measured, Box<dyn Error>> {
    let engine = options.engine(deployment)?;
    let mut timer = cuda::timer(options.device, deployment, &engine, &options.commit)?;
    let schedule = Schedule::new(&engine, options.points, options.repeats);
    let kept = timings.filter(|path| path.exists()).map(read_json::<Measured>).transpose()?;
    let mut measured = match kept.filter(|kept| kept.is_of(timer.as_ref(), &schedule)) {
        Some(kept) => kept,
        None => Measured::begin(&schedule, timer.as_mut())?,
    };
    let mut watch = |done: usize| {
        progress(&format!("timed {done}/{}", schedule.len()));
        ControlFlow::Continue(())
    };
    let mut keep = |measured: &Measured| -> Result<(), Box<dyn Error>> {
        if let Some(path) = timings {
            write(path, &serde_json::to_string(measured)?)?;
        }
        milestone(&format!("timed {}/{}", measured.len(), schedule.len()));
        Ok(())
    };
    // Nobody breaks off.
    let _ = measured.complete_keeping(&schedule, timer.as_mut(), KEEP_EVERY, &mut watch, &mut keep)?;
    Ok(measured)
}

fn comparisons(options: &Options, deployment: &Deployment) -> Section<Vec<Comparison>> {
    if let Some(why) = options.no_device() {
        return Section::Skipped(why);
    }
    let compared = || -> Result<Vec<Comparison>, String> {
        let engine = options.engine(deployment)?;
        let cost = CostModel::new(deployment, engine.block_size);
        let config = NodeConfig { engine, cost, slo: Slo::default(), clients: None, host: Host::KVTIDE };
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

/// One part of a report, as data in --out.
fn part(options: &Options, name: &str) -> Result<bool, String> {
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
fn run_part<T: DeserializeOwned>(options: &Options, folder: &Path, name: &str, env: Option<&str>) -> Section<T> {
    milestone(&format!("{name} …"));
    let path = folder.join(format!("{name}.part"));
    let run = || -> Result<Section<T>, String> {
        let program = env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["part", name]).args(&options.args).arg("--out").arg(&path);
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

fn all(options: &Options) -> Result<bool, String> {
    let folder = options.out.clone().ok_or("all needs --out FOLDER")?;
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let deployment = options.deployment()?;
    let mut report = empty(options);
    // Written after each part, the dearest to a device first: a run that is cut off leaves what it found.
    let save = |report: &Report| -> Result<(), String> {
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
    print!("{}", render(&report));
    Ok(!report.has_failed())
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
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
    files::replace(path, text.as_bytes()).map_err(|error| format!("{}: cannot write: {error}", path.display()))
}
