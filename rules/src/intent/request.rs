//! What is declared of the blocks that a request leaves to a cache.
//!
//! | declared | follows from |
//! |---|---|
//! | phase | `Decode` or `Prefill` of one that was preempted and waits to go on; `Idle` where its session is expected to come back; else `Done` |
//! | priority | `Hot` of one that waits or is expected back; `Warm` of what others had asked for before; else `Cold` |
//! | request priority | its target of time to first token: 100 below 128 ms, 10 less for each doubling |
//! | deadline | its target of time per token, where somebody is expected to read the block |
//! | slack | of one that waits: until its next token is late, less computing all of it again; of one expected back: its next turn's target of time to first token, less computing again everything from this block on |
//! | recompute cost | the price of computing this block behind what is before it |
//! | may be computed again | of those that do not wait |
//!
//! **Expected back** is a request that is not the first turn of its session, or whose kind (tenant or class) comes back at least
//! every other time. That much a node knows without being told of sessions, by [`Reuse`](crate::Reuse).
//!
//! What is late already is as late as it can be: slack is never negative here, so that a long wait outweighs no other term.
//!
//! **No reuse window is declared**, although a node could say after how long a session came back the last time. Where pauses of a
//! session have nothing to do with each other that is noise, and the scores give it twice the weight of recency: on generated
//! agents it cost 5 of 57 points of hits, and the mean of the kind in its place 2 (`experiments/intent`).

use kvtide_runtime::Stop;

use super::record::{MemoryIntent, Phase, Priority};
use crate::reuse::{Comeback, Visit};
use crate::{Micros, Pricing, Slo};

/// From which share of a kind's releases on that come back one more is expected to.
const EXPECTED_SHARE: f32 = 0.5;

/// A request that leaves blocks to a cache, as whoever serves it knows it.
#[derive(Debug, Clone, Copy)]
pub struct Leaving {
    /// Its targets.
    pub slo: Slo,
    /// Why.
    pub stop: Stop,
    /// Whether its answer has begun.
    pub has_begun: bool,
    /// Until its next token is late, if it was preempted.
    pub until_late: Micros,
    /// Tokens of its text that are computed.
    pub tokens: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Blocks at its front that it found cached.
    pub head_blocks: u32,
    /// Its session, as far as it is known; `None` if nobody noted its admission.
    pub visit: Option<Visit>,
    /// How those of its kind came back.
    pub comeback: Comeback,
    /// What computing costs; nothing, where that is not known.
    pub pricing: Pricing,
}

/// What follows for each of its blocks.
#[derive(Debug, Clone, Copy)]
pub struct RequestIntent {
    leaving: Leaving,
    is_waiting: bool,
    is_expected: bool,
    /// All that its blocks have in common.
    common: MemoryIntent,
}

impl RequestIntent {
    /// Of a request that leaves blocks to a cache.
    pub fn of(leaving: Leaving) -> RequestIntent {
        let is_waiting = leaving.stop == Stop::Preempted;
        let is_expected = !is_waiting
            && (leaving.visit.is_some_and(|visit| visit.turn > 1) || leaving.comeback.share >= EXPECTED_SHARE);
        let common = MemoryIntent {
            phase: match (is_waiting, leaving.has_begun, is_expected) {
                (true, true, _) => Phase::Decode,
                (true, false, _) => Phase::Prefill,
                (false, _, true) => Phase::Idle,
                (false, _, false) => Phase::Done,
            },
            priority: if is_waiting || is_expected { Priority::Hot } else { Priority::Cold },
            request_priority: request_priority(leaving.slo),
            deadline_us: (is_waiting || is_expected).then_some(leaving.slo.tpot.0),
            recency_score: 1.0,
            recompute_ok: !is_waiting,
            ..MemoryIntent::new(0, 1)
        };
        RequestIntent { leaving, is_waiting, is_expected, common }
    }

    /// Of its block at `position`, counted from 0.
    pub fn block(&self, position: u32) -> MemoryIntent {
        let Leaving { tokens, block_tokens, pricing, slo, .. } = self.leaving;
        let context = position.saturating_mul(block_tokens).min(tokens);
        let cost = pricing.continued(context, block_tokens.min(tokens - context)).0;
        let slack = if self.is_waiting {
            Some(self.leaving.until_late.since(pricing.prefill(tokens)))
        } else {
            self.is_expected.then(|| slo.ttft.since(pricing.continued(context, tokens - context)))
        };
        let is_cold = self.common.priority == Priority::Cold;
        MemoryIntent {
            priority: if is_cold && self.was_asked_for(position) { Priority::Warm } else { self.common.priority },
            slack_us: slack.map(|slack| i64::try_from(slack.0).unwrap_or(i64::MAX)),
            recompute_cost_us: (cost > 0).then_some(cost),
            ..self.common
        }
    }

