//! `kvtide demo`: the whole way from a workload to a decision, small.

use std::fmt::Write;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use kvtide_envs::env::{Node, RewardWeights, mask, observe, snapshot};
use kvtide_envs::metrics::Collector;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::Window;
use kvtide_runtime::{ActionProfile, Observer, Policy, Table};

use super::output::Output;
use super::progress::Runs;
use super::train::{policy_of, train};
use super::{Exit, export, prior, stop};
use crate::agent::{CrossEntropyConfig, Outcome, PpoConfig, Schedule};
use crate::distil::DistilConfig;
use crate::evaluate::{Comparison, Matrix, compare, knee, render, run_matrix};
use crate::experiment::{Episodes, Experiment, Method, Validation};
use crate::policy::{PolicyName, PolicySpec, Subject};
use crate::world::{Draw, World, WorldSpec};

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    #[command(flatten)]
    world: WorldSpec,
    /// Folder for the checkpoint, the table and the results; those of an earlier demo are replaced.
    #[arg(long, value_name = "DIR", default_value = "runs/demo")]
    out: PathBuf,
    /// Decisions to learn from.
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    decisions: u64,
    /// Seed of the training run.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

/// Traffic of the demo when none is given: chat, at about twice what the card can serve.
const TRAFFIC: &str = "chat:rate=5,duration=2400,seed=7";
/// Share of requests the default attains at the load the demo is about.
const TARGET: f64 = 0.7;
/// Share of the traffic, by time, that is trained on; judged is the rest.
const FIT: f64 = 0.7;
/// Loads judged, as factors of the load found.
const LOADS: [f64; 3] = [0.9, 1.0, 1.1];
/// Loads trained on, likewise.
const TRAINED: (f64, f64) = (0.75, 1.3);
/// Fixed watermarks shown.
const WATERMARKS: [&str; 4] = ["fixed:0", "fixed:0.05", "fixed:0.12", "fixed:0.25"];
/// Environments, and decisions of each in an iteration.
const NUM_ENVS: usize = 32;
const NUM_STEPS: usize = 128;
/// Longest episode, seconds.
const EPISODE_S: f64 = 300.0;

/// A file in the folder of a demo says that the folder is one and may be used again.
const MARK: &str = "demo.txt";
const MARK_TEXT: &str = "Results of kvtide demo; the next one replaces them.\n";
/// Shortest traffic: both parts must show something.
const LEAST_S: f64 = 60.0;

