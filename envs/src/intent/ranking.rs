//! The blocks of a tier in the order in which they would leave it, without ranking all of them at every decision.

use std::cmp::Ordering;
use std::marker::PhantomData;

use kvtide_rules::intent::{MemoryIntent, Moment};

use super::policy::{Rank, TierPolicy};

/// In `place`: the block is not in the heap.
const NOWHERE: u32 = u32::MAX;

/// What recency loses from one step to the next.
const FADING: f64 = 0.03;

/// A block as a replay keeps it.
#[derive(Debug, Clone)]
pub(super) struct Held {
    /// What was last declared of it. Its recency is as of [`faded`](Self::faded).
    pub(super) intent: MemoryIntent,
    /// How often recency had faded when that of the intent was written down.
    pub(super) faded: u64,
    pub(super) is_live: bool,
    pub(super) in_hbm: bool,
    pub(super) in_dram: bool,
}

impl Held {
    /// Its recency after `fadings` in all, each of which is a subtraction of its own, as where it comes from.
    #[inline]
    pub(super) fn recency(&self, fadings: u64) -> f64 {
        let mut recency = self.intent.recency_score;
        let mut left = fadings - self.faded;
        while left > 0 && recency > 0.0 {
            recency = (recency - FADING).max(0.0);
            left -= 1;
        }
        recency
    }
}

/// The moment of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Now {
    pub(super) step: u64,
    /// How often recency has faded.
    pub(super) fadings: u64,
}

impl Now {
    /// A block as it is now.
    #[inline]
    pub(super) fn of(self, held: &Held) -> Moment {
        let age = self.step.saturating_sub(held.intent.last_access_step);
        Moment { step: self.step, age, recency: held.recency(self.fadings) }
    }
}

/// What the score of a block can still do while it is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Regime {
    /// Rise as recency fades and age grows.
    Fading,
    /// Rise as age grows.
    Ageing,
    /// Fall, as its target step comes nearer.
    Settled,
}

/// Those in which the victim is looked for, those that end a search soonest first.
const REGIMES: [Regime; 3] = [Regime::Settled, Regime::Ageing, Regime::Fading];

/// A block of a heap, and its rank when it was last looked at, the score less what all of the regime have risen by since the stream
/// began.
#[derive(Debug, Clone, Copy)]
struct Entry {
    rank: Rank,
    block: u32,
}

/// Heaps of blocks by bounds on their ranks, one for each regime, the greatest first.
///
/// In a regime all scores rise alike, so that their order stays and a heap need not be touched for time to pass; that a target step
/// comes nearer lets a score fall, and a block that has left its regime rises no more: the bound holds. The victim is found from
/// the top of each heap, passing over what is bounded by less than the best found so far, and what was looked at and is less than
/// its bound, or has left its regime, is sorted in anew. A block leaves a regime twice between two touches. Touched blocks are
/// written down and sorted in when a victim is asked for, which most events never do.
#[derive(Debug)]
pub(super) struct Ranking<P> {
    heaps: [Vec<Entry>; 3],
    /// Per block, in which heap it is, and where.
    place: Vec<(Regime, u32)>,
    /// Blocks that may have changed since, each once.
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    /// Places in a heap that are still to be looked at.
    open: Vec<u32>,
    /// What was looked at and does not belong where it is.
    moved: Vec<u32>,
    step: u64,
    policy: PhantomData<P>,
}

impl<P: TierPolicy> Ranking<P> {
    pub(super) fn new() -> Ranking<P> {
        Ranking {
            heaps: [const { Vec::new() }; 3],
            place: Vec::new(),
            touched: Vec::new(),
            is_touched: Vec::new(),
            open: Vec::new(),
            moved: Vec::new(),
            step: 0,
            policy: PhantomData,
        }
    }

    /// Room for blocks with numbers below `count`.
    pub(super) fn grow(&mut self, count: usize) {
        self.place.resize(count, (Regime::Settled, NOWHERE));
        self.is_touched.resize(count, false);
    }

    /// Says that something of a block, or where it is, may have changed.
    #[inline]
    pub(super) fn touch(&mut self, block: u32) {
        if !std::mem::replace(&mut self.is_touched[block as usize], true) {
            self.touched.push(block);
        }
    }

    /// The candidate of the greatest rank; `is_candidate` says which blocks are, and changes for none that was not touched.
    pub(super) fn victim(
        &mut self,
        held: &[Held],
        names: &[Box<str>],
        now: Now,
        is_candidate: impl Fn(&Held) -> bool,
    ) -> Option<u32> {
        if now.step < self.step {
            // Time has gone back: no bound holds.
            let all: Vec<u32> = self.heaps.iter().flatten().map(|entry| entry.block).collect();
            for block in all {
                self.touch(block);
            }
        }
        self.step = now.step;
        while let Some(block) = self.touched.pop() {
            self.is_touched[block as usize] = false;
            if is_candidate(&held[block as usize]) {
                self.sort_in(block, held, names, now);
            } else {
                self.remove(block, names);
            }
        }
        let mut best: Option<Entry> = None;
        for regime in REGIMES {
            self.look_through(regime, &mut best, held, names, now);
        }
        while let Some(block) = self.moved.pop() {
            self.sort_in(block, held, names, now);
        }
        best.map(|best| best.block)
    }

