//! Random requests that share prefixes, served from a pool and from its definition at once.

use std::sync::Arc;

use kvtide_rules::intent::{MemoryIntent, Priority, Standing};
use kvtide_runtime::Retention;
use proptest::collection::vec;
use proptest::prelude::*;

use super::model::{Lru, Radix, Slow};
use crate::evict::Eviction;
use crate::kv::{BlockId, BlockPool, Content, PrefixPool, Segment};

/// Longest table, blocks.
const LONGEST: u32 = 12;

/// One thing a scheduler does. Numbers are cut to what is possible.
#[derive(Debug, Clone)]
enum Op {
    /// Looks up `text`, uses at most `most_hits` of what is found, takes `new` more blocks, registers `full` of them.
    Admit { text: usize, most_hits: usize, new: u32, full: usize },
    /// Looks up and goes away, and may remember what it found.
    Refuse { text: usize, depth: usize, watch: bool },
    /// Looks up what continues the path remembered last.
    LookFurther { depth: usize },
    /// Takes and registers more blocks.
    Grow { request: usize, new: u32, full: usize },
    /// Finishes, or is preempted.
    GiveBack { request: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let text = 0..6_usize;
    let blocks = LONGEST as usize + 1;
    prop_oneof![
        4 => (text.clone(), 0..blocks, 0..6_u32, 0..blocks)
            .prop_map(|(text, most_hits, new, full)| Op::Admit { text, most_hits, new, full }),
        2 => (text, 0..blocks, any::<bool>()).prop_map(|(text, depth, watch)| Op::Refuse { text, depth, watch }),
        1 => (0..blocks).prop_map(|depth| Op::LookFurther { depth }),
        2 => (0..8_usize, 0..4_u32, 0..4_usize).prop_map(|(request, new, full)| Op::Grow { request, new, full }),
        4 => (0..8_usize).prop_map(|request| Op::GiveBack { request }),
    ]
}

/// Six texts of blocks of one token: three beginnings, two of which continue in several ways.
fn keys() -> Vec<Vec<u64>> {
    let texts = [(&[][..], 0), (&[(0, 3)], 1), (&[(0, 3)], 2), (&[(0, 3), (2, 6)], 3), (&[(9, 2)], 4), (&[(9, 2)], 5)];
    texts
        .into_iter()
        .map(|(cuts, own): (&[(u64, u32)], u64)| {
            let cuts: Arc<[Segment]> = cuts.iter().map(|&(stream, end)| Segment { stream, end }).collect();
            let mut keys = Vec::new();
            Content::new(0, own, cuts).extend_keys(&mut keys, LONGEST, 1);
            keys
        })
        .collect()
}

#[derive(Debug)]
struct Request {
    text: usize,
    table: Vec<BlockId>,
    registered: usize,
}

fn numbers(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.0).collect()
}

/// The pool and its definition, side by side.
struct Both<S> {
    pool: PrefixPool,
    slow: S,
    keys: Vec<Vec<u64>>,
    requests: Vec<Request>,
    remembered: (usize, Vec<BlockId>),
    /// Classes for what is given back, if anybody chooses them.
    chosen: Option<[Retention; 2]>,
}

