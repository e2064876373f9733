//! The order in which a cache gives up blocks that nobody holds, by what was declared of them.
//!
//! **Levels.** A score has a part that is declared, and one that is the same for all: as time passes recency fades and age grows. So
//! blocks of which alike was declared go in the order in which they became idle. The declared part is kept as a [`Standing`], a
//! level of `POINTS` points; each level is a queue, and the victim is the head of one of them: of greatest score, and of equal
//! ones idle longest. Finding it takes a look at the levels that are not empty, whatever the number of blocks.
//!
//! **Time** is counted in evictions, so that it means the same in a cache of any size under any load, and nothing at all
//! while nothing is evicted: the cache turns over once in [`STEPS_PER_TURNOVER`] steps. Recency is gone after 34 of them, and
//! after [`TERM_STEPS`], where age stops to add to scores, what was declared holds no longer.
//!
//! **Nothing is kept for ever.** A block that nobody used for that long goes before all others, the one idle longest first. So no
//! block is idle for more than `TERM_STEPS / STEPS_PER_TURNOVER` turnovers and one.
//!
//! **Prefixes.** A block that is used less far back than what continues it, and stands no higher, goes no earlier: the one rises as the
//! other does. [`PathStanding`] sees to the second.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::record::MemoryIntent;
use super::score::{Moment, Scoring};

/// Steps in which a cache turns over once.
pub const STEPS_PER_TURNOVER: u64 = 32;

/// Steps for which what was declared of a block holds if nobody uses it: those for which a score rises.
pub const TERM_STEPS: u64 = 140;

/// What recency loses in a step.
const FADING: f64 = 0.03;

/// Levels of standings, and points of each.
const LEVELS: u32 = 128;
const POINTS: f64 = 12.0;

/// The score of the lowest level: nothing that is idle scores less, nor more than the highest.
const LEAST: f64 = -896.0;

/// The end of a queue.
const END: u32 = u32::MAX;

/// How soon a block goes by what was declared of it: the greatest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing(u8);

impl Standing {
    /// Before everything.
    const GREATEST: Standing = Standing(LEVELS as u8 - 1);

    /// Of a block of which this was declared.
    pub fn of(intent: &MemoryIntent, scoring: Scoring) -> Standing {
        let at = Moment { step: intent.last_access_step, age: 0, recency: 0.0 };
        // Saturates on both sides.
        let level = ((scoring.score(intent, at) - LEAST) / POINTS) as u8;
        Standing(level).min(Standing::GREATEST)
    }

    /// Of a block of which nothing was.
    fn undeclared(scoring: Scoring) -> Standing {
        Standing::of(&MemoryIntent::new(0, 1), scoring)
    }
}

/// A path on its way back to the cache, from its last block to its first.
#[derive(Debug, Clone, Copy)]
pub struct PathStanding {
    /// That of the block behind.
    floor: Standing,
}

impl Default for PathStanding {
    fn default() -> PathStanding {
        PathStanding { floor: Standing::GREATEST }
    }
}

impl PathStanding {
    /// The standing of the next block towards the front: no greater than that of what continues it, and where text other than this
    /// path's does, no greater than what it had `before`.
    pub fn next(&mut self, given: Standing, before: Option<Standing>, is_branch: bool) -> Standing {
        let mut standing = given.min(self.floor);
        if let Some(before) = before.filter(|_| is_branch) {
            standing = standing.min(before);
        }
        self.floor = standing;
        standing
    }
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// What was declared of its content, if anything was.
    declared: Option<Standing>,
    /// The level that it is queued at.
    level: u8,
    /// Blocks evicted when it became idle.
    since: u64,
    /// When it became idle, in blocks that did.
    entered: u64,
    /// In its queue.
    older: u32,
    newer: u32,
}

impl Slot {
    const EMPTY: Slot = Slot { declared: None, level: 0, since: 0, entered: 0, older: END, newer: END };
}

/// Idle blocks of a cache, by number. See the [module](super::Order).
#[derive(Debug, Clone)]
pub struct Order {
    slots: Vec<Slot>,
    /// The oldest and the newest of each level, and which levels have any, one bit each.
    oldest: Vec<u32>,
    newest: Vec<u32>,
    filled: u128,
    /// By how much a score has risen after so many steps.
    rises: Vec<f64>,
    undeclared: Standing,
    scoring: Scoring,
    evicted: u64,
    entered: u64,
}

impl Order {
    /// Of a cache of `num_slots` blocks, none of which is idle.
    pub fn new(num_slots: u32, scoring: Scoring) -> Order {
        Order {
            slots: vec![Slot::EMPTY; num_slots.max(1) as usize],
            oldest: vec![END; LEVELS as usize],
            newest: vec![END; LEVELS as usize],
            filled: 0,
            rises: rises(scoring),
            undeclared: Standing::undeclared(scoring),
            scoring,
            evicted: 0,
            entered: 0,
        }
    }

    /// By which of the scores.
    pub fn scoring(&self) -> Scoring {
        self.scoring
    }

    /// Blocks evicted since the beginning.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// What was declared of a block's content, if anything was.
    pub fn declared(&self, slot: u32) -> Option<Standing> {
        self.slots[slot as usize].declared
    }

    /// Something is declared of a block's content. It counts from when the block becomes idle next.
    pub fn declare(&mut self, slot: u32, standing: Standing) {
        self.slots[slot as usize].declared = Some(standing);
    }

