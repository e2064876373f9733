//! What a node remembers of prefixes and of those who ask for them: turns, how often and how lately a prefix was asked for,
//! and how often and how soon the requests of a kind come back.
//!
//! Bounded, deterministic, and without allocation once made. A prefix is remembered by the keys of some of its blocks, its
//! **anchors**: the first eight, then each eighth. An anchor is forgotten when its place is needed for others that were
//! asked for later; it outlives the block itself, so that what was evicted and is asked for again is known again.
//!
//! Nobody tells a node of sessions. A request whose prompt continues a prefix that is known is taken for the next turn of
//! whoever asked for the longest such prefix first; if what it continues is more than that one had found cached, it is a
//! return of the one that asked last.

use alloc::vec;
use alloc::vec::Vec;

use kvtide_runtime::{Release, Stop};

use crate::Micros;

/// Blocks between anchors, and how many blocks at the front all are anchors.
const STRIDE: u32 = 8;
/// Records of a set; an anchor is in one of them or forgotten.
const WAYS: usize = 8;
/// Pools of blocks whose anchors are remembered.
const POOLS: usize = 4;
/// Visits remembered.
const VISITS: usize = 8192;
/// Tenants told apart.
const KINDS: usize = 64;
/// Releases over which the share that comes back is averaged.
const RELEASES: f32 = 64.0;
/// Returns over which their time is averaged.
const RETURNS: f32 = 16.0;
/// Time constant of the rate of evictions, seconds.
const EVICTION_SECONDS: f32 = 60.0;

/// An anchor that was asked for; a key of 0 is an empty place.
#[derive(Debug, Clone, Copy, Default)]
struct Record {
    key: u64,
    /// Blocks evicted when it was last asked for.
    evicted: u64,
    /// Who asked last.
    visit: u32,
    /// How often it was asked for.
    asked: u16,
    /// Turn of who asked first.
    turn: u16,
}

/// A request that was admitted, and perhaps gave its blocks back.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    number: u32,
    /// Blocks that were cached when it was admitted.
    head_blocks: u32,
    /// When it gave its blocks back, why, and whether somebody has come back for them since.
    released: Option<(Micros, Stop)>,
    has_returned: bool,
    kind: u8,
}

/// Averages over the releases of one kind and reason.
#[derive(Debug, Clone, Copy, Default)]
struct Returns {
    /// Releases and returns, older ones counting less.
    releases: f32,
    came_back: f32,
    /// Mean time until a return, microseconds; 0 before the first.
    after_us: f32,
}

/// How often a prefix was asked for before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asked {
    /// Requests.
    pub times: u32,
    /// Blocks evicted, since the pool was made, when the last of them asked.
    pub evicted: Option<u64>,
}

/// How the requests of a kind come back that gave their blocks back for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Comeback {
    /// What share of them does; 0 before the first.
    pub share: f32,
    /// After how long, in the mean of those that did.
    pub after: Option<Micros>,
}

/// What is known of a request from its admission on; kept by whoever serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Visit {
    pub(crate) number: u32,
    pub(crate) kind: u8,
    /// Turn of its session, from 1.
    pub turn: u32,
    /// Of what was cached.
    pub head: Asked,
    /// Of its whole prompt.
    pub tail: Asked,
    /// How long its session took to come back with it.
    pub last_return: Option<Micros>,
    /// Blocks evicted, since the pool was made, when it was admitted.
    pub evicted: u64,
}

/// The memory. See the [module](self).
#[derive(Debug, Clone)]
pub struct Reuse {
    records: Vec<Record>,
    visits: Vec<Past>,
    returns: Vec<Returns>,
    next_visit: u32,
    last: Option<(Micros, u64)>,
    evicted_per_second: f32,
}

impl Reuse {
    /// The memory of a node with a pool of `num_blocks`.
    pub fn new(num_blocks: u32) -> Reuse {
        let anchors = (num_blocks as usize * POOLS / STRIDE as usize).max(1024).next_power_of_two();
        Reuse {
            records: vec![Record::default(); anchors],
            visits: vec![Past::default(); VISITS],
            returns: vec![Returns::default(); KINDS * Stop::ALL.len()],
            next_visit: 1,
            last: None,
            evicted_per_second: 0.0,
        }
    }

