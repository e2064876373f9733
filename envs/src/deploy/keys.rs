//! Everything that can be set by `--set`: one table that says of each key what it is called, what its value is, within which
//! range, and what it means. Values are read, checked, set, listed and described by it.

use std::borrow::Cow;
use std::fmt::Write;

use super::{DeadEnds, Deployment, EngineConfig, Hardware, Precision, SettingError};
use crate::evict::Eviction;
use crate::kv::Sharing;
use crate::tier::{HostCache, HostCacheScope};
use crate::time::Micros;

/// Where a whole number of the engine stands, and a number of the hardware.
type CountOf = fn(&mut EngineConfig) -> &mut u32;
type NumberOf = fn(&mut Hardware) -> &mut f64;

/// Something that can be set.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: KeyKind,
    /// What it is, in a few words.
    pub(super) doc: &'static str,
}

/// What its value is, and where it goes.
pub(super) enum KeyKind {
    /// A whole number of the engine, whose range is checked with everything else: what is impossible depends on what adapts.
    Count { unit: &'static str, range: (u64, u64), of: CountOf },
    /// Whole seconds of the engine.
    Seconds(fn(&mut EngineConfig) -> &mut Micros),
    /// A switch of the engine.
    Flag(fn(&mut EngineConfig) -> &mut bool),
    /// A number of the engine.
    Number { range: Range, set: fn(&mut EngineConfig, f64) },
    /// One of several ways of the engine, by its place among them.
    Choice { names: &'static [&'static str], set: fn(&mut EngineConfig, usize) },
    /// A number of the hardware.
    Hardware { range: Range, of: NumberOf },
    /// A number of how the model is deployed.
    Deployed { range: Range, set: fn(&mut Deployment, f64) },
    /// One of several ways to deploy the model, by its place among them.
    DeployedChoice { names: &'static [&'static str], set: fn(&mut Deployment, usize) },
}

