//! What can be wrong with a measured run, told in one line: file, line, value.

use std::fmt;

use kvtide_envs::deploy::{ConfigError, DeploymentError, SettingError};
use kvtide_envs::sched::PromptLimitError;
use thiserror::Error;

/// A measured run that cannot be used, and where it went wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredError {
    /// The file; within an archive `archive: path`.
    pub file: String,
    /// The line, counted from 1; `None` where the whole file is meant.
    pub line: Option<usize>,
    /// The reason.
    pub fault: MeasuredFault,
}

impl MeasuredError {
    pub(in crate::calibrate) fn file(file: impl fmt::Display, fault: MeasuredFault) -> MeasuredError {
        MeasuredError { file: file.to_string(), line: None, fault }
    }

    pub(in crate::calibrate) fn line(file: impl fmt::Display, line: usize, fault: MeasuredFault) -> MeasuredError {
        MeasuredError { file: file.to_string(), line: Some(line), fault }
    }
}

impl fmt::Display for MeasuredError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.fault)
    }
}

impl std::error::Error for MeasuredError {}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum MeasuredFault {
    /// The file cannot be opened.
    #[error("cannot open: {0}")]
    Open(String),
    /// Reading failed part of the way.
    #[error("cannot read: {0}")]
    Read(String),
    /// A compressed file that stops before its end.
    #[error("ends early: the file is cut off")]
    EndsEarly,
    /// An archive that is damaged, cut off, or none.
    #[error("not a whole tar archive: {0}")]
    Archive(String),
    /// An archive that ends within a file.
    #[error("the archive ends within {0}: it is cut off")]
    CutOff(&'static str),
    /// A file that is not there.
    #[error("no {0}; a measured run is requests.jsonl, timeseries.csv and meta.json")]
    Missing(&'static str),
    /// More than one run.
    #[error("more than one measured run; give one of them")]
    SeveralRuns,
    /// A file longer than the limit.
    #[error("longer than {0} bytes")]
    TooLong(u64),
    /// Bytes that are not text.
    #[error("not UTF-8")]
    NotText,
    /// A row that is not what it should be.
    #[error("{0}")]
    Json(String),
    /// A column that is not there.
    #[error("column {0} is missing in the header")]
    Column(&'static str),
    /// A row with too many or too few values.
    #[error("{got} values in a row, {expected} columns in the header")]
    Columns {
        /// In the header.
        expected: usize,
        /// In the row.
        got: usize,
    },
    /// A value out of its range.
    #[error("{field} is {value}: expected {expected}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// What stood there.
        value: String,
        /// What would do.
        expected: &'static str,
    },
    /// A time before one that it must follow.
    #[error("the clock runs backwards: {field} {value} is before {before} {earlier}")]
    Backwards {
        /// The later of the two by name.
        field: &'static str,
        /// Its value, as the file has it.
        value: f64,
        /// The earlier of the two by name.
        before: &'static str,
        /// Its value.
        earlier: f64,
    },
    /// Nothing recorded.
    #[error("no {0}")]
    Empty(&'static str),
    /// More rows than the limit.
    #[error("more than {0} rows")]
    TooMany(usize),
    /// A load of other requests.
    #[error("{0}")]
    OtherLoad(String),
    /// Something that may be said once.
    #[error("{0} are given twice")]
    Twice(String),
    /// A run whose requests are not known.
    #[error("arrivals.jsonl has no arrivals of seed {seed} at {phases}")]
    NoArrivals {
        /// Its load.
        phases: String,
        /// Its draw.
        seed: u64,
    },
    /// A server that is not simulated.
    #[error("{0} is not supported: {1}")]
    Unsupported(&'static str, String),
}

/// Why a run cannot be calibrated against.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum CalibrateError {
    /// What was measured.
    #[error(transparent)]
    Measured(#[from] MeasuredError),
    /// Model or hardware.
    #[error(transparent)]
    Deployment(#[from] DeploymentError),
    /// An override.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Another engine.
    #[error("only engine=v1 with dead_ends=safe is calibrated")]
    Engine,
    /// The engine's settings.
    #[error("the engine's settings do not work together: {0}")]
    Config(#[from] ConfigError),
    /// A run of a model or accelerator for which there is no profile.
    #[error("no profile for {model:?} on {device:?}, which is what the run names; give --env MODEL@HARDWARE")]
    NoEnv {
        /// As the run names it.
        model: String,
        /// As it names itself.
        device: String,
    },
    /// Summaries of a model or accelerator that is not known by name.
    #[error("{file}:{line}: no {what} is known as {name:?}; give --env {example}")]
    Unknown {
        /// The file.
        file: String,
        /// The line of the first such run.
        line: usize,
        /// Model or accelerator.
        what: &'static str,
        /// As the row names it.
        name: String,
        /// What would do.
        example: &'static str,
    },
    /// A model for runs of several.
    #[error("--env {env} names one model, and the runs are of {count}: give @HARDWARE alone, or --only model=…")]
    SeveralModels {
        /// What was given.
        env: String,
        /// Models of the runs.
        count: usize,
    },
    /// A prompt in summaries that the engine would refuse.
    #[error("{file}:{line}: {tokens} tokens of prompt and answer, and the engine takes at most {max_model_len}")]
    TooLong {
        /// The file.
        file: String,
        /// The line of the run.
        line: usize,
        /// Both together.
        tokens: u32,
        /// The engine's limit.
        max_model_len: u32,
    },
    /// A request that the engine did not serve.
    #[error("line {line}: request {request} is never served: the pool is too small for it")]
    Unserved {
        /// The line of the run.
        line: usize,
        /// Which, counted from 0.
        request: usize,
    },
    /// Engines that cannot limit prompts.
    #[error(transparent)]
    PromptLimit(#[from] PromptLimitError),
    /// No run to fit to.
    #[error("no run of {gpu} with a fixed budget is at a load that is fitted to (--fit-loads)")]
    NothingToFit {
        /// The accelerator, as the rows name it.
        gpu: String,
    },
    /// A fit that was asked to end.
    #[error("interrupted")]
    Interrupted,
    /// Runs that no one profile could fit.
    #[error("runs on {one} and on {other}: a profile is of one accelerator; calibrate them one by one")]
    OtherHardware {
        /// Of the first run.
        one: String,
        /// Of another.
        other: String,
    },
    /// Engines that wait for each other at every layer.
    #[error(
        "data_parallel_size is {replicas}: engines of {model} share its experts, and wait for each other; that is not simulated"
    )]
    SharedExperts {
        /// Model name.
        model: String,
        /// How many.
        replicas: u32,
    },
    /// A share that is none.
    #[error("fit fraction {0}: expected a number above 0, at most 1")]
    Fraction(f64),
    /// Too little to fit to.
    #[error(
        "the first {until_s:.1} s have {started} first tokens and {ticks} ticks; at least {least_started} and \
         {least_ticks} are needed: fit to more of the run"
    )]
    TooLittle {
        /// The part that is fitted, seconds.
        until_s: f64,
        /// Requests with a first token in it.
        started: usize,
        /// Ticks in it.
        ticks: usize,
        /// Least that will do.
        least_started: usize,
        /// Least that will do.
        least_ticks: usize,
    },
    /// A prompt the engine would refuse.
    #[error("request {index} has a prompt of {prompt_tokens} tokens, the engine takes fewer than {max_model_len}")]
    Prompt {
        /// Row, counted from 0 in order of arrival.
        index: usize,
        /// Its length.
        prompt_tokens: u32,
        /// The engine's limit.
        max_model_len: u32,
    },
}
