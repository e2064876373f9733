//! What of a workload is asked for again, and how much of it a cache finds: references replayed under a policy of eviction,
//! without an engine around it.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`CachePolicy`], [`Replayed`]: one policy at one capacity, replayed |
//! | `references.rs` | [`References`]: the blocks that each request asks for, in order, and when each is asked for again |
//! | `cache.rs` | the cache: keys, the slots they are in, and a policy of [`evict`](crate::evict) over the slots |
//! | `zipf.rs` | [`zipf`]: references by Zipf's law, which cache simulators are compared on |
//!
//! The policies are those that a prefix pool runs, and no line of them is written a second time here.

mod cache;
mod references;
mod zipf;

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::evict::{Belady, Evict, Eviction, EvictionPolicy, PerfectLfu, PerfectSlru, policy};
use cache::SlotCache;

pub use references::{Asked, References, TooManyReferences};
pub use zipf::zipf;

/// What decides which block a replayed cache evicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePolicy {
    /// A policy that a pool can run.
    Pool(Eviction),
    /// All of the past; see [`PerfectLfu`].
    PerfectLfu,
    /// The same of [`PerfectSlru`].
    PerfectSlru,
    /// The oracle; see [`Belady`].
    Belady,
}

impl CachePolicy {
    /// Every policy, the oracle last. Those by what requests declare are left out: nobody declares anything here.
    pub fn all() -> impl Iterator<Item = CachePolicy> {
        let told = Eviction::ALL.iter().copied().filter(|eviction| eviction.scoring().is_none());
        told.map(CachePolicy::Pool).chain([CachePolicy::PerfectLfu, CachePolicy::PerfectSlru, CachePolicy::Belady])
    }

    /// Its name, as in `--set eviction=`, or `belady`.
    pub fn name(self) -> &'static str {
        match self {
            CachePolicy::Pool(eviction) => eviction.name(),
            CachePolicy::PerfectLfu => "perfect-lfu",
            CachePolicy::PerfectSlru => "perfect-slru",
            CachePolicy::Belady => "belady",
        }
    }
}

impl fmt::Display for CachePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no policy of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {0:?}: expected {names}", names = CachePolicy::all().map(CachePolicy::name).collect::<Vec<_>>().join(", "))]
pub struct UnknownPolicy(String);

impl FromStr for CachePolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<CachePolicy, UnknownPolicy> {
        CachePolicy::all().find(|policy| policy.name() == text).ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

/// What counts as a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HitRule {
    /// A request's blocks are a path: those before the first that is not cached hit. Then all of them are cached, held together
    /// while the request is served, and given back from the last to the first.
    Prefixes,
    /// Each reference is one of its own, in order, and hits if its block is cached.
    Objects,
}

/// What a cache of some capacity found of some references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// References that hit.
    pub hits: u64,
    /// Prompt tokens that were not in blocks that hit.
    pub uncached_tokens: u64,
    /// Requests with more uncached tokens than were allowed.
    pub late_requests: u64,
}

/// How many requests are served between two looks at whether to stop.
const REQUESTS_BETWEEN_LOOKS: usize = 1024;

/// Replays `references` under a policy and a rule in a cache of `capacity` blocks, and counts the requests with more than
/// `uncached` tokens to compute. `None` if it was stopped.
pub fn replay(
    references: &References,
    policy: CachePolicy,
    capacity: u32,
    rule: HitRule,
    uncached: u32,
    stop: &AtomicBool,
) -> Option<Replayed> {
    fn run<E: Evict>(
        policy: E,
        references: &References,
        capacity: u32,
        rule: HitRule,
        uncached: u32,
        stop: &AtomicBool,
    ) -> Option<Replayed> {
        let mut cache = SlotCache::new(policy, capacity);
        let mut replayed = Replayed { hits: 0, uncached_tokens: 0, late_requests: 0 };
        for (index, request) in references.requests().enumerate() {
            if index % REQUESTS_BETWEEN_LOOKS == 0 && stop.load(Ordering::Relaxed) {
                return None;
            }
            let hits = match rule {
                HitRule::Prefixes => cache.serve(&request),
                HitRule::Objects => cache.refer_all(&request),
            };
            let tokens = request.prompt_tokens.saturating_sub(hits.saturating_mul(references.block_tokens()));
            replayed.hits += u64::from(hits);
            replayed.uncached_tokens += u64::from(tokens);
            replayed.late_requests += u64::from(tokens > uncached);
        }
        Some(replayed)
    }
    let (slots, tokens) = (cache::num_slots(capacity), references.block_tokens());
    match policy {
        CachePolicy::Pool(eviction) => {
            policy!(EvictionPolicy::new(eviction, slots, tokens), policy =>
                run(policy, references, capacity, rule, uncached, stop))
        }
        CachePolicy::PerfectLfu => run(PerfectLfu::new(slots, tokens), references, capacity, rule, uncached, stop),
        CachePolicy::PerfectSlru => run(PerfectSlru::new(slots, tokens), references, capacity, rule, uncached, stop),
        CachePolicy::Belady => run(Belady::new(slots, tokens), references, capacity, rule, uncached, stop),
    }
}
