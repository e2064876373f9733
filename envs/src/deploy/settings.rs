//! Settings from the command line: `num_gpu_blocks=2000`, under vLLM's names in either spelling (`--max-num-seqs=8`),
//! `bandwidth_efficiency=0.9` under ours.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::keys::{Key, KeyKind, ParsedValue, Place, find, names, nearest};
use super::{ConfigError, Deployment, EngineConfig, Hardware};
use crate::time::Micros;

/// One override of an [`EngineConfig`], of a [`Hardware`] or of a [`Deployment`], written `key=value`: its value is of the key's
/// type, and where the key has a range of its own, within it. Written back as it was read.
///
/// Their keys differ, so that each takes what is its own and passes over the rest. A switch may be written as vLLM's:
/// `--enable-prefix-caching`, `--no-enable-prefix-caching`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Setting {
    key: &'static Key,
    value: ParsedValue,
    text: String,
}

/// Why an override was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// Not `key=value`.
    #[error("{0:?} is not KEY=VALUE")]
    Form(String),
    /// No such setting.
    #[error(
        "unknown setting {0:?}; known of the engine: {engine}; of the hardware: {hardware}; of the model on it: {deployed}{nearest}",
        engine = names(Place::Engine), hardware = names(Place::Hardware), deployed = names(Place::Deployment),
        nearest = nearest(_0)
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
        expected: Cow<'static, str>,
    },
    /// The settings do not work together.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl SettingError {
    pub(super) fn value(key: &str, value: &str, expected: impl Into<Cow<'static, str>>) -> SettingError {
        SettingError::Value { key: key.to_owned(), value: value.to_owned(), expected: expected.into() }
    }

    /// The same of a value that stands in `place`.
    pub(super) fn within(self, place: &str) -> SettingError {
        match self {
            SettingError::Value { key, value, expected } => {
                SettingError::Value { key: format!("{place}.{key}"), value, expected }
            }
            error => error,
        }
    }

    /// The key whose value is wrong; `None` where another thing is.
    pub(super) fn key(&self) -> Option<&str> {
        match self {
            SettingError::Value { key, .. } => Some(key),
            _ => None,
        }
    }
}

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Setting, SettingError> {
        let pair = text.split_once('=').or_else(|| switch(text));
        let (name, value) = pair.ok_or_else(|| SettingError::Form(text.to_owned()))?;
        let key = find(name).ok_or_else(|| SettingError::Key(name.to_owned()))?;
        Ok(Setting { key, value: key.read(value)?, text: text.to_owned() })
    }
}

/// A switch as vLLM's command line has it: its name, and what it is set to.
fn switch(text: &str) -> Option<(&str, &'static str)> {
    let is_switch = |name: &str| find(name).is_some_and(|key| matches!(key.kind, KeyKind::Flag(_)));
    let name = text.strip_prefix("--")?;
    let (name, value) = name.strip_prefix("no-").map_or((name, "true"), |name| (name, "false"));
    is_switch(name).then_some((name, value))
}

impl TryFrom<String> for Setting {
    type Error = SettingError;

    fn try_from(text: String) -> Result<Setting, SettingError> {
        text.parse()
    }
}

impl From<Setting> for String {
    fn from(setting: Setting) -> String {
        setting.text
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Setting({:?})", self.text)
    }
}

impl PartialEq for Setting {
    fn eq(&self, other: &Setting) -> bool {
        self.text == other.text
    }
}

impl Eq for Setting {}

impl Setting {
    /// What is set.
    pub fn key(&self) -> &'static str {
        self.key.name
    }

    fn apply(&self, config: &mut EngineConfig) {
        match (&self.key.kind, self.value) {
            (KeyKind::Count { of, .. }, ParsedValue::Count(number)) => *of(config) = number,
            (KeyKind::Seconds(of), ParsedValue::Count(seconds)) => {
                *of(config) = Micros::from_millis(u64::from(seconds) * 1000);
            }
            (KeyKind::Flag(of), ParsedValue::Flag(is_on)) => *of(config) = is_on,
            (KeyKind::Number { set, .. }, ParsedValue::Number(number)) => set(config, number),
            (KeyKind::Choice { set, .. }, ParsedValue::Choice(index)) => set(config, index),
            // Of the hardware or the deployment.
            _ => {}
        }
    }

    /// Sets it, if it is of the hardware; whether it is.
    pub(crate) fn apply_to_hardware(&self, hardware: &mut Hardware) -> bool {
        let (KeyKind::Hardware { of, .. }, ParsedValue::Number(number)) = (&self.key.kind, self.value) else {
            return false;
        };
        *of(hardware) = number;
        true
    }

    /// Sets it, if it is of a deployment.
    pub(super) fn apply_to_deployment(&self, deployment: &mut Deployment) {
        match (&self.key.kind, self.value) {
            (KeyKind::Deployed { set, .. }, ParsedValue::Number(number)) => set(deployment, number),
            (KeyKind::DeployedChoice { set, .. }, ParsedValue::Choice(index)) => set(deployment, index),
            _ => {}
        }
    }
}

