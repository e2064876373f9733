//! `kvtide tune`: from traffic to a verdict, in one command.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, bail};
use clap::Args;
use kvtide_envs::files::Lock;
use kvtide_runtime::ActionProfile;

use super::args::clocks_can_be_drawn;
use super::evaluate::command_line;
use super::export::tell;
use super::output::Output;
use super::outputs::Outputs;
use super::talk::Talk;
use super::{Exit, handover, judged, stop};
use crate::agent::Tensors;
use crate::distil::DaggerReport;
use crate::evaluate::Watch;
use crate::experiment::Method;
use crate::policy::PolicySpec;
use crate::train::{self, BestConstant};
use crate::tune::{self, Effort, Listener, Progress, Settings, Step, TuneError, Tuning, Verdict};
use crate::world::{MAX_CLOCK_DRAWS, WorldSpec};

#[derive(Debug, Args)]
pub(super) struct TuneArgs {
    /// Recorded traffic, 60 s or more of it, as --trace has it. Without any: generated chat.
    #[arg(value_name = "TRACE", conflicts_with_all = ["trace", "workload"])]
    traffic: Option<PathBuf>,
    #[command(flatten)]
    world: WorldSpec,
    /// Folder for everything the run leaves: policy.kvt, verdict.json, report.html, results.jsonl, experiment.toml, and what
    /// training leaves. What a finished run left there is replaced [default: runs/ and the name of the trace, or runs/tune].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// How much is spent: quick (about a minute on two cores), normal (a few), thorough (tens of minutes) [default: normal].
    #[arg(long, value_name = "quick|normal|thorough")]
    effort: Option<Effort>,
    /// How a policy is looked for: cross-entropy, which needs no libtorch, or ppo, which does [default: cross-entropy].
    #[arg(long, value_name = "METHOD", value_parser = method)]
    method: Option<Method>,
    /// The heads the table decides: watermark, core (with victim and preemption mode) or full (with admission order) [default:
    /// the fewest that gain].
    #[arg(long, value_name = "PROFILE", value_parser = profile)]
    profile: Option<String>,
    /// What runs today, against which the table is judged, such as fixed:0.03 [default: the engine's default].
    #[arg(long, value_name = "POLICY")]
    versus: Option<PolicySpec>,
    /// Judge the table by N clocks drawn within the spread of the profile's constants as well, 0 for none [default: 10 with
    /// --effort thorough, else 0].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_CLOCK_DRAWS)))]
    clock_spread: Option<u32>,
    /// Seed of everything that is drawn for training [default: 1].
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Go on with a run that was stopped, in the step it was in; the result is that of a run that never was.
    #[arg(long)]
    resume: bool,
    /// One JSON object on stdout instead of five lines: what verdict.json holds.
    #[arg(long)]
    json: bool,
}

fn method(text: &str) -> Result<Method, &'static str> {
    match text {
        "cross-entropy" => Ok(Method::CrossEntropy),
        "ppo" => Ok(Method::Ppo),
        _ => Err("expected cross-entropy or ppo"),
    }
}

fn profile(text: &str) -> Result<String, &'static str> {
    ActionProfile::from_name(text)
        .map(|profile| profile.name().to_owned())
        .ok_or("expected watermark, core, full or cache")
}

pub(super) fn run(args: &TuneArgs, tensors: Option<&'static dyn Tensors>) -> anyhow::Result<Exit> {
    let spec = args.spec()?;
    let out = args.out.clone().unwrap_or_else(|| tune::folder_of(&spec));
    Outputs::new().reads_world(&spec).folder("--out", Some(out.as_path())).check()?;
    // Where nothing is yet nobody writes, and nothing is made before all was looked at.
    let mut lock = if folder_above(&out).is_dir() { Some(Lock::of_file(&out)?) } else { None };
    let begun = if args.resume { Some(args.resumed(&spec, &out)?) } else { None };
    let settings = begun.as_ref().map_or_else(|| args.settings(spec), |progress| Ok(progress.settings.clone()))?;
    tune::check_file(&settings.world)?;
    let world = settings.world.world()?;
    clocks_can_be_drawn(settings.clock_spread, &world)?;
    let progress = match begun {
        Some(progress) => progress,
        None => tune::begin(settings.clone(), &world, &out, &command_line())?,
    };
    // Before an earlier run's results go, in case it cannot; and before Ctrl-C is listened to, which it would forget.
    if settings.method == Method::Ppo && tensors.is_none() {
        handover::hand_over()?;
    }
    let stop = stop::on_interrupt();
    if lock.is_none() {
        let folder = folder_above(&out);
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        lock = Some(Lock::of_file(&out)?);
    }
    if !args.resume {
        progress.begin(&out)?;
    }
    say!("1. {}", progress.look);
    let node = &world.node;
    say!(
        "   on {}, a pool of {} blocks of {} tokens, host {}, targets {}",
        world.deployment.name(),
        node.engine.num_gpu_blocks,
        node.engine.block_size,
        node.host.name,
        node.slo
    );
    say!("   {}", progress.cut);
    let tuning = Tuning { world: &world, out: &out, tensors, listener: &Steps, stop };
    let Some(verdict) = tuning.run(progress)? else {
        say!("interrupted; go on with: kvtide tune --resume --out {}", out.display());
        return Ok(Exit::Interrupted);
    };
    say!("kept in {}: policy.kvt, verdict.json, report.html, results.jsonl, experiment.toml", out.display());
    let told = tell_verdict(&verdict, args.json);
    drop(lock);
    judged(told, if verdict.worth_deploying { Exit::Done } else { Exit::GateFailed })
}