impl<S: Slow> Both<S> {
    fn new(pool: PrefixPool, slow: S) -> Both<S> {
        Both { pool, slow, keys: keys(), requests: Vec::new(), remembered: (0, Vec::new()), chosen: None }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Admit { text, most_hits, new, full } => {
                let mut table = Vec::new();
                self.lookup(text, LONGEST as usize, &mut table);
                table.truncate(most_hits);
                self.pool.touch(&table);
                self.slow.touch(&numbers(&table));
                let registered = table.len();
                self.requests.push(Request { text, table, registered });
                self.grow(self.requests.len() - 1, new, full);
            }
            Op::Refuse { text, depth, watch } => {
                let mut hits = Vec::new();
                self.lookup(text, depth, &mut hits);
                let idle = hits.iter().filter(|block| self.slow.cache().refs[block.0 as usize] == 0).count();
                assert_eq!(self.pool.idle_among(&hits) as usize, idle);
                if watch {
                    self.remember(text, hits);
                }
            }
            Op::LookFurther { depth } => {
                if self.pool.watch_is_valid() {
                    let (text, mut hits) = std::mem::take(&mut self.remembered);
                    self.lookup(text, depth.max(hits.len()), &mut hits);
                    self.remember(text, hits);
                }
            }
            Op::Grow { request, new, full } => self.grow(request, new, full),
            Op::GiveBack { request } => {
                if request < self.requests.len() {
                    let mut request = self.requests.remove(request);
                    self.slow.give_back(&numbers(&request.table));
                    match self.chosen {
                        Some(classes) => self.pool.give_back_as(&mut request.table, 3, classes),
                        None => self.pool.give_back(&mut request.table),
                    }
                    assert!(request.table.is_empty());
                }
            }
        }
    }

    /// Looks up the first `depth` blocks of `text` behind those that are found already.
    fn lookup(&mut self, text: usize, depth: usize, hits: &mut Vec<BlockId>) {
        let keys = &self.keys[text][hits.len()..depth];
        let mut expected = numbers(hits);
        self.slow.lookup(keys, &mut expected);
        self.pool.lookup(keys.iter().copied(), hits);
        assert_eq!(numbers(hits), expected);
    }

    fn remember(&mut self, text: usize, hits: Vec<BlockId>) {
        self.pool.watch(&hits);
        self.slow.cache_mut().watched = Some(numbers(&hits).into_iter().collect());
        self.remembered = (text, hits);
    }

    fn grow(&mut self, request: usize, new: u32, full: usize) {
        let Some(request) = self.requests.get_mut(request) else { return };
        let new = new.min(self.pool.num_free()).min(LONGEST - request.table.len() as u32);
        let held = request.table.len();
        self.pool.take(new, &mut request.table);
        assert_eq!(numbers(&request.table[held..]), self.slow.take(new));
        for _ in 0..full.min(request.table.len() - request.registered) {
            let place = request.registered;
            let (block, key) = (request.table[place], self.keys[request.text][place]);
            let parent = place.checked_sub(1).map(|before| request.table[before]);
            self.pool.register(block, key, parent);
            self.slow.register(block.0, key, parent.map(|parent| parent.0));
            request.registered += 1;
        }
    }

    fn compare(&self) {
        let (pool, cache) = (&self.pool, self.slow.cache());
        let free = self.slow.free();
        assert_eq!(numbers(&pool.free_blocks().collect::<Vec<_>>()), free);
        assert_eq!(pool.num_free() as usize, free.len());
        assert_eq!(pool.num_idle_cached() as usize, cache.idle().count());
        assert_eq!(pool.num_keys(), cache.copies.len());
        assert_eq!(pool.watch_is_valid(), cache.watched.is_some());
        pool.validate(self.requests.iter().flat_map(|request| request.table.iter().copied())).unwrap();
    }
}

/// What a pool is told of the two parts of a table.
#[derive(Clone, Copy)]
enum Given {
    Classes([Retention; 2]),
    Declared([Standing; 2]),
}

/// A pool that is told something of what it is given back, and behind which block each was cached. Texts are admitted with all that is found of them, so that no
/// text has two copies.
struct Chosen {
    pool: PrefixPool,
    requests: Vec<Request>,
    keys: Vec<Vec<u64>>,
    behind: Vec<Option<u32>>,
}

impl Chosen {
    fn apply(&mut self, op: &Op, given: Given) {
        match *op {
            Op::Admit { text, new, .. } if self.requests.iter().all(|request| request.text != text) => {
                let mut table = Vec::new();
                self.pool.lookup(self.keys[text].iter().copied(), &mut table);
                self.pool.touch(&table);
                let registered = table.len();
                let new = new.min(self.pool.num_free()).min(LONGEST - registered as u32);
                self.take(new, &mut table);
                for place in registered..table.len() {
                    // Another request that shares the beginning may have computed it meanwhile: that is a copy.
                    let path = self.keys[text][..=place].to_vec();
                    if self.found(&path).len() > place {
                        break;
                    }
                    let parent = place.checked_sub(1).map(|before| table[before]);
                    self.pool.register(table[place], self.keys[text][place], parent);
                    self.behind[table[place].0 as usize] = parent.map(|parent| parent.0);
                }
                self.requests.push(Request { text, table, registered });
            }
            Op::GiveBack { request } if request < self.requests.len() => {
                let mut request = self.requests.remove(request);
                match given {
                    Given::Classes(classes) => {
                        self.pool.give_back_as(&mut request.table, request.registered as u32, classes);
                    }
                    Given::Declared([head, tail]) => {
                        let head_blocks = request.registered;
                        self.pool.declare(&request.table, |at| if at < head_blocks { head } else { tail });
                        self.pool.give_back(&mut request.table);
                    }
                }
            }
            _ => {}
        }
        self.pool.validate(self.requests.iter().flat_map(|request| request.table.iter().copied())).unwrap();
        self.check_order();
    }