pub(super) fn run(args: &DemoArgs) -> anyhow::Result<Exit> {
    let stop = stop::on_interrupt();
    let mut spec = args.world.clone();
    if spec.trace.is_none() && spec.workload.is_none() {
        spec.workload = Some(TRAFFIC.parse()?);
    }
    let world = spec.world()?;
    let span_s = world.span()?.as_secs_f64();
    ensure!(span_s >= LEAST_S, "the traffic lasts {span_s:.1} s; a demo needs at least {LEAST_S} s of it");
    let fewest = (NUM_ENVS * NUM_STEPS) as u64;
    ensure!(args.decisions >= fewest, "--decisions {}: expected at least {fewest}", args.decisions);
    make_folder(&args.out)?;
    eprintln!(
        "kvtide demo: {} on {}, a pool of {} blocks of {} tokens, targets {}",
        world.trace,
        world.deployment.name(),
        world.node.engine.num_gpu_blocks,
        world.node.engine.block_size,
        world.node.slo
    );

    let experiment = experiment(args, spec, &world)?;
    let (fit, test) = cut(&experiment, &world)?;
    let load = middle(&experiment);
    eprintln!("1. at load {load:.2} the engine's default attains about {:.0} % of {fit}", TARGET * 100.0);

    eprintln!("2. training on {fit} at loads {:.2} to {:.2}", experiment.episodes.load.0, experiment.episodes.load.1);
    let Some(experiment) = prior::resolve(experiment, &world, stop)? else { return Ok(Exit::Interrupted) };
    if train(&experiment, &world, &args.out, false, u64::MAX, stop)? == Outcome::Interrupted {
        return Ok(Exit::Interrupted);
    }
    let checkpoint = policy_of(&args.out);

    eprintln!("3. distilling into a decision table");
    let table = args.out.join("policy.kvt");
    let Some(exported) = export::distil_into(&checkpoint, &world, &DistilConfig::default(), &table, stop)? else {
        return Ok(Exit::Interrupted);
    };
    eprintln!("   {exported}");

    eprintln!("4. judging on {test}, which nobody has seen, at {} loads with 3 seeds", LOADS.len());
    let matrix = Matrix {
        policies: policies(&checkpoint, &table, world.node.host.profile)?,
        windows: vec![Some(test)],
        loads: LOADS.iter().map(|factor| round(factor * load)).collect(),
        seeds: vec![1, 2, 3],
    };
    let (bar, mut rows) = (Runs::new(), Vec::new());
    let cells = run_matrix(&world, &matrix, &bar, stop, &mut |finished| {
        rows.extend_from_slice(finished);
        ControlFlow::Continue(())
    })?;
    bar.finish();
    if cells < matrix.loads.len() {
        return Ok(Exit::Interrupted);
    }
    let lines: Result<Vec<String>, _> = rows.iter().map(serde_json::to_string).collect();
    let results = args.out.join("results.jsonl");
    fs::write(&results, lines?.join("\n") + "\n").with_context(|| format!("cannot write {}", results.display()))?;
    let comparisons = compare(&rows, &PolicySpec::BestFixed.into(), &[]);

    let mut output = Output::new();
    output.text(&render(&comparisons, &[]))?;
    output.text(&in_words(&comparisons))?;
    output.text(&decide(&world, test, load, &table)?)?;
    output.line(&format!(
        "\nKept in {}: checkpoint/ to go on from, policy/ to decide with, policy.kvt to ship, results.jsonl. Next: kvtide inspect {}",
        args.out.display(),
        table.display()
    ))?;
    Ok(Exit::Done)
}

/// Takes the results of an earlier demo out of its folder; a folder of anything else is left alone.
fn make_folder(out: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot prepare {}", out.display());
    let mark = out.join(MARK);
    if out.exists() {
        let empty = fs::read_dir(out).with_context(cannot)?.next().is_none();
        let ours = fs::read_to_string(&mark).is_ok_and(|text| text == MARK_TEXT);
        ensure!(empty || ours, "{} is not empty and no demo's folder; take another --out", out.display());
    }
    fs::create_dir_all(out).with_context(cannot)?;
    for name in ["checkpoint", "policy", "tensorboard", "train.jsonl", "policy.kvt", "results.jsonl"] {
        let path = out.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).with_context(cannot),
            _ => {}
        }
    }
    fs::write(mark, MARK_TEXT).with_context(cannot)
}

fn experiment(args: &DemoArgs, spec: WorldSpec, world: &World) -> anyhow::Result<Experiment> {
    let span = world.span()?;
    let fit_s = span.as_secs_f64() * FIT;
    let mut experiment = Experiment {
        name: "demo".to_owned(),
        profile: world.node.host.profile.name().to_owned(),
        num_envs: NUM_ENVS,
        world: spec,
        episodes: Episodes::new(FIT, EPISODE_S.min(fit_s), (1.0, 1.0)),
        also: Vec::new(),
        validation: Some(Validation { every: validation_every(args.decisions), ..Validation::default() }),
        without: Vec::new(),
        watermarks: Vec::new(),
        reward: RewardWeights::default(),
        prior: Some("search".to_owned()),
        fallback: None,
        ppo: PpoConfig {
            total_decisions: args.decisions,
            num_steps: NUM_STEPS,
            num_minibatches: 8,
            learning_rate: 5e-4,
            entropy_coef: Schedule { start: 0.001, end: 0.0 },
            seed: args.seed,
            ..PpoConfig::default()
        },
        method: Method::Ppo,
        cross_entropy: CrossEntropyConfig::default(),
    };
    let load = knee(world, Some(experiment.fit_range(world)?), TARGET)?;
    experiment.episodes.load = (round(TRAINED.0 * load), round(TRAINED.1 * load));
    Ok(experiment)
}

