//! Settings from the command line: `num_gpu_blocks=2000`, under vLLM's names, `bandwidth_efficiency=0.9` under ours.
//!
//! Every key there is stands in [`KEYS`], with its type, unit, range and meaning: values are read, checked, set, listed and
//! described by it.

use std::fmt::{self, Write};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{ConfigError, DeadEnds, EngineConfig};
use crate::cost::Hardware;
use crate::kv::{Eviction, Sharing};
use crate::time::Micros;

/// One override of an [`EngineConfig`] or of a [`Hardware`], written `key=value`: its value is of the key's type, and where the
/// key has a range of its own, within it. Written back as it was read.
///
/// The keys of the two differ, so that each takes what is its own and passes over the rest.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Setting {
    key: &'static Key,
    value: Value,
    text: String,
}

/// Something that can be set.
struct Key {
    name: &'static str,
    kind: Kind,
    /// What it is, in a few words.
    doc: &'static str,
}

/// What its value is, and where it goes.
enum Kind {
    /// A whole number of the engine, whose range is checked with everything else: what is impossible depends on what adapts.
    Count { unit: &'static str, range: (u64, u64), of: fn(&mut EngineConfig) -> &mut u32 },
    /// Whole seconds of the engine.
    Seconds(fn(&mut EngineConfig) -> &mut Micros),
    /// A switch of the engine.
    Flag(fn(&mut EngineConfig) -> &mut bool),
    /// A number of the engine.
    Number { range: Range, set: fn(&mut EngineConfig, f64) },
    /// One of several ways of the engine, by its place among them.
    Choice { names: &'static [&'static str], expected: &'static str, set: fn(&mut EngineConfig, usize) },
    /// A number of the hardware.
    Hardware { range: Range, of: fn(&mut Hardware) -> &mut f64 },
}

/// Numbers that are taken, both ends among them, and the same in words.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) expected: &'static str,
}

/// A value that was read.
#[derive(Debug, Clone, Copy)]
enum Value {
    Count(u32),
    Flag(bool),
    Number(f64),
    Choice(usize),
}

const fn range(low: f64, high: f64, expected: &'static str) -> Range {
    Range { low, high, expected }
}

const SHARE_OF_POOL: Range = range(0.0, 1.0, "a share of the pool from 0 to 1");
const PATIENCE: Range = range(0.0, 1e6, "a number from 0 to 1000000");
const FLOPS: Range = range(1e9, 1e19, "FLOP/s, from 1e9 to 1e19");
const BANDWIDTH: Range = range(1e6, 1e16, "bytes/s, from 1e6 to 1e16");
const BYTES: Range = range(1e6, 1e15, "bytes, from 1e6 to 1e15");
const SHARE: Range = range(0.01, 1.5, "a share from 0.01 to 1.5");
const SECONDS: Range = range(0.0, 10.0, "seconds, from 0 to 10");

/// Largest pool, in blocks: 2^26 blocks of 16 tokens are a billion tokens.
const MAX_BLOCKS: u64 = 1 << 26;
/// Largest batch.
const MAX_SEQS: u64 = 1 << 16;
/// Longest sequence and largest step, in tokens.
const MAX_TOKENS: u64 = 1 << 26;

const fn count(
    name: &'static str,
    unit: &'static str,
    range: (u64, u64),
    of: fn(&mut EngineConfig) -> &mut u32,
    doc: &'static str,
) -> Key {
    Key { name, kind: Kind::Count { unit, range, of }, doc }
}

const fn flag(name: &'static str, of: fn(&mut EngineConfig) -> &mut bool, doc: &'static str) -> Key {
    Key { name, kind: Kind::Flag(of), doc }
}

const fn hardware(
    name: &'static str,
    range: Range,
    of: fn(&mut Hardware) -> &mut f64,
    doc: &'static str,
) -> Key {
    Key { name, kind: Kind::Hardware { range, of }, doc }
}