    /// Whether somebody had asked for the block before.
    fn was_asked_for(&self, position: u32) -> bool {
        let Leaving { visit, head_blocks, .. } = self.leaving;
        visit.is_some_and(|visit| if position < head_blocks { visit.head } else { visit.tail }.times > 0)
    }
}

/// 100 for targets below 128 ms, 10 less for each doubling.
fn request_priority(slo: Slo) -> u32 {
    let doublings = (slo.ttft.0 / 1000).checked_ilog2().unwrap_or(0).saturating_sub(6);
    100_u32.saturating_sub(10 * doublings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::{Scoring, Standing};
    use crate::reuse::Asked;

    /// A prompt token costs 100 us, blocks are of 16 tokens, and the text is 64 blocks long.
    fn leaving() -> Leaving {
        Leaving {
            slo: Slo::from_millis(2000, 100, 3000),
            stop: Stop::Unknown,
            has_begun: true,
            until_late: Micros::ZERO,
            tokens: 1024,
            block_tokens: 16,
            head_blocks: 8,
            visit: Some(Visit { turn: 1, ..Visit::default() }),
            comeback: Comeback::default(),
            pricing: Pricing { prefill_ns_per_token: 1e5, ..Pricing::default() },
        }
    }

    fn turn(number: u32) -> Visit {
        Visit { turn: number, ..Visit::default() }
    }

    #[test]
    fn a_first_turn_of_a_kind_that_does_not_come_back_is_done() {
        let block = RequestIntent::of(leaving()).block(0);
        assert_eq!((block.phase, block.priority, block.request_priority), (Phase::Done, Priority::Cold, 60));
        assert_eq!((block.deadline_us, block.slack_us, block.recompute_ok), (None, None, true));
        assert_eq!(block.recompute_cost_us, Some(1600));
        let asked = Visit { head: Asked { times: 3, evicted: None }, ..turn(1) };
        let shared = RequestIntent::of(Leaving { visit: Some(asked), ..leaving() });
        assert_eq!([shared.block(7).priority, shared.block(8).priority], [Priority::Warm, Priority::Cold]);
    }

    #[test]
    fn a_session_is_expected_back_within_its_targets() {
        let intent = RequestIntent::of(Leaving { visit: Some(turn(2)), ..leaving() });
        let (first, last) = (intent.block(0), intent.block(63));
        assert_eq!((first.phase, first.priority, first.deadline_us), (Phase::Idle, Priority::Hot, Some(100_000)));
        // All of the text takes 102.4 ms, its last block 1.6.
        assert_eq!((first.slack_us, last.slack_us), (Some(1_897_600), Some(1_998_400)));
        let by_kind = Comeback { share: 0.6, after: Some(Micros::from_millis(5000)) };
        let of_kind = RequestIntent::of(Leaving { comeback: by_kind, visit: None, ..leaving() }).block(0);
        assert_eq!((of_kind.phase, of_kind.priority), (Phase::Idle, Priority::Hot));
        // Where computing it again takes longer than the target nothing is left.
        let dear = Pricing { prefill_ns_per_token: 1e7, ..Pricing::default() };
        assert_eq!(RequestIntent::of(Leaving { pricing: dear, ..intent.leaving }).block(0).slack_us, Some(0));
    }

    #[test]
    fn one_that_was_preempted_waits_for_its_blocks() {
        let waits = Leaving { stop: Stop::Preempted, until_late: Micros::from_millis(150), ..leaving() };
        let block = RequestIntent::of(waits).block(5);
        assert_eq!((block.phase, block.priority, block.recompute_ok), (Phase::Decode, Priority::Hot, false));
        assert_eq!((block.deadline_us, block.slack_us), (Some(100_000), Some(47_600)));
        let unbegun = RequestIntent::of(Leaving { has_begun: false, until_late: Micros::ZERO, ..waits }).block(5);
        assert_eq!((unbegun.phase, unbegun.slack_us), (Phase::Prefill, Some(0)));
    }

    #[test]
    fn tighter_classes_are_more_important() {
        let of = |name| request_priority(Slo::class(name).unwrap());
        assert_eq!(["agent", "real-time", "chat", "document", "batch"].map(of), [100, 90, 80, 60, 30]);
    }

    #[test]
    fn who_is_expected_outlasts_who_is_done_and_who_waits_outlasts_both() {
        for scoring in [Scoring::IntentAware, Scoring::DeadlineAware] {
            let standing = |leaving| Standing::of(&RequestIntent::of(leaving).block(3), scoring);
            let done = standing(leaving());
            let expected = standing(Leaving { visit: Some(turn(2)), ..leaving() });
            let waits = standing(Leaving { stop: Stop::Preempted, ..leaving() });
            assert!(waits < expected && expected < done, "{scoring:?}: {waits:?} {expected:?} {done:?}");
            let tight = standing(Leaving { slo: Slo::from_millis(100, 20, 1000), ..leaving() });
            assert!(tight < done, "{scoring:?}");
        }
    }
}
