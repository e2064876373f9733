//! A model on hardware: what fits, and the settings an engine would start with.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kvtide_rules::Patience;
use serde::{Deserialize, Serialize};

use super::{EngineConfig, EngineKind, Hardware, HardwareProfile, Model, ProfileError, Setting};

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
/// Most accelerators of one deployment.
const MAX_DEVICES: u32 = 64;

/// A model on one or more accelerators of a kind: `llama-3-8b@rtx-4090`, `llama-3-70b@4xh100`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    /// The model.
    pub model: Model,
    /// The accelerator.
    pub hardware: Hardware,
    /// How many of them share the model by tensor parallelism.
    pub devices: u32,
}

/// Why a deployment could not be understood or does not work.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DeploymentError {
    /// Not `model@hardware`.
    #[error("{0:?} is not MODEL@HARDWARE, as in llama-3-8b@rtx-4090 or llama-3-70b@4xh100")]
    Form(String),
    /// No such model.
    #[error("unknown model {0:?}; known: {names}", names = Model::NAMES.join(", "))]
    Model(String),
    /// No such hardware.
    #[error("unknown hardware {0:?}; known: {names}, and any profile FILE.toml", names = Hardware::NAMES.join(", "))]
    Hardware(String),
    /// A profile that cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A device count out of range.
    #[error("{0} devices; from 1 to {MAX_DEVICES} are supported")]
    Devices(u32),
    /// The weights leave no room for a block.
    #[error(
        "{model} needs {weights_gb:.1} GB for weights, and {devices} x {hardware} offers {usable_gb:.1} GB; take more \
         devices, as in {model}@{suggestion}x{hardware}"
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
        /// Devices that would hold the weights and some blocks.
        suggestion: u32,
    },
}

impl Deployment {
    /// Memory left for blocks, bytes; negative if the weights do not fit.
    fn pool_bytes(&self) -> f64 {
        self.usable_bytes() - self.model.total_weight_bytes()
    }

    fn usable_bytes(&self) -> f64 {
        f64::from(self.devices) * (self.hardware.memory_bytes * MEMORY_UTILIZATION - ACTIVATION_BYTES)
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
        let block_bytes = self.model.kv_bytes_per_token() * f64::from(BLOCK_SIZE);
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
                let is_large = self.hardware.memory_bytes >= LARGE_CARD_BYTES && self.hardware.name != "a100-80g";
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

    /// Reads `model@hardware`, where the hardware may be a [`HardwareProfile`]'s file: `llama-3-8b@2xmine.toml`.
    ///
    /// # Errors
    /// No such model, hardware or file, or the model does not fit.
    pub fn load(text: &str) -> Result<Deployment, DeploymentError> {
        text.parse::<DeploymentName>()?.load()
    }

    /// The same with `overrides` of the hardware.
    ///
    /// # Errors
    /// The model does not fit any more.
    pub fn with(self, overrides: &[Setting]) -> Result<Deployment, DeploymentError> {
        let hardware = self.hardware.with(overrides);
        Deployment { hardware, ..self }.check()
    }

    fn check(self) -> Result<Deployment, DeploymentError> {
        // A pool of fewer than 64 blocks serves nobody.
        let least = 64.0 * f64::from(BLOCK_SIZE) * self.model.kv_bytes_per_token();
        if self.pool_bytes() >= least {
            return Ok(self);
        }
        let each = self.usable_bytes() / f64::from(self.devices);
        Err(DeploymentError::TooLarge {
            suggestion: ((self.model.total_weight_bytes() + least) / each).ceil() as u32,
            weights_gb: self.model.total_weight_bytes() * 1e-9,
            usable_gb: self.usable_bytes() * 1e-9,
            devices: self.devices,
            model: self.model.name,
            hardware: self.hardware.name,
        })
    }
}

/// What a deployment is called: `llama-3-8b@rtx-4090`, `llama-3-70b@4xh100`, `llama-3-8b@2xmine.toml`. Model, built-in
/// hardware and number of devices are known to be there; a profile's file is read when the deployment is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct DeploymentName {
    model: Model,
    devices: u32,
    hardware: HardwareName,
}

#[derive(Debug, Clone, PartialEq)]
enum HardwareName {
    BuiltIn(Hardware),
    /// A [`HardwareProfile`]'s file.
    File(PathBuf),
}

impl DeploymentName {
    /// The deployment, with its profile if it names one.
    ///
    /// # Errors
    /// No such file, or the model does not fit.
    pub fn load(&self) -> Result<Deployment, DeploymentError> {
        let hardware = match &self.hardware {
            HardwareName::BuiltIn(hardware) => hardware.clone(),
            HardwareName::File(path) => HardwareProfile::read(path)?.hardware,
        };
        Deployment { model: self.model.clone(), hardware, devices: self.devices }.check()
    }

    /// The same with the file of a profile that was relative to `folder`; `None` if it names no file.
    #[must_use]
    pub fn relative_to(&self, folder: &Path) -> Option<DeploymentName> {
        let HardwareName::File(path) = &self.hardware else { return None };
        Some(DeploymentName { hardware: HardwareName::File(folder.join(path)), ..self.clone() })
    }
}

impl FromStr for DeploymentName {
    type Err = DeploymentError;