    /// A block has new content, of which nothing is declared. It is not idle.
    pub fn forget(&mut self, slot: u32) {
        self.slots[slot as usize].declared = None;
    }

    /// A block becomes idle.
    pub fn push(&mut self, slot: u32) {
        let level = self.slots[slot as usize].declared.unwrap_or(self.undeclared).0;
        let older = core::mem::replace(&mut self.newest[usize::from(level)], slot);
        match older {
            END => self.oldest[usize::from(level)] = slot,
            older => self.slots[older as usize].newer = slot,
        }
        self.filled |= 1 << level;
        let (since, entered, declared) = (self.evicted, self.entered, self.slots[slot as usize].declared);
        self.slots[slot as usize] = Slot { declared, level, since, entered, older, newer: END };
        self.entered += 1;
    }

    /// An idle block is idle no more.
    pub fn remove(&mut self, slot: u32) {
        let Slot { level, older, newer, .. } = self.slots[slot as usize];
        let level_index = usize::from(level);
        match older {
            END => self.oldest[level_index] = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            END => self.newest[level_index] = older,
            newer => self.slots[newer as usize].older = older,
        }
        if self.oldest[level_index] == END {
            self.filled &= !(1 << level);
        }
    }

    /// The block that is evicted next.
    pub fn first(&self) -> Option<u32> {
        let mut best: Option<(f64, Reverse<u64>, u32)> = None;
        let mut left = self.filled;
        while left != 0 {
            let level = left.trailing_zeros();
            left &= left - 1;
            let head = self.oldest[level as usize];
            let slot = &self.slots[head as usize];
            let found = (self.score(slot), Reverse(slot.entered), head);
            let is_greater =
                |best: &(f64, Reverse<u64>, u32)| found.0.total_cmp(&best.0).then(found.1.cmp(&best.1)).is_gt();
            if best.as_ref().is_none_or(is_greater) {
                best = Some(found);
            }
        }
        best.map(|(.., head)| head)
    }

    /// Evicts the block that [`first`](Self::first) names.
    pub fn pop(&mut self) -> Option<u32> {
        let slot = self.first()?;
        self.remove(slot);
        self.forget(slot);
        self.evicted += 1;
        Some(slot)
    }

    /// Evicts exactly `count` of those that `may_go`, in order, or none at all.
    pub fn pop_of(&mut self, count: usize, mut may_go: impl FnMut(u32) -> bool) -> Option<Vec<u32>> {
        let (mut found, mut passed) = (Vec::new(), Vec::new());
        while found.len() < count {
            let Some(slot) = self.first() else { break };
            self.remove(slot);
            let may_go = may_go(slot);
            passed.push((slot, may_go));
            if may_go {
                found.push(slot);
            }
        }
        let is_enough = found.len() == count;
        for &(slot, has_gone) in passed.iter().rev() {
            if !(is_enough && has_gone) {
                self.put_back(slot);
            }
        }
        if !is_enough {
            return None;
        }
        for &slot in &found {
            self.forget(slot);
        }
        self.evicted += count as u64;
        Some(found)
    }

    /// Whether an idle block is where it is said to be.
    pub fn is_sound(&self, slot: u32) -> bool {
        let Slot { level, older, newer, entered, .. } = self.slots[slot as usize];
        let is_linked = |other: u32, end: u32, back: fn(&Slot) -> u32| match other {
            END => end == slot,
            other => back(&self.slots[other as usize]) == slot && self.slots[other as usize].level == level,
        };
        let in_time = older == END || self.slots[older as usize].entered < entered;
        self.filled >> level & 1 == 1
            && in_time
            && is_linked(older, self.oldest[usize::from(level)], |slot| slot.newer)
            && is_linked(newer, self.newest[usize::from(level)], |slot| slot.older)
    }

    /// How soon an idle block goes.
    fn score(&self, slot: &Slot) -> f64 {
        let steps = (self.evicted - slot.since) * STEPS_PER_TURNOVER / self.slots.len() as u64;
        match self.rises.get(steps as usize) {
            Some(rise) => LEAST + POINTS * f64::from(slot.level) + rise,
            None => f64::INFINITY,
        }
    }

    /// Puts the block removed last back where it was: before all others of its level.
    fn put_back(&mut self, slot: u32) {
        let level = self.slots[slot as usize].level;
        let newer = core::mem::replace(&mut self.oldest[usize::from(level)], slot);
        match newer {
            END => self.newest[usize::from(level)] = slot,
            newer => self.slots[newer as usize].older = slot,
        }
        (self.slots[slot as usize].older, self.slots[slot as usize].newer) = (END, newer);
        self.filled |= 1 << level;
    }
}

/// What a score rises by in the steps of a term, against that of a block without recency and age.
fn rises(scoring: Scoring) -> Vec<f64> {
    // Of any block with something at risk.
    let intent = MemoryIntent { request_priority: 100, ..MemoryIntent::new(0, 1) };
    let rest = scoring.score(&intent, Moment { step: 0, age: 0, recency: 0.0 });
    let after = |age: u64| {
        let recency = (1.0 - FADING * age as f64).max(0.0);
        scoring.score(&intent, Moment { step: 0, age, recency }) - rest
    };
    (0..TERM_STEPS).map(after).collect()
}