    fn found(&mut self, keys: &[u64]) -> Vec<BlockId> {
        let mut found = Vec::new();
        self.pool.lookup(keys.iter().copied(), &mut found);
        found
    }

    /// Takes blocks one by one: each that is evicted is of the lowest class there is, where there are any.
    fn take(&mut self, count: u32, table: &mut Vec<BlockId>) {
        for _ in 0..count {
            let cached = self.pool.num_idle_cached();
            let before = self.pool.classes().map(|classes| (classes.idle_of(), classes.evicted_of()));
            self.pool.take(1, table);
            if let Some((idle, evicted)) = before.filter(|_| self.pool.num_idle_cached() < cached) {
                let after = self.pool.classes().unwrap().evicted_of();
                let class = (0..4).find(|&class| after[class] > evicted[class]).unwrap();
                // What was above may have aged into an empty class below.
                let lowest = (0..4).find(|&class| idle[class] > 0).unwrap();
                assert!(class <= lowest, "{idle:?} {class}");
            }
            if self.pool.num_idle_cached() < cached {
                let block = table[table.len() - 1].0;
                self.behind.iter_mut().for_each(|before| *before = before.filter(|&before| before != block));
                self.behind[block as usize] = None;
            }
        }
    }

    fn check_order(&self) {
        let order = numbers(&self.pool.free_blocks().collect::<Vec<_>>());
        let place = |block: u32| order.iter().position(|&other| other == block);
        for (block, parent) in (0..).zip(&self.behind) {
            if let (Some(at), Some(before)) = (place(block), parent.and_then(place)) {
                assert!(at < before, "{parent:?} goes before {block}, which continues it: {order:?}");
            }
        }
    }
}

fn check(mut both: Both<impl Slow>, ops: &[Op]) {
    for op in ops {
        both.apply(op);
        both.compare();
    }
}

