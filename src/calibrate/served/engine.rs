//! What was measured: the engine's settings, model and accelerator, out of `meta.json`.

use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind, Hardware, Model, Setting};
use serde_json::Value;

use super::error::{MeasuredError, MeasuredFault};
use super::files::TextFile;

/// A measured engine, under vLLM's names.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredEngine {
    /// Name and version, such as `vLLM 0.19.0`.
    pub version: String,
    /// Model as it was named to the engine.
    pub model: String,
    /// Accelerator as it names itself.
    pub device: String,
    /// How many of them share the model.
    pub devices: u32,
    /// How many engines serve, each with a pool and as many accelerators of its own.
    pub replicas: u32,
    /// When the run started, as it says.
    pub recorded: String,
    /// Blocks of the pool, the null block included; `None` where the run does not say.
    pub num_gpu_blocks: Option<u32>,
    /// Tokens per block; `None` where the run does not say.
    pub block_size: Option<u32>,
    /// Most requests running at once; `None` where the run does not say.
    pub max_num_seqs: Option<u32>,
    /// Most tokens of a step; `None` where the run does not say.
    pub max_num_batched_tokens: Option<u32>,
    /// Longest sequence; `None` where the run does not say.
    pub max_model_len: Option<u32>,
    /// See [`EngineConfig::async_scheduling`].
    pub async_scheduling: bool,
    /// See [`EngineConfig::enable_chunked_prefill`].
    pub enable_chunked_prefill: bool,
    /// See [`EngineConfig::enable_prefix_caching`].
    pub enable_prefix_caching: bool,
    /// See [`EngineConfig::scheduler_reserve_full_isl`].
    pub scheduler_reserve_full_isl: bool,
    /// See [`EngineConfig::long_prefill_token_threshold`].
    pub long_prefill_token_threshold: u32,
    /// What the run says of the model on the accelerators: share of the memory, quantisation, type of the cache.
    pub deployed: Vec<Setting>,
}

/// Where settings stand: what the engine resolved, then what the bench noted itself.
const PLACES: [&[&str]; 7] = [
    &["resolved_config", "scheduler_config"],
    &["resolved_config", "cache_config"],
    &["resolved_config", "model_config"],
    &["resolved_config", "parallel_config"],
    &["kv_cache"],
    &["engine_kwargs"],
    &[],
];

/// From this vLLM on schedulers are asynchronous unless told otherwise, and admission asks for whole prompts.
const ASYNC_SINCE: (u32, u32) = (0, 14);
const RESERVES_SINCE: (u32, u32) = (0, 19);
/// vLLM's tokens per block, where nothing else is said.
const BLOCK_SIZE: u32 = 16;

impl MeasuredEngine {
    pub(super) fn parse(file: &TextFile) -> Result<MeasuredEngine, MeasuredError> {
        let meta: Value = serde_json::from_str(&file.text).map_err(|error| {
            MeasuredError::line(
                &file.name,
                error.line(),
                MeasuredFault::Json(super::measured::without_position(&error)),
            )
        })?;
        MetaSettings { meta: &meta }.engine().map_err(|fault| MeasuredError::file(&file.name, fault))
    }

    /// What `--env` would call it, if both are known by name.
    pub fn env(&self) -> Option<String> {
        let (model, hardware) = (Model::published_as(&self.model)?, Hardware::of_device(&self.device)?);
        let count = if self.devices == 1 { String::new() } else { format!("{}x", self.devices) };
        Some(format!("{model}@{count}{hardware}"))
    }

    /// Tokens per block, vLLM's where the run does not say.
    pub fn tokens_per_block(&self) -> u32 {
        self.block_size.unwrap_or(BLOCK_SIZE)
    }