/// Everything that can be set, those of the engine first.
static KEYS: [Key; 27] = [
    count("block_size", "tokens", (1, 4096), |c| &mut c.block_size, "tokens of a block"),
    count("num_gpu_blocks", "blocks", (1, MAX_BLOCKS), |c| &mut c.num_gpu_blocks, "the GPU pool; V1's holds one that is never given out"),
    count("num_cpu_blocks", "blocks", (0, MAX_BLOCKS), |c| &mut c.num_cpu_blocks, "the host pool, for swapping; 0 for none"),
    count("max_num_seqs", "requests", (1, MAX_SEQS), |c| &mut c.max_num_seqs, "most that run at once"),
    Key {
        name: "watermark",
        kind: Kind::Number { range: SHARE_OF_POOL, set: |c, share| c.watermark = Some(share) },
        doc: "what admission leaves free where no policy says otherwise",
    },
    count("max_num_batched_tokens", "tokens", (1, MAX_TOKENS), |c| &mut c.max_num_batched_tokens, "most that are computed in a step"),
    count("max_model_len", "tokens", (1, MAX_TOKENS), |c| &mut c.max_model_len, "longest sequence, prompt and answer together"),
    flag("enable_chunked_prefill", |c| &mut c.enable_chunked_prefill, "prompts are computed in chunks, beside decodes"),
    flag("async_scheduling", |c| &mut c.async_scheduling, "V1: a step is planned before the tokens of the one before are known"),
    flag("enable_prefix_caching", |c| &mut c.enable_prefix_caching, "V1: blocks are kept by content and taken again"),
    count(
        "long_prefill_token_threshold",
        "tokens",
        (0, MAX_TOKENS),
        |c| &mut c.long_prefill_token_threshold,
        "V1: longest prefill chunk of one request while others are there; 0 for no limit",
    ),
    flag("scheduler_reserve_full_isl", |c| &mut c.scheduler_reserve_full_isl, "V1: admission asks for the blocks of the whole prompt"),
    Key {
        name: "eviction",
        kind: Kind::Choice {
            names: &["lru", "radix"],
            expected: "lru or radix",
            set: |c, index| c.eviction = [Eviction::Lru, Eviction::Radix][index],
        },
        doc: "V1: which cached block goes first",
    },
    Key {
        name: "prefix_sharing",
        kind: Kind::Choice {
            names: &["tenant", "global"],
            expected: "tenant or global",
            set: |c, index| c.prefix_sharing = [Sharing::Tenant, Sharing::Global][index],
        },
        doc: "V1: among whom blocks of equal content are shared",
    },
    Key {
        name: "dead_ends",
        kind: Kind::Choice {
            names: &["safe", "faithful"],
            expected: "safe or faithful",
            set: |c, index| c.dead_ends = [DeadEnds::Safe, DeadEnds::Faithful][index],
        },
        doc: "where vLLM's V0 stalls, leaks or dies: repaired, or as vLLM does",
    },
    Key {
        name: "max_wait_s",
        kind: Kind::Seconds(|c| &mut c.max_wait),
        doc: "whoever waited longer is admitted first under every order, at least",
    },
    Key {
        name: "patience",
        kind: Kind::Number { range: PATIENCE, set: |c, factor| c.patience = factor },
        doc: "the same as a multiple of the longest wait that first come, first served would have given; 0 for max_wait_s alone",
    },
    hardware("peak_flops", FLOPS, |h| &mut h.peak_flops, "peak dense bf16 compute"),
    hardware("peak_bandwidth", BANDWIDTH, |h| &mut h.peak_bandwidth, "peak memory bandwidth"),
    hardware("memory_bytes", BYTES, |h| &mut h.memory_bytes, "memory"),
    hardware("pcie_bandwidth", BANDWIDTH, |h| &mut h.pcie_bandwidth, "host link, one way, as pinned copies reach it"),
    hardware("link_bandwidth", BANDWIDTH, |h| &mut h.link_bandwidth, "link between accelerators, as an all-reduce reaches it"),
    hardware("compute_efficiency", SHARE, |h| &mut h.compute_efficiency, "of peak_flops, reached by matrix products"),
    hardware("bandwidth_efficiency", SHARE, |h| &mut h.bandwidth_efficiency, "of peak_bandwidth, reached by weights and blocks"),
    hardware("step_overhead", SECONDS, |h| &mut h.step_overhead, "host time of a step"),
    hardware("sequence_overhead", SECONDS, |h| &mut h.sequence_overhead, "host time of a step for each sequence"),
    hardware("swap_overhead", SECONDS, |h| &mut h.swap_overhead, "time of a swap, whatever its size"),
];

/// Why an override was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// Not `key=value`.
    #[error("{0:?} is not KEY=VALUE")]
    Form(String),
    /// No such setting.
    #[error(
        "unknown setting {0:?}; known of the engine: {engine}; of the hardware: {hardware}{nearest}",
        engine = names(Key::is_of_the_engine), hardware = names(|key| !key.is_of_the_engine()), nearest = nearest(_0)
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
    pub(crate) fn value(key: &str, value: &str, expected: &'static str) -> SettingError {
        SettingError::Value { key: key.to_owned(), value: value.to_owned(), expected }
    }

    /// Whether the value of `key` is what is wrong.
    pub(crate) fn is_about(&self, key: &str) -> bool {
        matches!(self, SettingError::Value { key: wrong, .. } if wrong == key)
    }
}

