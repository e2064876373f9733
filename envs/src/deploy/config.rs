//! Settings of a scheduler, under vLLM's names.

use std::str::FromStr;

use kvtide_rules::{Patience, Pricing};
use kvtide_runtime::{Action, Controls};
use serde::{Deserialize, Serialize};

use super::SettingError;
use super::keys::counts;
use crate::evict::Eviction;
use crate::kv::Sharing;
use crate::tier::{HostCache, HostCacheScope, Tier};
use crate::time::Micros;

/// What the scheduler does where vLLM's V0 stalls for ever, leaks host blocks or dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadEnds {
    /// As vLLM does, decision for decision.
    Faithful,
    /// Repaired so that every accepted request finishes:
    /// the watermark is 0 while nothing runs and never makes a request impossible; a victim the host pool cannot hold
    /// is recomputed; a prefill swapped in is chunked; a lone request is asked for the blocks it needs, not the blocks
    /// it touches; a dropped request gives back its host blocks; and a prompt that can never fit is refused on arrival.
    #[default]
    Safe,
}

/// Which engine's rules a scheduler follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// vLLM 0.6: three queues, whole prompts first, swap or recompute.
    #[default]
    V0,
    /// vLLM today (0.33): one token budget, chunked prefill, prefix cache.
    V1,
}

impl EngineKind {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::V0 => "v0",
            EngineKind::V1 => "v1",
        }
    }

    /// What the engine does when nobody tells it otherwise.
    pub fn default_action(self) -> Action {
        match self {
            EngineKind::V0 => Action::ENGINE_DEFAULT,
            EngineKind::V1 => Action::V1_DEFAULT,
        }
    }
}

impl FromStr for EngineKind {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<EngineKind, SettingError> {
        match text {
            "v0" => Ok(EngineKind::V0),
            "v1" => Ok(EngineKind::V1),
            _ => Err(SettingError::value("engine", text, "v0 or v1")),
        }
    }
}

/// Settings of a scheduler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// Whose rules.
    pub engine: EngineKind,
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks on the GPU. V1's pool includes the null block, which is never given out, as vLLM's does.
    pub num_gpu_blocks: u32,
    /// Blocks on the host, for swapping and for what is cached there; 0 for none.
    pub num_cpu_blocks: u32,
    /// Most requests running at once.
    pub max_num_seqs: u32,
    /// Share of the pool that admission leaves free where no policy says otherwise, from 0 to 1; `None` for the engine's
    /// own default (0.01 under V0, 0 under V1).
    pub watermark: Option<f64>,
    /// Most tokens computed in a step.
    pub max_num_batched_tokens: u32,
    /// Longest sequence, prompt and answer together.
    pub max_model_len: u32,
    /// Whether prompts are computed in chunks beside decodes.
    pub enable_chunked_prefill: bool,
    /// V1: whether step `s` is planned before the tokens of step `s - 1` are known.
    pub async_scheduling: bool,
    /// V1: whether full blocks are kept under their content's key and taken again.
    pub enable_prefix_caching: bool,
    /// V1: longest prefill chunk of one request while others are there; 0 for no limit.
    pub long_prefill_token_threshold: u32,
    /// V1: whether admission asks for the blocks of the whole prompt, though only a chunk's are taken.
    pub scheduler_reserve_full_isl: bool,
    /// V1: which cached block goes first.
    pub eviction: Eviction,
    /// V1: whether blocks of finished requests live on in the host pool, and how they get there.
    #[serde(default, skip_serializing_if = "HostCache::is_off")]
    pub host_cache: HostCache,
    /// Which block cached on the host goes first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub host_cache_order: Eviction,
    /// Which blocks are cached on the host.
    #[serde(default, skip_serializing_if = "is_default")]
    pub host_cache_scope: HostCacheScope,
    /// V1: whether tenants may share blocks of equal content.
    pub prefix_sharing: Sharing,
    /// Behaviour at vLLM's dead ends.
    pub dead_ends: DeadEnds,
    /// Least ageing bound: whoever waited longer than the bound is admitted first under every admission order.
    pub max_wait: Micros,
    /// The ageing bound as a multiple of the longest wait that first come, first served would have given anybody in the
    /// last ten minutes, where that is above `max_wait`; 0 for `max_wait` alone.
    pub patience: f64,
    /// Price list of preemptions.
    pub pricing: Pricing,
}

/// Whether a setting has its default value, which is not written: settings from before it was one are read the same.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A small V0 engine, for tests and as the rest of a literal. What a deployment starts with is
/// [`Deployment::engine`](super::Deployment::engine).
impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            engine: EngineKind::V0,
            block_size: 16,
            num_gpu_blocks: 1024,
            num_cpu_blocks: 0,
            max_num_seqs: 256,
            watermark: None,
            max_num_batched_tokens: 2048,
            max_model_len: 2048,
            enable_chunked_prefill: false,
            async_scheduling: false,
            enable_prefix_caching: false,
            long_prefill_token_threshold: 0,
            scheduler_reserve_full_isl: true,
            eviction: Eviction::Lru,
            host_cache: HostCache::Off,
            host_cache_order: Eviction::Lru,
            host_cache_scope: HostCacheScope::Prompt,
            prefix_sharing: Sharing::Tenant,
            dead_ends: DeadEnds::Safe,
            max_wait: Micros::from_millis(60_000),
            patience: 0.0,
            pricing: Pricing::default(),
        }
    }
}