    /// A request of tenant `kind`, any number that stands for it, is admitted for the first time. Its prompt has
    /// `prompt_blocks` full blocks, with these `keys` as far as they have any, of which `hit_blocks` were cached; `evicted`
    /// blocks have been evicted since the pool was made.
    pub fn admitted(
        &mut self,
        keys: &[u64],
        prompt_blocks: u32,
        hit_blocks: u32,
        kind: u64,
        now: Micros,
        evicted: u64,
    ) -> Visit {
        let number = self.next_visit;
        self.next_visit = self.next_visit.wrapping_add(1);
        let kind = (kind % KINDS as u64) as u8;
        let mut visit = Visit { number, kind, turn: 1, evicted, ..Visit::default() };
        let mut continued = None;
        for block in (0..prompt_blocks).filter(|&block| is_anchor(block)) {
            // What has no key nobody will ask for; it takes a place all the same, as it would where all have one.
            let key = keys.get(block as usize).copied().unwrap_or_else(|| unasked(number, block));
            let (record, is_known) = self.place(key);
            let before = is_known.then_some(*record);
            visit.turn = before.map_or(visit.turn, |known| u32::from(known.turn).saturating_add(1));
            let (asked, turn) = before.map_or((0, visit.turn as u16), |known| (known.asked, known.turn));
            *record = Record { key: record.key, evicted, visit: number, asked: asked.saturating_add(1), turn };
            visit.tail = before
                .map_or(Asked::default(), |known| Asked { times: known.asked.into(), evicted: Some(known.evicted) });
            if block < hit_blocks {
                visit.head = visit.tail;
            }
            continued = before.map(|known| (block, known.visit)).or(continued);
        }
        visit.turn = visit.turn.min(u32::from(u16::MAX));
        if let Some((block, asker)) = continued {
            visit.last_return = self.came_back(asker, block, now);
        }
        *self.past(number) = Past { number, head_blocks: hit_blocks, kind, ..Past::default() };
        visit
    }

    /// A request that was preempted is admitted again: it came back for what it gave back.
    pub fn resumed(&mut self, visit: &Visit, now: Micros) {
        self.came_back(visit.number, u32::MAX, now);
    }

    /// A request gives its blocks back.
    pub fn released(&mut self, visit: &Visit, stop: Stop, now: Micros, evicted: u64) {
        let past = self.past(visit.number);
        if past.number == visit.number {
            past.released = Some((now, stop));
            past.has_returned = false;
        }
        let returns = self.returns_of(visit.kind, stop);
        returns.releases += 1.0 - returns.releases / RELEASES;
        returns.came_back -= returns.came_back / RELEASES;
        self.note_evicted(now, evicted);
    }

    /// Fills in what is known here of the release of `visit`.
    pub fn describe(&self, visit: &Visit, stop: Stop, evicted: u64, release: &mut Release) {
        let asked = match release.part {
            kvtide_runtime::Part::Head => visit.head,
            kvtide_runtime::Part::Tail => visit.tail,
        };
        let comeback = self.comeback(visit, stop);
        release.stop = stop;
        release.turn = visit.turn;
        release.asked = asked.times;
        release.asked_evicted = asked.evicted.map(|then| evicted.saturating_sub(then));
        release.kind_reuse = comeback.share;
        release.kind_return_us = comeback.after.map(|after| after.0);
        release.last_return_us = visit.last_return.map(|time| time.0);
        release.held_evicted = evicted.saturating_sub(visit.evicted);
        release.evicted_per_second = self.evicted_per_second;
    }

    /// How those of its kind come back that gave their blocks back for the same reason.
    pub fn comeback(&self, visit: &Visit, stop: Stop) -> Comeback {
        let returns = self.returns[index(visit.kind, stop)];
        Comeback {
            share: if returns.releases > 0.0 { returns.came_back / returns.releases } else { 0.0 },
            after: (returns.after_us > 0.0).then_some(Micros(returns.after_us as u64)),
        }
    }

    /// Somebody asks for the prefix up to `block` that visit `number` asked for: how long after that gave its blocks back, if
    /// it did, and nobody has come back for them yet, and some of it is what it computed.
    fn came_back(&mut self, number: u32, block: u32, now: Micros) -> Option<Micros> {
        let past = self.past(number);
        let is_its = past.number == number && block >= past.head_blocks && !past.has_returned;
        let (released, stop) = past.released.filter(|_| is_its)?;
        past.has_returned = true;
        let (kind, after) = (past.kind, now.since(released));
        let returns = self.returns_of(kind, stop);
        returns.came_back = (returns.came_back + 1.0).min(returns.releases);
        let gain = if returns.after_us == 0.0 { 1.0 } else { 1.0 / RETURNS };
        returns.after_us += gain * (after.0.max(1) as f32 - returns.after_us);
        Some(after)
    }

