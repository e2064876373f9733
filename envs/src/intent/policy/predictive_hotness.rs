//! Hot and cold by recency and by what is said of reuse.

use kvtide_rules::intent::{MemoryIntent, Moment};

use super::{PolicyName, TierPolicy};

/// The block of the least hotness: 0.7 of it recency, 0.3 how far within 64 tokens it is expected to be read again.
#[derive(Debug)]
pub struct PredictiveHotness;

impl TierPolicy for PredictiveHotness {
    const NAME: PolicyName = PolicyName::PredictiveHotness;
    const RISE_BY_FADING: f64 = 0.7 * 0.03;

    #[inline]
    fn terms(intent: &MemoryIntent, at: Moment, add: &mut impl FnMut(&'static str, f64)) {
        add("recency", -(0.7 * at.recency));
        if let Some(window) = intent.expected_reuse_window_tokens {
            add("reuse_window", -(0.3 * 64_u64.saturating_sub(window) as f64 / 64.0));
        }
    }

    #[inline]
    fn idle_since(intent: &MemoryIntent) -> i64 {
        -(intent.last_access_step as i64)
    }
}