/// What a key belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Engine,
    Hardware,
    Deployment,
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
pub(super) enum ParsedValue {
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
const FP8_FLOPS: Range = range(0.0, 1e19, "FLOP/s, from 0 to 1e19");
const SHARE_OF_MEMORY: Range = range(0.05, 1.0, "a share of the memory from 0.05 to 1");
const DEVICES: Range = range(1.0, MAX_DEVICES as f64, "a number of accelerators from 1 to 64");
const SHARE: Range = range(0.01, 1.5, "a share from 0.01 to 1.5");
const SECONDS: Range = range(0.0, 10.0, "seconds, from 0 to 10");

/// Most accelerators of one deployment.
pub(super) const MAX_DEVICES: u32 = 64;
/// Largest pool, in blocks: 2^26 blocks of 16 tokens are a billion tokens.
const MAX_BLOCKS: u64 = 1 << 26;
/// Largest batch.
const MAX_SEQS: u64 = 1 << 16;
/// Longest sequence and largest step, in tokens.
const MAX_TOKENS: u64 = 1 << 26;

const fn count(name: &'static str, unit: &'static str, range: (u64, u64), of: CountOf, doc: &'static str) -> Key {
    Key { name, kind: KeyKind::Count { unit, range, of }, doc }
}

const fn flag(name: &'static str, of: fn(&mut EngineConfig) -> &mut bool, doc: &'static str) -> Key {
    Key { name, kind: KeyKind::Flag(of), doc }
}

const fn hardware(name: &'static str, range: Range, of: NumberOf, doc: &'static str) -> Key {
    Key { name, kind: KeyKind::Hardware { range, of }, doc }
}

/// Everything that can be set, those of the engine first.
pub(super) static KEYS: [Key; 37] = [
    count("block_size", "tokens", (1, 4096), |c| &mut c.block_size, "tokens of a block"),
    count(
        "num_gpu_blocks",
        "blocks",
        (1, MAX_BLOCKS),
        |c| &mut c.num_gpu_blocks,
        "the GPU pool; V1's holds one that is never given out",
    ),
    count(
        "num_cpu_blocks",
        "blocks",
        (0, MAX_BLOCKS),
        |c| &mut c.num_cpu_blocks,
        "the host pool, for swapping and host_cache; 0 for none",
    ),
    count("max_num_seqs", "requests", (1, MAX_SEQS), |c| &mut c.max_num_seqs, "most that run at once"),
    Key {
        name: "watermark",
        kind: KeyKind::Number { range: SHARE_OF_POOL, set: |c, share| c.watermark = Some(share) },
        doc: "what admission leaves free where no policy says otherwise",
    },
    count(
        "max_num_batched_tokens",
        "tokens",
        (1, MAX_TOKENS),
        |c| &mut c.max_num_batched_tokens,
        "most that are computed in a step",
    ),
    count(
        "max_model_len",
        "tokens",
        (1, MAX_TOKENS),
        |c| &mut c.max_model_len,
        "longest sequence, prompt and answer together",
    ),
    flag("enable_chunked_prefill", |c| &mut c.enable_chunked_prefill, "prompts are computed in chunks, beside decodes"),
    flag(
        "async_scheduling",
        |c| &mut c.async_scheduling,
        "V1: a step is planned before the tokens of the one before are known",
    ),
    flag("enable_prefix_caching", |c| &mut c.enable_prefix_caching, "V1: blocks are kept by content and taken again"),
    count(
        "long_prefill_token_threshold",
        "tokens",
        (0, MAX_TOKENS),
        |c| &mut c.long_prefill_token_threshold,
        "V1: longest prefill chunk of one request while others are there; 0 for no limit",
    ),
    flag(
        "scheduler_reserve_full_isl",
        |c| &mut c.scheduler_reserve_full_isl,
        "V1: admission asks for the blocks of the whole prompt",
    ),
    Key {
        name: "eviction",
        kind: KeyKind::Choice { names: Eviction::NAMES, set: |c, index| c.eviction = Eviction::ALL[index] },
        doc: "V1: which cached block goes first",
    },
    Key {
        name: "host_cache",
        kind: KeyKind::Choice { names: HostCache::NAMES, set: |c, index| c.host_cache = HostCache::ALL[index] },
        doc: "V1: blocks of finished requests live on in the host pool, copied there as they fill or when the GPU evicts them",
    },
    Key {
        name: "host_cache_order",
        kind: KeyKind::Choice { names: Eviction::NAMES, set: |c, index| c.host_cache_order = Eviction::ALL[index] },
        doc: "which block of the host cache goes first",
    },
    Key {
        name: "host_cache_scope",
        kind: KeyKind::Choice {
            names: HostCacheScope::NAMES,
            set: |c, index| c.host_cache_scope = HostCacheScope::ALL[index],
        },
        doc: "which blocks it keeps: those full of prompt tokens, or generated ones too",
    },
    Key {
        name: "prefix_sharing",
        kind: KeyKind::Choice {
            names: &["tenant", "global"],
            set: |c, index| c.prefix_sharing = [Sharing::Tenant, Sharing::Global][index],
        },
        doc: "V1: among whom blocks of equal content are shared",
    },
    Key {
        name: "dead_ends",
        kind: KeyKind::Choice {
            names: &["safe", "faithful"],
            set: |c, index| c.dead_ends = [DeadEnds::Safe, DeadEnds::Faithful][index],
        },
        doc: "where vLLM's V0 stalls, leaks or dies: repaired, or as vLLM does",
    },
    Key {
        name: "max_wait_s",
        kind: KeyKind::Seconds(|c| &mut c.max_wait),
        doc: "whoever waited longer is admitted first under every order, at least",
    },
    Key {
        name: "patience",
        kind: KeyKind::Number { range: PATIENCE, set: |c, factor| c.patience = factor },
        doc: "the same as a multiple of the longest wait that first come, first served would have given; 0 for max_wait_s alone",
    },
    hardware("peak_flops", FLOPS, |h| &mut h.peak_flops, "peak dense bf16 compute"),
    hardware("peak_fp8_flops", FP8_FLOPS, |h| &mut h.peak_fp8_flops, "the same in fp8; 0 where it multiplies none"),
    hardware("peak_bandwidth", BANDWIDTH, |h| &mut h.peak_bandwidth, "peak memory bandwidth"),
    hardware("memory_bytes", BYTES, |h| &mut h.memory_bytes, "memory"),
    hardware("pcie_bandwidth", BANDWIDTH, |h| &mut h.pcie_bandwidth, "host link, one way, as pinned copies reach it"),
    hardware(
        "link_bandwidth",
        BANDWIDTH,
        |h| &mut h.link_bandwidth,
        "link between accelerators, as an all-reduce reaches it",
    ),
    hardware("compute_efficiency", SHARE, |h| &mut h.compute_efficiency, "of peak_flops, reached by matrix products"),
    hardware(
        "bandwidth_efficiency",
        SHARE,
        |h| &mut h.bandwidth_efficiency,
        "of peak_bandwidth, reached by weights and blocks",
    ),
    hardware("step_overhead", SECONDS, |h| &mut h.step_overhead, "host time of a step"),
    hardware("sequence_overhead", SECONDS, |h| &mut h.sequence_overhead, "host time of a step for each sequence"),
    hardware("swap_overhead", SECONDS, |h| &mut h.swap_overhead, "time of a swap, whatever its size"),
    Key {
        name: "gpu_memory_utilization",
        kind: KeyKind::Deployed { range: SHARE_OF_MEMORY, set: |d, share| d.memory_utilization = share },
        doc: "of each accelerator's memory, for weights, activations and blocks",
    },
    Key {
        name: "tensor_parallel_size",
        kind: KeyKind::Deployed { range: DEVICES, set: |d, count| d.devices = count as u32 },
        doc: "accelerators that share the model, where --env does not say it",
    },
    Key {
        name: "weight_dtype",
        kind: KeyKind::DeployedChoice {
            names: &Precision::NAMES,
            set: |d, index| d.model.set_precision(Precision::ALL[index]),
        },
        doc: "what weights are kept in; mxfp4 and experts_int4: those of routed experts",
    },
    Key {
        name: "quantization",
        kind: KeyKind::DeployedChoice {
            names: &QUANTIZATIONS.names,
            set: |d, index| {
                d.model.set_precision(QUANTIZATIONS.precisions[index]);
            },
        },
        doc: "the same under vLLM's names",
    },
    Key {
        name: "dtype",
        kind: KeyKind::DeployedChoice { names: &["auto", "bfloat16", "half", "float16"], set: |_, _| {} },
        doc: "what is not quantised is of two bytes under each of them",
    },
    Key {
        name: "kv_cache_dtype",
        kind: KeyKind::DeployedChoice {
            names: &KV_DTYPES,
            set: |d, index| d.model.kv_bytes = if index < 3 { 2.0 } else { 1.0 },
        },
        doc: "what keys and values are kept in: two bytes, or one",
    },
];

/// Names of vLLM's `--kv-cache-dtype`: the first three are of two bytes.
const KV_DTYPES: [&str; 6] = ["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"];

struct Quantizations {
    names: [&'static str; 8],
    precisions: [Precision; 8],
}

/// Names of vLLM's `--quantization` that say by themselves what weights are kept in.
const QUANTIZATIONS: Quantizations = Quantizations {
    names: ["none", "fp8", "awq", "awq_marlin", "gptq", "gptq_marlin", "bitsandbytes", "mxfp4"],
    precisions: [
        Precision::Bf16,
        Precision::Fp8,
        Precision::Int4,
        Precision::Int4,
        Precision::Int4,
        Precision::Int4,
        Precision::Int4,
        Precision::ExpertsMxfp4,
    ],
};

/// What vLLM calls otherwise.
const ALIASES: [(&str, &str); 2] = [("num_gpu_blocks_override", "num_gpu_blocks"), ("kv_dtype", "kv_cache_dtype")];

/// The key that is called `name` in any spelling: `max_num_seqs`, `max-num-seqs`, `--max-num-seqs`.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    let plain = name.strip_prefix("--").unwrap_or(name).replace('-', "_");
    let plain = ALIASES.iter().find(|(alias, _)| *alias == plain).map_or(plain.as_str(), |(_, name)| name);
    KEYS.iter().find(|key| key.name == plain)
}

impl Range {
    pub(crate) fn takes(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

impl Key {
    pub(super) fn place(&self) -> Place {
        match self.kind {
            KeyKind::Hardware { .. } => Place::Hardware,
            KeyKind::Deployed { .. } | KeyKind::DeployedChoice { .. } => Place::Deployment,
            _ => Place::Engine,
        }
    }

    pub(super) fn read(&'static self, text: &str) -> Result<ParsedValue, SettingError> {
        let number = |range: &Range| text.parse().ok().filter(|value| range.takes(*value)).map(ParsedValue::Number);
        let value = match &self.kind {
            KeyKind::Count { .. } | KeyKind::Seconds(_) => text.parse().ok().map(ParsedValue::Count),
            KeyKind::Flag(_) => text.parse().ok().map(ParsedValue::Flag),
            KeyKind::Number { range, .. } | KeyKind::Hardware { range, .. } => number(range),
            KeyKind::Deployed { range, .. } => {
                let is_count = range.high > 1.0;
                number(range)
                    .filter(|value| !is_count || matches!(value, ParsedValue::Number(count) if count.fract() == 0.0))
            }
            KeyKind::Choice { names, .. } | KeyKind::DeployedChoice { names, .. } => {
                names.iter().position(|name| *name == text).map(ParsedValue::Choice)
            }
        };
        value.ok_or_else(|| SettingError::value(self.name, text, self.kind.expected()))
    }
}

impl KeyKind {
    pub(super) fn expected(&self) -> Cow<'static, str> {
        match self {
            KeyKind::Count { .. } | KeyKind::Seconds(_) => "a whole number".into(),
            KeyKind::Flag(_) => "true or false".into(),
            KeyKind::Number { range, .. } | KeyKind::Hardware { range, .. } | KeyKind::Deployed { range, .. } => {
                range.expected.into()
            }
            KeyKind::Choice { names, .. } | KeyKind::DeployedChoice { names, .. } => match names {
                [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")).into(),
                names => names.concat().into(),
            },
        }
    }
}

/// Everything that can be set, a line each: its name, what its value is, what it means.
pub fn describe() -> String {
    let mut text = String::new();
    let places = [
        (Place::Engine, "the engine, under vLLM's names in either spelling"),
        (Place::Hardware, "the hardware"),
        (Place::Deployment, "the model on it, under vLLM's names but for weight_dtype"),
    ];
    for (place, name) in places {
        let _ = writeln!(text, "Settings of {name}:");
        for key in KEYS.iter().filter(|key| key.place() == place) {
            let value = match &key.kind {
                KeyKind::Count { unit, range: (low, high), .. } => format!("{unit}, {low} to {high}"),
                KeyKind::Seconds(_) => "whole seconds".to_owned(),
                other => other.expected().into_owned(),
            };
            let _ = writeln!(text, "  {:<29} {value:<32} {}", key.name, key.doc);
        }
    }
    text
}

/// Whole numbers of the engine, with their ranges and where they stand.
pub(super) fn counts() -> impl Iterator<Item = (&'static str, (u64, u64), CountOf)> {
    KEYS.iter().filter_map(|key| match key.kind {
        KeyKind::Count { range, of, .. } => Some((key.name, range, of)),
        _ => None,
    })
}

/// Numbers of the hardware, with their ranges and where they stand.
pub(crate) fn of_hardware() -> impl Iterator<Item = (&'static str, Range, NumberOf)> {
    KEYS.iter().filter_map(|key| match key.kind {
        KeyKind::Hardware { range, of } => Some((key.name, range, of)),
        _ => None,
    })
}

pub(super) fn names(place: Place) -> String {
    KEYS.iter().filter(|key| key.place() == place).map(|key| key.name).collect::<Vec<&str>>().join(", ")
}

/// The key that was meant, if one is near: up to three letters off, or with what was written in it.
pub(super) fn nearest(wrong: &str) -> String {
    let plain = wrong.trim_start_matches('-').replace('-', "_");
    let near = nearest_of(&plain, KEYS.iter().map(|key| key.name));
    near.map_or_else(String::new, |name| format!("; was {name} meant?"))
}

/// The name that was meant, if one is near: up to three letters off, or with what was written in it.
pub(super) fn nearest_of<'a>(wrong: &str, mut names: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    // Words of any length are compared with none: a name has few letters.
    let wrong = if wrong.len() <= MAX_NAME { wrong } else { return None };
    let near = names.clone().map(|name| (distance(wrong, name), name)).min().filter(|(letters, _)| *letters <= 3);
    near.map(|(_, name)| name).or_else(|| {
        let long = (wrong.len() >= 4).then_some(wrong)?;
        names.find(|name| name.contains(long))
    })
}

/// Longest word that is taken for a name with letters wrong.
const MAX_NAME: usize = 64;

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

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn letters_between_words() {
        assert_eq!((distance("kitten", "sitting"), distance("", "abc"), distance("abc", "abc")), (3, 3, 0));
    }
}