fn names(is_meant: impl Fn(&Key) -> bool) -> String {
    KEYS.iter().filter(|key| is_meant(key)).map(|key| key.name).collect::<Vec<&str>>().join(", ")
}

/// The key that was meant, if one is near: up to three letters off, or with what was written in it.
fn nearest(wrong: &str) -> String {
    let near = KEYS.iter().map(|key| (distance(wrong, key.name), key.name)).min().filter(|(letters, _)| *letters <= 3);
    let near = near.map(|(_, name)| name).or_else(|| {
        let long = (wrong.len() >= 4).then_some(wrong)?;
        KEYS.iter().map(|key| key.name).find(|name| name.contains(long))
    });
    near.map_or_else(String::new, |name| format!("; was {name} meant?"))
}

/// Letters to put in, take out or replace (Levenshtein 1966).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (above, letter) in (1..).zip(a.bytes()) {
        let mut corner = std::mem::replace(&mut row[0], above);
        for (column, other) in (1..).zip(b.bytes()) {
            let replaced = corner + usize::from(letter != other);
            corner = row[column];
            row[column] = replaced.min(corner + 1).min(row[column - 1] + 1);
        }
    }
    row[b.len()]
}

impl Range {
    pub(crate) fn takes(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

impl Key {
    fn is_of_the_engine(&self) -> bool {
        !matches!(self.kind, Kind::Hardware { .. })
    }

    fn read(&'static self, text: &str) -> Result<Value, SettingError> {
        let number = |range: &Range| text.parse().ok().filter(|value| range.takes(*value)).map(Value::Number);
        let value = match &self.kind {
            Kind::Count { .. } | Kind::Seconds(_) => text.parse().ok().map(Value::Count),
            Kind::Flag(_) => text.parse().ok().map(Value::Flag),
            Kind::Number { range, .. } | Kind::Hardware { range, .. } => number(range),
            Kind::Choice { names, .. } => names.iter().position(|name| *name == text).map(Value::Choice),
        };
        value.ok_or_else(|| SettingError::value(self.name, text, self.kind.expected()))
    }
}

impl Kind {
    fn expected(&self) -> &'static str {
        match self {
            Kind::Count { .. } | Kind::Seconds(_) => "a whole number",
            Kind::Flag(_) => "true or false",
            Kind::Number { range, .. } | Kind::Hardware { range, .. } => range.expected,
            Kind::Choice { expected, .. } => expected,
        }
    }
}

/// Everything that can be set, a line each: its name, what its value is, what it means.
pub fn describe() -> String {
    let mut text = String::new();
    for (place, is_engine) in [("the engine, under vLLM's names", true), ("the hardware", false)] {
        let _ = writeln!(text, "Settings of {place}:");
        for key in KEYS.iter().filter(|key| key.is_of_the_engine() == is_engine) {
            let value = match &key.kind {
                Kind::Count { unit, range: (low, high), .. } => format!("{unit}, {low} to {high}"),
                Kind::Seconds(_) => "whole seconds".to_owned(),
                other => other.expected().to_owned(),
            };
            let _ = writeln!(text, "  {:<29} {value:<32} {}", key.name, key.doc);
        }
    }
    text
}

/// Whole numbers of the engine, with their ranges and where they stand.
pub(super) fn counts() -> impl Iterator<Item = (&'static str, (u64, u64), fn(&mut EngineConfig) -> &mut u32)> {
    KEYS.iter().filter_map(|key| match key.kind {
        Kind::Count { range, of, .. } => Some((key.name, range, of)),
        _ => None,
    })
}

/// Numbers of the hardware, with their ranges and where they stand.
pub(crate) fn of_hardware() -> impl Iterator<Item = (&'static str, Range, fn(&mut Hardware) -> &mut f64)> {
    KEYS.iter().filter_map(|key| match key.kind {
        Kind::Hardware { range, of } => Some((key.name, range, of)),
        _ => None,
    })
}

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Setting, SettingError> {
        let (name, value) = text.split_once('=').ok_or_else(|| SettingError::Form(text.to_owned()))?;
        let key = KEYS.iter().find(|key| key.name == name).ok_or_else(|| SettingError::Key(name.to_owned()))?;
        Ok(Setting { key, value: key.read(value)?, text: text.to_owned() })
    }
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
            (Kind::Count { of, .. }, Value::Count(number)) => *of(config) = number,
            (Kind::Seconds(of), Value::Count(seconds)) => *of(config) = Micros::from_millis(u64::from(seconds) * 1000),
            (Kind::Flag(of), Value::Flag(is_on)) => *of(config) = is_on,
            (Kind::Number { set, .. }, Value::Number(number)) => set(config, number),
            (Kind::Choice { set, .. }, Value::Choice(index)) => set(config, index),
            // Of the hardware.
            _ => {}
        }
    }

    /// Sets it, if it is of the hardware; whether it is.
    pub(crate) fn apply_to_hardware(&self, hardware: &mut Hardware) -> bool {
        let (Kind::Hardware { of, .. }, Value::Number(number)) = (&self.key.kind, self.value) else { return false };
        *of(hardware) = number;
        true
    }
}