/// A setting the scheduler cannot work with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Out of its range.
    #[error("{name} is {value}; it must be from {min} to {max}")]
    Range {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// Smallest that works.
        min: u64,
        /// Largest that works.
        max: u64,
    },
    /// Without chunked prefill a prompt must fit into one step.
    #[error(
        "max_num_batched_tokens ({budget}) is smaller than max_model_len ({max_model_len}); without chunked prefill a \
         prompt must fit into one step"
    )]
    Budget {
        /// `max_num_batched_tokens`.
        budget: u32,
        /// `max_model_len`.
        max_model_len: u32,
    },
    /// The host tier can be a cache only where there is something to cache and room for it.
    #[error("host_cache needs {0}")]
    HostCache(&'static str),
    /// A sequence of the greatest length must fit into the pool.
    #[error(
        "max_model_len ({max_model_len}) is more than the pool holds: {usable_blocks} usable blocks of {block_size} tokens"
    )]
    Pool {
        /// `max_model_len`.
        max_model_len: u32,
        /// `num_gpu_blocks`, without V1's null block.
        usable_blocks: u32,
        /// `block_size`.
        block_size: u32,
    },
}

impl EngineConfig {
    /// Multiplies the GPU pool by `factor`, to whole blocks; the longest sequence is cut to what then fits. 1 changes nothing.
    pub fn resize_pool(&mut self, factor: f64) {
        if factor != 1.0 {
            self.num_gpu_blocks = (f64::from(self.num_gpu_blocks) * factor).round() as u32;
            self.max_model_len = self.max_model_len.min(self.num_usable_blocks().saturating_mul(self.block_size));
        }
    }

    /// Checks every range, and under [`DeadEnds::Safe`] what guarantees that every accepted request finishes.
    pub fn validate(&self) -> Result<(), ConfigError> {
        // A pool of nothing but V1's null block holds nothing; a faithful engine may try.
        let least_blocks = if self.dead_ends == DeadEnds::Faithful || self.engine == EngineKind::V0 { 1 } else { 2 };
        let mut config = self.clone();
        for (name, (min, max), of) in counts() {
            let min = if name == "num_gpu_blocks" { least_blocks } else { min };
            let value = u64::from(*of(&mut config));
            if !(min..=max).contains(&value) {
                return Err(ConfigError::Range { name, value, min, max });
            }
        }
        if !self.host_cache.is_off() {
            let needs = [
                (self.engine == EngineKind::V1, "engine v1"),
                (self.enable_prefix_caching, "enable_prefix_caching=true"),
                (self.num_cpu_blocks > 0, "a host pool: num_cpu_blocks above 0"),
            ];
            if let Some((_, missing)) = needs.into_iter().find(|(is_met, _)| !is_met) {
                return Err(ConfigError::HostCache(missing));
            }
        }
        if self.dead_ends == DeadEnds::Faithful {
            return Ok(());
        }
        if !self.enable_chunked_prefill && self.max_num_batched_tokens < self.max_model_len {
            return Err(ConfigError::Budget { budget: self.max_num_batched_tokens, max_model_len: self.max_model_len });
        }
        if u64::from(self.max_model_len) > u64::from(self.num_usable_blocks()) * u64::from(self.block_size) {
            return Err(ConfigError::Pool {
                max_model_len: self.max_model_len,
                usable_blocks: self.num_usable_blocks(),
                block_size: self.block_size,
            });
        }
        Ok(())
    }

    /// What the engine does when nobody tells it otherwise.
    pub fn default_controls(&self) -> Controls {
        let default = self.engine.default_action().controls();
        Controls { watermark: self.watermark.unwrap_or(default.watermark), ..default }
    }

    /// Whether its steps may have fewer tokens than `max_num_batched_tokens`, as a policy says: V1's, which cut prompts into
    /// chunks. V0 computes a prompt whole or refuses it, and mixes the two where it does not; there the budget stays its own.
    pub fn obeys_budget(&self) -> bool {
        self.engine == EngineKind::V1 && self.enable_chunked_prefill
    }

    /// Whether its pool keeps cached blocks by class, in each of which a policy sets the order.
    pub fn has_eviction_classes(&self) -> bool {
        self.engine == EngineKind::V1 && self.enable_prefix_caching && self.eviction == Eviction::Classes
    }

    /// Gives its pool classes where they change nothing as long as nobody chooses them: in place of LRU, whose order they keep.
    pub fn class_lru(&mut self) {
        if self.engine == EngineKind::V1 && self.enable_prefix_caching && self.eviction == Eviction::Lru {
            self.eviction = Eviction::Classes;
        }
    }

    /// How long admission may let somebody be overtaken.
    pub(crate) fn patience(&self) -> Patience {
        Patience { max_wait: self.max_wait, factor: self.patience }
    }

    /// Blocks of a tier, V1's null block included, and that of a host tier which is a cache.
    pub fn num_blocks(&self, tier: Tier) -> u32 {
        match tier {
            Tier::Gpu => self.num_gpu_blocks,
            Tier::Host => self.num_cpu_blocks.saturating_add(u32::from(!self.host_cache.is_off())),
        }
    }

    /// GPU blocks that can hold tokens: all but V1's null block.
    pub fn num_usable_blocks(&self) -> u32 {
        match self.engine {
            EngineKind::V0 => self.num_gpu_blocks,
            EngineKind::V1 => self.num_gpu_blocks.saturating_sub(1),
        }
    }
}
