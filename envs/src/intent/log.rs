//! Writes down why, while a replay decides.

use kvtide_rules::intent::score::risk;
use kvtide_rules::intent::{MemoryIntent, Moment};

use super::account::DecodeStep;
use super::decision::{
    Candidate, DeadlineMiss, DecisionKind, LogLine, Term, TierDecision, Waited, reason, why_it_stayed,
};
use super::policy::{Rank, TierPolicy};
use super::ranking::{Held, Now};
use super::replay::TierSetup;

/// Candidates that are named beside the victim.
const RUNNERS_UP: usize = 3;

#[derive(Debug)]
pub(super) struct Log {
    setup: TierSetup,
    lines: Vec<LogLine>,
    number: u64,
    /// Per block, by which decision it last left, and at which step.
    left: Vec<Option<(u64, u64)>>,
    /// What the decode step under way waited for.
    waited: Vec<Waited>,
}

impl Log {
    pub(super) fn new(setup: TierSetup) -> Log {
        Log { setup, lines: Vec::new(), number: 0, left: Vec::new(), waited: Vec::new() }
    }

    pub(super) fn grow(&mut self, count: usize) {
        self.left.resize(count, None);
    }

    pub(super) fn forget(&mut self, block: u32) {
        self.left[block as usize] = None;
    }