    /// The settings to simulate it with on `deployment`, which gives what the run does not say.
    pub fn config(&self, deployment: &Deployment) -> EngineConfig {
        let default = deployment.engine(EngineKind::V1);
        // What a pool holds is known for blocks of the default size.
        let tokens = u64::from(default.num_gpu_blocks) * u64::from(default.block_size);
        let block_size = self.tokens_per_block();
        let held = u32::try_from(tokens / u64::from(block_size)).unwrap_or(u32::MAX);
        let num_gpu_blocks = self.num_gpu_blocks.unwrap_or(held);
        let fits = num_gpu_blocks.saturating_sub(1).saturating_mul(block_size);
        EngineConfig {
            block_size,
            num_gpu_blocks,
            max_num_seqs: self.max_num_seqs.unwrap_or(default.max_num_seqs),
            max_num_batched_tokens: self.max_num_batched_tokens.unwrap_or(default.max_num_batched_tokens),
            max_model_len: self.max_model_len.unwrap_or(deployment.model.max_model_len.min(fits)),
            async_scheduling: self.async_scheduling,
            enable_chunked_prefill: self.enable_chunked_prefill,
            enable_prefix_caching: self.enable_prefix_caching,
            scheduler_reserve_full_isl: self.scheduler_reserve_full_isl,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            ..default
        }
    }

    /// What of the settings `config` the run does not say and no override names, in sentences.
    pub fn assumed(&self, config: &EngineConfig, deployment: &Deployment, overrides: &[Setting]) -> Vec<String> {
        let share = deployment.memory_utilization;
        let env = deployment.name();
        let pool = format!("what {env} holds at gpu_memory_utilization {share}");
        let known = [
            ("num_gpu_blocks", self.num_gpu_blocks, config.num_gpu_blocks, pool.as_str()),
            ("block_size", self.block_size, config.block_size, "vLLM's default"),
            ("max_model_len", self.max_model_len, config.max_model_len, "the model's, or what the pool holds"),
            ("max_num_seqs", self.max_num_seqs, config.max_num_seqs, "vLLM's default on such a card"),
            (
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                config.max_num_batched_tokens,
                "vLLM's default on such a card",
            ),
        ];
        let is_named = |name: &str| overrides.iter().any(|setting| setting.key() == name);
        let assumed = known.into_iter().filter(|(name, said, ..)| said.is_none() && !is_named(name));
        let sentence = |(name, _, taken, why): (&str, Option<u32>, u32, &str)| {
            format!("the run does not say {name}: {taken} is taken, {why} (--set {name}=N)")
        };
        assumed.map(sentence).collect()
    }
}

/// Most engines beside each other.
const MAX_REPLICAS: u32 = 256;

/// The first two numbers of a version, such as `0.19.0`.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Settings of `meta.json` by name.
struct MetaSettings<'a> {
    meta: &'a Value,
}

