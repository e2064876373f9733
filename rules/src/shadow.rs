//! Whether LRU would have hit more: the guard of retention, counted while a node serves.
//!
//! A small shadow of the pool is kept under LRU, of a sample of its blocks, in a queue that is as much shorter than the pool, as in
//! Waldspurger, Park, Garthwaite and Ahmad 2015, "Efficient MRC Construction with SHARDS": what is in the sample is there in every
//! one of its uses. Of each block of the sample that a request asks for it is known whether the pool had it and whether LRU would
//! have, so the difference is one of the same blocks.
//!
//! SHARDS samples by a hash of what is asked for. Here it is the **place** of a block in its text, one in so many: content is
//! bound to its place by its key, which binds all text before it, so that it is sampled always or never just as well; and no key
//! is asked. Simulator and engines have keys of their own, and the same traffic has the same sample, and the same verdict, in
//! all of them. Places are drawn evenly, and not at random by a hash of them: blocks are hit in stretches from the beginning of a
//! text on, whose lengths an even grid measures best. It rounds a text to whole steps of at most [`WIDEST`] blocks and does not
//! see those shorter than half of one, of which little can be lost. Which of several texts with a common beginning are sampled
//! could also be drawn when a block is first seen, and be remembered; that takes an index of everything the pool holds, which is
//! all that exact LRU would.
//!
//! What retention may lose is a budget: [`ALLOWED_LOSS`] of what was asked for. While more than that was lost, net of what
//! was gained lately, [`is_behind`](Shadow::is_behind) says so, and everything is to be normal until the budget has grown
//! back. Gains are remembered for [`MEMORY`] blocks' worth of budget and no longer, so that a good week pays for no bad one.
//!
//! What requests hold cannot be evicted by LRU either: the shadow holds it too, and is told how much of the pool is free when
//! somebody asks. It takes a prompt for cached from its admission on, where the pool has it chunk by chunk.
//!
//! Bounded, deterministic, and without allocation once made.

use alloc::vec;
use alloc::vec::Vec;

/// Share of the blocks asked for that may be lost against LRU.
pub const ALLOWED_LOSS: f64 = 0.005;

/// Sampled blocks asked for over which gains are remembered, and over which a loss has to show before it counts.
pub const MEMORY: f64 = 20_000.0;

/// Blocks of the largest pool that is shadowed block by block.
const WHOLE: u32 = 2048;

/// Blocks of text of which one is sampled in a large pool. Half of that is what is not seen of a short text, so there is no more
/// to be saved by a wider step.
pub const WIDEST: u32 = 8;

/// The end of a list, and an empty place of the index.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: u64,
    /// Requests that hold it; while there are any it is in no list.
    holders: u32,
    /// Towards what was used longer ago; of an entry without a key, the next of those.
    older: u32,
    newer: u32,
}

/// The shadow. See the [module](self).
#[derive(Debug, Clone)]
pub struct Shadow {
    /// One of so many blocks, as a power of two, is in the sample.
    shift: u32,
    entries: Vec<Entry>,
    /// The first entry without a key.
    vacant: u32,
    newest: u32,
    oldest: u32,
    num_idle: u32,
    /// Numbers of entries, by key: open addressing, never more than half full.
    index: Vec<u32>,
    /// Blocks of the sample without a key so far.
    num_unasked: u64,
    /// Blocks of the sample asked for, those that the pool had, and those that LRU would have had.
    asked: u64,
    hits: u64,
    lru_hits: u64,
    /// What was lost beyond the budget.
    debt: f64,
    is_behind: bool,
}

