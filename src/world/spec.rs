//! A world as it is written: what the command line and experiment files say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use clap::Args;
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, DeploymentName, EngineKind, Setting, SettingError};
use kvtide_envs::env::NodeConfig;
use kvtide_envs::evict::Eviction;
use kvtide_envs::memory::MemoryKind;
use kvtide_envs::sched::Slo;
use kvtide_envs::trace::{MAX_SESSIONS_PER_HOUR, STDIN, SessionArrivals};
use kvtide_envs::workload::{Duration, LengthScale, Replay, Scaling, SyntheticSpec};
use kvtide_runtime::Host;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::written::{Written, by_default};
use super::{AskedFor, Traffic, World, WorldError};
use crate::device;

/// Traffic, node and targets.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldSpec {
    /// Recorded workload in any form that `kvtide trace convert --help` lists, plain, gzip or zstd; - is standard input. From
    /// ServeGen's statistics requests are drawn.
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// Generated workload, such as chat:rate=2,duration=600 (chat, code, reasoning, agentic, mix, uniform,
    /// lognormal).
    #[arg(long, value_name = "SPEC")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<Written<SyntheticSpec>>,
    /// Model and hardware, such as llama-3-8b@rtx-4090, qwen3-30b-a3b@2xh100: names (`--env help` lists them), the path of a
    /// Hugging Face config.json or of its folder for the model, and for the hardware a profile that `kvtide calibrate` wrote,
    /// such as llama-3-8b@mine.toml.
    #[arg(long, value_name = "MODEL@HARDWARE", default_value = "llama-3-8b@rtx-4090")]
    pub env: Written<DeploymentName>,
    /// Whose scheduling rules: v1 (vLLM today) or v0 (vLLM 0.6).
    #[arg(long, value_name = "v0|v1", default_value = "v1")]
    pub engine: Written<EngineKind>,
    /// The engine that a policy is made for and judged in, with the heads, tiers and features that it has: vllm-0.33,
    /// sglang-0.5, or kvtide, which has all of them [default: vllm-0.33; kvtide with --engine v0].
    #[arg(long, value_name = "HOST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Written<Host>>,
    /// V1: keep blocks by content and take them again. `auto`: as vLLM does, on.
    #[arg(long, value_name = "on|off|auto", default_value = "auto")]
    pub prefix_cache: Written<PrefixCache>,
    /// Closed loop of so many clients, each of which sends its next request when the last one is done; the traffic's
    /// arrival times are then ignored.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<u32>,
    /// Targets: ttft:MS,tpot:MS,stall:MS, or a class: chat, agent, document, batch, real-time.
    #[arg(long, default_value = "ttft:2000,tpot:100,stall:3000")]
    pub slo: Written<Slo>,
    /// Engine setting under vLLM's name, such as `num_gpu_blocks=2000` or `--max-num-seqs=64`, of the model on it, such as
    /// `quantization=fp8`, or number of the hardware, such as `bandwidth_efficiency=0.9` or `pcie_bandwidth=20e9` (shares,
    /// bytes/s, seconds). `--set help` lists them. Repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE", allow_hyphen_values = true)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<Setting>,
    /// A smaller or larger pool of GPU blocks: what the deployment's own, or the one that is set, is multiplied by.
    #[arg(long, value_name = "FACTOR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<f64>,
    /// How a trace's load is scaled: thin (keep a share of the requests, overlay copies) or stretch (scale its clock).
    #[arg(long, value_name = "thin|stretch", default_value = "thin")]
    pub scale: Written<Scaling>,
    /// Spread arrivals over the step of a quantised clock, such as 3s.
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Written<Duration>>,
    /// Longer or shorter traffic: what lengths are multiplied by, such as 0.5, or PROMPT:OUTPUT, such as 0.5:2. Requests
    /// arrive as before.
    #[arg(long, value_name = "FACTOR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lengths: Option<Written<LengthScale>>,
    /// More or less bursty traffic: coefficient of variation of the time between arrivals, 0 to 20 (1: Poisson). Arrivals of a
    /// recorded trace are drawn anew, in their order and at the rate of each minute.
    #[arg(long, value_name = "CV")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cv: Option<f64>,
    /// Sessions that start an hour, for files of agentic sessions, which do not say when [default: 20].
    #[arg(long, value_name = "PER_HOUR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_rate: Option<f64>,
    /// What blocks are made of: nothing (modelled), ordinary memory that is really written, swapped and checked (host, or
    /// host:BYTES a token), or a GPU that computes every step of the model and whose time counts (cuda) [default: modelled].
    #[arg(long, value_name = "KIND")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Written<MemoryKind>>,
    /// Scheduler steps between decisions.
    #[arg(long, value_name = "STEPS", default_value_t = 8)]
    pub interval: u32,
}