    pub(super) fn take(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.lines)
    }

    /// A block that is not there, and how it had left, if it was by a decision.
    pub(super) fn had_left(&self, block: u32, names: &[Box<str>]) -> Waited {
        let left = self.left[block as usize];
        Waited {
            object_id: names[block as usize].to_string(),
            cost_us: 0,
            decision: left.map(|left| left.0),
            left_at_step: left.map(|left| left.1),
        }
    }

    /// The decode step under way waits for a block.
    pub(super) fn waited(&mut self, waited: Waited) {
        self.waited.push(waited);
    }

    /// The decode step has ended.
    pub(super) fn end(&mut self, step: &DecodeStep, is_late: bool) {
        let waited_for = std::mem::take(&mut self.waited);
        let (true, Some(deadline_us)) = (is_late, step.deadline_us) else { return };
        self.lines.push(LogLine::TierDeadlineMiss(Box::new(DeadlineMiss {
            policy: self.setup.policy.name().to_owned(),
            mode: self.setup.mode.name().to_owned(),
            hbm_capacity_bytes: self.setup.capacity.hbm_bytes,
            dram_capacity_bytes: self.setup.capacity.dram_bytes,
            first_step: step.first_step,
            last_step: step.last_step,
            deadline_us,
            latency_us: step.latency_us,
            waited_for,
        })));
    }

    /// A block leaves HBM, for DRAM if it `spills`.
    pub(super) fn evicted<P: TierPolicy>(
        &mut self,
        held: &[Held],
        victim: u32,
        (room_for, now): (u32, Now),
        spills: bool,
        names: &[Box<str>],
    ) {
        let one = &held[victim as usize];
        let resident = || (0_u32..).zip(held).filter(|(block, other)| other.in_hbm && *block != victim);
        // Where all that is left is pinned, what is pinned are the candidates.
        let pinned_too = !P::SPARES_PINNED || one.intent.pin_requested;
        let mut others: Vec<(Rank, u32)> = resident()
            .filter(|(_, other)| pinned_too || !other.intent.pin_requested)
            .map(|(block, other)| (P::rank(&other.intent, now.of(other)), block))
            .collect();
        let candidates = others.len() as u64 + 1;
        others.sort_by(|a, b| {
            let by_name = names[b.1 as usize].cmp(&names[a.1 as usize]);
            b.0.compare(&a.0).then(if P::LATER_NAME_FIRST { by_name } else { by_name.reverse() })
        });
        let urgency = |other: &Held| risk(&other.intent, now.of(other));
        // Names and not numbers, which depend on how the stream was cut.
        let by_name = |a: u32, b: u32| names[a as usize].cmp(&names[b as usize]);
        let spared = resident().max_by(|a, b| urgency(a.1).total_cmp(&urgency(b.1)).then_with(|| by_name(a.0, b.0)));
        let spares = !one.intent.is_decode_critical() && resident().any(|(_, other)| other.intent.is_decode_critical());
        let terms = terms::<P>(&one.intent, now.of(one));
        let runner_up = |(rank, block): &(Rank, u32)| {
            let other = &held[*block as usize];
            let moment = now.of(other);
            Candidate {
                object_id: names[*block as usize].to_string(),
                score: rank.score,
                phase: other.intent.phase,
                priority: other.intent.priority,
                why: why_it_stayed(&terms, &self::terms::<P>(&other.intent, moment), (now.of(one).age, moment.age)),
            }
        };
        let runners_up = others.iter().take(RUNNERS_UP).map(runner_up).collect();
        self.left[victim as usize] = Some((self.number, now.step));
        let decision = TierDecision {
            action: if spills { DecisionKind::Spill } else { DecisionKind::Evict },
            room_for: Some(names[room_for as usize].to_string()),
            candidates,
            runners_up,
            spared_decode_critical: spares,
            spared: spared.map(|(block, _)| names[block as usize].to_string()),
            ..self.decision::<P>(one, victim, now, names)
        };
        self.push(decision);
    }

    /// A block is brought in ahead of its use.
    pub(super) fn prefetched<P: TierPolicy>(&mut self, held: &[Held], block: u32, now: Now, names: &[Box<str>]) {
        let one = &held[block as usize];
        let decision = self.decision::<P>(one, block, now, names);
        let intent = &one.intent;
        let near = match (intent.deadline_us, intent.slack_us, intent.expected_reuse_window_tokens) {
            (Some(deadline), ..) if deadline <= 5_000 => format!("its step has {deadline} us"),
            (_, Some(slack), _) if slack <= 2_000 => format!("its step has to start within {slack} us"),
            (.., Some(window)) => format!("it is read again within {window} tokens"),
            _ => "it is wanted".to_owned(),
        };
        let reason = format!("{} in {}, foreseen, and {near}", intent.priority.name(), intent.phase.name());
        self.push(TierDecision { action: DecisionKind::Prefetch, reason, ..decision });
    }

    fn push(&mut self, decision: TierDecision) {
        self.number += 1;
        self.lines.push(LogLine::TierDecision(Box::new(decision)));
    }

    /// What is said of every decision.
    fn decision<P: TierPolicy>(&self, one: &Held, block: u32, now: Now, names: &[Box<str>]) -> TierDecision {
        let (intent, moment) = (&one.intent, now.of(one));
        let terms = terms::<P>(intent, moment);
        let score = P::rank(intent, moment).score;
        TierDecision {
            policy: self.setup.policy.name().to_owned(),
            mode: self.setup.mode.name().to_owned(),
            hbm_capacity_bytes: self.setup.capacity.hbm_bytes,
            dram_capacity_bytes: self.setup.capacity.dram_bytes,
            number: self.number,
            step: now.step,
            action: DecisionKind::Evict,
            object_id: names[block as usize].to_string(),
            phase: intent.phase,
            priority: intent.priority,
            request_priority: intent.request_priority,
            deadline_us: intent.deadline_us,
            decode_critical: intent.is_decode_critical(),
            room_for: None,
            candidates: 1,
            reason: reason(&terms, intent, moment, score),
            score,
            terms,
            runners_up: Vec::new(),
            spared_decode_critical: false,
            spared: None,
        }
    }
}

/// The terms of a block's score, each once or more.
fn terms<P: TierPolicy>(intent: &MemoryIntent, moment: Moment) -> Vec<Term> {
    let mut terms = Vec::new();
    P::terms(intent, moment, &mut |name, value| {
        // Without the sign of a zero.
        terms.push(Term { name: name.to_owned(), value: value + 0.0 });
    });
    terms
}
