//! The order of what was declared, beside one that looks at every block; and what no use of it may bring about.

use std::collections::BTreeSet;

use kvtide_rules::Branches;
use kvtide_rules::intent::{
    MemoryIntent, Moment, Order, PathStanding, Phase, Priority, STEPS_PER_TURNOVER, Scoring, Standing, TERM_STEPS,
};
use proptest::collection::vec;
use proptest::prelude::*;

const SLOTS: u32 = 24;
const SCORINGS: [Scoring; 2] = [Scoring::IntentAware, Scoring::DeadlineAware];

/// Points of a level, and what rounding to one and leaving out what is at risk below 0 can make of a difference.
const POINTS: f64 = 12.0;
const ROUNDED: f64 = POINTS + 4.0;

fn intent() -> impl Strategy<Value = MemoryIntent> {
    let phases = prop::sample::select(vec![Phase::Decode, Phase::Prefill, Phase::Idle, Phase::Done]);
    let priorities = prop::sample::select(vec![Priority::Hot, Priority::Warm, Priority::Cold]);
    let times = (prop::option::of(0..120_000_u64), prop::option::of(0..8_000_i64), prop::option::of(0..9_000_u64));
    (phases, priorities, 0..=100_u32, times, prop::option::of(0..900_u64), any::<bool>()).prop_map(
        |(phase, priority, request_priority, (deadline_us, slack_us, recompute_cost_us), window, recompute_ok)| {
            MemoryIntent {
                phase,
                priority,
                request_priority,
                deadline_us,
                slack_us,
                recompute_cost_us,
                expected_reuse_window_tokens: window,
                recompute_ok,
                ..MemoryIntent::new(0, 1)
            }
        },
    )
}

/// A block as one that looks at every block keeps it.
#[derive(Debug, Clone, Copy)]
struct Kept {
    slot: u32,
    intent: MemoryIntent,
    since: u64,
}

