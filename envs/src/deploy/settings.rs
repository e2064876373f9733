//! Settings from the command line: `num_gpu_blocks=2000`, under vLLM's names, `bandwidth_efficiency=0.9` under ours.

use std::fmt;
use std::str::FromStr;

use super::{ConfigError, DeadEnds, EngineConfig, Hardware};
use crate::kv::Sharing;
use crate::time::Micros;

/// One override of an [`EngineConfig`] or of a [`Hardware`], written `key=value`. The keys of the two differ, so that
/// each takes what is its own and passes over the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    key: String,
    value: String,
}

/// Why an override was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// Not `key=value`.
    #[error("{0:?} is not KEY=VALUE")]
    Form(String),
    /// No such setting.
    #[error(
        "unknown setting {0:?}; known of the engine: {engine}; of the hardware: {hardware}",
        engine = KEYS.join(", "), hardware = Hardware::keys().collect::<Vec<_>>().join(", ")
    )]
    Key(String),
    /// A value of another kind.
    #[error("{key}={value:?}: expected {expected}")]
    Value {
        /// Which setting.
        key: String,
        /// What stood there.
        value: String,
        /// What would do.
        expected: &'static str,
    },
    /// The settings do not work together.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl SettingError {
    pub(super) fn value(key: &str, value: &str, expected: &'static str) -> SettingError {
        SettingError::Value { key: key.to_owned(), value: value.to_owned(), expected }
    }

    /// Whether the value of `key` is what is wrong.
    pub(super) fn is_about(&self, key: &str) -> bool {
        matches!(self, SettingError::Value { key: wrong, .. } if wrong == key)
    }
}