impl Default for WorldSpec {
    fn default() -> WorldSpec {
        WorldSpec {
            trace: None,
            workload: None,
            env: by_default("llama-3-8b@rtx-4090"),
            engine: by_default("v1"),
            host: None,
            prefix_cache: by_default("auto"),
            clients: None,
            slo: by_default("ttft:2000,tpot:100,stall:3000"),
            set: Vec::new(),
            pool: None,
            scale: by_default("thin"),
            jitter: None,
            lengths: None,
            cv: None,
            session_rate: None,
            memory: None,
            interval: 8,
        }
    }
}

/// Whether V1 keeps blocks by content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixCache {
    /// Yes.
    On,
    /// No.
    Off,
    /// As vLLM does.
    Auto,
}

impl FromStr for PrefixCache {
    type Err = WorldError;

    fn from_str(text: &str) -> Result<PrefixCache, WorldError> {
        match text {
            "on" => Ok(PrefixCache::On),
            "off" => Ok(PrefixCache::Off),
            "auto" => Ok(PrefixCache::Auto),
            other => Err(wrong("prefix-cache", other, "on, off or auto")),
        }
    }
}

/// Longest decision interval.
const MAX_INTERVAL: u32 = 1_000_000;
/// Factors accepted for the size of the pool.
const POOL_FACTORS: std::ops::RangeInclusive<f64> = 0.01..=100.0;
/// Coefficients of variation that arrivals can be given.
const CVS: std::ops::RangeInclusive<f64> = 0.0..=20.0;
/// Most clients of a closed loop.
const MAX_CLIENTS: u32 = 1_000_000;

/// Options that results name in fields of their own.
const NAMED: [&str; 8] = ["trace", "workload", "env", "engine", "host", "clients", "slo", "set"];

impl WorldSpec {
    /// Reads the trace, if there is one, and resolves everything.
    ///
    /// # Errors
    /// What is wrong, with the option it stands in.
    pub fn world(&self) -> Result<World, WorldError> {
        self.check()?;
        let deployment = self.env.load_with(&self.set)?;
        say_once(&deployment.notes());
        let node = self.node(&deployment)?;
        let kind = self.memory.as_deref().copied().unwrap_or_default();
        // The traffic first: it is what is wrong most often, and a device takes a while.
        let world = World::new(&self.traffic()?, deployment, node, self.interval)?;
        let memory = device::memory(kind, &world.deployment, &world.node.engine)?;
        let world = World { memory, asked: self.asked(), ..world };
        world.in_detail();
        Ok(world)
    }