    /// Looks for a greater one than `best` in a heap.
    fn look_through(&mut self, regime: Regime, best: &mut Option<Entry>, held: &[Held], names: &[Box<str>], now: Now) {
        let heap = &self.heaps[regime as usize];
        let risen = Self::risen(regime, now);
        self.open.clear();
        self.open.extend((!heap.is_empty()).then_some(0));
        while let Some(at) = self.open.pop() {
            let entry = heap[at as usize];
            let bound = Entry { rank: Rank { score: entry.rank.score + risen, ..entry.rank }, ..entry };
            // What was added and taken away again is not to the last bit what it was.
            let error = if regime == Regime::Settled { 0.0 } else { 1e-6 + 1e-15 * (risen + entry.rank.score.abs()) };
            let is_less = |best: &Entry| match error {
                0.0 => Self::compare(&bound, best, names) == Ordering::Less,
                error => bound.rank.score + error < best.rank.score,
            };
            if best.as_ref().is_some_and(is_less) {
                continue;
            }
            let moment = now.of(&held[entry.block as usize]);
            let found = Entry { rank: P::rank(&held[entry.block as usize].intent, moment), ..entry };
            if best.as_ref().is_none_or(|best| Self::compare(&found, best, names) == Ordering::Greater) {
                *best = Some(found);
            }
            if Self::regime(moment) != regime || found.rank.score + 1e-3 < bound.rank.score {
                self.moved.push(entry.block);
            }
            let first = 2 * at + 1;
            self.open.extend((first..first + 2).rev().filter(|&child| (child as usize) < heap.len()));
        }
    }

    #[inline]
    fn regime(moment: Moment) -> Regime {
        if P::RISE_BY_FADING > 0.0 && moment.recency > 0.0 {
            Regime::Fading
        } else if moment.age < P::AGES_FOR {
            Regime::Ageing
        } else {
            Regime::Settled
        }
    }

    /// What scores of a regime have risen by since the stream began, at most.
    #[inline]
    fn risen(regime: Regime, now: Now) -> f64 {
        let by_age = P::RISE_BY_AGE * now.step as f64;
        match regime {
            Regime::Fading => by_age + P::RISE_BY_FADING * now.fadings as f64,
            Regime::Ageing => by_age,
            Regime::Settled => 0.0,
        }
    }

    /// Which of two blocks goes first: the greater.
    #[inline]
    fn compare(a: &Entry, b: &Entry, names: &[Box<str>]) -> Ordering {
        a.rank.compare(&b.rank).then_with(|| {
            let by_name = names[a.block as usize].cmp(&names[b.block as usize]);
            if P::LATER_NAME_FIRST { by_name } else { by_name.reverse() }
        })
    }

    /// Puts a block where it belongs now.
    fn sort_in(&mut self, block: u32, held: &[Held], names: &[Box<str>], now: Now) {
        let one = &held[block as usize];
        let moment = now.of(one);
        let regime = Self::regime(moment);
        if self.place[block as usize].0 != regime {
            self.remove(block, names);
        }
        let mut rank = P::rank(&one.intent, moment);
        rank.score -= Self::risen(regime, now);
        let entry = Entry { rank, block };
        let heap = &mut self.heaps[regime as usize];
        let mut at = self.place[block as usize].1;
        if at == NOWHERE {
            at = heap.len() as u32;
            heap.push(entry);
        }
        self.settle(regime, at, entry, names);
    }

    fn remove(&mut self, block: u32, names: &[Box<str>]) {
        let (regime, at) = self.place[block as usize];
        self.place[block as usize].1 = NOWHERE;
        if at == NOWHERE {
            return;
        }
        let heap = &mut self.heaps[regime as usize];
        if let Some(last) = heap.pop()
            && (at as usize) < heap.len()
        {
            self.settle(regime, at, last, names);
        }
    }