/// What a scheduler does with a pool, whatever its policy: nothing is lost, and what is found is what was registered.
fn serve(mut pool: PrefixPool, ops: &[Op]) {
    let keys = keys();
    let mut requests: Vec<Request> = Vec::new();
    for op in ops {
        match *op {
            Op::Admit { text, most_hits, new, full } => {
                let mut table = Vec::new();
                pool.lookup(keys[text].iter().copied(), &mut table);
                table.truncate(most_hits);
                pool.touch(&table);
                let registered = table.len();
                pool.take(new.min(pool.num_free()).min(LONGEST - registered as u32), &mut table);
                for place in registered..table.len().min(registered + full) {
                    let parent = place.checked_sub(1).map(|before| table[before]);
                    pool.register(table[place], keys[text][place], parent);
                }
                requests.push(Request { text, table, registered });
            }
            Op::Refuse { text, depth, .. } => pool.lookup(keys[text][..depth].iter().copied(), &mut Vec::new()),
            Op::GiveBack { request } if request < requests.len() => {
                pool.give_back(&mut requests.remove(request).table);
            }
            _ => {}
        }
        pool.validate(requests.iter().flat_map(|request| request.table.iter().copied())).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_pool_adds_up_under_every_policy(num_blocks in 1_u32..24, ops in vec(op(), 0..60)) {
        for &eviction in Eviction::ALL {
            serve(PrefixPool::new(num_blocks, true, eviction), &ops);
        }
    }

    #[test]
    fn lru_is_one_queue(num_blocks in 1_u32..24, ops in vec(op(), 0..120)) {
        check(Both::new(PrefixPool::new(num_blocks, true, Eviction::Lru), Lru::new(num_blocks)), &ops);
    }

    #[test]
    fn radix_is_the_oldest_leaf_of_a_tree(num_blocks in 1_u32..24, ops in vec(op(), 0..120)) {
        check(Both::new(PrefixPool::new(num_blocks, true, Eviction::Radix), Radix::new(num_blocks)), &ops);
    }

    /// A pool with classes of which nobody chooses any, or everybody chooses normal, is that of LRU.
    #[test]
    fn classes_that_are_all_normal_are_one_queue(num_blocks in 1_u32..24, ops in vec(op(), 0..120), chosen: bool) {
        let pool = PrefixPool::new(num_blocks, true, Eviction::Classes);
        let mut both = Both::new(pool, Lru::new(num_blocks));
        both.chosen = chosen.then_some([Retention::Normal; 2]);
        check(both, &ops);
    }

    /// Whatever is chosen: what adds up still does, a victim is of the lowest class there is, and no block is evicted before
    /// one that was cached behind it, but for copies of the same text.
    #[test]
    fn classes_are_evicted_from_the_lowest_and_prefixes_last(
        num_blocks in 8_u32..24,
        steps in vec((op(), 0..4_u8, 0..4_u8), 0..120),
        by_use: bool,
    ) {
        let mut pool = PrefixPool::new(num_blocks, true, Eviction::Classes);
        pool.set_by_use(by_use);
        let mut random = Chosen { pool, requests: Vec::new(), keys: keys(), behind: vec![None; num_blocks as usize] };
        for (op, head, tail) in steps {
            let class = |index| Retention::from_index(index).unwrap();
            random.apply(&op, Given::Classes([class(head), class(tail)]));
        }
    }

    /// Whatever is declared: what adds up still does, and no block is evicted before one that was cached behind it, but for copies
    /// of the same text.
    #[test]
    fn what_is_declared_is_obeyed_and_prefixes_go_last(
        num_blocks in 8_u32..24,
        steps in vec((op(), 0..4_usize, 0..4_usize), 0..120),
        deadline: bool,
    ) {
        let eviction = if deadline { Eviction::DeadlineAware } else { Eviction::IntentAware };
        let scoring = eviction.scoring().unwrap();
        let pool = PrefixPool::new(num_blocks, true, eviction);
        let mut random = Chosen { pool, requests: Vec::new(), keys: keys(), behind: vec![None; num_blocks as usize] };
        for (op, head, tail) in steps {
            let standing = |index: usize| {
                let priority = Priority::ALL[index];
                Standing::of(&MemoryIntent { priority, ..MemoryIntent::new(0, 1) }, scoring)
            };
            random.apply(&op, Given::Declared([standing(head), standing(tail)]));
        }
    }

    /// A pool that goes by what is declared, of which nobody declares anything, or everybody the same, is that of LRU.
    #[test]
    fn where_nothing_differs_it_is_one_queue(num_blocks in 1_u32..24, ops in vec(op(), 0..120)) {
        for eviction in [Eviction::IntentAware, Eviction::DeadlineAware] {
            check(Both::new(PrefixPool::new(num_blocks, true, eviction), Lru::new(num_blocks)), &ops);
        }
    }

    /// Without caching it is the pool of V0, but for the null block.
    #[test]
    fn without_caching_it_is_a_stack(num_blocks in 1_u32..24, ops in vec((0..8_usize, 0_u32..10), 0..120)) {
        let mut pool = PrefixPool::new(num_blocks, false, Eviction::Radix);
        let mut stack = BlockPool::new(num_blocks - 1);
        let mut tables = vec![(Vec::new(), Vec::new()); 8];
        for (table, count) in ops {
            let (table, same) = &mut tables[table];
            if count <= pool.num_free() && count > 0 {
                pool.take(count, table);
                stack.take(count, same);
            } else {
                pool.give_back(table);
                stack.give_back(same);
            }
            let same: Vec<u32> = same.iter().map(|block| block.0 + 1).collect();
            prop_assert_eq!(numbers(table), same);
            prop_assert_eq!(pool.num_free(), stack.num_free());
            prop_assert!(pool.validate(tables.iter().flat_map(|table| table.0.iter().copied())).is_ok());
        }
    }
}