    fn note_evicted(&mut self, now: Micros, evicted: u64) {
        let (then, before) = *self.last.get_or_insert((now, evicted));
        let seconds = now.since(then).0 as f32 * 1e-6;
        if seconds > 0.0 {
            let rate = evicted.saturating_sub(before) as f32 / seconds;
            self.evicted_per_second += seconds / (EVICTION_SECONDS + seconds) * (rate - self.evicted_per_second);
            self.last = Some((now, evicted));
        }
    }

    fn past(&mut self, number: u32) -> &mut Past {
        &mut self.visits[number as usize % VISITS]
    }

    fn returns_of(&mut self, kind: u8, stop: Stop) -> &mut Returns {
        &mut self.returns[index(kind, stop)]
    }

    /// The record of `key`, and whether it is known; if not, the place of the one in its set that was asked for longest ago,
    /// with the key in it.
    fn place(&mut self, key: u64) -> (&mut Record, bool) {
        let key = key.max(1);
        let sets = self.records.len() / WAYS;
        let set = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % sets;
        let ways = &mut self.records[set * WAYS..][..WAYS];
        let known = ways.iter().position(|record| record.key == key);
        let next = self.next_visit;
        // Visits are numbered round and round: the oldest is the farthest behind.
        let age = |record: &Record| if record.key == 0 { u32::MAX } else { next.wrapping_sub(record.visit) };
        let way = known.unwrap_or_else(|| (0..WAYS).max_by_key(|&way| age(&ways[way])).unwrap_or(0));
        ways[way].key = key;
        (&mut ways[way], known.is_some())
    }
}

/// Whether the block of a prompt at that place is an anchor.
fn is_anchor(block: u32) -> bool {
    block < STRIDE || block % STRIDE == STRIDE - 1
}

/// A key that no other request has.
fn unasked(number: u32, block: u32) -> u64 {
    let word = u64::from(number) << 32 | u64::from(block);
    let word = (word ^ 0x6b76_7469_6465).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ word >> 32
}