impl Shadow {
    /// The shadow of a pool of `num_blocks`.
    pub fn new(num_blocks: u32) -> Shadow {
        let shift = num_blocks.div_ceil(WHOLE).next_power_of_two().min(WIDEST).trailing_zeros();
        // Of texts half a step long all are in the sample, with one block each.
        let capacity = 2 * (num_blocks >> shift) + 64;
        let entry = |number: u32| Entry { key: 0, holders: 0, older: number + 1, newer: NONE };
        let mut entries: Vec<Entry> = (0..capacity).map(entry).collect();
        entries[capacity as usize - 1].older = NONE;
        Shadow {
            shift,
            entries,
            vacant: 0,
            newest: NONE,
            oldest: NONE,
            num_idle: 0,
            index: vec![NONE; (2 * capacity as usize).next_power_of_two()],
            num_unasked: 0,
            asked: 0,
            hits: 0,
            lru_hits: 0,
            debt: 0.0,
            is_behind: false,
        }
    }

    /// A request is admitted that asks for `asked_blocks` blocks, with these `keys` as far as they have any, of which the pool
    /// had the first `hit_blocks`; before that, `free_blocks` of the pool were held by nobody.
    pub fn admitted(&mut self, keys: &[u64], asked_blocks: u32, hit_blocks: u32, free_blocks: u32) {
        while self.num_idle > free_blocks >> self.shift {
            self.evict();
        }
        let keys = keys.get(..asked_blocks as usize).unwrap_or(keys);
        let asked = self.sampled(0, asked_blocks as usize).count() as u64;
        let (mut hits, mut lru_hits) = (0, 0);
        // Nobody has what has no key.
        let mut continues = true;
        for block in self.sampled(0, keys.len()) {
            continues &= self.find(keys[block]).is_some();
            hits += u64::from(block < hit_blocks as usize);
            lru_hits += u64::from(continues);
        }
        self.held(keys);
        self.judge(asked, hits, lru_hits);
    }

    /// A request holds blocks with these `keys` from now on: on admission, which [`admitted`](Self::admitted) tells, and when
    /// one that was preempted is admitted again.
    pub fn held(&mut self, keys: &[u64]) {
        for block in self.sampled(0, keys.len()) {
            match self.known(keys[block]) {
                Some(entry) => {
                    if self.entries[entry as usize].holders == 0 {
                        self.unlink(entry);
                    }
                    self.entries[entry as usize].holders += 1;
                }
                None => {
                    if let Some(entry) = self.enter(keys[block]) {
                        self.entries[entry as usize].holders = 1;
                    }
                }
            }
        }
    }

    /// A request gives `blocks` full blocks back, with these `keys` as far as they have any: those that were held, and those
    /// that it has computed since. One that is preempted in the midst of its prompt held more than it gives back.
    pub fn released(&mut self, keys: &[u64], blocks: u32) {
        // The last block first, so that a prefix outlives what continues it.
        for _ in self.sampled(keys.len(), blocks as usize) {
            // An odd multiplier: no two of these are alike, and none is like a key but by chance.
            self.num_unasked += 1;
            self.let_go(self.num_unasked.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6b76_7469_6465);
        }
        for block in self.sampled(0, keys.len()).rev() {
            let is_held = |entry: u32| self.entries[entry as usize].holders > 0;
            if block < blocks as usize || self.known(keys[block]).is_some_and(is_held) {
                self.let_go(keys[block]);
            }
        }
    }

    /// One holder less of a block; if it is the last, or there was none, the block is the one used last.
    fn let_go(&mut self, key: u64) {
        match self.known(key) {
            Some(entry) if self.entries[entry as usize].holders > 1 => self.entries[entry as usize].holders -= 1,
            Some(entry) => {
                if core::mem::replace(&mut self.entries[entry as usize].holders, 0) == 0 {
                    self.unlink(entry);
                }
                self.link_newest(entry);
            }
            None => {
                if let Some(entry) = self.enter(key) {
                    self.link_newest(entry);
                }
            }
        }
    }

    /// Whether more has been lost against LRU than may be.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Blocks of the sample asked for, those that the pool had, and those that LRU would have had.
    pub fn counts(&self) -> [u64; 3] {
        [self.asked, self.hits, self.lru_hits]
    }

