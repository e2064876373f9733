//! What was measured: the engine's settings, model and accelerator, out of `meta.json`.

use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind};
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
    /// When the run started, as it says.
    pub recorded: String,
    /// Blocks of the pool, the null block included.
    pub num_gpu_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Most requests running at once.
    pub max_num_seqs: u32,
    /// Most tokens of a step.
    pub max_num_batched_tokens: u32,
    /// Longest sequence.
    pub max_model_len: u32,
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
}

/// Where settings stand: what the engine resolved, then what the bench noted itself.
const PLACES: [&[&str]; 6] = [
    &["resolved_config", "scheduler_config"],
    &["resolved_config", "cache_config"],
    &["resolved_config", "model_config"],
    &["resolved_config", "parallel_config"],
    &["kv_cache"],
    &["engine_kwargs"],
];

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

    /// What `--env` would call it, if it is among the built-in profiles.
    pub fn env(&self) -> Option<String> {
        let model = self.model.rsplit('/').next().unwrap_or_default().to_lowercase();
        let model = model.trim_start_matches("meta-");
        let starts = |names: &[&str]| names.iter().any(|name| model.starts_with(name));
        let model = match () {
            () if starts(&["llama-3-8b", "llama-3.1-8b"]) => "llama-3-8b",
            () if starts(&["llama-3-70b", "llama-3.1-70b", "llama-3.3-70b"]) => "llama-3-70b",
            () if starts(&["qwen2.5-7b"]) => "qwen2.5-7b",
            () => return None,
        };
        let words: Vec<String> = self.device.split([' ', '-']).map(str::to_lowercase).collect();
        let says = |word: &str| words.iter().any(|other| other == word);
        let hardware = match () {
            () if says("rtx") && says("4090") => "rtx-4090",
            () if says("a10") => "a10",
            () if says("a100") && says("80gb") => "a100-80g",
            () if says("h100") => "h100",
            () if says("h200") => "h200",
            () => return None,
        };
        let count = if self.devices == 1 { String::new() } else { format!("{}x", self.devices) };
        Some(format!("{model}@{count}{hardware}"))
    }

    /// The settings to simulate it with on `deployment`.
    pub fn config(&self, deployment: &Deployment) -> EngineConfig {
        EngineConfig {
            block_size: self.block_size,
            num_gpu_blocks: self.num_gpu_blocks,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            async_scheduling: self.async_scheduling,
            enable_chunked_prefill: self.enable_chunked_prefill,
            enable_prefix_caching: self.enable_prefix_caching,
            scheduler_reserve_full_isl: self.scheduler_reserve_full_isl,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            ..deployment.engine(EngineKind::V1)
        }
    }
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
        Ok(MeasuredEngine {
            version: text(&["vllm_version"]).map_or_else(unknown, |version| format!("vLLM {version}")),
            model: text(&["model"]).unwrap_or_else(unknown),
            device: text(&["hardware", "device_name"]).unwrap_or_else(unknown),
            devices: self.count("tensor_parallel_size")?.unwrap_or(1),
            recorded: text(&["started_at"]).unwrap_or_else(unknown),
            num_gpu_blocks: self.needed("num_gpu_blocks")?,
            block_size: self.needed("block_size")?,
            max_num_seqs: self.needed("max_num_seqs")?,
            max_num_batched_tokens: self.needed("max_num_batched_tokens")?,
            max_model_len: self.needed("max_model_len")?,
            // vLLM's own defaults where an older one does not say.
            async_scheduling: self.flag("async_scheduling")?.unwrap_or(false),
            enable_chunked_prefill: self.flag("enable_chunked_prefill")?.unwrap_or(true),
            enable_prefix_caching: self.flag("enable_prefix_caching")?.unwrap_or(true),
            scheduler_reserve_full_isl: self.flag("scheduler_reserve_full_isl")?.unwrap_or(false),
            long_prefill_token_threshold: self.count("long_prefill_token_threshold")?.unwrap_or(0),
        })
    }

    fn refuse_what_is_not_simulated(&self) -> Result<(), MeasuredFault> {
        for name in ["pipeline_parallel_size", "data_parallel_size"] {
            if let Some(size) = self.count(name)?.filter(|size| *size > 1) {
                return Err(MeasuredFault::Unsupported(name, size.to_string()));
            }
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

    fn needed(&self, name: &'static str) -> Result<u32, MeasuredFault> {
        let wrong = || MeasuredFault::Value { field: name, value: "0".to_owned(), expected: "at least 1" };
        self.count(name)?
            .ok_or(MeasuredFault::Key(name))
            .and_then(|count| (count > 0).then_some(count).ok_or_else(wrong))
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
