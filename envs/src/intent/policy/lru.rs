//! Least recently used.

use kvtide_rules::intent::{MemoryIntent, Moment};

use super::{PolicyName, TierPolicy};

/// The block whose last access is longest ago, whatever is declared of it.
#[derive(Debug)]
pub struct Lru;

impl TierPolicy for Lru {
    const NAME: PolicyName = PolicyName::Lru;
    const RISE_BY_FADING: f64 = 0.0;

    #[inline]
    fn terms(_: &MemoryIntent, _: Moment, _: &mut impl FnMut(&'static str, f64)) {}

    #[inline]
    fn idle_since(intent: &MemoryIntent) -> i64 {
        -(intent.last_access_step as i64)
    }
}
