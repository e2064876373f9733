//! `kvtide train`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail, ensure};
use clap::Args;
use kvtide_envs::memory::MemoryKind;

use super::outputs::Outputs;
use super::talk::Talk;
use super::{Exit, handover, stop};
use crate::agent::{RunOutcome, Tensors};
use crate::crew::{Crew, Ray};
use crate::experiment::{Experiment, Method};
use crate::train::{self, Run, Spread, TrainError};

#[derive(Debug, Args)]
pub(super) struct TrainArgs {
    /// Experiment file (TOML). With --resume it may be left out: the checkpoint knows it.
    #[arg(long, value_name = "FILE", required_unless_present = "resume")]
    experiment: Option<PathBuf>,
    /// Folder of the run: checkpoint/, train.jsonl, tensorboard/.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Go on from the run's checkpoint; the result is the one of a run that never stopped.
    #[arg(long)]
    resume: bool,
    /// The trace, if with --resume it is no longer where the experiment says.
    #[arg(long, value_name = "FILE", requires = "resume")]
    trace: Option<PathBuf>,
    /// Iterations between checkpoints.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: u64,
    /// Learn from so many decisions instead of the experiment's; with --resume, go on to so many in all.
    #[arg(long, value_name = "N")]
    decisions: Option<u64>,
    /// Search for so many generations instead of the experiment's; with --resume, go on to so many in all.
    #[arg(long, value_name = "N", conflicts_with = "decisions")]
    generations: Option<u64>,
    /// Another seed than the experiment's.
    #[arg(long, value_name = "SEED", conflicts_with = "resume")]
    seed: Option<u64>,
    /// Have a search's candidates played by the workers of the Ray cluster at this address, such as 10.0.0.1:6379, auto, or local
    /// for one of this machine's own: the same bytes, sooner. Needs python3 with kvtide[ray]; KVTIDE_PYTHON names another.
    #[arg(long, value_name = "ADDRESS")]
    ray: Option<String>,
}

pub(super) fn run(args: &TrainArgs, tensors: Option<&'static dyn Tensors>) -> anyhow::Result<Exit> {
    let experiment = experiment(args)?;
    outputs(args, &experiment).check()?;
    if experiment.method == Method::Ppo && tensors.is_none() {
        handover::hand_over()?;
    }
    let mut spec = experiment.world.clone();
    spec.trace = args.trace.clone().or(spec.trace);
    let source = args.experiment.clone().unwrap_or_else(|| train::checkpoint_of(&args.out));
    let of_experiment = || source.display().to_string();
    let world = spec.world().with_context(of_experiment)?;
    if args.resume
        && let Some(extension) = train::Extension::of(&train::checkpoint_of(&args.out), &experiment)?
    {
        if extension.is_exact() { say!("{extension}") } else { warn!("{extension}") }
    }
    let stop = stop::on_interrupt();
    let crew = match &args.ray {
        Some(address) => match crew(address, &experiment, stop)? {
            Some(crew) => Some(crew),
            None => return Ok(Exit::Interrupted),
        },
        None => None,
    };
    let run = Run {
        world: &world,
        out: &args.out,
        checkpoint_every: args.checkpoint_every,
        tensors,
        listener: &Talk,
        spread: crew.as_ref().map(|crew| Spread { crew, trace: args.trace.as_deref() }),
        stop,
    };
    let outcome = if args.resume { run.resume(&experiment).map(Some) } else { run.start(experiment) };
    let outcome = outcome.map_err(|error| match error {
        // These name what they are about.
        TrainError::Locked(_) | TrainError::Folder { .. } | TrainError::Logs { .. } | TrainError::Run { .. } => {
            error.into()
        }
        other => anyhow::Error::new(other).context(of_experiment()),
    })?;
    match outcome {
        Some(RunOutcome::Finished) => {
            let (checkpoint, policy) = (train::checkpoint_of(&args.out), train::policy_of(&args.out));
            say!("trained: {}; to decide with: {}", checkpoint.display(), policy.display());
            return Ok(Exit::Done);
        }
        Some(RunOutcome::Interrupted) => {
            say!("interrupted; go on with: kvtide train --resume --out {}", args.out.display());
        }
        // Nothing was learned that could be gone on with.
        None => {}
    }
    Ok(Exit::Interrupted)
}

/// The workers at `address`; `None` if interrupted.
fn crew(address: &str, experiment: &Experiment, stop: &AtomicBool) -> anyhow::Result<Option<Arc<dyn Crew>>> {
    ensure!(
        experiment.method == Method::CrossEntropy,
        "--ray {address}: PPO learns in one process; a search's candidates can be played by others (method = \"cross-entropy\")"
    );
    ensure!(
        !matches!(experiment.world.memory.as_deref(), Some(MemoryKind::Cuda { .. })),
        "--ray {address}: a device's steps take what they take, on each machine another time; leave out memory"
    );
    let ray = Ray::start(address, stop).with_context(|| format!("--ray {address}"))?;
    Ok(ray.map(|ray| Arc::new(ray) as Arc<dyn Crew>))
}

/// What the run reads, and where it writes.
fn outputs(args: &TrainArgs, experiment: &Experiment) -> Outputs {
    let worlds = experiment.also.iter().map(|also| &also.world).chain([&experiment.world]);
    let outputs = Outputs::new().reads("--experiment", args.experiment.as_deref());
    let outputs = worlds.fold(outputs, Outputs::reads_world).reads("--trace", args.trace.as_deref());
    outputs
        .folder("--out", args.out.as_path())
        .log("--out", args.out.exists().then(|| args.out.join("train.jsonl")).as_deref())
}

/// The experiment given, with what is given instead of its own; or the one that is gone on with.
fn experiment(args: &TrainArgs) -> anyhow::Result<Experiment> {
    let folder = train::checkpoint_of(&args.out);
    let given = args.experiment.as_deref().map(Experiment::load).transpose()?;
    if args.resume {
        let total = args.decisions.or(args.generations);
        let experiment = train::resumed_to(&folder, given, total)?;
        check_length(args, &experiment)?;
        experiment.validate()?;
        return Ok(experiment);
    }
    if folder.exists() {
        bail!("{} exists; go on with --resume, or take another --out", folder.display());
    }
    let mut experiment = given.context("--experiment is needed")?;
    check_length(args, &experiment)?;
    experiment.ppo.total_decisions = args.decisions.unwrap_or(experiment.ppo.total_decisions);
    experiment.cross_entropy.generations = args.generations.unwrap_or(experiment.cross_entropy.generations);
    experiment.ppo.seed = args.seed.unwrap_or(experiment.ppo.seed);
    experiment.cross_entropy.seed = args.seed.unwrap_or(experiment.cross_entropy.seed);
    experiment.validate()?;
    Ok(experiment)
}

/// Refuses a length in what the method does not count.
fn check_length(args: &TrainArgs, experiment: &Experiment) -> anyhow::Result<()> {
    match experiment.method {
        Method::CrossEntropy if args.decisions.is_some() => {
            bail!(
                "--decisions: a cross-entropy search has as many as its episodes take (--generations, cross_entropy.generations)"
            )
        }
        Method::Ppo if args.generations.is_some() => {
            bail!("--generations: PPO counts --decisions (ppo.total_decisions)")
        }
        _ => Ok(()),
    }
}
