//! `kvtide train`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use clap::Args;
use kvtide_envs::env::{EnvError, VecEnv};

use super::keep::Keeper;
use super::{Exit, handover, prior, search, stop};
use crate::agent::{AgentError, Outcome, Tensors, Trainer};
use crate::checkpoint::{self, Provenance};
use crate::distil::DistilError;
use crate::experiment::{Experiment, ExperimentError, Method};
use crate::export::ChooseError;
use crate::record::Recorder;
use crate::world::World;

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
    #[arg(long, value_name = "N", default_value_t = 25)]
    checkpoint_every: u64,
    /// Learn from so many decisions instead of the experiment's.
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    decisions: Option<u64>,
    /// Another seed than the experiment's.
    #[arg(long, value_name = "SEED", conflicts_with = "resume")]
    seed: Option<u64>,
}

/// Where a run's checkpoint is.
pub(super) fn checkpoint_of(out: &Path) -> PathBuf {
    out.join("checkpoint")
}

/// Where a run leaves what is needed to decide, and no more: what is shipped.
pub(super) fn policy_of(out: &Path) -> PathBuf {
    out.join("policy")
}

pub(super) fn run(args: &TrainArgs, tensors: Option<&'static dyn Tensors>) -> anyhow::Result<Exit> {
    let folder = checkpoint_of(&args.out);
    let given = args.experiment.as_deref().map(Experiment::load).transpose()?;
    let experiment = if args.resume {
        let manifest = checkpoint::inspect(&folder)?;
        let saved = Experiment::parse(&manifest.experiment)
            .map_err(|reason| anyhow::anyhow!("{}: its experiment: {reason}", folder.display()))?;
        // The prior and the fallback were filled in when training started.
        let same = |given: Experiment| {
            let (prior, fallback) = (saved.ppo.prior.clone(), given.fallback.or(saved.fallback));
            saved == Experiment { ppo: crate::agent::PpoConfig { prior, ..given.ppo.clone() }, fallback, ..given }
        };
        if given.is_some_and(|given| !same(given)) {
            bail!("{} was trained with another experiment; leave --experiment out", folder.display());
        }
        saved
    } else {
        if folder.exists() {
            bail!("{} exists; go on with --resume, or take another --out", folder.display());
        }
        let mut experiment = given.context("--experiment is needed")?;
        experiment.ppo.total_decisions = args.decisions.unwrap_or(experiment.ppo.total_decisions);
        experiment.ppo.seed = args.seed.unwrap_or(experiment.ppo.seed);
        experiment.cross_entropy.seed = args.seed.unwrap_or(experiment.cross_entropy.seed);
        if args.decisions.is_some() && experiment.method == Method::CrossEntropy {
            bail!("--decisions: a cross-entropy search has as many as its episodes take (cross_entropy.generations)");
        }
        experiment
    };
    if experiment.method == Method::Ppo && tensors.is_none() {
        handover::hand_over()?;
    }
    let mut spec = experiment.world.clone();
    spec.trace = args.trace.clone().or(spec.trace);
    let world = spec.world()?;
    let experiment = if args.resume {
        same_traffic(&world, &folder)?;
        experiment
    } else {
        let Some(experiment) = prior::resolve(experiment, &world, stop::on_interrupt())? else {
            return Ok(Exit::Interrupted);
        };
        experiment
    };
    let outcome =
        train(&experiment, &world, &args.out, args.resume, args.checkpoint_every, tensors, stop::on_interrupt())?;
    match outcome {
        Outcome::Finished => {
            eprintln!("trained: {}; to decide with: {}", folder.display(), policy_of(&args.out).display());
            Ok(Exit::Done)
        }
        Outcome::Interrupted => {
            eprintln!("interrupted; go on with: kvtide train --resume --out {}", args.out.display());
            Ok(Exit::Interrupted)
        }
    }
}

