//! What is simulated: a deployment, its engine settings, its targets and its traffic.

mod spec;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvtide_envs::cost::{Deployment, DeploymentError};
use kvtide_envs::env::{Controller, Node, NodeConfig, RunError, run};
use kvtide_envs::env::{EnvConfig, EpisodeSource, RewardWeights, WorldDraw};
use kvtide_envs::metrics::{Collector, Summary};
use kvtide_envs::sched::{SettingError, SloError};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::TraceError;
use kvtide_envs::workload::{Extent, Replay, Scaling, SyntheticSpec, Window, Workload, WorkloadError, WorkloadSource};

use kvtide_runtime::ActionProfile;
pub use spec::WorldSpec;

/// Where traffic comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Traffic {
    /// A recorded trace.
    Trace {
        /// The file.
        path: PathBuf,
        /// How its load is scaled.
        scaling: Scaling,
        /// Smoothing of a quantised clock.
        jitter: Option<Micros>,
    },
    /// A generator.
    Synthetic(SyntheticSpec),
}

/// Why a world cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The generator, window or load.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// Model or hardware.
    #[error(transparent)]
    Deployment(#[from] DeploymentError),
    /// An engine setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The targets.
    #[error(transparent)]
    Slo(#[from] SloError),
    /// Nothing to serve.
    #[error("no traffic: give a trace or a workload")]
    NoTraffic,
    /// Two answers to one question.
    #[error("both a trace and a workload are given; only one can be served")]
    TwoTraffics,
    /// Another option.
    #[error("{option} {value:?}: expected {expected}")]
    Option {
        /// Which.
        option: &'static str,
        /// What stood there.
        value: String,
        /// What would do.
        expected: &'static str,
    },
}

/// Everything a run depends on but policy, window, load and seed.
#[derive(Debug, Clone)]
pub struct World {
    /// Model and hardware.
    pub deployment: Deployment,
    /// Scheduler settings, prices of steps, targets, and how many clients there are.
    pub node: NodeConfig,
    /// Scheduler steps between decisions.
    pub decision_interval: u32,
    /// Traffic, at load 1.
    pub source: WorkloadSource,
    /// Name of the traffic in results.
    pub trace: String,
}

/// A part of the traffic at one load, drawn with one seed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// The part; all of it if `None`.
    pub window: Option<Window>,
    /// Load factor.
    pub load: f64,
    /// Seed.
    pub seed: u64,
}

impl World {
    /// Reads the trace, if there is one, and resolves the settings.
    ///
    /// # Errors
    /// The trace, the deployment or a setting is wrong.
    pub fn new(
        traffic: &Traffic,
        deployment: Deployment,
        node: NodeConfig,
        decision_interval: u32,
    ) -> Result<World, WorldError> {
        let (source, trace) = match traffic {
            Traffic::Trace { path, scaling, jitter } => {
                let trace = Workload::from_trace(path)?;
                let name = file_name(path);
                let replay = Replay { scaling: *scaling, jitter: *jitter, ..Replay::default() };
                (WorkloadSource::Replay { trace, replay }, name)
            }
            Traffic::Synthetic(spec) => {
                // Drawn once, so that a generator that cannot work says so now.
                spec.generate()?;
                (WorkloadSource::Synthetic(*spec), spec.to_string())
            }
        };
        Ok(World { deployment, node, decision_interval, source, trace })
    }

    /// How long the traffic lasts at load 1.
    ///
    /// # Errors
    /// The generator cannot draw.
    pub fn span(&self) -> Result<Micros, WorkloadError> {
        match &self.source {
            WorkloadSource::Replay { trace, .. } => Ok(trace.span()),
            WorkloadSource::Synthetic(spec) => match spec.extent {
                Extent::Duration(duration) => Ok(duration),
                Extent::Requests(_) => Ok(spec.generate()?.span()),
            },
        }
    }

    /// The requests of a draw.
    ///
    /// # Errors
    /// The load or window is out of range, or nothing arrives.
    pub fn draw(&self, draw: &Draw) -> Result<Workload, WorkloadError> {
        let Draw { window, load, seed } = *draw;
        match &self.source {
            WorkloadSource::Replay { trace, replay } => Replay { load, window, seed, ..*replay }.apply(trace),
            WorkloadSource::Synthetic(spec) => {
                let rate_rps = spec.rate_rps * load;
                let workload = SyntheticSpec { rate_rps, seed, ..*spec }.generate()?;
                window.map_or(Ok(workload.clone()), |window| workload.window(window))
            }
        }
    }

    /// Whether different seeds give different requests at this load.
    pub fn depends_on_seed(&self, load: f64) -> bool {
        match &self.source {
            WorkloadSource::Replay { replay, .. } => Replay { load, ..*replay }.depends_on_seed(),
            WorkloadSource::Synthetic(_) => true,
        }
    }

    /// A fingerprint of the recorded requests, in hexadecimal: equal for equal traces. `None` for a generator.
    pub fn fingerprint(&self) -> Option<String> {
        match &self.source {
            WorkloadSource::Replay { trace, .. } => Some(format!("{:016x}", trace.fingerprint())),
            WorkloadSource::Synthetic(_) => None,
        }
    }

    /// What a policy gets used to, by name: where it differs from training, results may too.
    pub fn conditions(&self) -> [(&'static str, String); 4] {
        [
            ("env", self.deployment.name()),
            ("engine", self.node.engine.engine.name().to_owned()),
            ("slo", self.node.slo.to_string()),
            ("interval", self.decision_interval.to_string()),
        ]
    }

    /// Serves `workload` to its end under `controller`.
    ///
    /// # Errors
    /// A faithful engine died or stalled, or the accounts do not add up.
    pub fn serve(&self, workload: &Workload, controller: &mut dyn Controller) -> Result<Summary, RunError> {
        let collector = Collector::with_gaps();
        let mut node = Node::new(&self.node, workload.share(), collector)
            .expect("the engine settings were validated when they were read");
        run(&mut node, controller, self.decision_interval)
    }

    /// The world as an environment with episodes of `length` out of `range`.
    pub fn env_config(
        &self,
        profile: ActionProfile,
        reward: RewardWeights,
        range: Window,
        length: Micros,
        load: (f64, f64),
    ) -> Arc<EnvConfig> {
        let episodes = EpisodeSource { source: self.source.clone(), range, length, load };
        Arc::new(EnvConfig {
            worlds: vec![WorldDraw::new(self.node.clone(), episodes)],
            profile,
            reward,
            decision_interval: self.decision_interval,
        })
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