impl EngineConfig {
    /// These settings with `overrides`, later ones winning. Settings of the hardware are passed over.
    ///
    /// What an override makes impossible and no override names is adapted as vLLM does at start-up: the longest sequence
    /// to the pool, and without chunked prefill the token budget to the longest sequence.
    ///
    /// # Errors
    /// Settings that do not work together.
    pub fn with(mut self, overrides: &[Setting]) -> Result<EngineConfig, SettingError> {
        overrides.iter().for_each(|setting| setting.apply(&mut self));
        let named = |key: &str| overrides.iter().any(|setting| setting.key() == key);
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
    use super::*;
    use crate::cost::Deployment;
    use crate::sched::EngineKind;

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
        assert!(error(&["watermark=1.1"]).ends_with("expected a share of the pool from 0 to 1"));
        for choice in ["eviction=mru", "prefix_sharing=", "dead_ends=deadly", "async_scheduling=yes"] {
            assert!(error(&[choice]).contains(": expected "), "{choice}");
        }
        assert!(error(&["num_gpu_blocks=10", "max_model_len=1000"]).contains("more than the pool holds"));
    }

    #[test]
    fn what_was_meant_is_guessed() {
        for (wrong, meant) in [("max_num_seq", "max_num_seqs"), ("gpu_blocks", "num_gpu_blocks"), ("wtermark", "watermark")] {
            let error = format!("{wrong}=1").parse::<Setting>().unwrap_err().to_string();
            assert!(error.ends_with(&format!("; was {meant} meant?")), "{error}");
        }
        assert!(!"zzz=1".parse::<Setting>().unwrap_err().to_string().contains("meant"));
        assert_eq!((distance("kitten", "sitting"), distance("", "abc")), (3, 3));
    }

    #[test]
    fn every_key_is_described_read_and_written_back() {
        let described = describe();
        for key in &KEYS {
            assert!(described.contains(&format!("  {} ", key.name)), "{}", key.name);
            let value = match &key.kind {
                Kind::Count { range: (low, _), .. } => low.to_string(),
                Kind::Seconds(_) => "60".to_owned(),
                Kind::Flag(_) => "false".to_owned(),
                Kind::Number { range, .. } | Kind::Hardware { range, .. } => range.high.to_string(),
                Kind::Choice { names, .. } => names[0].to_owned(),
            };
            let text = format!("{}={value}", key.name);
            let setting: Setting = serde_json::from_value(text.clone().into()).unwrap();
            assert_eq!((serde_json::to_value(&setting).unwrap(), setting.key()), (text.into(), key.name));
        }
    }

    #[test]
    fn every_choice_sets_what_it_names() {
        let engine = |setting: &str| EngineConfig::default().with(&[setting.parse().unwrap()]).unwrap();
        assert_eq!((engine("eviction=lru").eviction, engine("eviction=radix").eviction), (Eviction::Lru, Eviction::Radix));
        let sharing = ["tenant", "global"].map(|name| engine(&format!("prefix_sharing={name}")).prefix_sharing);
        assert_eq!(sharing, [Sharing::Tenant, Sharing::Global]);
        let dead_ends = ["safe", "faithful"].map(|name| engine(&format!("dead_ends={name}")).dead_ends);
        assert_eq!(dead_ends, [DeadEnds::Safe, DeadEnds::Faithful]);
        assert_eq!(engine("max_wait_s=7").max_wait, Micros::from_millis(7000));
    }
}
