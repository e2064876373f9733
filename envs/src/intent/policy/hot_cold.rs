//! Hot and cold by a score that fades.

use kvtide_rules::intent::{MemoryIntent, Moment};

use super::{PolicyName, TierPolicy};

/// The block of the least recency; of those whose recency has faded alike, the one whose last access is longest ago. Differs from
/// LRU where recency is declared and not earned.
#[derive(Debug)]
pub struct HotCold;

impl TierPolicy for HotCold {
    const NAME: PolicyName = PolicyName::HotCold;
    const RISE_BY_FADING: f64 = 0.03;

    #[inline]
    fn terms(_: &MemoryIntent, at: Moment, add: &mut impl FnMut(&'static str, f64)) {
        add("recency", -at.recency);
    }

    #[inline]
    fn idle_since(intent: &MemoryIntent) -> i64 {
        -(intent.last_access_step as i64)
    }
}