fn index(kind: u8, stop: Stop) -> usize {
    usize::from(kind) * Stop::ALL.len() + stop as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_runtime::Part;

    fn at(seconds: u64) -> Micros {
        Micros(seconds * 1_000_000)
    }

    /// Keys of a text: the first `shared` blocks are everybody's.
    fn keys(own: u64, shared: u64, blocks: u64) -> Vec<u64> {
        (0..blocks).map(|block| if block < shared { 1_000 + block } else { (own + 1) * 1_000_000 + block }).collect()
    }

    fn described(reuse: &Reuse, visit: &Visit, part: Part, stop: Stop, evicted: u64) -> Release {
        let mut release = Release { part, ..Release::default() };
        reuse.describe(visit, stop, evicted, &mut release);
        release
    }

    #[test]
    fn turns_follow_the_longest_prefix_that_is_known() {
        let mut reuse = Reuse::new(1000);
        let mut ask =
            |own, shared, blocks| reuse.admitted(&keys(own, shared, blocks), blocks as u32, 0, 0, at(0), 0).turn;
        assert_eq!([ask(7, 0, 20), ask(7, 0, 40), ask(7, 0, 41), ask(8, 0, 20)], [1, 2, 3, 1]);
        // A branch off the first turn is a second turn; the 41st block was no anchor, so the third is found as the second.
        assert_eq!([ask(7, 0, 41), ask(7, 0, 16)], [3, 2]);
    }

    #[test]
    fn what_was_asked_for_is_counted_and_dated() {
        let mut reuse = Reuse::new(1000);
        let first = reuse.admitted(&keys(1, 16, 32), 32, 0, 0, at(0), 10);
        assert_eq!((first.head, first.tail), (Asked::default(), Asked::default()));
        let second = reuse.admitted(&keys(2, 16, 32), 32, 16, 0, at(1), 30);
        assert_eq!(second.head, Asked { times: 1, evicted: Some(10) });
        assert_eq!(second.tail, Asked::default());
        let third = reuse.admitted(&keys(2, 16, 32), 32, 32, 0, at(2), 70);
        assert_eq!((third.head, third.tail), (Asked { times: 1, evicted: Some(30) }, third.head));
        let release = described(&reuse, &third, Part::Head, Stop::Unknown, 100);
        assert_eq!((release.asked, release.asked_evicted, release.held_evicted), (1, Some(70), 30));
    }

    #[test]
    fn kinds_and_reasons_are_told_apart_by_how_they_come_back() {
        let mut reuse = Reuse::new(1000);
        for round in 0..200 {
            let now = at(100 * round);
            let agent = reuse.admitted(&keys(2 * round, 0, 24), 24, 0, 5, now, 0);
            reuse.released(&agent, Stop::ToolCall, now, 0);
            let reader = reuse.admitted(&keys(2 * round + 1, 0, 24), 24, 0, 5, now, 0);
            reuse.released(&reader, Stop::EndOfTurn, now, 0);
            let back = reuse.admitted(&keys(2 * round, 0, 40), 40, 24, 5, Micros(now.0 + 9_000_000), 0);
            assert_eq!((back.turn, back.last_return), (2, Some(at(9))));
            if round % 4 == 0 {
                reuse.admitted(&keys(2 * round + 1, 0, 40), 40, 24, 5, Micros(now.0 + 50_000_000), 0);
            }
        }
        let visit = reuse.admitted(&keys(9_999, 0, 24), 24, 0, 5, at(20_000), 0);
        let tool = described(&reuse, &visit, Part::Tail, Stop::ToolCall, 0);
        let end = described(&reuse, &visit, Part::Tail, Stop::EndOfTurn, 0);
        assert!(
            tool.kind_reuse > 0.95 && (0.15..0.35).contains(&end.kind_reuse),
            "{} {}",
            tool.kind_reuse,
            end.kind_reuse
        );
        assert_eq!((tool.kind_return_us, end.kind_return_us), (Some(9_000_000), Some(50_000_000)));
        let other = reuse.admitted(&keys(9_998, 0, 24), 24, 0, 6, at(20_000), 0);
        assert_eq!(described(&reuse, &other, Part::Tail, Stop::ToolCall, 0).kind_return_us, None);
    }

    #[test]
    fn sharing_a_beginning_is_not_coming_back() {
        let mut reuse = Reuse::new(1000);
        let first = reuse.admitted(&keys(1, 16, 32), 32, 16, 0, at(0), 0);
        reuse.released(&first, Stop::Unknown, at(1), 0);
        let second = reuse.admitted(&keys(2, 16, 32), 32, 16, 0, at(2), 0);
        assert_eq!(second.last_return, None);
        // Who was preempted comes back for the whole.
        reuse.released(&second, Stop::Preempted, at(3), 0);
        reuse.resumed(&second, at(4));
        let release = described(&reuse, &second, Part::Tail, Stop::Preempted, 0);
        assert_eq!((release.kind_reuse, release.kind_return_us), (1.0, Some(1_000_000)));
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_is_forgotten() {
        let mut reuse = Reuse::new(100);
        for own in 0..10_000 {
            reuse.admitted(&keys(own, 0, 64), 64, 0, own, at(own), 0);
        }
        assert_eq!(reuse.records.len(), 1024);
        assert_eq!(reuse.admitted(&keys(1, 0, 64), 64, 0, 1, at(10_000), 0).turn, 1);
        assert_eq!(reuse.admitted(&keys(9_999, 0, 64), 64, 0, 1, at(10_000), 0).turn, 2);
        // A visit that is forgotten is none that can be come back to.
        let lost = Visit { number: 5, ..Visit::default() };
        reuse.released(&lost, Stop::Unknown, at(10_001), 0);
        assert!(reuse.came_back(5, u32::MAX, at(10_002)).is_none());
    }

    #[test]
    fn evictions_are_counted_per_second() {
        let mut reuse = Reuse::new(1000);
        let visit = reuse.admitted(&[], 20, 0, 0, at(0), 0);
        for second in 0..1000 {
            reuse.released(&visit, Stop::Unknown, at(second), 40 * second);
        }
        let release = described(&reuse, &visit, Part::Tail, Stop::Unknown, 40_000);
        assert!((release.evicted_per_second - 40.0).abs() < 0.01, "{}", release.evicted_per_second);
    }
}
