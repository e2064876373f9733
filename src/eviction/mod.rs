//! Policies of eviction judged on references: how many blocks each finds at some capacities, without an engine around it.

mod page;
mod tier_page;
mod tiers;

use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use kvtide_envs::reuse::{CachePolicy, HitRule, References, replay};
use rayon::prelude::*;
use serde::Serialize;

pub use page::page;
pub use tier_page::page as tier_page;
pub use tiers::{TierError, TierRow, compare};

/// Room of a cache, as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Capacity {
    /// So many blocks.
    Blocks(u32),
    /// This share of the distinct blocks.
    Share(f64),
}

/// Why there is no such capacity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "capacity {0:?}: expected blocks such as 820, from 1 to {MAX_BLOCKS}, or a share of the distinct blocks such as 5%, above 0 and at most 100%"
)]
pub struct CapacityError(String);

/// Most blocks of a cache: what a policy keeps of each takes memory whether or not it is ever used.
const MAX_BLOCKS: u32 = 1 << 28;

impl FromStr for Capacity {
    type Err = CapacityError;

    fn from_str(text: &str) -> Result<Capacity, CapacityError> {
        let capacity = if let Some(percent) = text.trim().strip_suffix('%') {
            let percent = percent.trim_end().parse::<f64>().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0);
            percent.map(|percent| Capacity::Share(percent / 100.0))
        } else {
            let blocks = text.trim().parse::<u32>().ok().filter(|blocks| (1..=MAX_BLOCKS).contains(blocks));
            blocks.map(Capacity::Blocks)
        };
        capacity.ok_or_else(|| CapacityError(text.to_owned()))
    }
}

impl Capacity {
    /// Blocks, where there are `distinct` different ones; one at least.
    pub fn blocks(self, distinct: u32) -> u32 {
        match self {
            Capacity::Blocks(blocks) => blocks,
            Capacity::Share(share) => ((f64::from(distinct) * share).round() as u32).max(1),
        }
    }
}

/// What one policy found at one capacity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvictionRow {
    /// Name of the traffic.
    pub trace: String,
    /// Name of the policy.
    pub policy: &'static str,
    /// `prefixes` or `objects`.
    pub hits_of: &'static str,
    /// Blocks of the cache.
    pub capacity: u32,
    /// The same as a share of the distinct blocks.
    pub capacity_share: f64,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Requests of the traffic.
    pub requests: usize,
    /// Blocks they ask for, in all.
    pub references: usize,
    /// How many different ones these are.
    pub distinct: u32,
    /// References that hit.
    pub hits: u64,
    /// Their share of the references.
    pub hit_ratio: f64,
    /// That share where nothing is ever evicted.
    pub ideal_hit_ratio: f64,
    /// Share of all prompt tokens that were in blocks that hit.
    pub token_hit_ratio: f64,
    /// What a request may have to compute at most, in tokens.
    pub uncached: u32,
    /// Requests with more than that.
    pub late_requests: u64,
    /// Requests replayed in a second, on one core.
    pub requests_per_s: f64,
    /// References replayed in a second, on one core.
    pub references_per_s: f64,
}

/// What is replayed.
#[derive(Debug)]
pub struct EvictionReplay<'a> {
    /// Name of the traffic.
    pub trace: &'a str,
    /// What its requests ask for.
    pub references: &'a References,
    /// Every policy, in order.
    pub policies: &'a [CachePolicy],
    /// Blocks of each cache, in order.
    pub capacities: &'a [u32],
    /// What counts as a hit.
    pub rule: HitRule,
    /// What a request may have to compute at most, in tokens.
    pub uncached: u32,
}

/// Name of a rule, as in options and results.
pub fn rule_name(rule: HitRule) -> &'static str {
    match rule {
        HitRule::Prefixes => "prefixes",
        HitRule::Objects => "objects",
    }
}

impl EvictionReplay<'_> {
    /// Replays every policy at one capacity after the other, the policies of one on all cores. `done` is told of each replay,
    /// `each` of every finished capacity, and says whether to go on. Whether all were finished.
    pub fn run(
        &self,
        stop: &AtomicBool,
        done: &(dyn Fn() + Sync),
        each: &mut dyn FnMut(&[EvictionRow]) -> bool,
    ) -> bool {
        for &capacity in self.capacities {
            let row = |&policy: &CachePolicy| {
                let row = self.row(policy, capacity, stop);
                done();
                row
            };
            let Some(rows) = self.policies.par_iter().map(row).collect::<Option<Vec<EvictionRow>>>() else {
                return false;
            };
            if !each(&rows) {
                return false;
            }
        }
        true
    }

    #[expect(clippy::disallowed_methods, reason = "speed is measured in wall-clock time, and only reported")]
    fn row(&self, policy: CachePolicy, capacity: u32, stop: &AtomicBool) -> Option<EvictionRow> {
        let references = self.references;
        let start = Instant::now();
        let replayed = replay(references, policy, capacity, self.rule, self.uncached, stop)?;
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        let requests = references.requests().len();
        let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
        Some(EvictionRow {
            trace: self.trace.to_owned(),
            policy: policy.name(),
            hits_of: rule_name(self.rule),
            capacity,
            capacity_share: f64::from(capacity) / f64::from(references.distinct().max(1)),
            block_tokens: references.block_tokens(),
            requests,
            references: references.len(),
            distinct: references.distinct(),
            hits: replayed.hits,
            hit_ratio: share(replayed.hits, references.len() as u64),
            ideal_hit_ratio: references.ideal(),
            token_hit_ratio: 1.0 - share(replayed.uncached_tokens, references.prompt_tokens()),
            uncached: self.uncached,
            late_requests: replayed.late_requests,
            requests_per_s: requests as f64 / seconds,
            references_per_s: references.len() as f64 / seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_is_blocks_or_a_share() {
        let blocks = |text: &str| text.parse::<Capacity>().map(|capacity| capacity.blocks(1000));
        assert_eq!((blocks("820"), blocks(" 5% "), blocks("0.01%")), (Ok(820), Ok(50), Ok(1)));
        for bad in ["", "0", "-1", "1.5", "0%", "101%", "nan%", "x", "5%%", "4294967296", "inf%"] {
            let error = blocks(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("capacity {bad:?}: expected blocks")), "{error}");
        }
    }
}
