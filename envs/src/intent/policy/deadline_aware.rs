//! All that is declared of a block, and more weight on what has a deadline.

use super::intent_aware::declared;
use super::{PolicyName, TierPolicy};
use crate::intent::record::{MemoryIntent, Phase, Priority};
use crate::intent::score::{Moment, risk};

/// [`IntentAware`](super::IntentAware), and behind it what a missed deadline would cost; brings urgent blocks in when their use is
/// foreseen.
#[derive(Debug)]
pub struct DeadlineAware;

/// Terms that both have are added under names of their own.
impl TierPolicy for DeadlineAware {
    const NAME: PolicyName = PolicyName::DeadlineAware;
    const SPARES_PINNED: bool = true;
    const LATER_NAME_FIRST: bool = true;
    const RISE_BY_FADING: f64 = (60.0 + 1.0 + 40.0 / 18.0) * 0.03;
    const RISE_BY_AGE: f64 = 0.25;
    const AGES_FOR: u64 = 140;

    #[inline]
    fn terms(intent: &MemoryIntent, at: Moment, add: &mut impl FnMut(&'static str, f64)) {
        let risk = risk(intent, at);
        declared(intent, at, risk, add);
        match intent.deadline_us {
            Some(..=1_000) => add("deadline", -320.0),
            Some(..=5_000) => add("deadline", -140.0),
            Some(_) => add("deadline", -25.0),
            None => {}
        }
        match intent.slack_us {
            Some(..=500) => add("slack", -260.0),
            Some(..=2_000) => add("slack", -120.0),
            _ => {}
        }
        if intent.request_priority >= 80 {
            add("important_request", -90.0);
        }
        if intent.recompute_cost_us.is_some_and(|cost| cost >= 4_000) {
            add("dear_to_recompute", -80.0);
        }
        if intent.phase == Phase::Decode {
            add("decoding", -110.0);
        }
        if intent.priority == Priority::DecodeCritical {
            add("decode_critical", -400.0);
        }
        add("risk_again", -(risk / 18.0));
        if intent.phase == Phase::Done {
            add("done", 40.0);
        }
        if intent.priority == Priority::Cold && intent.deadline_us.is_none() {
            add("cold_without_deadline", 35.0);
        }
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