const KEYS: [&str; 17] = [
    "block_size",
    "num_gpu_blocks",
    "num_cpu_blocks",
    "max_num_seqs",
    "watermark",
    "max_num_batched_tokens",
    "max_model_len",
    "enable_chunked_prefill",
    "async_scheduling",
    "enable_prefix_caching",
    "long_prefill_token_threshold",
    "scheduler_reserve_full_isl",
    "eviction",
    "prefix_sharing",
    "dead_ends",
    "max_wait_s",
    "patience",
];

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Setting, SettingError> {
        let (key, value) = text.split_once('=').ok_or_else(|| SettingError::Form(text.to_owned()))?;
        if KEYS.contains(&key) || Hardware::keys().any(|known| known == key) {
            Ok(Setting { key: key.to_owned(), value: value.to_owned() })
        } else {
            Err(SettingError::Key(key.to_owned()))
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

impl EngineConfig {
    /// These settings with `overrides`, later ones winning. Settings of the hardware are passed over.
    ///
    /// What an override makes impossible and no override names is adapted as vLLM does at start-up: the longest sequence
    /// to the pool, and without chunked prefill the token budget to the longest sequence.
    ///
    /// # Errors
    /// A value that cannot be read, or settings that do not work together.
    pub fn with(mut self, overrides: &[Setting]) -> Result<EngineConfig, SettingError> {
        for setting in overrides.iter().filter(|setting| KEYS.contains(&setting.key())) {
            setting.apply(&mut self)?;
        }
        let named = |key: &str| overrides.iter().any(|setting| setting.key == key);
        if !named("max_model_len") {
            self.max_model_len = self.max_model_len.min(self.num_usable_blocks().saturating_mul(self.block_size));
        }
        if !named("max_num_batched_tokens") && !self.enable_chunked_prefill {
            self.max_num_batched_tokens = self.max_num_batched_tokens.max(self.max_model_len);
        }
        self.validate()?;
        Ok(self)
    }
}

impl Setting {
    /// What is set.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// To what.
    pub fn value(&self) -> &str {
        &self.value
    }

    fn apply(&self, config: &mut EngineConfig) -> Result<(), SettingError> {
        match self.key.as_str() {
            "block_size" => config.block_size = self.number()?,
            "num_gpu_blocks" => config.num_gpu_blocks = self.number()?,
            "num_cpu_blocks" => config.num_cpu_blocks = self.number()?,
            "max_num_seqs" => config.max_num_seqs = self.number()?,
            "watermark" => {
                let share = self.value.parse().ok().filter(|share| (0.0..=1.0).contains(share));
                config.watermark = Some(share.ok_or_else(|| self.wrong("a share of the pool from 0 to 1"))?);
            }
            "max_num_batched_tokens" => config.max_num_batched_tokens = self.number()?,
            "max_model_len" => config.max_model_len = self.number()?,
            "max_wait_s" => config.max_wait = Micros::from_millis(u64::from(self.number()?) * 1000),
            "patience" => {
                let patience = self.value.parse().ok().filter(|patience| (0.0..=1e6).contains(patience));
                config.patience = patience.ok_or_else(|| self.wrong("a number from 0 to 1000000"))?;
            }
            "long_prefill_token_threshold" => config.long_prefill_token_threshold = self.number()?,
            "enable_chunked_prefill" => config.enable_chunked_prefill = self.flag()?,
            "async_scheduling" => config.async_scheduling = self.flag()?,
            "enable_prefix_caching" => config.enable_prefix_caching = self.flag()?,
            "scheduler_reserve_full_isl" => config.scheduler_reserve_full_isl = self.flag()?,
            "eviction" => config.eviction = self.value.parse().map_err(|expected| self.wrong(expected))?,
            "prefix_sharing" => {
                config.prefix_sharing = match self.value.as_str() {
                    "tenant" => Sharing::Tenant,
                    "global" => Sharing::Global,
                    _ => return Err(self.wrong("tenant or global")),
                };
            }
            "dead_ends" => {
                config.dead_ends = match self.value.as_str() {
                    "safe" => DeadEnds::Safe,
                    "faithful" => DeadEnds::Faithful,
                    _ => return Err(self.wrong("safe or faithful")),
                };
            }
            _ => return Err(SettingError::Key(self.key.clone())),
        }
        Ok(())
    }

    fn flag(&self) -> Result<bool, SettingError> {
        self.value.parse().map_err(|_| self.wrong("true or false"))
    }

    fn number(&self) -> Result<u32, SettingError> {
        self.value.parse().map_err(|_| self.wrong("a whole number"))
    }

    pub(super) fn wrong(&self, expected: &'static str) -> SettingError {
        SettingError::value(&self.key, &self.value, expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::{Deployment, EngineKind};

    fn engine(settings: &[&str]) -> Result<EngineConfig, SettingError> {
        let deployment: Deployment = "llama-3-8b@rtx-4090".parse().unwrap();
        let settings: Result<Vec<Setting>, SettingError> = settings.iter().map(|text| text.parse()).collect();
        deployment.engine(EngineKind::V0).with(&settings?)
    }

    #[test]
    fn what_is_not_named_adapts() {
        let engine = engine(&["num_gpu_blocks=100", "enable_chunked_prefill=false"]).unwrap();
        assert_eq!((engine.max_model_len, engine.max_num_batched_tokens), (1600, 2048));
    }

    #[test]
    fn the_watermark_of_nobodys_policy() {
        let watermark = |settings: &[&str]| engine(settings).unwrap().default_controls().watermark;
        assert_eq!(watermark(&[]), 0.01);
        let deployment: Deployment = "llama-3-8b@rtx-4090".parse().unwrap();
        assert_eq!(deployment.engine(EngineKind::V1).default_controls().watermark, 0.0);
        assert_eq!(watermark(&["watermark=0.07"]), 0.07);
        assert!(engine(&["watermark=1.1"]).is_err() && engine(&["watermark=nan"]).is_err());
    }

    #[test]
    fn mistakes_are_named() {
        let error = |settings: &[&str]| engine(settings).unwrap_err().to_string();
        assert!(error(&["blocks=3"]).starts_with("unknown setting \"blocks\"; known of the engine: block_size"));
        assert!(error(&["blocks=3"]).contains("; of the hardware: peak_flops, "));
        assert_eq!(error(&["max_num_seqs=-1"]), "max_num_seqs=\"-1\": expected a whole number");
        assert_eq!(error(&["max_num_seqs"]), "\"max_num_seqs\" is not KEY=VALUE");
        assert!(error(&["num_gpu_blocks=0"]).contains("num_gpu_blocks is 0"));
        assert!(error(&["num_gpu_blocks=10", "max_model_len=1000"]).contains("more than the pool holds"));
    }
}
