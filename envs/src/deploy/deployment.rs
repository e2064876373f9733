//! A model on hardware: what fits, and the settings an engine would start with.

use kvtide_rules::Patience;
use serde::{Deserialize, Serialize};

use super::keys::{MAX_DEVICES, nearest_of};
use super::{
    DeploymentName, EngineConfig, EngineKind, Hardware, Model, ModelFileError, Precision, ProfileError, Setting,
};

/// Tokens per block, vLLM's default.
const BLOCK_SIZE: u32 = 16;
/// vLLM's `gpu_memory_utilization`.
const MEMORY_UTILIZATION: f64 = 0.9;
/// Left for activations and the framework on each accelerator, bytes.
const ACTIVATION_BYTES: f64 = 1.5e9;
/// vLLM 0.6's `swap_space` of 4 GiB for each accelerator.
const SWAP_BYTES: f64 = 4.0 * (1u64 << 30) as f64;
/// vLLM's `max_num_seqs`.
const MAX_NUM_SEQS: u32 = 256;
/// vLLM 0.6's token budget.
const MAX_NUM_BATCHED_TOKENS: u32 = 2048;
/// From this memory on vLLM's defaults are those of a large card: 70 GiB.
const LARGE_CARD_BYTES: f64 = 70.0 * (1u64 << 30) as f64;
/// Token budget and batch of a large card, vLLM 0.33 serving over HTTP.
const LARGE_CARD: (u32, u32) = (8192, 1024);
/// vLLM 0.6 turns chunked prefill on by itself above this length.
const CHUNKED_ABOVE: u32 = 32_768;

/// Fewest blocks of a pool that serves anybody.
const LEAST_BLOCKS: f64 = 64.0;

/// A model on one or more accelerators of a kind: `llama-3-8b@rtx-4090`, `llama-3-70b@4xh100`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    /// The model.
    pub model: Model,
    /// The accelerator.
    pub hardware: Hardware,
    /// How many of them share the model by tensor parallelism.
    pub devices: u32,
    /// Share of each accelerator's memory that is used, vLLM's `gpu_memory_utilization`.
    pub memory_utilization: f64,
}

/// Why a deployment could not be understood or does not work.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DeploymentError {
    /// Not `model@hardware`.
    #[error(
        "{0:?} is not MODEL@HARDWARE, as in llama-3-8b@rtx-4090, llama-3-70b@4xh100 or path/to/config.json@h100 (--env help \
         lists both)"
    )]
    Form(String),
    /// No such model.
    #[error(
        "unknown model {0:?}; known: {names}, and any config.json of Hugging Face by its path{nearest}",
        names = Model::NAMES.join(", "), nearest = meant(_0)
    )]
    Model(String),
    /// A `config.json` that cannot be used.
    #[error(transparent)]
    ModelFile(#[from] ModelFileError),
    /// No such hardware.
    #[error("unknown hardware {0:?}; known: {names}, and any profile FILE.toml", names = Hardware::NAMES.join(", "))]
    Hardware(String),
    /// A profile that cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A device count out of range.
    #[error("{0} devices; from 1 to {MAX_DEVICES} are supported")]
    Devices(u32),
    /// Two device counts.
    #[error("tensor_parallel_size={set}, but --env says {named} of them")]
    TwoCounts {
        /// By `--env`.
        named: u32,
        /// By `--set`.
        set: u32,
    },
    /// A precision of experts for a model that has none.
    #[error("weight_dtype={precision} is of routed experts, and {model} has none", precision = precision.name())]
    NoExperts {
        /// Model name.
        model: String,
        /// What was asked for.
        precision: Precision,
    },
    /// Measured kernels are those of plain models.
    #[error(
        "{hardware} has measured kernel times, which hold for dense models with grouped-query attention in 16 bits, and not for \
         {model}; --set bandwidth_efficiency=0.8 prices it by shares of the peaks instead"
    )]
    Kernels {
        /// Model name.
        model: String,
        /// Hardware name.
        hardware: String,
    },
    /// The weights leave no room for a block.
    #[error(
        "{model} needs {weights_gb:.1} GB for weights, and {devices} x {hardware} offers {usable_gb:.1} GB: {missing_gb:.1} GB are \
         missing for them and a few blocks; {remedy}", remedy = remedy(model, hardware, *suggestion)
    )]
    TooLarge {
        /// Model name.
        model: String,
        /// Hardware name.
        hardware: String,
        /// Devices asked for.
        devices: u32,
        /// Bytes of weights, in GB.
        weights_gb: f64,
        /// Usable memory, in GB.
        usable_gb: f64,
        /// What is missing, in GB.
        missing_gb: f64,
        /// Fewest devices that would hold the weights and some blocks and that the heads can be shared among.
        suggestion: Option<u32>,
    },
}