/// Iterations between two judgements of the table: so that there are four.
fn validation_every(decisions: u64) -> u64 {
    (decisions / (NUM_ENVS * NUM_STEPS) as u64).div_ceil(4).max(1)
}

/// What is trained on, and what is judged on.
fn cut(experiment: &Experiment, world: &World) -> anyhow::Result<(Window, Window)> {
    let fit = experiment.fit_range(world)?;
    // A window may end up to a second after the traffic, so that people can be told whole seconds.
    let end = Micros(world.span()?.0.next_multiple_of(1_000_000));
    Ok((fit, Window { start: fit.end, end }))
}

fn middle(experiment: &Experiment) -> f64 {
    round(experiment.episodes.load.0 / TRAINED.0)
}

/// Loads are given to people, so to three digits.
fn round(load: f64) -> f64 {
    let unit = 10f64.powf(load.log10().floor() - 2.0);
    (load / unit).round() * unit
}

/// Everybody who is judged, where a host lets the heads of `profile` be decided.
fn policies(checkpoint: &Path, table: &Path, profile: ActionProfile) -> anyhow::Result<Vec<(PolicyName, Subject)>> {
    let constants = ["default"].into_iter().chain(WATERMARKS).chain(["best-fixed"]);
    let mut names: Vec<PolicyName> = Vec::new();
    for text in constants {
        let spec: PolicySpec = text.parse()?;
        names.push(spec.into());
    }
    names.extend([PolicyName::best_static(profile), PolicyName::agent(checkpoint), PolicyName::table(table)]);
    names
        .into_iter()
        .map(|name| Subject::load(name.spec()).map(|subject| (name, subject)).map_err(Into::into))
        .collect()
}

/// The comparison in two sentences.
fn in_words(comparisons: &[Comparison]) -> String {
    let attained = |is_meant: fn(&PolicySpec) -> bool| {
        comparisons.iter().find(|line| is_meant(line.policy.spec())).map_or(0.0, |line| line.slo_attainment * 100.0)
    };
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\nOn unseen traffic the table met all targets for {:.1} % of requests (the agent it was made from: {:.1} %).",
        attained(|policy| matches!(policy, PolicySpec::Table(_))),
        attained(|policy| matches!(policy, PolicySpec::Checkpoint(_)))
    );
    let _ = writeln!(
        text,
        "The best fixed watermark, chosen in hindsight, met them for {:.1} %; the best constant choice of everything, \
         also in hindsight, for {:.1} %.",
        attained(|policy| matches!(policy, PolicySpec::BestFixed)),
        attained(|policy| matches!(policy, PolicySpec::BestStatic(_)))
    );
    text
}

/// Steers a node into pressure by the default and asks the table what it would do there.
fn decide(world: &World, test: Window, load: f64, path: &Path) -> anyhow::Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let table = Table::parse(&bytes).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    let workload = world.draw(&Draw { window: Some(test), load, seed: 1 })?;
    let mut node = Node::new(&world.node, workload.share(), Collector::default())?;
    let mut observer = Observer::new();
    let default = node.scheduler().default_controls();
    let mut observation = observe(&node, &mut observer);
    while node.collector().preemptions == 0 && node.collector().refused_steps == 0 {
        if node.advance(&default, world.decision_interval)? != kvtide_envs::env::Progress::Stepped {
            break;
        }
        observation = observe(&node, &mut observer);
    }
    let controls = table.decide(&observation, mask(&node, table.profile())).controls();
    let shot = snapshot(&node);
    Ok(format!(
        "\nThe first time a request is refused ({:.0} s in; {} of {} blocks free, {} running, {} waiting) the table says:\n  \
         watermark {}, victim {}, preemption {}, admission {}, after {} comparisons\n",
        node.now().as_secs_f64(),
        shot.free_gpu_blocks,
        shot.num_gpu_blocks,
        shot.running,
        shot.waiting,
        controls.watermark,
        controls.victim.name(),
        controls.preemption.name(),
        controls.admission.name(),
        table.path(&observation).count()
    ))
}
