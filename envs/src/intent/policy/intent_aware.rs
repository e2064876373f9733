//! All that is declared of a block, as one score.

use super::{PolicyName, TierPolicy};
use crate::intent::record::{MemoryIntent, Phase, Priority};
use crate::intent::score::{Moment, risk};

/// The block that least depends on being there: cold, of an unimportant request, cheap to compute again, not soon read, long not
/// read. Blocks that are asked to stay are no candidates.
#[derive(Debug)]
pub struct IntentAware;

impl TierPolicy for IntentAware {
    const NAME: PolicyName = PolicyName::IntentAware;
    const SPARES_PINNED: bool = true;
    const LATER_NAME_FIRST: bool = true;
    const RISE_BY_FADING: f64 = (60.0 + 1.0) * 0.03;
    const RISE_BY_AGE: f64 = 0.25;
    const AGES_FOR: u64 = 140;

    #[inline]
    fn terms(intent: &MemoryIntent, at: Moment, add: &mut impl FnMut(&'static str, f64)) {
        let risk = risk(intent, at);
        declared(intent, at, risk, add);
    }
}

/// The terms, where what is at risk is known.
#[inline]
pub(super) fn declared(intent: &MemoryIntent, at: Moment, risk: f64, add: &mut impl FnMut(&'static str, f64)) {
    add(
        "priority",
        match intent.priority {
            Priority::Cold => 110.0,
            Priority::Warm => 55.0,
            Priority::Hot => 15.0,
            Priority::DecodeCritical => -900.0,
        },
    );
    if intent.pin_requested {
        add("pin", -900.0);
    }
    match intent.phase {
        Phase::Done => add("phase", 120.0),
        Phase::Idle => add("phase", 50.0),
        _ => {}
    }
    add("request_priority", 100.0 - f64::from(intent.request_priority));
    if let Some(window) = intent.expected_reuse_window_tokens {
        add("reuse_window", (window as f64 / 6.0).min(120.0));
    }
    if intent.recompute_ok {
        add("recompute_ok", 30.0);
    }
    if intent.compression_ok {
        add("compression_ok", 20.0);
    }
    if intent.is_draft && !intent.is_committed {
        add("draft", 45.0);
    }
    if let Some(cost) = intent.recompute_cost_us {
        add("recompute_cost", -(cost as f64 / 40.0).min(180.0));
    }
    add("recency", -(60.0 * at.recency));
    add("age", (at.age as f64 / 4.0).min(35.0));
    add("risk", -(risk.max(0.0) / 40.0));
}