fn remedy(model: &str, hardware: &str, suggestion: Option<u32>) -> String {
    match suggestion {
        Some(devices) => format!("take more devices, as in {model}@{devices}x{hardware}"),
        None => format!("no tensor parallel size up to {MAX_DEVICES} would do"),
    }
}

/// The model that was meant, if one is near.
fn meant(wrong: &str) -> String {
    let published = Model::published_as(wrong);
    let near = published.or_else(|| nearest_of(wrong, Model::NAMES.into_iter()));
    near.map_or_else(String::new, |name| format!("; was {name} meant?"))
}

impl Deployment {
    /// `model` on `devices` of `hardware`, with vLLM's share of the memory.
    pub fn new(model: Model, hardware: Hardware, devices: u32) -> Deployment {
        Deployment { model, hardware, devices, memory_utilization: MEMORY_UTILIZATION }
    }

    /// How often the keys and values of a token are kept: once on each device where every head reads all of them, and where
    /// there are more devices than key/value heads, each head as often as needed, as vLLM does.
    fn kv_copies(&self) -> f64 {
        let devices = f64::from(self.devices);
        if self.model.structure.latent.is_some() {
            devices
        } else {
            (devices / f64::from(self.model.num_kv_heads)).max(1.0)
        }
    }

    /// Keys and values of one token on all devices, bytes.
    pub fn kv_bytes_per_token(&self) -> f64 {
        self.model.kv_bytes_per_token() * self.kv_copies()
    }

    /// Memory left for blocks, bytes; negative if the weights do not fit.
    fn pool_bytes(&self) -> f64 {
        self.usable_bytes() - self.model.total_weight_bytes()
    }

    fn usable_bytes(&self) -> f64 {
        f64::from(self.devices) * (self.hardware.memory_bytes * self.memory_utilization - ACTIVATION_BYTES)
    }

    /// Bytes of the smallest pool that serves anybody.
    fn least_pool_bytes(&self) -> f64 {
        LEAST_BLOCKS * f64::from(BLOCK_SIZE) * self.kv_bytes_per_token()
    }

    /// Whether vLLM could share the model among so many devices.
    fn is_divisible(&self, devices: u32) -> bool {
        let Model { num_heads, num_kv_heads, .. } = self.model;
        let is_shared = num_kv_heads.is_multiple_of(devices) || devices.is_multiple_of(num_kv_heads);
        num_heads.is_multiple_of(devices) && (is_shared || self.model.structure.latent.is_some())
    }