impl EngineConfig {
    /// These settings with `overrides`, later ones winning. Settings of hardware and deployment are passed over.
    ///
    /// Blocks of another size hold the same bytes together, to a block: a pool whose count no override names has as many fewer or
    /// more of them.
    ///
    /// What an override makes impossible and no override names is adapted as vLLM does at start-up: the longest sequence
    /// to the pool, and without chunked prefill the token budget to the longest sequence.
    ///
    /// # Errors
    /// Settings that do not work together.
    pub fn with(mut self, overrides: &[Setting]) -> Result<EngineConfig, SettingError> {
        let named = |key: &str| overrides.iter().any(|setting| setting.key() == key);
        let before = self.block_size;
        for setting in overrides {
            setting.apply(&mut self);
        }
        let keep_bytes = |blocks: u32, block_size: u32| {
            let blocks = u64::from(blocks) * u64::from(before) / u64::from(block_size.max(1));
            u32::try_from(blocks).unwrap_or(u32::MAX)
        };
        if self.block_size != before && !named("num_gpu_blocks") {
            self.num_gpu_blocks = keep_bytes(self.num_gpu_blocks, self.block_size);
        }
        if self.block_size != before && !named("num_cpu_blocks") {
            self.num_cpu_blocks = keep_bytes(self.num_cpu_blocks, self.block_size);
        }
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

#[cfg(test)]
mod tests {
    use super::super::keys::{KEYS, describe};
    use super::*;
    use crate::deploy::{DeadEnds, Deployment, EngineKind};
    use crate::evict::Eviction;
    use crate::kv::Sharing;

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
    fn blocks_of_another_size_hold_the_same_bytes() {
        let tokens = |settings: &[&str]| {
            let engine = engine(settings).unwrap();
            (engine.num_gpu_blocks * engine.block_size, engine.num_cpu_blocks * engine.block_size)
        };
        let (gpu, cpu) = tokens(&[]);
        for size in [1, 8, 32, 64, 100] {
            let (other_gpu, other_cpu) = tokens(&[&format!("block_size={size}")]);
            assert!(other_gpu <= gpu && gpu - other_gpu < size && other_cpu <= cpu && cpu - other_cpu < size, "{size}");
        }
        // What is counted is counted, in either order.
        let counted = [["block_size=32", "num_gpu_blocks=1000"], ["num_gpu_blocks=1000", "block_size=32"]];
        assert!(counted.iter().all(|settings| engine(settings).unwrap().num_gpu_blocks == 1000));
        assert!(engine(&["block_size=0"]).unwrap_err().to_string().starts_with("block_size is 0"));
    }

    #[test]
    fn vllm_spells_them_with_dashes() {
        let same = [
            ("max-num-batched-tokens=99", "max_num_batched_tokens=99"),
            ("--max-num-batched-tokens=99", "max_num_batched_tokens=99"),
            ("--no-enable-prefix-caching", "enable_prefix_caching=false"),
            ("--enable-chunked-prefill", "enable_chunked_prefill=true"),
            ("--num-gpu-blocks-override=900", "num_gpu_blocks=900"),
        ];
        for (vllm, ours) in same {
            let settings = |text| ["enable_prefix_caching=true", "max_model_len=90", text];
            assert_eq!(engine(&settings(vllm)), engine(&settings(ours)), "{vllm}");
        }
        assert!(engine(&["--max-num-seqs"]).is_err() && engine(&["--no-max-num-seqs"]).is_err());
        let error = engine(&["--max-num-seq=4"]).unwrap_err().to_string();
        assert!(error.ends_with("; was max_num_seqs meant?"), "{error}");
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
        assert!(error(&["watermark=1.1"]).ends_with("expected a share of the pool from 0 to 1"));
        for choice in ["eviction=oldest", "prefix_sharing=", "dead_ends=deadly", "async_scheduling=yes"] {
            assert!(error(&[choice]).contains(": expected "), "{choice}");
        }
        assert!(error(&["num_gpu_blocks=10", "max_model_len=1000"]).contains("more than the pool holds"));
    }

    #[test]
    fn what_was_meant_is_guessed() {
        for (wrong, meant) in
            [("max_num_seq", "max_num_seqs"), ("gpu_blocks", "num_gpu_blocks"), ("wtermark", "watermark")]
        {
            let error = format!("{wrong}=1").parse::<Setting>().unwrap_err().to_string();
            assert!(error.ends_with(&format!("; was {meant} meant?")), "{error}");
        }
        assert!(!"zzz=1".parse::<Setting>().unwrap_err().to_string().contains("meant"));
    }

    #[test]
    fn every_key_is_described_read_and_written_back() {
        let described = describe();
        for key in &KEYS {
            assert!(described.contains(&format!("  {} ", key.name)), "{}", key.name);
            let value = match &key.kind {
                KeyKind::Count { range: (low, _), .. } => low.to_string(),
                KeyKind::Seconds(_) => "60".to_owned(),
                KeyKind::Flag(_) => "false".to_owned(),
                KeyKind::Number { range, .. } | KeyKind::Hardware { range, .. } | KeyKind::Deployed { range, .. } => {
                    range.high.to_string()
                }
                KeyKind::Choice { names, .. } | KeyKind::DeployedChoice { names, .. } => names[0].to_owned(),
            };
            let text = format!("{}={value}", key.name);
            let setting: Setting = serde_json::from_value(text.clone().into()).unwrap();
            assert_eq!((serde_json::to_value(&setting).unwrap(), setting.key()), (text.into(), key.name));
        }
    }

    #[test]
    fn every_choice_sets_what_it_names() {
        let engine = |setting: &str| EngineConfig::default().with(&[setting.parse().unwrap()]).unwrap();
        assert_eq!(
            (engine("eviction=lru").eviction, engine("eviction=radix").eviction),
            (Eviction::Lru, Eviction::Radix)
        );
        let sharing = ["tenant", "global"].map(|name| engine(&format!("prefix_sharing={name}")).prefix_sharing);
        assert_eq!(sharing, [Sharing::Tenant, Sharing::Global]);
        let dead_ends = ["safe", "faithful"].map(|name| engine(&format!("dead_ends={name}")).dead_ends);
        assert_eq!(dead_ends, [DeadEnds::Safe, DeadEnds::Faithful]);
        assert_eq!(engine("max_wait_s=7").max_wait, Micros::from_millis(7000));
    }
}
