//! What a block's declared intent is worth in numbers: how urgent it is, and what is at risk if it goes.
//!
//! Every score is a sum of named terms, added in one order, so that equal blocks have equal scores to the last bit; whoever
//! explains a decision shows the same terms that decided it. A score needs only what is in [`MemoryIntent`], so that whatever
//! knows phase, priority, deadline and slack of a slot can rank it, in a replay or in a pool.

use super::record::{MemoryIntent, Phase, Priority};

/// The moment at which a block is looked at, and what of it depends on when that is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// The step.
    pub step: u64,
    /// Steps since the block was last accessed.
    pub age: u64,
    /// How recently it was used, 0 to 1, decayed until now.
    pub recency: f64,
}

impl Moment {
    /// Of a block as it is declared, at `step`.
    pub fn of(intent: &MemoryIntent, step: u64) -> Moment {
        Moment { step, age: step.saturating_sub(intent.last_access_step), recency: intent.recency_score }
    }
}

/// What `above` exceeds `value` by, or 0.
#[inline]
fn short_of(above: i64, value: i64) -> f64 {
    above.saturating_sub(value).max(0) as f64
}

/// Tells `add` the terms of a block's urgency: what is lost if it is not there when its token is generated.
#[inline]
pub fn urgency_terms(intent: &MemoryIntent, at: Moment, add: &mut impl FnMut(&'static str, f64)) {
    if let Some(deadline) = intent.deadline_us {
        add("deadline", short_of(10_000, deadline as i64) / 20.0);
    }
    if let Some(slack) = intent.slack_us {
        add("slack", short_of(5_000, slack) / 10.0);
    }
    if let Some(target) = intent.target_decode_step {
        add("target_step", short_of(64, target.saturating_sub(at.step) as i64));
    }
    add("request_priority", f64::from(2 * intent.request_priority));
    match intent.phase {
        Phase::Decode => add("phase", 120.0),
        Phase::Verify => add("phase", 30.0),
        _ => {}
    }
    match intent.priority {
        Priority::DecodeCritical => add("priority", 300.0),
        Priority::Hot => add("priority", 80.0),
        Priority::Warm => add("priority", 30.0),
        Priority::Cold => {}
    }
    if let Some(cost) = intent.recompute_cost_us {
        add("recompute_cost", (cost as f64 / 25.0).min(250.0));
    }
    if intent.pin_requested {
        add("pin", 400.0);
    }
}

/// How urgent a block is; more is more urgent.
#[inline]
pub fn urgency(intent: &MemoryIntent, at: Moment) -> f64 {
    let mut sum = 0.0;
    urgency_terms(intent, at, &mut |_, term| sum += term);
    sum
}

/// What is at risk if a block is evicted: its urgency, and how likely it is read again as it stands.
#[inline]
pub fn risk(intent: &MemoryIntent, at: Moment) -> f64 {
    let mut sum = urgency(intent, at);
    sum += 40.0 * at.recency;
    if intent.is_committed {
        sum += 15.0;
    }
    if intent.is_draft && !intent.is_committed {
        sum -= 35.0;
    }
    if intent.recompute_ok {
        sum -= 25.0;
    }
    if intent.compression_ok {
        sum -= 15.0;
    }
    if let Some(window) = intent.expected_reuse_window_tokens {
        sum -= (window as f64 / 8.0).min(80.0);
    }
    match intent.phase {
        Phase::Done => sum - 140.0,
        Phase::Idle => sum - 60.0,
        _ => sum,
    }
}

/// Tells `add` the terms of a block's score under `IntentAware`: all that is declared of it. More goes sooner.
#[inline]
pub fn intent_aware_terms(intent: &MemoryIntent, at: Moment, add: &mut impl FnMut(&'static str, f64)) {
    declared(intent, at, risk(intent, at), add);
}

/// Tells `add` the terms of a block's score under `DeadlineAware`: those of [`intent_aware_terms`], and behind them what a missed
/// deadline would cost. Terms that both have are added under names of their own.
#[inline]
pub fn deadline_aware_terms(intent: &MemoryIntent, at: Moment, add: &mut impl FnMut(&'static str, f64)) {
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

/// The terms that both have, where what is at risk is known.
#[inline]
fn declared(intent: &MemoryIntent, at: Moment, risk: f64, add: &mut impl FnMut(&'static str, f64)) {
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

/// By which of the scores blocks are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// See [`intent_aware_terms`].
    IntentAware,
    /// See [`deadline_aware_terms`].
    DeadlineAware,
}

impl Scoring {
    /// The score of a block; more goes sooner.
    #[inline]
    pub fn score(self, intent: &MemoryIntent, at: Moment) -> f64 {
        let mut sum = 0.0;
        let mut add = |_, term: f64| sum += term;
        match self {
            Scoring::IntentAware => intent_aware_terms(intent, at, &mut add),
            Scoring::DeadlineAware => deadline_aware_terms(intent, at, &mut add),
        }
        sum
    }
}