    /// Where what is simulated here differs from what vLLM would do, in sentences; nothing of most models.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.model.structure.notes.clone();
        let Model { name, num_layers, num_heads, structure, .. } = &self.model;
        if !self.is_divisible(self.devices) {
            notes.push(format!(
                "vLLM refuses tensor_parallel_size={} for {name}: its {num_heads} heads cannot be shared equally",
                self.devices
            ));
        }
        if structure.precision == Precision::Fp8 && self.hardware.peak_fp8_flops == 0.0 {
            notes.push(format!(
                "{} multiplies no fp8, or its rate is not known: the weights of {name} are read in fp8 and multiplied in 16 bits",
                self.hardware.name
            ));
        }
        if let Some(window) = structure.window
            && window.tokens < self.model.max_model_len
        {
            notes.push(format!(
                "{} of the {num_layers} layers of {name} attend to the last {} tokens alone: steps are priced so, but a block \
                 keeps all tokens of all layers, as vLLM's does with --disable-hybrid-kv-cache-manager; its default lets go of \
                 what left the window, so that longer sequences take fewer blocks there than here",
                window.layers, window.tokens
            ));
        }
        notes
    }

    /// The settings vLLM would start with here, under [`DeadEnds::Safe`](super::DeadEnds::Safe).
    ///
    /// The longest sequence is the model's, or what the pool holds if that is less.
    ///
    /// V0 is vLLM 0.6: chunked prefill is on above 32,768 tokens; below, the token budget is the longest sequence. V1 is
    /// vLLM 0.33 serving over HTTP: asynchronous scheduling, chunked prefill and prefix caching are on, there is no host
    /// tier, and budget and batch depend on the card (8,192 tokens and 1,024 sequences from 70 GiB on, but for the A100;
    /// 2,048 and 256 otherwise: `vllm/engine/arg_utils.py`, `get_batch_defaults`).
    pub fn engine(&self, engine: EngineKind) -> EngineConfig {
        let block_bytes = self.kv_bytes_per_token() * f64::from(BLOCK_SIZE);
        let num_gpu_blocks = (self.pool_bytes() / block_bytes) as u32;
        let patience = Patience::default();
        let mut config = EngineConfig {
            engine,
            block_size: BLOCK_SIZE,
            num_gpu_blocks,
            max_num_seqs: MAX_NUM_SEQS,
            max_num_batched_tokens: MAX_NUM_BATCHED_TOKENS,
            max_wait: patience.max_wait,
            patience: patience.factor,
            pricing: self.pricing(BLOCK_SIZE),
            ..EngineConfig::default()
        };
        config.max_model_len = self.model.max_model_len.min(config.num_usable_blocks().saturating_mul(BLOCK_SIZE));
        match engine {
            EngineKind::V0 => {
                config.num_cpu_blocks = (f64::from(self.devices) * SWAP_BYTES / block_bytes) as u32;
                config.enable_chunked_prefill = config.max_model_len > CHUNKED_ABOVE;
                if !config.enable_chunked_prefill {
                    config.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS.max(config.max_model_len);
                }
            }
            EngineKind::V1 => {
                config.enable_chunked_prefill = true;
                config.async_scheduling = true;
                config.enable_prefix_caching = true;
                let is_large = self.hardware.memory_bytes >= LARGE_CARD_BYTES && self.hardware.card() != "a100-80g";
                if is_large {
                    (config.max_num_batched_tokens, config.max_num_seqs) = LARGE_CARD;
                }
            }
        }
        config
    }

    /// The name it was read from.
    pub fn name(&self) -> String {
        let count = if self.devices == 1 { String::new() } else { format!("{}x", self.devices) };
        format!("{}@{count}{}", self.model.name, self.hardware.name)
    }

    /// Reads `model@hardware`, where the model may be a `config.json`'s path or its folder's, and the hardware a
    /// [`HardwareProfile`](super::HardwareProfile)'s: `llama-3-8b@2xmine.toml`.
    ///
    /// # Errors
    /// No such model, hardware or file, or the model does not fit.
    pub fn load(text: &str) -> Result<Deployment, DeploymentError> {
        Deployment::load_with(text, &[])
    }

    /// The same with `overrides` of hardware and deployment, which may be what makes the model fit.
    ///
    /// # Errors
    /// No such model, hardware or file, or the model does not fit.
    pub fn load_with(text: &str, overrides: &[Setting]) -> Result<Deployment, DeploymentError> {
        text.parse::<DeploymentName>()?.load_with(overrides)
    }

    /// The same with `overrides` of hardware and deployment.
    ///
    /// # Errors
    /// The model does not fit any more, or a setting does not suit it.
    pub fn with(self, overrides: &[Setting]) -> Result<Deployment, DeploymentError> {
        let named = self.devices;
        let changed = self.changed(overrides);
        if named != 1 && changed.devices != named {
            return Err(DeploymentError::TwoCounts { named, set: changed.devices });
        }
        changed.check()
    }

    /// The same, without asking whether it fits.
    #[must_use]
    pub fn changed(self, overrides: &[Setting]) -> Deployment {
        let hardware = self.hardware.with(overrides);
        let mut changed = Deployment { hardware, ..self };
        for setting in overrides {
            setting.apply_to_deployment(&mut changed);
        }
        changed
    }

    fn check(self) -> Result<Deployment, DeploymentError> {
        let precision = self.model.structure.precision;
        if precision.is_of_experts_only() && self.model.structure.experts.is_none() {
            return Err(DeploymentError::NoExperts { model: self.model.name, precision });
        }
        if self.hardware.kernels.is_some() && !self.model.is_plain() {
            return Err(DeploymentError::Kernels { model: self.model.name, hardware: self.hardware.name });
        }
        let missing = self.least_pool_bytes() - self.pool_bytes();
        if missing <= 0.0 {
            return Ok(self);
        }
        Err(DeploymentError::TooLarge {
            suggestion: self.devices_that_would_do(),
            weights_gb: self.model.total_weight_bytes() * 1e-9,
            usable_gb: self.usable_bytes() * 1e-9,
            missing_gb: missing * 1e-9,
            devices: self.devices,
            model: self.model.name,
            hardware: self.hardware.name,
        })
    }

    fn devices_that_would_do(&self) -> Option<u32> {
        let with = |devices: u32| Deployment { devices, ..self.clone() };
        let fits = |devices: &u32| {
            let more = with(*devices);
            more.pool_bytes() >= more.least_pool_bytes()
        };
        (self.devices + 1..=MAX_DEVICES).filter(|devices| self.is_divisible(*devices)).find(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_24_gb_card_holds_about_what_a_real_server_reports() {
        let engine = "llama-3-8b@rtx-4090".parse::<Deployment>().unwrap().engine(EngineKind::V0);
        // A measured vLLM server with this model and card had a pool of 41,408 tokens.
        let tokens = f64::from(engine.num_gpu_blocks * engine.block_size);
        assert!((tokens / 41_408.0 - 1.0).abs() < 0.1, "{tokens}");
        assert_eq!(engine.num_cpu_blocks, 2048);
        assert!(engine.validate().is_ok());
    }

    #[test]
    fn an_engine_starts_alike_however_the_clock_of_its_card_is_known() {
        for name in Hardware::NAMES {
            let hardware = Hardware::named(name).unwrap();
            for kind in [EngineKind::V0, EngineKind::V1] {
                let engine = |hardware: &str| {
                    let deployment: Deployment = format!("qwen2.5-0.5b@{hardware}").parse().unwrap();
                    // What preemptions are worth is a matter of the clock.
                    EngineConfig { pricing: EngineConfig::default().pricing, ..deployment.engine(kind) }
                };
                assert_eq!(engine(name), engine(hardware.card()), "{name}");
            }
        }
        let [a100, h100]: [Deployment; 2] =
            ["llama-3-8b@a100-80g-datasheet", "llama-3-8b@h100-datasheet"].map(|name| name.parse().unwrap());
        assert_eq!(a100.engine(EngineKind::V1).max_num_batched_tokens, MAX_NUM_BATCHED_TOKENS);
        assert_eq!(h100.engine(EngineKind::V1).max_num_batched_tokens, LARGE_CARD.0);
    }

    #[test]
    fn every_pair_either_works_or_says_what_would() {
        for model in Model::NAMES {
            for hardware in Hardware::NAMES {
                let name = format!("{model}@{hardware}");
                match name.parse::<Deployment>() {
                    Ok(deployment) => {
                        assert_eq!(deployment.name(), name);
                        assert!(deployment.engine(EngineKind::V1).validate().is_ok(), "{name}");
                    }
                    Err(DeploymentError::TooLarge { suggestion: None, weights_gb, .. }) => {
                        assert!(weights_gb > 600.0, "{name}");
                    }
                    Err(DeploymentError::TooLarge { suggestion: Some(suggestion), .. }) => {
                        let more = format!("{model}@{suggestion}x{hardware}");
                        let more: Deployment = more.parse().unwrap();
                        assert!(more.is_divisible(suggestion), "{}", more.name());
                    }
                    Err(other) => panic!("{name}: {other}"),
                }
            }
        }
    }

    #[test]
    fn less_memory_may_be_too_little() {
        let with = |setting: &str| "llama-3-8b@h100".parse::<Deployment>().unwrap().with(&[setting.parse().unwrap()]);
        let small = with("memory_bytes=24e9").unwrap();
        assert!(small.engine(EngineKind::V1).num_gpu_blocks < 3000);
        assert!(matches!(with("memory_bytes=16e9"), Err(DeploymentError::TooLarge { .. })));
        let half = with("gpu_memory_utilization=0.45").unwrap().engine(EngineKind::V1).num_gpu_blocks;
        assert!(half < with("gpu_memory_utilization=0.9").unwrap().engine(EngineKind::V1).num_gpu_blocks / 2);
    }

    fn blocks(env: &str, settings: &[&str]) -> Result<u32, DeploymentError> {
        let settings: Vec<Setting> = settings.iter().map(|text| text.parse().unwrap()).collect();
        Ok(Deployment::load_with(env, &settings)?.engine(EngineKind::V1).num_gpu_blocks)
    }

    #[test]
    fn fewer_bits_leave_more_room() {
        let plain = blocks("llama-3-8b@h100", &[]).unwrap();
        let fp8 = blocks("llama-3-8b@h100", &["--kv-cache-dtype=fp8"]).unwrap();
        assert!(fp8.abs_diff(2 * plain) <= 1, "{plain} {fp8}");
        // 70 thousand million weights in four bits are 39 GB with embedding and head, and fit on one card.
        assert!(matches!(blocks("llama-3-70b@h100", &[]), Err(DeploymentError::TooLarge { suggestion: Some(2), .. })));
        assert!(blocks("llama-3-70b@h100", &["quantization=awq"]).unwrap() > 3000);
        assert_eq!(
            blocks("llama-3-70b@h100", &["quantization=awq"]),
            blocks("llama-3-70b@h100", &["weight_dtype=int4"])
        );
        let error = blocks("llama-3-8b@h100", &["weight_dtype=mxfp4"]).unwrap_err().to_string();
        assert_eq!(error, "weight_dtype=mxfp4 is of routed experts, and llama-3-8b has none");
    }

    #[test]
    fn latents_are_kept_on_every_device() {
        let deployment = |env: &str| env.parse::<Deployment>().unwrap();
        let per_token = deployment("deepseek-v2-lite@h100").kv_bytes_per_token();
        assert_eq!(deployment("deepseek-v2-lite@4xh100").kv_bytes_per_token(), 4.0 * per_token);
        // Heads are shared among devices, and kept twice where there are twice as many devices.
        let per_token = deployment("llama-3-8b@h100").kv_bytes_per_token();
        assert_eq!(deployment("llama-3-8b@8xh100").kv_bytes_per_token(), per_token);
        assert_eq!(deployment("llama-3-8b@16xh100").kv_bytes_per_token(), 2.0 * per_token);
    }

    #[test]
    fn measured_kernels_are_of_plain_models() {
        let kernels = crate::deploy::KernelTimes {
            tokens: vec![1, 4096],
            ps_per_weight: vec![0.5, 9.0],
            decode_bandwidth: 0.8,
            decode_sequence: 1e-7,
            chunk_compute: 0.6,
            chunk_tile: 64,
            attention_fixed: 4e-6,
            launch: 1e-3,
            swap_overlap: 0.5,
        };
        let hardware = Hardware { kernels: Some(kernels), ..Hardware::named("h200").unwrap() };
        let with = |model: &str, settings: &[&str]| {
            let settings: Vec<Setting> = settings.iter().map(|text| text.parse().unwrap()).collect();
            Deployment::new(Model::named(model).unwrap(), hardware.clone(), 1).with(&settings)
        };
        assert!(with("llama-3-8b", &["kv_cache_dtype=fp8"]).is_ok());
        assert!(matches!(with("llama-3-8b", &["weight_dtype=fp8"]), Err(DeploymentError::Kernels { .. })));
        assert!(matches!(with("qwen3-30b-a3b", &[]), Err(DeploymentError::Kernels { .. })));
        assert!(with("qwen3-30b-a3b", &["bandwidth_efficiency=0.8"]).is_ok());
    }

    #[test]
    fn the_number_of_devices_is_said_once() {
        let with = |env: &str, setting: &str| Deployment::load_with(env, &[setting.parse().unwrap()]);
        assert_eq!(with("llama-3-70b@h100", "tensor_parallel_size=4"), Deployment::load("llama-3-70b@4xh100"));
        let error = with("llama-3-70b@4xh100", "tensor_parallel_size=8").unwrap_err().to_string();
        assert_eq!(error, "tensor_parallel_size=8, but --env says 4 of them");
        assert!("tensor_parallel_size=1.5".parse::<Setting>().is_err());
    }

    #[test]
    fn what_differs_from_vllm_is_said() {
        let notes = |env: &str| env.parse::<Deployment>().unwrap().notes().join("\n");
        assert_eq!(notes("llama-3-70b@4xh100"), "");
        assert!(notes("llama-3-8b@3xh100").contains("vLLM refuses tensor_parallel_size=3"));
        assert!(
            notes("gemma-3-27b@h100").contains("52 of the 62 layers of gemma-3-27b attend to the last 1024 tokens")
        );
        assert!(notes("deepseek-v3@16xa100-80g").contains("a100-80g multiplies no fp8"));
    }
}
