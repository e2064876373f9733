//! The one way a run goes, whoever learns: recorded, judged, kept and saved.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use kvtide_runtime::ActionProfile;

use super::checkpointer::Checkpointer;
use super::extend::EXTENDED;
use super::provenance::provenance;
use super::{Run, TrainError, checkpoint_of, policy_of};
use crate::agent::{AgentError, NetworkPolicy, RunOutcome};
use crate::checkpoint::{CheckpointError, RunProvenance};
use crate::experiment::Experiment;
use crate::record::Recorder;

/// Who is shown each iteration of a learner; an error ends the run.
pub(super) type Each<'a, L, R> = &'a mut dyn FnMut(&L, &R) -> Result<(), TrainError>;

/// Whoever learns, iteration by iteration, and can be saved between two of them.
pub(super) trait Learner: Sized {
    /// What an iteration reports.
    type Report;
    /// What it does, in a word: `training`.
    const DOING: &'static str;

    /// Iterations done.
    fn iteration(&self) -> u64;
    /// Whether they are all done.
    fn is_finished(&self) -> bool;
    /// What it would decide with.
    fn policy(&self, profile: ActionProfile) -> Result<NetworkPolicy, AgentError>;
    /// Goes on until done or until `stop` is set, and shows each iteration to `each`.
    fn run(&mut self, stop: &AtomicBool, each: Each<'_, Self, Self::Report>) -> Result<RunOutcome, TrainError>;
    /// The logs of a run that has come as far as this one, in its folder.
    fn recorder(&self, out: &Path) -> io::Result<Recorder>;
    /// Adds an iteration to them.
    fn record(recorder: &mut Recorder, report: &Self::Report) -> io::Result<()>;
    /// Leaves a checkpoint to go on from.
    fn save(&self, folder: &Path, provenance: &RunProvenance) -> Result<(), CheckpointError>;
    /// Leaves what is needed to decide, and no more.
    fn save_policy(&self, folder: &Path, provenance: &RunProvenance) -> Result<(), CheckpointError>;
}

/// What a run has behind it.
pub(super) struct Resumed {
    /// Whether it goes on from a checkpoint.
    pub(super) is_resumed: bool,
    /// That it was planned for another length before, if that made a difference.
    pub(super) extended: Option<String>,
}

/// Lets `learner` learn until done or asked to stop; either way a checkpoint is left.
pub(super) fn drive<L: Learner>(
    mut learner: L,
    experiment: &Experiment,
    run: &Run<'_>,
    resumed: Resumed,
) -> Result<RunOutcome, TrainError> {
    let Run { world, out, .. } = *run;
    let folder = || out.to_owned();
    fs::create_dir_all(out).map_err(|source| TrainError::Folder { folder: folder(), source })?;
    let Resumed { is_resumed, extended } = resumed;
    let (checkpoint, mut provenance) = (checkpoint_of(out), provenance(experiment, world)?);
    provenance.metadata.extend(extended.map(|extended| (EXTENDED.to_owned(), extended)));
    let logs = |source| TrainError::Logs { folder: folder(), source };
    let mut recorder = learner.recorder(out).map_err(logs)?;
    let mut keeper = Checkpointer::new(experiment, world, policy_of(out), is_resumed)?;
    if !is_resumed && let Some(judgement) = keeper.look(&learner, &provenance)? {
        recorder.line("validation", &judgement).map_err(logs)?;
    }
    let outcome = learner.run(run.stop, &mut |learner, report| {
        L::record(&mut recorder, report)?;
        if let Some(judgement) = keeper.look(learner, &provenance)? {
            recorder.line("validation", &judgement)?;
        }
        if learner.iteration().is_multiple_of(run.checkpoint_every.max(1)) {
            learner.save(&checkpoint, &provenance)?;
        }
        Ok(())
    });
    recorder.finish();
    // A device was lost, or who played elsewhere: what was learned until then is not.
    if let Err(TrainError::Agent(AgentError::Failed { .. } | AgentError::Elsewhere(_))) = &outcome {
        learner.save(&checkpoint, &provenance)?;
    }
    let ended = |error| TrainError::Run { doing: L::DOING, folder: folder(), source: Box::new(error) };
    let outcome = outcome.map_err(ended)?;
    learner.save(&checkpoint, &provenance)?;
    Ok(outcome)
}