    /// What is not as it is where nothing is said.
    fn asked(&self) -> AskedFor {
        let fields = |spec: &WorldSpec| match serde_json::to_value(spec) {
            Ok(Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        let by_default = fields(&WorldSpec::default());
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let is_meant = |name: &str, value: &Value| !NAMED.contains(&name) && by_default.get(name) != Some(value);
        let options = fields(self).into_iter().filter(|(name, value)| is_meant(name, value));
        let set: BTreeMap<String, String> = self
            .set
            .iter()
            .map(|setting| {
                let text = setting.to_string();
                let value = text.split_once('=').map_or_else(String::new, |(_, value)| value.to_owned());
                (setting.key().to_owned(), value)
            })
            .collect();
        AskedFor { set, options: options.map(|(name, value)| (name, text(value))).collect() }
    }

    /// Checks every number that can be checked by itself; what is written as text was when it was read.
    ///
    /// # Errors
    /// The first out of range.
    pub fn check(&self) -> Result<(), WorldError> {
        if !(1..=MAX_INTERVAL).contains(&self.interval) {
            return Err(wrong("interval", &self.interval.to_string(), "1 to 1000000 steps"));
        }
        if let Some(clients) = self.clients.filter(|clients| !(1..=MAX_CLIENTS).contains(clients)) {
            return Err(wrong("clients", &clients.to_string(), "1 to 1000000 clients"));
        }
        let sessions = f64::MIN_POSITIVE..=MAX_SESSIONS_PER_HOUR;
        for (option, given, range, expected) in [
            ("pool", self.pool, POOL_FACTORS, "a factor from 0.01 to 100"),
            ("cv", self.cv, CVS, "a coefficient of variation from 0 to 20"),
            ("session-rate", self.session_rate, sessions, "above 0, at most 1000000 sessions an hour"),
        ] {
            if let Some(given) = given.filter(|given| !range.contains(given)) {
                return Err(wrong(option, &given.to_string(), expected));
            }
        }
        Ok(())
    }

    /// The node: what the engine starts with on this deployment, with what is set here.
    fn node(&self, deployment: &Deployment) -> Result<NodeConfig, WorldError> {
        let mut engine = deployment.engine(*self.engine);
        match (*self.prefix_cache, engine.engine) {
            (PrefixCache::Auto, _) | (PrefixCache::Off, EngineKind::V0) => {}
            (PrefixCache::On, EngineKind::V1) => engine.enable_prefix_caching = true,
            (PrefixCache::Off, EngineKind::V1) => engine.enable_prefix_caching = false,
            (PrefixCache::On, EngineKind::V0) => {
                return Err(wrong("prefix-cache", "on", "an engine that has one: --engine v1"));
            }
        }
        let host = self.host(engine.engine)?;
        if host == Host::SGLANG {
            engine.eviction = Eviction::Radix;
        }
        let mut engine = engine.with(&self.set)?;
        // A host without a tier to swap to may have a cache there.
        if engine.num_cpu_blocks > 0 && !host.has_host_tier && engine.host_cache.is_off() {
            return Err(WorldError::NoTier { host: host.name, num_cpu_blocks: engine.num_cpu_blocks });
        }
        if let Some(factor) = self.pool {
            engine.resize_pool(factor);
            engine.validate().map_err(SettingError::from)?;
        }
        let cost = CostModel::new(deployment, engine.block_size);
        engine.pricing = cost.pricing();
        Ok(NodeConfig { engine, cost, slo: *self.slo, clients: self.clients, host })
    }

    /// The host that was asked for, or the one whose scheduler this is.
    fn host(&self, engine: EngineKind) -> Result<Host, WorldError> {
        let Some(host) = self.host.as_deref().copied() else {
            return Ok(if engine == EngineKind::V1 { Host::VLLM } else { Host::KVTIDE });
        };
        if engine == EngineKind::V0 && host != Host::KVTIDE {
            return Err(wrong("host", host.name, "kvtide with --engine v0: the other hosts schedule as v1 does"));
        }
        Ok(host)
    }

    /// Where traffic comes from.
    fn traffic(&self) -> Result<Traffic, WorldError> {
        let scaling = *self.scale;
        let jitter = self.jitter.as_deref().map(|Duration(jitter)| *jitter);
        let lengths = self.lengths.as_deref().copied();
        let sessions = SessionArrivals::default();
        let sessions = SessionArrivals { per_hour: self.session_rate.unwrap_or(sessions.per_hour), ..sessions };
        match (&self.trace, &self.workload) {
            (Some(path), None) => {
                let lengths = lengths.unwrap_or_default();
                let replay = Replay { scaling, jitter, cv: self.cv, lengths, ..Replay::default() };
                Ok(Traffic::Trace { path: path.clone(), replay, sessions })
            }
            (None, Some(spec)) => {
                let lengths = lengths.unwrap_or(spec.lengths);
                Ok(Traffic::Synthetic(SyntheticSpec { cv: self.cv.or(spec.cv), lengths, ..**spec }))
            }
            (None, None) => Err(WorldError::NoTraffic),
            (Some(_), Some(_)) => Err(WorldError::TwoTraffics),
        }
    }

    /// The same world with paths that were relative to `folder`.
    #[must_use]
    pub fn relative_to(self, folder: &Path) -> WorldSpec {
        self.with_files(&mut |path| folder.join(path))
    }

    /// The same world with each of its files where `place` says it lies; standard input is no file.
    #[must_use]
    pub fn with_files(mut self, place: &mut dyn FnMut(&Path) -> PathBuf) -> WorldSpec {
        self.trace = self.trace.map(|path| if path == Path::new(STDIN) { path } else { place(&path) });
        if let Some(env) = self.env.with_files(place) {
            self.env = env.into();
        }
        self
    }
}

/// Warns of what differs from the real engine, each time something else: many runs are often of one deployment.
fn say_once(notes: &[String]) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    for note in notes {
        if said.insert(note.clone()) {
            warn!("{note}");
        }
    }
}

fn wrong(option: &'static str, value: &str, expected: &'static str) -> WorldError {
    WorldError::Option { option, value: value.to_owned(), expected }
}
