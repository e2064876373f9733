//! Settings from the command line: `num_gpu_blocks=2000`, under vLLM's names.

use std::fmt;
use std::str::FromStr;

use super::{ConfigError, DeadEnds, EngineConfig};
use crate::time::Micros;

/// One override of an [`EngineConfig`], written `key=value`.
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
    #[error("unknown setting {0:?}; known: {names}", names = KEYS.join(", "))]
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

const KEYS: [&str; 9] = [
    "block_size",
    "num_gpu_blocks",
    "num_cpu_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "enable_chunked_prefill",
    "dead_ends",
    "max_wait_s",
];

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Setting, SettingError> {
        let (key, value) = text.split_once('=').ok_or_else(|| SettingError::Form(text.to_owned()))?;
        if KEYS.contains(&key) {
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
    /// These settings with `overrides`, later ones winning.
    ///
    /// What an override makes impossible and no override names is adapted as vLLM does at start-up: the longest sequence
    /// to the pool, and without chunked prefill the token budget to the longest sequence.
    ///
    /// # Errors
    /// A value that cannot be read, or settings that do not work together.
    pub fn with(mut self, overrides: &[Setting]) -> Result<EngineConfig, SettingError> {
        for setting in overrides {
            setting.apply(&mut self)?;
        }
        let named = |key: &str| overrides.iter().any(|setting| setting.key == key);
        if !named("max_model_len") {
            self.max_model_len = self.max_model_len.min(self.num_gpu_blocks.saturating_mul(self.block_size));
        }
        if !named("max_num_batched_tokens") && !self.enable_chunked_prefill {
            self.max_num_batched_tokens = self.max_num_batched_tokens.max(self.max_model_len);
        }
        self.validate()?;
        Ok(self)
    }
}

impl Setting {
    fn apply(&self, config: &mut EngineConfig) -> Result<(), SettingError> {
        match self.key.as_str() {
            "block_size" => config.block_size = self.number()?,
            "num_gpu_blocks" => config.num_gpu_blocks = self.number()?,
            "num_cpu_blocks" => config.num_cpu_blocks = self.number()?,
            "max_num_seqs" => config.max_num_seqs = self.number()?,
            "max_num_batched_tokens" => config.max_num_batched_tokens = self.number()?,
            "max_model_len" => config.max_model_len = self.number()?,
            "max_wait_s" => config.max_wait = Micros::from_millis(u64::from(self.number()?) * 1000),
            "enable_chunked_prefill" => {
                config.enable_chunked_prefill = self.value.parse().map_err(|_| self.wrong("true or false"))?;
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

    fn number(&self) -> Result<u32, SettingError> {
        self.value.parse().map_err(|_| self.wrong("a whole number"))
    }

    fn wrong(&self, expected: &'static str) -> SettingError {
        SettingError::Value { key: self.key.clone(), value: self.value.clone(), expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Deployment;

    fn engine(settings: &[&str]) -> Result<EngineConfig, SettingError> {
        let deployment: Deployment = "llama-3-8b@rtx-4090".parse().unwrap();
        let settings: Result<Vec<Setting>, SettingError> = settings.iter().map(|text| text.parse()).collect();
        deployment.engine().with(&settings?)
    }

    #[test]
    fn what_is_not_named_adapts() {
        let engine = engine(&["num_gpu_blocks=100", "enable_chunked_prefill=false"]).unwrap();
        assert_eq!((engine.max_model_len, engine.max_num_batched_tokens), (1600, 2048));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |settings: &[&str]| engine(settings).unwrap_err().to_string();
        assert!(error(&["blocks=3"]).starts_with("unknown setting \"blocks\"; known: block_size"));
        assert_eq!(error(&["max_num_seqs=-1"]), "max_num_seqs=\"-1\": expected a whole number");
        assert_eq!(error(&["max_num_seqs"]), "\"max_num_seqs\" is not KEY=VALUE");
        assert!(error(&["num_gpu_blocks=0"]).contains("num_gpu_blocks is 0"));
        assert!(error(&["num_gpu_blocks=10", "max_model_len=1000"]).contains("more than the pool holds"));
    }
}
