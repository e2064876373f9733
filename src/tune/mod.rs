//! The whole way from a workload to a decision, small: what `kvtide demo` trains, how, and whom it judges.

mod decide;
mod folder;

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use kvtide_envs::deploy::ConfigError;
use kvtide_envs::env::{NodeError, RewardWeights};
use kvtide_envs::workload::{Window, WorkloadError};
use kvtide_runtime::ActionProfile;
use thiserror::Error;

pub use folder::{check_folder, make_folder};

use crate::agent::{CrossEntropyConfig, PpoConfig, Schedule};
use crate::evaluate::{Comparison, Matrix, MatrixError, knee};
use crate::experiment::{Episodes, Experiment, ExperimentError, Method, Validation};
use crate::export::ExportError;
use crate::policy::{PolicyName, PolicySpec, SpecError, Subject};
use crate::world::{World, WorldSpec};

/// Traffic of the demo when none is given: chat, at about twice what the card can serve.
const TRAFFIC: &str = "chat:rate=5,duration=2400,seed=7";
/// Share of requests the default attains at the load the demo is about.
pub const TARGET: f64 = 0.7;
/// Share of the traffic, by time, that is trained on; judged is the rest.
const FIT: f64 = 0.7;
/// Loads judged, as factors of the load found.
pub const LOADS: [f64; 3] = [0.9, 1.0, 1.1];
/// Seeds judged.
pub const SEEDS: [u64; 3] = [1, 2, 3];
/// Loads trained on, as factors likewise.
const TRAINED: (f64, f64) = (0.75, 1.3);
/// Fixed watermarks shown.
const WATERMARKS: [&str; 4] = ["fixed:0", "fixed:0.05", "fixed:0.12", "fixed:0.25"];
/// Environments, and decisions of each in an iteration.
const NUM_ENVS: usize = 32;
const NUM_STEPS: usize = 128;
/// Longest episode, seconds.
const EPISODE_S: f64 = 300.0;
/// Shortest traffic: both parts must show something.
const LEAST_S: f64 = 60.0;

