//! All that is declared of a block, and more weight on what has a deadline.

use kvtide_rules::intent::score::deadline_aware_terms;
use kvtide_rules::intent::{MemoryIntent, Moment, Phase, Priority};

use super::{PolicyName, TierPolicy};

/// [`IntentAware`](super::IntentAware), and behind it what a missed deadline would cost; brings urgent blocks in when their use is
/// foreseen.
#[derive(Debug, Clone)]
pub struct DeadlineAware;

impl TierPolicy for DeadlineAware {
    const NAME: PolicyName = PolicyName::DeadlineAware;
    const SPARES_PINNED: bool = true;
    const LATER_NAME_FIRST: bool = true;
    const RISE_BY_FADING: f64 = (60.0 + 1.0 + 40.0 / 18.0) * 0.03;
    const RISE_BY_AGE: f64 = 0.25;
    const AGES_FOR: u64 = 140;

    #[inline]
    fn terms(intent: &MemoryIntent, at: Moment, add: &mut impl FnMut(&'static str, f64)) {
        deadline_aware_terms(intent, at, add);
    }

    #[inline]
    fn prefetches(intent: &MemoryIntent) -> bool {
        let is_wanted =
            matches!(intent.priority, Priority::Hot | Priority::DecodeCritical) || intent.phase == Phase::Decode;
        let is_near = intent.deadline_us.is_some_and(|deadline| deadline <= 5_000)
            || intent.slack_us.is_some_and(|slack| slack <= 2_000)
            || intent.expected_reuse_window_tokens.is_some_and(|window| window <= 8);
        intent.prefetch_ok && is_wanted && is_near
    }
}