    fn from_str(text: &str) -> Result<DeploymentName, DeploymentError> {
        let (model, hardware) = text.split_once('@').ok_or_else(|| DeploymentError::Form(text.to_owned()))?;
        let model = Model::named(model).ok_or_else(|| DeploymentError::Model(model.to_owned()))?;
        let (devices, hardware) = counted(hardware);
        if !(1..=MAX_DEVICES).contains(&devices) {
            return Err(DeploymentError::Devices(devices));
        }
        let hardware = if Path::new(hardware).extension().is_some_and(|extension| extension == "toml") {
            HardwareName::File(hardware.into())
        } else {
            let known = Hardware::named(hardware);
            HardwareName::BuiltIn(known.ok_or_else(|| DeploymentError::Hardware(hardware.to_owned()))?)
        };
        Ok(DeploymentName { model, devices, hardware })
    }
}

/// `4xh100`, taken apart; one of it without a number.
fn counted(hardware: &str) -> (u32, &str) {
    match hardware.split_once('x') {
        Some((count, name)) if !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit()) => {
            (count.parse().unwrap_or(u32::MAX), name)
        }
        _ => (1, hardware),
    }
}

impl fmt::Display for DeploymentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hardware = match &self.hardware {
            HardwareName::BuiltIn(hardware) => hardware.name.clone(),
            HardwareName::File(path) => path.display().to_string(),
        };
        // A file whose name begins with a number and an x is one of it, and not as many.
        let is_one = self.devices == 1 && counted(&hardware).1 == hardware;
        let count = if is_one { String::new() } else { format!("{}x", self.devices) };
        write!(f, "{}@{count}{hardware}", self.model.name)
    }
}

/// Built-in names only; [`Deployment::load`] also reads files.
impl FromStr for Deployment {
    type Err = DeploymentError;

    fn from_str(text: &str) -> Result<Deployment, DeploymentError> {
        let name: DeploymentName = text.parse()?;
        match &name.hardware {
            HardwareName::BuiltIn(_) => name.load(),
            HardwareName::File(path) => Err(DeploymentError::Hardware(path.display().to_string())),
        }
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
    fn every_pair_either_works_or_says_what_would() {
        for model in Model::NAMES {
            for hardware in Hardware::NAMES {
                let name = format!("{model}@{hardware}");
                match name.parse::<Deployment>() {
                    Ok(deployment) => {
                        assert_eq!(deployment.name(), name);
                        assert!(deployment.engine(EngineKind::V1).validate().is_ok(), "{name}");
                    }
                    Err(DeploymentError::TooLarge { suggestion, .. }) => {
                        let more = format!("{model}@{suggestion}x{hardware}");
                        assert!(more.parse::<Deployment>().is_ok(), "{more}");
                    }
                    Err(other) => panic!("{name}: {other}"),
                }
            }
        }
    }

    #[test]
    fn hardware_may_be_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut hardware = Hardware::named("h100").unwrap();
        "mine".clone_into(&mut hardware.name);
        let profile = HardwareProfile { hardware: hardware.clone(), provenance: None };
        std::fs::write(folder.path().join("2x.toml"), profile.to_toml()).unwrap();
        // `4x` is a number of devices, `2x.toml` is not.
        for (text, devices, name) in
            [("llama-3-70b@4x2x.toml", 4, "llama-3-70b@4xmine"), ("llama-3-8b@./2x.toml", 1, "llama-3-8b@mine")]
        {
            let there = text.parse::<DeploymentName>().unwrap().relative_to(folder.path()).unwrap();
            let deployment = there.load().unwrap();
            assert_eq!(there.to_string().parse(), Ok(there));
            assert_eq!((deployment.devices, &deployment.hardware), (devices, &hardware));
            assert_eq!(deployment.name(), name);
        }
        let one: DeploymentName = "llama-3-8b@1x2x.toml".parse().unwrap();
        assert_eq!((one.devices, one.to_string()), (1, "llama-3-8b@1x2x.toml".to_owned()));
        let built_in: DeploymentName = "llama-3-70b@4xh100".parse().unwrap();
        assert_eq!(
            (built_in.relative_to(folder.path()), built_in.to_string()),
            (None, "llama-3-70b@4xh100".to_owned())
        );
        assert_eq!(Deployment::load("llama-3-70b@4xh100"), "llama-3-70b@4xh100".parse());
        let missing = Deployment::load("llama-3-8b@nowhere.toml").unwrap_err().to_string();
        assert!(missing.starts_with("nowhere.toml: cannot open"), "{missing}");
        assert!("llama-3-8b@nowhere.toml".parse::<Deployment>().is_err());
    }

    #[test]
    fn less_memory_may_be_too_little() {
        let with = |setting: &str| "llama-3-8b@h100".parse::<Deployment>().unwrap().with(&[setting.parse().unwrap()]);
        let small = with("memory_bytes=24e9").unwrap();
        assert!(small.engine(EngineKind::V1).num_gpu_blocks < 3000);
        assert!(matches!(with("memory_bytes=16e9"), Err(DeploymentError::TooLarge { .. })));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<Deployment>().unwrap_err().to_string();
        assert!(error("llama-3-8b").contains("MODEL@HARDWARE"));
        assert!(error("gpt@h100").contains("unknown model \"gpt\"; known: llama-3-8b"));
        assert!(error("llama-3-8b@tpu").contains("unknown hardware \"tpu\"; known: rtx-4090"));
        assert!(error("llama-3-8b@0xh100").contains("0 devices"));
    }
}