/// Its score, exactly; without end once what was declared holds no longer.
fn score(kept: &Kept, evicted: u64, scoring: Scoring) -> f64 {
    let age = (evicted - kept.since) * STEPS_PER_TURNOVER / u64::from(SLOTS);
    if age >= TERM_STEPS {
        return f64::INFINITY;
    }
    let recency = (1.0 - 0.03 * age as f64).max(0.0);
    scoring.score(&kept.intent, Moment { step: 0, age, recency })
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Idle(u32, MemoryIntent),
    Taken(u32),
    Victim,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..SLOTS, intent()).prop_map(|(slot, intent)| Op::Idle(slot, intent)),
        1 => (0..SLOTS).prop_map(Op::Taken),
        3 => Just(Op::Victim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// No victim scores less than another block by more than a level; of those of which the same was declared the one idle longest
    /// goes, and what nobody used for its term before everything.
    #[test]
    fn a_victim_is_that_of_looking_at_every_block(ops in vec(op(), 0..300), deadline: bool) {
        let scoring = SCORINGS[usize::from(deadline)];
        let mut order = Order::new(SLOTS, scoring);
        let mut kept: Vec<Kept> = Vec::new();
        for op in ops {
            match op {
                Op::Idle(slot, intent) if kept.iter().all(|one| one.slot != slot) => {
                    order.declare(slot, Standing::of(&intent, scoring));
                    order.push(slot);
                    kept.push(Kept { slot, intent, since: order.evicted() });
                }
                Op::Taken(slot) => {
                    if let Some(at) = kept.iter().position(|one| one.slot == slot) {
                        order.remove(slot);
                        kept.remove(at);
                    }
                }
                Op::Victim => {
                    let evicted = order.evicted();
                    let victim = order.pop();
                    prop_assert_eq!(victim.is_some(), !kept.is_empty());
                    let Some(victim) = victim else { continue };
                    let at = kept.iter().position(|one| one.slot == victim).expect("a victim is idle");
                    let one = kept.remove(at);
                    let its = score(&one, evicted, scoring);
                    for (place, other) in kept.iter().enumerate() {
                        let theirs = score(other, evicted, scoring);
                        prop_assert!(its + ROUNDED >= theirs, "{} before {}", its, theirs);
                        let is_alike = other.intent == one.intent || theirs.is_infinite();
                        prop_assert!(!is_alike || place >= at, "{:?} before {:?}", one, other);
                    }
                }
                Op::Idle(..) => {}
            }
            prop_assert!(kept.iter().all(|one| order.is_sound(one.slot)));
        }
    }

    /// Whatever is declared: who is not used is gone after so many turnovers.
    #[test]
    fn nothing_is_kept_for_ever(
        favoured in vec(intent(), 1..SLOTS as usize),
        stream in vec(intent(), 8),
        deadline: bool,
    ) {
        let scoring = SCORINGS[usize::from(deadline)];
        let mut order = Order::new(SLOTS, scoring);
        for (slot, intent) in (0..).zip(&favoured) {
            // As much in favour as can be.
            let intent = MemoryIntent { priority: Priority::Hot, pin_requested: true, ..*intent };
            order.declare(slot, Standing::of(&intent, scoring));
            order.push(slot);
        }
        let mut gone = BTreeSet::new();
        let mut others = favoured.len() as u32..SLOTS;
        let mut next = others.next();
        let turnovers = TERM_STEPS.div_ceil(STEPS_PER_TURNOVER) + 2;
        for intent in stream.iter().cycle().take((turnovers * u64::from(SLOTS)) as usize) {
            let slot = next.take().unwrap_or_else(|| {
                let slot = order.pop().expect("all are idle");
                gone.extend(((slot as usize) < favoured.len()).then_some(slot));
                slot
            });
            next = others.next();
            order.declare(slot, Standing::of(intent, scoring));
            order.push(slot);
        }
        prop_assert_eq!(gone.len(), favoured.len());
    }

    /// Exactly so many of those that may go, as if the others were not there; or nothing has happened.
    #[test]
    fn several_go_at_once_or_none(declared in vec(intent(), 1..16), may_go in vec(any::<bool>(), 16), count in 0..10_usize) {
        let mut order = Order::new(SLOTS, Scoring::DeadlineAware);
        for (slot, intent) in (0..).zip(&declared) {
            order.declare(slot, Standing::of(intent, Scoring::DeadlineAware));
            order.push(slot);
        }
        let all = |order: &Order| {
            let mut rest = order.clone();
            std::iter::from_fn(move || { let first = rest.first()?; rest.remove(first); Some(first) }).collect::<Vec<u32>>()
        };
        let before = all(&order);
        let wanted: Vec<u32> = before.iter().copied().filter(|&slot| may_go[slot as usize]).take(count).collect();
        let gone = order.pop_of(count, |slot| may_go[slot as usize]);
        prop_assert_eq!(gone.is_some(), wanted.len() == count);
        let gone = gone.unwrap_or_default();
        let rest: Vec<u32> = before.into_iter().filter(|slot| !gone.contains(slot)).collect();
        prop_assert!(gone.is_empty() || gone == wanted);
        prop_assert_eq!(all(&order), rest.clone());
        prop_assert_eq!(order.evicted(), gone.len() as u64);
        prop_assert!(rest.iter().all(|&slot| order.is_sound(slot)));
    }

    /// Texts that branch are served in turn by a cache that holds few of their blocks; whatever they declare, no block goes before
    /// one that continues it.
    #[test]
    fn no_prefix_goes_before_what_continues_it(
        asks in vec((0..4_u32, 1..7_u32, intent()), 1..80),
        deadline: bool,
    ) {
        let scoring = SCORINGS[usize::from(deadline)];
        let (mut order, mut branches) = (Order::new(SLOTS, scoring), Branches::new(SLOTS));
        // By slot: which block of which text it holds. The first two blocks are everybody's.
        let mut held: Vec<Option<(u32, u32)>> = vec![None; SLOTS as usize];
        let mut free: Vec<u32> = (0..SLOTS).collect();
        for (text, length, intent) in asks {
            let name = |place: u32| if place < 2 { (0, place) } else { (text, place) };
            let mut table: Vec<u32> = Vec::new();
            for place in 0..length {
                let Some(found) = held.iter().position(|held| *held == Some(name(place))) else { break };
                order.remove(found as u32);
                table.push(found as u32);
            }
            for place in table.len() as u32..length {
                let slot = free.pop().or_else(|| order.pop()).expect("a text fits");
                if let Some((gone, at)) = held[slot as usize].take() {
                    branches.emptied(slot);
                    let behind = |other: &Option<(u32, u32)>| {
                        other.is_some_and(|other| other.1 == at + 1 && (at < 2 || other.0 == gone))
                    };
                    let is_alive = (0..SLOTS).any(|other| behind(&held[other as usize]) && !table.contains(&other));
                    prop_assert!(!is_alive, "block {} of text {} goes before what continues it", at, gone);
                }
                branches.registered(slot, table.last().copied());
                order.forget(slot);
                held[slot as usize] = Some(name(place));
                table.push(slot);
            }
            let (mut path, mut behind) = (PathStanding::default(), None);
            for &slot in table.iter().rev() {
                let is_branch = branches.has_others(slot, behind);
                order.declare(slot, path.next(Standing::of(&intent, scoring), order.declared(slot), is_branch));
                behind = Some(slot);
            }
            table.iter().rev().for_each(|&slot| order.push(slot));
        }
    }
}

#[test]
fn what_nobody_declares_goes_in_the_order_of_time() {
    let mut order = Order::new(4, Scoring::IntentAware);
    for slot in [2, 0, 1] {
        order.push(slot);
    }
    order.remove(0);
    order.push(0);
    assert_eq!([order.pop(), order.pop(), order.pop(), order.pop()], [Some(2), Some(1), Some(0), None]);
    assert_eq!(order.evicted(), 3);
}

#[test]
fn what_is_in_favour_stays_for_its_term_and_not_longer() {
    let mut order = Order::new(10, Scoring::IntentAware);
    let hot = MemoryIntent { priority: Priority::Hot, phase: Phase::Idle, ..MemoryIntent::new(0, 1) };
    let cold = MemoryIntent { phase: Phase::Done, ..MemoryIntent::new(0, 1) };
    order.declare(0, Standing::of(&hot, Scoring::IntentAware));
    order.push(0);
    let mut victims = Vec::new();
    for _ in 0..60 {
        order.declare(1, Standing::of(&cold, Scoring::IntentAware));
        order.push(1);
        victims.extend(order.pop());
        if victims.ends_with(&[0]) {
            break;
        }
    }
    // 140 steps of 10 / 32 of an eviction each.
    assert_eq!((victims.len(), victims.last()), (45, Some(&0)));
}