impl MetaSettings<'_> {
    fn engine(&self) -> Result<MeasuredEngine, MeasuredFault> {
        let text = |path: &[&str]| path.iter().fold(self.meta, |value, key| &value[*key]).as_str().map(str::to_owned);
        let unknown = || "unknown".to_owned();
        self.refuse_what_is_not_simulated()?;
        let release = text(&["vllm_version"]).and_then(|version| release(&version));
        let is_since = |since: (u32, u32)| release.is_some_and(|release| release >= since);
        Ok(MeasuredEngine {
            version: text(&["vllm_version"]).map_or_else(unknown, |version| format!("vLLM {version}")),
            model: text(&["model"]).unwrap_or_else(unknown),
            device: text(&["hardware", "device_name"]).unwrap_or_else(unknown),
            devices: self.positive("tensor_parallel_size")?.unwrap_or(1),
            replicas: self.replicas()?,
            recorded: text(&["started_at"]).unwrap_or_else(unknown),
            num_gpu_blocks: self.positive("num_gpu_blocks")?,
            block_size: self.positive("block_size")?,
            max_num_seqs: self.positive("max_num_seqs")?,
            max_num_batched_tokens: self.positive("max_num_batched_tokens")?,
            max_model_len: self.positive("max_model_len")?,
            // vLLM's own defaults where an older one does not say.
            async_scheduling: self.flag("async_scheduling")?.unwrap_or(is_since(ASYNC_SINCE)),
            enable_chunked_prefill: self.flag("enable_chunked_prefill")?.unwrap_or(true),
            enable_prefix_caching: self.flag("enable_prefix_caching")?.unwrap_or(true),
            scheduler_reserve_full_isl: self.flag("scheduler_reserve_full_isl")?.unwrap_or(is_since(RESERVES_SINCE)),
            long_prefill_token_threshold: self.count("long_prefill_token_threshold")?.unwrap_or(0),
            deployed: self.deployed()?,
        })
    }

    fn refuse_what_is_not_simulated(&self) -> Result<(), MeasuredFault> {
        let name = "pipeline_parallel_size";
        if let Some(size) = self.count(name)?.filter(|size| *size > 1) {
            return Err(MeasuredFault::Unsupported(name, size.to_string()));
        }
        if let Some(policy) = self.find("policy").filter(|policy| *policy != "fcfs") {
            return Err(MeasuredFault::Unsupported("policy", policy.to_string()));
        }
        match &self.meta["resolved_config"]["speculative_config"] {
            Value::Null => Ok(()),
            other => {
                Err(MeasuredFault::Unsupported("speculative_config", other.to_string().chars().take(80).collect()))
            }
        }
    }

    fn find(&self, name: &str) -> Option<&Value> {
        let places = PLACES.iter().map(|path| path.iter().fold(self.meta, |value, key| &value[*key]));
        places.map(|place| &place[name]).find(|value| !value.is_null())
    }

    /// Engines beside each other.
    fn replicas(&self) -> Result<u32, MeasuredFault> {
        let replicas = self.positive("data_parallel_size")?.unwrap_or(1);
        if replicas > MAX_REPLICAS {
            let value = replicas.to_string();
            return Err(MeasuredFault::Value { field: "data_parallel_size", value, expected: "1 to 256" });
        }
        Ok(replicas)
    }

    /// What it says under the names of settings of a deployment; what these do not know, `--env` must say.
    fn deployed(&self) -> Result<Vec<Setting>, MeasuredFault> {
        let mut settings = Vec::new();
        for (field, names) in [
            ("gpu_memory_utilization", &["gpu_memory_utilization"][..]),
            ("quantization", &["quantization"]),
            ("kv_cache_dtype", &["kv_cache_dtype", "cache_dtype"]),
        ] {
            let Some(value) = names.iter().find_map(|name| self.find(name)) else { continue };
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let setting = format!("{field}={text}").parse();
            let wrong = |_| MeasuredFault::Unsupported(field, text.chars().take(80).collect());
            settings.push(setting.map_err(wrong)?);
        }
        Ok(settings)
    }

    /// A whole number from 1 on, if it is there.
    fn positive(&self, name: &'static str) -> Result<Option<u32>, MeasuredFault> {
        match self.count(name)? {
            Some(0) => Err(MeasuredFault::Value { field: name, value: "0".to_owned(), expected: "at least 1" }),
            count => Ok(count),
        }
    }

    fn count(&self, name: &'static str) -> Result<Option<u32>, MeasuredFault> {
        self.read(name, "a whole number", |value| value.as_u64().and_then(|count| u32::try_from(count).ok()))
    }

    fn flag(&self, name: &'static str) -> Result<Option<bool>, MeasuredFault> {
        self.read(name, "true or false", Value::as_bool)
    }

    fn read<T>(
        &self,
        field: &'static str,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, MeasuredFault> {
        let Some(value) = self.find(field) else { return Ok(None) };
        let wrong = || MeasuredFault::Value { field, value: value.to_string().chars().take(80).collect(), expected };
        read(value).map(Some).ok_or_else(wrong)
    }
}
