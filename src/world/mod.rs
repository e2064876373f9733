//! What is simulated: a deployment, its engine settings, its targets and its traffic.

mod clock;
mod elsewhere;
mod recorded;
mod spec;
mod written;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvtide_envs::deploy::{Deployment, DeploymentError, SettingError};
use kvtide_envs::env::{Controller, Node, NodeConfig, RunError, run};
use kvtide_envs::memory::{MemoryError, MemorySource};
use kvtide_envs::metrics::{Collector, Summary};
use kvtide_envs::sched::{ReleaseSample, Retain, SloError, V1};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::{STDIN, SessionArrivals, TraceError};
use kvtide_envs::workload::{LengthScale, Replay, SyntheticSpec, Workload, WorkloadError, WorkloadSource};

use recorded::Recorded;

pub use clock::MAX_CLOCK_DRAWS;
pub use elsewhere::{Elsewhere, Errand};
pub use kvtide_envs::workload::Draw;
pub use spec::{PrefixCache, WorldSpec};
pub use written::Written;

/// Where traffic comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Traffic {
    /// A recorded trace, or statistics of clients.
    Trace {
        /// The file.
        path: PathBuf,
        /// How it is replayed; load, window and seed are replaced.
        replay: Replay,
        /// When the sessions of a file that does not say so start.
        sessions: SessionArrivals,
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
    /// There is no such memory.
    #[error("--memory: {0}")]
    Memory(#[from] MemoryError),
    /// Blocks to swap to where nothing is swapped.
    #[error("num_cpu_blocks={num_cpu_blocks}: {host} has no host tier; --host kvtide has one")]
    NoTier {
        /// The host.
        host: &'static str,
        /// What was asked for.
        num_cpu_blocks: u32,
    },
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
        /// Name of the option.
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
    /// What blocks are made of.
    pub memory: MemorySource,
    /// What was asked for that is not so by default.
    pub asked: AskedFor,
    /// Which draw of the clock prices its steps, from 1; `None` for the profile's own.
    pub clock_draw: Option<u32>,
    /// Who serves it in this process's place, as far as others can: what is evaluated, and the loads that are looked for.
    pub elsewhere: Option<Elsewhere>,
}

/// What was asked for that is not so by default, as it was written. What results name anyway (traffic, deployment, engine, host,
/// targets, clients) is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AskedFor {
    /// `--set`: of the engine and of the hardware, by key.
    pub set: BTreeMap<String, String>,
    /// Other options, by name.
    pub options: BTreeMap<String, String>,
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
            Traffic::Trace { path, replay, sessions } => {
                let replay = *replay;
                let source = match recorded::read(path, sessions)? {
                    Recorded::Requests(trace) => WorkloadSource::Replay { trace, replay },
                    Recorded::Clients(clients) => WorkloadSource::Clients { clients, replay },
                    Recorded::Profile(profile) => WorkloadSource::Rates { profile, replay },
                };
                (source, replayed_name(path, &replay))
            }
            Traffic::Synthetic(spec) => {
                // Drawn once, so that a generator that cannot work says so now.
                spec.generate()?;
                (WorkloadSource::Synthetic(*spec), spec.to_string())
            }
        };
        Ok(World {
            deployment,
            node,
            decision_interval,
            source,
            trace,
            memory: MemorySource::Modelled,
            asked: AskedFor::default(),
            clock_draw: None,
            elsewhere: None,
        })
    }

    /// Says with what will be simulated, to who asked for it.
    fn in_detail(&self) {
        let NodeConfig { engine, slo, host, .. } = &self.node;
        let span = self.span().map_or_else(|_| "unknown".to_owned(), |span| format!("{:.1} s", span.as_secs_f64()));
        match &self.source {
            WorkloadSource::Replay { trace, .. } => {
                detail!(
                    "traffic: {}, {} requests over {span}, {:.2} req/s at load 1",
                    self.trace,
                    trace.requests().len(),
                    trace.rate_rps()
                );
            }
            _ => detail!("traffic: {} over {span}", self.trace),
        }
        detail!(
            "engine {}, host {}: {} blocks of {} tokens, {} on the host; at most {} requests and {} tokens a step, {} tokens a \
             sequence; prefix cache {}, asynchronous {}; targets {slo}",
            engine.engine.name(),
            host.name,
            engine.num_gpu_blocks,
            engine.block_size,
            engine.num_cpu_blocks,
            engine.max_num_seqs,
            engine.max_num_batched_tokens,
            engine.max_model_len,
            if engine.enable_prefix_caching { "on" } else { "off" },
            if engine.async_scheduling { "on" } else { "off" },
        );
        let hardware = &self.deployment.hardware;
        // What was measured stands for the shares of the peaks.
        let has_kernels = hardware.kernels.is_some() || hardware.tables.is_some();
        let share = |share: f64| if has_kernels { String::new() } else { format!(" at {:.0} %", share * 100.0) };
        detail!(
            "{}: {:.1} TFLOP/s{}, {:.0} GB/s{}, {:.2} ms a step beside; from {}",
            self.deployment.name(),
            hardware.peak_flops * 1e-12,
            share(hardware.compute_efficiency),
            hardware.peak_bandwidth * 1e-9,
            share(hardware.bandwidth_efficiency),
            hardware.host.as_ref().map_or(hardware.step_overhead, |host| host.step) * 1e3,
            hardware.clock_kind(),
        );
        for (name, value) in self.asked.set.iter().chain(&self.asked.options) {
            detail!("asked for: {name} = {value}");
        }
    }

    /// How long the traffic lasts at load 1.
    ///
    /// # Errors
    /// The generator cannot draw.
    pub fn span(&self) -> Result<Micros, WorkloadError> {
        self.source.span()
    }

    /// The requests of a draw. In a closed loop they do not depend on the load: see [`node_at`](Self::node_at).
    ///
    /// # Errors
    /// The load or window is out of range, or nothing arrives.
    pub fn draw(&self, draw: &Draw) -> Result<Workload, WorkloadError> {
        self.source.draw(&Draw { load: self.load_of_traffic(draw.load), ..*draw })
    }

    /// In a closed loop the load is how many clients there are, who take the same requests.
    fn load_of_traffic(&self, load: f64) -> f64 {
        if self.node.clients.is_some() { 1.0 } else { load }
    }

    /// The node at a load: in a closed loop the load multiplies its clients.
    pub fn node_at(&self, load: f64) -> NodeConfig {
        self.node.clone().at_load(load)
    }

    /// Requests that `workload` offers a second; none in a closed loop, and none where all come at once.
    pub fn offered_rps(&self, workload: &Workload) -> Option<f64> {
        let is_open = self.node.clients.is_none() && !workload.is_at_once();
        is_open.then(|| workload.rate_rps())
    }

    /// Whether different seeds give different requests at this load.
    pub fn depends_on_seed(&self, load: f64) -> bool {
        // Every seed of a generator counts, even of one that draws nothing.
        self.source.is_generated() || self.source.depends_on_seed(self.load_of_traffic(load))
    }

    /// Whether the traffic was recorded: then there is one trace, whatever the seed.
    pub fn is_recorded(&self) -> bool {
        matches!(self.source, WorkloadSource::Replay { .. })
    }

    /// A fingerprint of the recorded requests or statistics, in hexadecimal: equal for equal traces. `None` for a generator.
    pub fn fingerprint(&self) -> Option<String> {
        match &self.source {
            WorkloadSource::Replay { trace, .. } => Some(format!("{:016x}", trace.fingerprint())),
            WorkloadSource::Clients { clients, .. } => Some(format!("{:016x}", clients.fingerprint())),
            WorkloadSource::Rates { profile, .. } => Some(format!("{:016x}", profile.fingerprint())),
            WorkloadSource::Synthetic(_) => None,
        }
    }

    /// What a policy gets used to, by name: where it differs from training, results may too.
    pub fn conditions(&self) -> [(&'static str, String); 5] {
        [
            ("env", self.deployment.name()),
            ("engine", self.node.engine.engine.name().to_owned()),
            ("host", self.node.host.name.to_owned()),
            ("slo", self.node.slo.to_string()),
            ("interval", self.decision_interval.to_string()),
        ]
    }

    /// Serves `workload`, drawn at `load`, to its end under `controller`.
    ///
    /// # Errors
    /// A faithful engine died or stalled, memory failed or does not hold what was written to it, or the accounts do not
    /// add up.
    pub fn serve(&self, load: f64, workload: &Workload, controller: &mut dyn Controller) -> Result<Summary, RunError> {
        let mut node =
            self.start(load, workload, &controller.retain()).with_memory(self.memory.memory(&self.node.engine)?);
        run(&mut node, controller, self.decision_interval)
    }

    /// As [`serve`](Self::serve), and what became of each part of a request's blocks that was given back, looked at by whoever
    /// chooses its class. The run is the same; only a pool with classes has any.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub fn serve_noting_releases(
        &self,
        load: f64,
        workload: &Workload,
        controller: &mut dyn Controller,
    ) -> Result<(Summary, Vec<ReleaseSample>), RunError> {
        let mut node =
            self.start(load, workload, &controller.retain()).with_memory(self.memory.memory(&self.node.engine)?);
        node.collect_releases();
        let summary = run(&mut node, controller, self.decision_interval)?;
        let releases = node.scheduler().with_classes().map(V1::releases).unwrap_or_default();
        Ok((summary, releases.to_vec()))
    }

    /// An idle node that will be sent `workload`, drawn at `load`, with classes in its pool if `retain` chooses any. Its blocks are
    /// numbers.
    pub fn start(&self, load: f64, workload: &Workload, retain: &Retain) -> Node {
        let mut config = self.node_at(load);
        if retain.chooses() && config.host.retains {
            config.engine.class_lru();
        }
        Node::new(&config, workload.share(), Collector::with_gaps())
            .expect("the engine settings were validated when they were read")
    }
}

/// The name of the file, and what is not as recorded: results of other traffic do not pass for those of the trace.
fn replayed_name(path: &Path, replay: &Replay) -> String {
    let stdin = path == Path::new(STDIN);
    let file = if stdin { "stdin".into() } else { path.file_name().unwrap_or_default().to_string_lossy() };
    let cv = replay.cv.map_or_else(String::new, |cv| format!(", cv {cv}"));
    let is_scaled = replay.lengths != LengthScale::ONE;
    let lengths = if is_scaled { format!(", lengths {}", replay.lengths) } else { String::new() };
    format!("{file}{cv}{lengths}")
}