/// Why there is nothing to show.
#[derive(Debug, Error)]
pub enum DemoError {
    /// The traffic is too short to be cut.
    #[error("the traffic lasts {span_s:.1} s; a demo needs at least {LEAST_S} s of it")]
    Short {
        /// How long it lasts.
        span_s: f64,
    },
    /// Less to learn from than an iteration takes.
    #[error("--decisions {decisions}: expected at least {fewest}")]
    Few {
        /// How many were asked for.
        decisions: u64,
        /// How many it takes.
        fewest: u64,
    },
    /// The folder is not empty, and no demo's.
    #[error("{} is not empty and no demo's folder; take another --out", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// The folder cannot be used.
    #[error("cannot prepare {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The traffic has no length, or cannot be drawn.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The traffic cannot be trained on.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// The default has no result at some load.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// Whoever is judged cannot be loaded.
    #[error(transparent)]
    Subject(#[from] SpecError),
    /// The table cannot be read.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// An engine setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine died.
    #[error(transparent)]
    Node(#[from] NodeError),
}

/// What a demo is about.
#[derive(Debug, Clone)]
pub struct Demo {
    /// What is trained.
    pub experiment: Experiment,
    /// What it is trained on.
    pub fit: Window,
    /// What it is judged on.
    pub test: Window,
    /// The load at which the default attains about [`TARGET`].
    pub load: f64,
}

/// `spec` with the demo's own traffic, if it has none.
pub fn with_traffic(mut spec: WorldSpec) -> WorldSpec {
    if spec.trace.is_none() && spec.workload.is_none() {
        spec.workload = Some(TRAFFIC.parse().expect("traffic of our own"));
    }
    spec
}

/// Refuses what no demo can be made of.
///
/// # Errors
/// [`DemoError::Short`] or [`DemoError::Few`].
pub fn check(world: &World, decisions: u64) -> Result<(), DemoError> {
    let span_s = world.span()?.as_secs_f64();
    if span_s < LEAST_S {
        return Err(DemoError::Short { span_s });
    }
    let fewest = (NUM_ENVS * NUM_STEPS) as u64;
    if decisions < fewest {
        return Err(DemoError::Few { decisions, fewest });
    }
    Ok(())
}

impl Demo {
    /// Looks for the load that `world`, which `spec` describes, is about to fail at, and plans the rest around it.
    ///
    /// # Errors
    /// The traffic cannot be trained on, or the default has no result on it.
    pub fn plan(spec: WorldSpec, world: &World, decisions: u64, seed: u64) -> Result<Demo, DemoError> {
        let fit_s = world.span()?.as_secs_f64() * FIT;
        let episodes = Episodes::new(FIT, EPISODE_S.min(fit_s), (1.0, 1.0));
        let mut experiment = experiment(spec, world, episodes, decisions, seed);
        let found = knee(world, Some(experiment.fit_range(world)?), TARGET)?;
        experiment.episodes.load = (round(TRAINED.0 * found), round(TRAINED.1 * found));
        let (fit, test) = (experiment.fit_range(world)?, experiment.test_range(world)?);
        let load = round(experiment.episodes.load.0 / TRAINED.0);
        Ok(Demo { experiment, fit, test, load })
    }

    /// Everybody who is judged, on what nobody has seen, where a host lets the heads of `profile` be decided.
    ///
    /// # Errors
    /// The checkpoint or the table cannot be loaded.
    pub fn matrix(&self, checkpoint: &Path, table: &Path, profile: ActionProfile) -> Result<Matrix, DemoError> {
        let mut names: Vec<PolicyName> = Vec::new();
        for text in ["default"].into_iter().chain(WATERMARKS).chain(["best-fixed"]) {
            names.push(text.parse::<PolicySpec>()?.into());
        }
        names.extend([PolicyName::best_static(profile), PolicyName::agent(checkpoint), PolicyName::table(table)]);
        let load = |name: PolicyName| Subject::load(name.spec()).map(|subject| (name, subject));
        let policies = names.into_iter().map(load).collect::<Result<_, _>>()?;
        let loads = LOADS.iter().map(|factor| round(factor * self.load)).collect();
        Ok(Matrix { policies, windows: vec![Some(self.test)], loads, seeds: SEEDS.to_vec() })
    }
}

fn experiment(spec: WorldSpec, world: &World, episodes: Episodes, decisions: u64, seed: u64) -> Experiment {
    Experiment {
        name: "demo".to_owned(),
        profile: world.node.host.profile().name().to_owned(),
        num_envs: NUM_ENVS,
        world: spec,
        episodes,
        also: Vec::new(),
        validation: Some(Validation { every: validation_every(decisions), ..Validation::default() }),
        without: Vec::new(),
        watermarks: Vec::new(),
        reward: RewardWeights::default(),
        prior: Some("search".to_owned()),
        fallback: None,
        ppo: PpoConfig {
            total_decisions: decisions,
            num_steps: NUM_STEPS,
            num_minibatches: 8,
            learning_rate: 5e-4,
            entropy_coef: Schedule { start: 0.001, end: 0.0 },
            seed,
            ..PpoConfig::default()
        },
        method: Method::Ppo,
        cross_entropy: CrossEntropyConfig::default(),
    }
}

/// Iterations between two judgements of the table: so that there are four.
fn validation_every(decisions: u64) -> u64 {
    (decisions / (NUM_ENVS * NUM_STEPS) as u64).div_ceil(4).max(1)
}

/// Loads are given to people, so to three digits.
fn round(load: f64) -> f64 {
    let unit = 10f64.powf(load.log10().floor() - 2.0);
    (load / unit).round() * unit
}

/// The comparison in two sentences.
pub fn in_words(comparisons: &[Comparison]) -> String {
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