    fn judge(&mut self, asked: u64, hits: u64, lru_hits: u64) {
        self.asked += asked;
        self.hits += hits;
        self.lru_hits += lru_hits;
        let slack = ALLOWED_LOSS * MEMORY;
        let debt = self.debt + lru_hits as f64 - hits as f64 - ALLOWED_LOSS * asked as f64;
        self.debt = debt.max(-slack);
        // Behind it stays until all is paid, so that it does not change its mind with every request.
        self.is_behind = self.debt > if self.is_behind { 0.0 } else { slack };
    }

    /// Places in a text, of those from `from` up to, not including, `to`, whose blocks are in the sample: the middle of each step.
    fn sampled(&self, from: usize, to: usize) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let shift = self.shift;
        let middle = ((1 << shift) - 1) / 2;
        let before = move |place: usize| (place + (1 << shift) - 1 - middle) >> shift;
        (before(from)..before(to)).map(move |step| (step << shift) + middle)
    }

    /// The entry of `key`.
    fn known(&self, key: u64) -> Option<u32> {
        self.find(key).map(|place| self.index[place])
    }

    /// Forgets what was used longest ago.
    fn evict(&mut self) {
        let entry = self.oldest;
        if entry == NONE {
            return;
        }
        self.unlink(entry);
        if let Some(place) = self.find(self.entries[entry as usize].key) {
            self.leave(place);
        }
        self.entries[entry as usize] = Entry { key: 0, holders: 0, older: self.vacant, newer: NONE };
        self.vacant = entry;
    }

    fn link_newest(&mut self, entry: u32) {
        self.num_idle += 1;
        let before = core::mem::replace(&mut self.newest, entry);
        self.entries[entry as usize].older = before;
        self.entries[entry as usize].newer = NONE;
        match before {
            NONE => self.oldest = entry,
            before => self.entries[before as usize].newer = entry,
        }
    }

    fn unlink(&mut self, entry: u32) {
        self.num_idle -= 1;
        let Entry { older, newer, .. } = self.entries[entry as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
    }

    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.index.len() - 1)
    }

    /// The place of `key` in the index.
    fn find(&self, key: u64) -> Option<usize> {
        let mask = self.index.len() - 1;
        let mut place = self.home(key);
        // Half of the places are empty, so this ends.
        loop {
            match self.index[place] {
                NONE => return None,
                entry if self.entries[entry as usize].key == key => return Some(place),
                _ => place = (place + 1) & mask,
            }
        }
    }

    /// An entry for a key that has none; `None` where everything is held, which only an unlikely sample does.
    fn enter(&mut self, key: u64) -> Option<u32> {
        if self.vacant == NONE {
            self.evict();
        }
        let entry = self.vacant;
        let record = self.entries.get_mut(entry as usize)?;
        self.vacant = record.older;
        record.key = key;
        let mask = self.index.len() - 1;
        let mut place = self.home(key);
        while self.index[place] != NONE {
            place = (place + 1) & mask;
        }
        self.index[place] = entry;
        Some(entry)
    }

    /// Empties a place, and moves those up that were put behind it for want of it (Knuth, The Art of Computer Programming 3,
    /// 6.4, algorithm R).
    fn leave(&mut self, mut hole: usize) {
        let mask = self.index.len() - 1;
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let entry = self.index[place];
            if entry == NONE {
                break;
            }
            let home = self.home(self.entries[entry as usize].key);
            if (place.wrapping_sub(home) & mask) >= (place.wrapping_sub(hole) & mask) {
                self.index[hole] = entry;
                hole = place;
            }
        }
        self.index[hole] = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;

    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }
    }

    /// Where every key is in the sample, and everybody gives back at once, the shadow is LRU.
    #[test]
    fn a_small_pool_is_shadowed_exactly() {
        let mut shadow = Shadow::new(40);
        let mut queue: VecDeque<u64> = VecDeque::new();
        let mut random = Random(1);
        let (mut asked, mut lru_hits) = (0, 0);
        for _ in 0..5_000 {
            let (text, blocks) = (random.below(12), 1 + random.below(8));
            let keys: Vec<u64> = (0..blocks).map(|block| 1 + text * 100 + block).collect();
            asked += blocks;
            lru_hits += keys.iter().take_while(|key| queue.contains(key)).count() as u64;
            shadow.admitted(&keys, blocks as u32, 0, 40);
            shadow.released(&keys, blocks as u32);
            for key in keys.iter().rev() {
                queue.retain(|other| other != key);
                queue.push_back(*key);
            }
            queue.drain(..queue.len().saturating_sub(40));
            assert_eq!(shadow.counts(), [asked, 0, lru_hits]);
        }
        assert!(lru_hits > asked / 4);
    }

    /// A sample of one block in eight says what the whole would.
    #[test]
    fn a_sample_is_near_the_whole() {
        let mut shadow = Shadow::new(32_768);
        assert_eq!(shadow.shift, 3);
        let mut random = Random(2);
        let (mut asked, mut lru_hits) = (0_u64, 0_u64);
        let mut last_use = vec![0_u64; 4_000];
        let mut used = 0;
        for _ in 0..40_000 {
            // Texts of sixteen blocks, some much more popular than others; LRU of whole texts is a matter of what was used since.
            let popular = 1 + random.below(4_000);
            let text = random.below(popular) as usize;
            let key = |block: u64| (text as u64 * 16 + block + 1).wrapping_mul(0x2545_f491_4f6c_dd1d);
            let keys: Vec<u64> = (0..16).map(key).collect();
            shadow.admitted(&keys, 16, 0, 32_768);
            shadow.released(&keys, 16);
            let since = last_use.iter().filter(|&&time| time > last_use[text]).count() as u64;
            asked += 16;
            lru_hits += if last_use[text] > 0 && 16 * since < 32_768 { 16 } else { 0 };
            used += 1;
            last_use[text] = used;
        }
        let [sampled, _, sampled_hits] = shadow.counts();
        let (whole, sample) = (lru_hits as f64 / asked as f64, sampled_hits as f64 / sampled as f64);
        assert!((whole - sample).abs() < 0.02, "{whole} {sample}");
        assert_eq!(sampled * 8, asked);
    }

    /// The keys of an engine that calls content by `name`: texts share the beginnings of others.
    fn named(name: u64, text: u64, blocks: u64) -> Vec<u64> {
        let content =
            |block: u64| if block < text % 17 { (text % 5) << 40 | block } else { 1 << 60 | text << 20 | block };
        (0..blocks).map(|block| (content(block) + 1).wrapping_mul(name)).collect()
    }

    /// The same traffic through two engines that call its blocks by other names: same sample, same verdict, request by request.
    #[test]
    fn whatever_blocks_are_called_the_verdicts_are_the_same() {
        const NAMES: [u64; 2] = [0x2545_f491_4f6c_dd1d, 0xd6e8_feb8_6659_fd93];
        for num_blocks in [1_000, 3_000, 14_000, 300_000] {
            let mut shadows = NAMES.map(|_| Shadow::new(num_blocks));
            let mut random = Random(u64::from(num_blocks));
            let mut running = VecDeque::new();
            let (mut verdict, mut changes) = (false, 0);
            for _ in 0..20_000 {
                let (text, blocks) = (random.below(u64::from(num_blocks) / 30), 1 + random.below(90));
                let (hits, free) = (random.below(1 + blocks) as u32, num_blocks - random.below(900) as u32);
                for (shadow, name) in shadows.iter_mut().zip(NAMES) {
                    shadow.admitted(&named(name, text, blocks), blocks as u32, hits, free);
                }
                running.push_back((text, blocks, random.below(4)));
                if running.len() > 8
                    && let Some((text, blocks, generated)) = running.pop_front()
                {
                    for (shadow, name) in shadows.iter_mut().zip(NAMES) {
                        shadow.released(&named(name, text, blocks), (blocks + generated) as u32);
                    }
                }
                assert_eq!(shadows[0].counts(), shadows[1].counts());
                assert_eq!(shadows[0].is_behind(), shadows[1].is_behind());
                changes += u32::from(verdict != shadows[0].is_behind());
                verdict = shadows[0].is_behind();
            }
            assert!(changes > 0, "{num_blocks}: {:?}", shadows[0].counts());
        }
    }

    /// Who is preempted in the midst of its prompt has given back all that it held.
    #[test]
    fn nothing_is_held_for_ever() {
        let mut shadow = Shadow::new(64);
        let keys: Vec<u64> = (1..=32).collect();
        for _ in 0..10 {
            shadow.admitted(&keys, 32, 0, 64);
            shadow.released(&keys, 8);
        }
        assert_eq!(shadow.num_idle, 32);
        assert!(shadow.entries.iter().all(|entry| entry.holders == 0));
    }

    #[test]
    fn what_is_held_is_not_evicted_and_leaves_less_for_the_rest() {
        let mut shadow = Shadow::new(64);
        let keys = |text: u64| (0..16).map(|block| 1 + text * 100 + block).collect::<Vec<u64>>();
        // The first is held throughout; the others come and go through what is left.
        shadow.admitted(&keys(0), 16, 0, 64);
        for text in [1, 2, 3, 1, 2, 3] {
            shadow.admitted(&keys(text), 16, 0, 48);
            shadow.released(&keys(text), 16);
        }
        assert_eq!(shadow.counts(), [7 * 16, 0, 3 * 16]);
        // With half of that free, the oldest of three is gone.
        shadow.admitted(&keys(1), 16, 0, 32);
        assert_eq!(shadow.counts()[2], 3 * 16);
        shadow.admitted(&keys(0), 16, 16, 32);
        assert_eq!(shadow.counts()[2], 4 * 16, "it is held, so it is there");
        // Two holders, two givings back.
        shadow.released(&keys(0), 16);
        assert_eq!(shadow.num_idle, 32);
        shadow.released(&keys(0), 16);
        assert_eq!(shadow.num_idle, 48);
    }

    #[test]
    fn more_than_there_is_room_for_is_left_out() {
        let mut shadow = Shadow::new(16);
        let keys: Vec<u64> = (1..=200).collect();
        shadow.admitted(&keys, 200, 0, 16);
        shadow.admitted(&keys, 200, 0, 0);
        assert_eq!(shadow.counts(), [400, 0, 96]);
        shadow.released(&keys, 200);
        shadow.released(&keys, 200);
        shadow.admitted(&[], 0, 0, 16);
        assert_eq!(shadow.num_idle, 16);
    }

    #[test]
    fn a_loss_beyond_the_budget_is_told_until_it_is_paid() {
        let mut shadow = Shadow::new(100);
        let keys: Vec<u64> = (1..=50).collect();
        let ask = |shadow: &mut Shadow, hits| {
            shadow.admitted(&keys, 50, hits, 100);
            shadow.released(&keys, 50);
        };
        ask(&mut shadow, 0);
        // LRU would have everything, the pool has nothing: a hundred blocks may be lost before it counts.
        ask(&mut shadow, 0);
        ask(&mut shadow, 0);
        assert!(!shadow.is_behind());
        ask(&mut shadow, 0);
        assert!(shadow.is_behind());
        // Hitting as LRU does pays it back, half a block in a hundred.
        let mut rounds = 0;
        while shadow.is_behind() {
            ask(&mut shadow, 50);
            rounds += 1;
        }
        assert_eq!(rounds, 596);
        // What is gained is soon forgotten.
        for round in 0..100_000 {
            shadow.admitted(&[1_000 + round], 1, 1, 100);
            shadow.released(&[1_000 + round], 1);
        }
        assert_eq!(shadow.debt, -100.0);
    }

    #[test]
    fn what_has_no_key_pushes_others_out() {
        let mut shadow = Shadow::new(64);
        let keys: Vec<u64> = (1..=32).collect();
        shadow.released(&keys, 32);
        shadow.released(&[], 32);
        shadow.admitted(&keys, 32, 32, 64);
        assert_eq!(shadow.counts(), [32, 32, 32]);
        shadow.released(&keys, 32);
        shadow.released(&[], 33);
        shadow.admitted(&keys, 32, 0, 64);
        assert_eq!(shadow.counts()[2], 63, "the last block is gone, and the others are not");
    }
}