/// Refuses traffic other than the checkpoint at `folder` was trained on.
pub(super) fn same_traffic(world: &World, folder: &Path) -> anyhow::Result<()> {
    let trained = checkpoint::inspect(folder)?.metadata.get("traffic").cloned();
    if trained != world.fingerprint() {
        bail!("{} was trained on other traffic than {}", folder.display(), world.trace);
    }
    Ok(())
}

/// Trains into `out` until done or `stop` is set; either way a checkpoint is left.
pub(super) fn train(
    experiment: &Experiment,
    world: &World,
    out: &Path,
    resume: bool,
    checkpoint_every: u64,
    tensors: Option<&'static dyn Tensors>,
    stop: &AtomicBool,
) -> anyhow::Result<Outcome> {
    experiment.validate()?;
    if experiment.method == Method::CrossEntropy {
        return search::train(experiment, world, out, resume, checkpoint_every, stop);
    }
    let tensors = tensors.context("training by PPO needs a tensor library")?;
    let env = Box::new(VecEnv::new(&experiment.env_config(world)?, experiment.num_envs)?);
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let folder = checkpoint_of(out);
    let mut trainer = if resume {
        checkpoint::load_trainer(&folder, env, tensors)?.0
    } else {
        Trainer::new(experiment.ppo.clone(), env, tensors)?
    };
    let provenance = provenance(experiment, world)?;
    let plan = trainer.plan();
    let total = plan.iterations * plan.batch as u64;
    let log = || format!("cannot write logs into {}", out.display());
    let mut recorder = Recorder::new(out, trainer.decisions(), total).with_context(log)?;
    let mut keeper = Keeper::new(experiment, world, policy_of(out), resume)?;
    if !resume && let Some(judgement) = keeper.look(&trainer, &provenance)? {
        recorder.line("validation", &judgement).with_context(log)?;
    }
    let outcome = trainer.run(stop, |trainer, report| -> Result<(), TrainError> {
        recorder.iteration(report)?;
        if let Some(judgement) = keeper.look(trainer, &provenance)? {
            recorder.line("validation", &judgement)?;
        }
        if report.iteration.is_multiple_of(checkpoint_every.max(1)) {
            checkpoint::save(&folder, &trainer.state(), &provenance)?;
        }
        Ok(())
    });
    recorder.finish();
    // A device was lost: what was learned until then is not.
    if let Err(TrainError::Agent(AgentError::Failed { .. })) = &outcome {
        checkpoint::save(&folder, &trainer.state(), &provenance)?;
    }
    let outcome = outcome.with_context(|| format!("training into {}", out.display()))?;
    checkpoint::save(&folder, &trainer.state(), &provenance)?;
    Ok(outcome)
}

/// What can end a run between two iterations.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrainError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Log(#[from] std::io::Error),
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::CheckpointError),
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    #[error(transparent)]
    Arena(#[from] EnvError),
    #[error(transparent)]
    Distil(#[from] DistilError),
    #[error(transparent)]
    Table(#[from] ChooseError),
}

pub(super) fn provenance(experiment: &Experiment, world: &World) -> anyhow::Result<Provenance> {
    let mut metadata: BTreeMap<String, String> = experiment.conditions(world)?;
    metadata.insert("name".to_owned(), experiment.name.clone());
    metadata.insert("trace".to_owned(), world.trace.clone());
    if let Some(fallback) = experiment.fallback {
        metadata.insert("fallback".to_owned(), fallback.to_string());
    }
    // Of a recorded trace, what was seen; a generator never gives the same traffic twice.
    if let Some(fingerprint) = world.fingerprint() {
        metadata.insert("traffic".to_owned(), fingerprint);
        metadata.insert("fit_range".to_owned(), experiment.fit_range(world)?.to_string());
    }
    Ok(Provenance {
        profile: experiment.profile(),
        commit: option_env!("KVTIDE_COMMIT").map(str::to_owned),
        experiment: experiment.to_toml(),
        metadata,
    })
}
