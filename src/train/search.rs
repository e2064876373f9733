//! Cross-entropy search as one who learns.

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use kvtide_envs::env::ServingArena;
use kvtide_runtime::ActionProfile;

use super::driver::{Each, Learner};
use super::{Run, TrainError};
use crate::agent::{AgentError, CrossEntropy, GenerationReport, NetworkPolicy, RunOutcome};
use crate::checkpoint::{self, CheckpointError, RunProvenance};
use crate::experiment::Experiment;
use crate::record::Recorder;

/// A new search of `experiment`, or the one saved in `checkpoint`.
pub(super) fn learner(
    experiment: &Experiment,
    run: &Run<'_>,
    checkpoint: Option<&Path>,
) -> Result<CrossEntropy, TrainError> {
    let arena = Box::new(ServingArena::new(&experiment.env_config(run.world)?)?);
    let profile = experiment.profile();
    let search = match checkpoint {
        None => {
            let (config, ppo) = (experiment.cross_entropy.clone(), &experiment.ppo);
            CrossEntropy::new(config, ppo.prior.clone(), &ppo.blind, profile, arena)?
        }
        Some(folder) => {
            let mut state = checkpoint::load_search(folder)?.0;
            state.config.generations = experiment.cross_entropy.generations;
            CrossEntropy::resume(state, profile, arena)
                .map_err(|source| TrainError::Resume { folder: folder.to_owned(), source })?
        }
    };
    match &run.spread {
        Some(spread) => Ok(spread.over(experiment, search)?),
        None => Ok(search),
    }
}

impl Learner for CrossEntropy {
    type Report = GenerationReport;
    const DOING: &'static str = "searching";

    fn iteration(&self) -> u64 {
        self.state().progress.generation
    }

    fn is_finished(&self) -> bool {
        CrossEntropy::is_finished(self)
    }

    fn policy(&self, profile: ActionProfile) -> Result<NetworkPolicy, AgentError> {
        self.state().policy(profile)
    }

    fn run(
        &mut self,
        stop: &AtomicBool,
        each: Each<'_, CrossEntropy, GenerationReport>,
    ) -> Result<RunOutcome, TrainError> {
        CrossEntropy::run(self, stop, each)
    }

    fn recorder(&self, out: &Path) -> io::Result<Recorder> {
        Recorder::of_search(out, self.state())
    }

    fn record(recorder: &mut Recorder, report: &GenerationReport) -> io::Result<()> {
        recorder.generation(report)
    }

    fn save(&self, folder: &Path, provenance: &RunProvenance) -> Result<(), CheckpointError> {
        checkpoint::save_search(folder, self.state(), provenance)
    }

    fn save_policy(&self, folder: &Path, provenance: &RunProvenance) -> Result<(), CheckpointError> {
        checkpoint::save_search_policy(folder, self.state(), provenance)
    }
}
