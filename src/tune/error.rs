//! Why there is no verdict.

use std::io;
use std::path::PathBuf;

use kvtide_envs::env::{EnvError, RunError};
use kvtide_envs::workload::{Window, WorkloadError};
use thiserror::Error;

use super::traffic::LEAST_S;
use crate::agent::AgentError;
use crate::checkpoint::CheckpointError;
use crate::distil::DistilError;
use crate::evaluate::{MatrixError, Unserved};
use crate::experiment::ExperimentError;
use crate::export::{ChooseError, ExportError, MakeError};
use crate::policy::{PolicySpec, SpecError};
use crate::report::ReportError;
use crate::train::TrainError;
use crate::world::WorldError;

/// Why there is no verdict.
#[derive(Debug, Error)]
pub enum TuneError {
    /// Too little traffic to be cut.
    #[error(
        "{name}: {span_s:.1} s{}: too little to train, choose and judge on; at least {LEAST_S} s with 60 requests are needed, \
         and half an hour or more for an answer worth having",
        requests.map_or_else(String::new, |requests| format!(" with {requests} requests"))
    )]
    Little {
        /// The traffic.
        name: String,
        /// How long it lasts.
        span_s: f64,
        /// How many requests it has, if that was counted.
        requests: Option<usize>,
    },
    /// Requests are so unevenly spread that a part has hardly any.
    #[error("{name}: {requests} requests in {window}, which is what there would be to {purpose}: record longer")]
    Gap {
        /// The traffic.
        name: String,
        /// What the part is for.
        purpose: &'static str,
        /// The part.
        window: Window,
        /// What arrives in it.
        requests: usize,
    },
    /// Thinned, the part that is judged has no request left.
    #[error(
        "{name}: at none of the loads {loads:?} a request is left in every draw of the part that is judged: record longer"
    )]
    NothingToJudge {
        /// The traffic.
        name: String,
        /// The loads.
        loads: Vec<f64>,
    },
    /// What nobody can run.
    #[error("--versus {0}: it knows the future, so it is not what runs today")]
    Today(PolicySpec),
    /// Traffic that can be read only once.
    #[error("traffic is read more than once, and {} cannot be: give a file (kvtide trace convert makes one)", match .path.to_str() {
        Some("-") => "stdin".to_owned(),
        _ => format!("{}, a pipe or a device,", path.display()),
    })]
    Once {
        /// What it was to be read from.
        path: PathBuf,
    },
    /// Traffic that has an end, but not in time.
    #[error(
        "--workload {spec}: traffic is cut by time, and so many requests end at another time in each draw: give duration= instead of n="
    )]
    Counted {
        /// The generator.
        spec: String,
    },
    /// What the run would take away before it begins is what it is to read.
    #[error(
        "{option} {}: a run into {} takes that away before it begins, with all an earlier run has left there; take another --out",
        read.display(), out.display()
    )]
    Swept {
        /// The option that names it.
        option: &'static str,
        /// What is read.
        read: PathBuf,
        /// The run's folder.
        out: PathBuf,
    },
    /// The targets are met at no load.
    #[error(
        "the engine's default comes near none of {targets:?} of the requests at any load{}: a single request hardly meets the \
         targets on this node; give others (--slo) or another node (--env)",
        attained.map_or_else(String::new, |attained| format!(" ({:.1} % at load 1)", attained * 100.0))
    )]
    NoLoad {
        /// What was looked for.
        targets: Vec<f64>,
        /// What is attained at load 1, if anything can be drawn there.
        attained: Option<f64>,
    },
    /// Not one request is served, whatever the load.
    #[error("nothing to tune: {0}")]
    Unserved(Unserved),
    /// The folder is not empty, and no run's.
    #[error("{} is not empty and no folder of kvtide tune; take another --out", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// The folder holds a run that was stopped.
    #[error("{} holds a run that was stopped: go on with --resume, or take another --out", path.display())]
    Unfinished {
        /// The folder.
        path: PathBuf,
    },
    /// There is nothing to go on with.
    #[error("--resume: {} holds no run", path.display())]
    Nothing {
        /// The folder.
        path: PathBuf,
    },
    /// The run to go on with was asked for something else.
    #[error("--resume: {} was begun with another {what}; leave it out, or take another --out", path.display())]
    OtherSettings {
        /// The folder.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// The traffic is no longer what the run was begun on.
    #[error("--resume: {} was begun on other traffic than {name} holds now", path.display())]
    OtherTraffic {
        /// The folder.
        path: PathBuf,
        /// What is there now.
        name: String,
    },
    /// A folder or a file in it cannot be used.
    #[error("{}: {source}", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A row of an earlier part of this run cannot be read.
    #[error("{}:{line}: {reason}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Where, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The host would refuse whatever can be made for it.
    #[error("no table: {0}")]
    Unfit(String),
    /// The node or its traffic cannot be set up.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The traffic cannot be drawn.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The traffic cannot be trained on.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// An episode cannot be played.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// There is nowhere to play.
    #[error(transparent)]
    Arena(#[from] EnvError),
    /// Training cannot go on.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// No table can be made.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// A constant cannot be made a table.
    #[error(transparent)]
    Distil(#[from] DistilError),
    /// No table can be chosen.
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// The table cannot be written.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// Whoever is judged cannot be loaded.
    #[error(transparent)]
    Subject(#[from] SpecError),
    /// A run has no result.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// The engine died while the traffic was looked at.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The page cannot be written.
    #[error(transparent)]
    Report(#[from] ReportError),
}