fn tell_verdict(verdict: &Verdict, is_json: bool) -> anyhow::Result<()> {
    let mut output = Output::new();
    if is_json {
        return output.json("verdict", verdict);
    }
    verdict.lines.iter().try_for_each(|line| output.line(line))
}

/// Where the run's folder lies, and the file that locks it: training locks what is in it.
fn folder_above(out: &Path) -> &Path {
    out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl TuneArgs {
    /// The world that was asked for, with paths that lead there from anywhere.
    fn spec(&self) -> anyhow::Result<WorldSpec> {
        let spec = WorldSpec { trace: self.traffic.clone().or(self.world.trace.clone()), ..self.world.clone() };
        if self.resume && spec == WorldSpec::default() {
            return Ok(spec);
        }
        let here = env::current_dir().context("cannot find the current folder")?;
        Ok(tune::with_traffic(spec).relative_to(&here))
    }

    fn settings(&self, world: WorldSpec) -> anyhow::Result<Settings> {
        let versus = self.versus()?.unwrap_or(PolicySpec::Default);
        Ok(Settings {
            effort: self.effort.unwrap_or_default(),
            seed: self.seed.unwrap_or(1),
            method: self.method.unwrap_or(Method::CrossEntropy),
            profile: self.profile.clone(),
            clock_spread: self.clock_spread,
            versus,
            world,
        })
    }

    /// What runs today, with a path that leads there from anywhere.
    fn versus(&self) -> anyhow::Result<Option<PolicySpec>> {
        let here = env::current_dir().context("cannot find the current folder")?;
        Ok(self.versus.clone().map(|versus| versus.relative_to(&here)))
    }

    /// The run in `out`, if what is given does not contradict it.
    fn resumed(&self, spec: &WorldSpec, out: &Path) -> anyhow::Result<Progress> {
        let progress = tune::resumed(out)?;
        let begun = &progress.settings;
        let differs = [
            (*spec != WorldSpec::default() && *spec != begun.world, "traffic or node"),
            (self.effort.is_some_and(|effort| effort != begun.effort), "--effort"),
            (self.seed.is_some_and(|seed| seed != begun.seed), "--seed"),
            (self.method.is_some_and(|method| method != begun.method), "--method"),
            (self.profile.is_some() && self.profile != begun.profile, "--profile"),
            (self.clock_spread.is_some() && self.clock_spread != begun.clock_spread, "--clock-spread"),
            (self.versus()?.is_some_and(|versus| versus != begun.versus), "--versus"),
        ];
        if let Some((_, what)) = differs.into_iter().find(|(differs, _)| *differs) {
            bail!(TuneError::OtherSettings { path: out.to_owned(), what });
        }
        Ok(progress)
    }
}

/// Tells stderr, step by step.
struct Steps;

impl train::Listener for Steps {
    fn watch(&self) -> Box<dyn Watch + '_> {
        Talk.watch()
    }

    fn found(&self, found: BestConstant) {
        Talk.found(found);
    }
}

impl Listener for Steps {
    fn begins(&self, step: Step) {
        let text = match step {
            Step::Loads => "2. looking for the loads at which today's engine begins to fail",
            Step::Heads => "3. looking for the best constants, and what is worth deciding",
            Step::Training => "4. training",
            Step::Table => "5. making a table of what was learned, and of the best constant",
            Step::Judging => "6. judging the table on the part nobody has looked at",
        };
        say!("{text}");
    }

    fn finds(&self, text: &str) {
        say!("   {text}");
    }

    fn grows(&self, report: &DaggerReport) {
        tell(report.clone());
    }
}