    fn settle(&mut self, regime: Regime, mut at: u32, entry: Entry, names: &[Box<str>]) {
        let (heap, places) = (&mut self.heaps[regime as usize], &mut self.place);
        let mut set = |heap: &mut Vec<Entry>, at: u32, entry: Entry| {
            heap[at as usize] = entry;
            places[entry.block as usize] = (regime, at);
        };
        while at > 0 {
            let parent = (at - 1) / 2;
            let above = heap[parent as usize];
            if Self::compare(&entry, &above, names) != Ordering::Greater {
                break;
            }
            set(heap, at, above);
            at = parent;
        }
        loop {
            let first = 2 * at as usize + 1;
            let Some(mut child) = heap.get(first).copied() else { break };
            let mut next = first;
            if let Some(&second) = heap.get(first + 1)
                && Self::compare(&second, &child, names) == Ordering::Greater
            {
                (child, next) = (second, first + 1);
            }
            if Self::compare(&child, &entry, names) != Ordering::Greater {
                break;
            }
            set(heap, at, child);
            at = next as u32;
        }
        set(heap, at, entry);
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let heaps: usize = self.heaps.iter().map(|heap| heap.capacity() * size_of::<Entry>()).sum();
        heaps + self.place.capacity() * size_of::<(Regime, u32)>() + self.touched.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use kvtide_rules::intent::{Phase, Priority};
    use rand::RngExt as _;

    use super::*;
    use crate::intent::policy::{DeadlineAware, HotCold, IntentAware, Lru, PredictiveHotness};
    use crate::seed::{self, Stream};

    const BLOCKS: u32 = 40;

    /// Few different values, so that much ranks alike.
    fn drawn(draws: &mut Stream, step: u64) -> MemoryIntent {
        let maybe = |draws: &mut Stream, most: u64| draws.random_bool(0.7).then(|| draws.random_range(0..most));
        MemoryIntent {
            phase: Phase::ALL[draws.random_range(0..Phase::ALL.len())],
            priority: Priority::ALL[draws.random_range(0..Priority::ALL.len())],
            request_priority: draws.random_range(0..3) * 45,
            recency_score: f64::from(draws.random_range(0..4)) / 3.0,
            deadline_us: maybe(draws, 12_000),
            slack_us: maybe(draws, 8_000).map(|slack| slack as i64 - 2_000),
            target_decode_step: maybe(draws, 200).map(|ahead| step + ahead),
            expected_reuse_window_tokens: maybe(draws, 900),
            recompute_cost_us: maybe(draws, 8_000),
            last_access_step: step.saturating_sub(draws.random_range(0..30)),
            compression_ok: draws.random_bool(0.5),
            recompute_ok: draws.random_bool(0.5),
            pin_requested: draws.random_bool(0.2),
            is_draft: draws.random_bool(0.2),
            is_committed: draws.random_bool(0.5),
            ..MemoryIntent::new(1, u64::from(draws.random_range(1..3_u32)))
        }
    }

    /// Looks at every block.
    fn by_looking<P: TierPolicy>(held: &[Held], names: &[Box<str>], now: Now) -> Option<u32> {
        let entry = |block: u32| {
            let one = &held[block as usize];
            Entry { rank: P::rank(&one.intent, now.of(one)), block }
        };
        let candidates = (0..BLOCKS).filter(|&block| held[block as usize].in_hbm).map(entry);
        candidates.max_by(|a, b| Ranking::<P>::compare(a, b, names)).map(|entry| entry.block)
    }

    fn finds_what_looking_finds<P: TierPolicy>() {
        let mut draws = seed::stream(7, "ranking", 0);
        let names: Vec<Box<str>> = (0..BLOCKS).map(|block| format!("r:{}", block * 7 % BLOCKS).into()).collect();
        let nobody = Held { intent: MemoryIntent::new(0, 1), faded: 0, is_live: true, in_hbm: false, in_dram: false };
        let mut held = vec![nobody; BLOCKS as usize];
        let mut ranking = Ranking::<P>::new();
        ranking.grow(BLOCKS as usize);
        let mut now = Now { step: 500, fadings: 0 };
        let mut found = 0;
        for _ in 0..30_000 {
            match draws.random_range(0..5) {
                0 => {
                    let block = draws.random_range(0..BLOCKS);
                    held[block as usize].intent = drawn(&mut draws, now.step);
                    held[block as usize].faded = now.fadings;
                    held[block as usize].in_hbm = draws.random_bool(0.8);
                    ranking.touch(block);
                }
                1 => {
                    let victim = ranking.victim(&held, &names, now, |one| one.in_hbm);
                    assert_eq!(victim, by_looking::<P>(&held, &names, now), "{:?} at {now:?}", P::NAME);
                    found += u32::from(victim.is_some());
                    if let Some(victim) = victim.filter(|_| draws.random_bool(0.3)) {
                        held[victim as usize].in_hbm = false;
                        ranking.touch(victim);
                    }
                }
                2 | 3 => {
                    now.step += draws.random_range(0..4);
                    now.fadings += 1;
                }
                // Steps of a stream may go back.
                _ if draws.random_bool(0.02) => now.step = now.step.saturating_sub(draws.random_range(0..300)),
                _ => {}
            }
        }
        assert!(found > 4_000, "{found}");
    }

    #[test]
    fn the_victim_is_the_one_that_looking_at_every_block_finds() {
        finds_what_looking_finds::<Lru>();
        finds_what_looking_finds::<HotCold>();
        finds_what_looking_finds::<PredictiveHotness>();
        finds_what_looking_finds::<IntentAware>();
        finds_what_looking_finds::<DeadlineAware>();
    }
}
