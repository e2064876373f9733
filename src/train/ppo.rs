//! Proximal policy optimisation as one who learns.

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use kvtide_envs::env::VecEnv;
use kvtide_runtime::ActionProfile;

use super::TrainError;
use super::driver::{Each, Learner};
use super::start::Start;
use crate::agent::{AgentError, IterationReport, NetworkPolicy, RunOutcome, Tensors, Trainer};
use crate::checkpoint::{self, Checkpoint, CheckpointError, RunProvenance};
use crate::experiment::Experiment;
use crate::record::Recorder;
use crate::world::World;

/// A new run of `experiment`, from `start` if there is one, or the run saved in `checkpoint`.
pub(super) fn learner(
    experiment: &Experiment,
    world: &World,
    (checkpoint, start): (Option<&Path>, Option<Start>),
    tensors: &'static dyn Tensors,
) -> Result<Trainer, TrainError> {
    let config = experiment.env_config(world)?;
    let env = Box::new(VecEnv::in_groups(&config, experiment.num_envs, experiment.ppo.group)?);
    match checkpoint {
        Some(folder) => {
            let Checkpoint { path, mut state, .. } = checkpoint::load(folder)?;
            state.config.total_decisions = experiment.ppo.total_decisions;
            Ok(Trainer::resume(state, env, tensors).map_err(|source| CheckpointError::Agent { path, source })?)
        }
        None => Ok(Trainer::starting_from(start, experiment.ppo.clone(), env, tensors)?),
    }
}

impl Learner for Trainer {
    type Report = IterationReport;
    const DOING: &'static str = "training";

    fn iteration(&self) -> u64 {
        Trainer::iteration(self)
    }

    fn is_finished(&self) -> bool {
        Trainer::is_finished(self)
    }

    fn policy(&self, profile: ActionProfile) -> Result<NetworkPolicy, AgentError> {
        let state = self.state();
        NetworkPolicy::new(&state.weights, state.normalisers.observation.as_ref(), profile)
    }

    fn run(&mut self, stop: &AtomicBool, each: Each<'_, Trainer, IterationReport>) -> Result<RunOutcome, TrainError> {
        Trainer::run(self, stop, each)
    }

    fn recorder(&self, out: &Path) -> io::Result<Recorder> {
        let plan = self.plan();
        Recorder::new(out, self.decisions(), plan.iterations * plan.batch as u64)
    }

    fn record(recorder: &mut Recorder, report: &IterationReport) -> io::Result<()> {
        recorder.iteration(report)
    }

    fn save(&self, folder: &Path, provenance: &RunProvenance) -> Result<(), CheckpointError> {
        checkpoint::save(folder, &self.state(), provenance)
    }

    fn save_policy(&self, folder: &Path, provenance: &RunProvenance) -> Result<(), CheckpointError> {
        checkpoint::save_policy(folder, &self.state(), provenance)
    }
}
