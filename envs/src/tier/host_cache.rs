//! Whether the host tier is a cache, and of what.

use serde::{Deserialize, Serialize};

/// When blocks are copied to the host to stay there, so that requests which come later find them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostCache {
    /// Never: the host holds swapped requests and nothing else.
    #[default]
    Off,
    /// In the step after the one that filled them, as vLLM's `OffloadingConnector` does: the host holds a copy of what the
    /// GPU holds, and the order of its evictions is its own.
    WriteThrough,
    /// When the GPU evicts them, so that the two hold different blocks.
    WriteBack,
}

/// Which blocks are kept on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostCacheScope {
    /// Those full of prompt tokens, vLLM's default (`offload_prompt_only`).
    #[default]
    Prompt,
    /// Those with generated tokens too.
    All,
}

impl HostCache {
    /// Every way, in the order of its [`NAMES`](Self::NAMES).
    pub(crate) const ALL: [HostCache; 3] = [HostCache::Off, HostCache::WriteThrough, HostCache::WriteBack];

    /// The names of a setting.
    pub(crate) const NAMES: &[&str] = &["off", "write-through", "write-back"];

    /// Whether the host tier is no cache.
    pub fn is_off(&self) -> bool {
        *self == HostCache::Off
    }
}

impl HostCacheScope {
    /// Every scope, in the order of its [`NAMES`](Self::NAMES).
    pub(crate) const ALL: [HostCacheScope; 2] = [HostCacheScope::Prompt, HostCacheScope::All];

    /// The names of a setting.
    pub(crate) const NAMES: &[&str] = &["prompt", "all"];
}
