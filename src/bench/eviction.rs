//! References by Zipf's law under each policy of eviction, on one core: how fast, and whether each misses as often as others have
//! measured it to.

use std::sync::atomic::AtomicBool;

use kvtide_envs::reuse::{CachePolicy, HitRule, References, TooManyReferences, replay, zipf};

use super::{Throughput, seconds};

/// What is drawn: references, different blocks and the exponent of the law.
const REFERENCES: usize = 10_000_000;
const BLOCKS: u32 = 1_000_000;
const ALPHA: f64 = 1.0;
/// Blocks of the cache.
const CAPACITY: u32 = 50_000;

/// Shares of misses that other simulators find on such references, and how far ours may be from them: another draw differs by
/// 0.0002, a variant of a policy by less than 0.002.
const KNOWN: [(&str, f64); 8] = [
    ("lru", 0.2821),
    ("fifo", 0.3142),
    ("s3-fifo", 0.2313),
    ("sieve", 0.2351),
    ("arc", 0.2344),
    ("clock", 0.2741),
    ("lfu", 0.2351),
    ("belady", 0.1748),
];
const TOLERANCE: f64 = 0.002;

/// Why evictions cannot be measured, or are not to be believed.
#[derive(Debug, thiserror::Error)]
pub enum EvictionBenchError {
    /// There are too many.
    #[error(transparent)]
    References(#[from] TooManyReferences),
    /// A policy misses more, or less, than it is known to.
    #[error("{policy} misses {found:.4} of the references, known is {known:.4}: the policy is not what it is called")]
    Misses {
        /// Its name.
        policy: &'static str,
        /// What was found.
        found: f64,
        /// What is known.
        known: f64,
    },
}

/// References a second of every policy.
///
/// # Errors
/// [`EvictionBenchError::Misses`].
pub fn evictions(repeats: usize, each: &mut dyn FnMut(Throughput)) -> Result<(), EvictionBenchError> {
    let references = References::of_objects(zipf(1, BLOCKS, ALPHA, REFERENCES), BLOCKS)?;
    let never = AtomicBool::new(false);
    for policy in CachePolicy::all() {
        let mut hits = 0;
        let mut turn = || {
            let replayed = replay(&references, policy, CAPACITY, HitRule::Objects, 0, &never);
            hits = replayed.map_or(0, |replayed| replayed.hits);
        };
        let seconds: Vec<f64> = (0..repeats).map(|_| seconds(&mut turn)).collect();
        let found = 1.0 - hits as f64 / REFERENCES as f64;
        let case = format!("{policy}, Zipf {ALPHA:.1}, {found:.4} missed");
        each(Throughput::rate("evictions", case, "references/s", REFERENCES as u64, &seconds));
        let known = KNOWN.iter().find(|known| known.0 == policy.name());
        if let Some(&(policy, known)) = known.filter(|known| (found - known.1).abs() > TOLERANCE) {
            return Err(EvictionBenchError::Misses { policy, found, known });
        }
    }
    Ok(())
}
