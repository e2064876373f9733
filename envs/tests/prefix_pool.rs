//! Stories of the prefix pool: one for each of the rules L, C and R of vLLM's V1 scheduler, and for what SGLang's
//! eviction does otherwise. That the rules hold together is checked against slow versions in `envs/src/kv/tests`.

use kvtide_envs::evict::Eviction;
use kvtide_envs::kv::{BlockId, PrefixPool, Sharing};

/// A pool and the tables that hold its blocks.
struct Story {
    pool: PrefixPool,
    tables: Vec<Vec<BlockId>>,
}

fn numbers(blocks: impl IntoIterator<Item = BlockId>) -> Vec<u32> {
    blocks.into_iter().map(|block| block.0).collect()
}

impl Story {
    /// Usable blocks 1 to `usable`.
    fn new(usable: u32, eviction: Eviction) -> Story {
        Story { pool: PrefixPool::new(usable + 1, true, eviction), tables: Vec::new() }
    }

    /// A request that hits what it can of `keys`, takes blocks for the rest and for `partial` more, registers the full
    /// ones, and is known by the number returned.
    fn admit(&mut self, keys: &[u64], partial: u32) -> usize {
        let mut table = self.find(keys);
        self.pool.touch(&table);
        self.fill(&mut table, keys, partial);
        self.tables.push(table);
        self.tables.len() - 1
    }

    /// The same without a lookup: everything is computed again.
    fn compute(&mut self, keys: &[u64]) -> usize {
        let mut table = Vec::new();
        self.fill(&mut table, keys, 0);
        self.tables.push(table);
        self.tables.len() - 1
    }

    fn fill(&mut self, table: &mut Vec<BlockId>, keys: &[u64], partial: u32) {
        let hits = table.len();
        self.pool.take((keys.len() - hits) as u32 + partial, table);
        for (place, &key) in keys.iter().enumerate().skip(hits) {
            self.pool.register(table[place], key, place.checked_sub(1).map(|before| table[before]));
        }
    }

    fn find(&mut self, keys: &[u64]) -> Vec<BlockId> {
        let mut hits = Vec::new();
        self.pool.lookup(keys.iter().copied(), &mut hits);
        hits
    }

    fn finish(&mut self, request: usize) {
        self.pool.give_back(&mut self.tables[request]);
        assert!(self.tables[request].is_empty());
    }

    fn table(&self, request: usize) -> Vec<u32> {
        numbers(self.tables[request].iter().copied())
    }

    /// Takes blocks that nobody will ever look for.
    fn take(&mut self, count: u32) {
        let mut table = Vec::new();
        self.pool.take(count, &mut table);
        self.tables.push(table);
    }

    #[track_caller]
    fn check(&self, free: &[u32], idle: u32, keys: usize) {
        assert_eq!(numbers(self.pool.free_blocks()), free);
        assert_eq!(self.pool.num_free() as usize, free.len());
        assert_eq!((self.pool.num_idle_cached(), self.pool.num_keys()), (idle, keys));
        self.pool.validate(self.tables.iter().flatten().copied()).unwrap();
    }
}

#[test]
fn the_null_block_is_never_given_out() {
    let mut story = Story::new(3, Eviction::Lru);
    assert_eq!((story.pool.num_blocks(), story.pool.num_usable()), (4, 3));
    story.check(&[1, 2, 3], 0, 0);
    story.take(3);
    assert_eq!(story.table(0), [1, 2, 3]);
    story.check(&[], 0, 0);
    assert_eq!(PrefixPool::new(1, true, Eviction::Lru).num_free(), 0);
}

#[test]
fn without_caching_the_pool_is_a_stack() {
    let mut pool = PrefixPool::new(7, false, Eviction::Lru);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    pool.take(3, &mut a);
    pool.take(2, &mut b);
    pool.register(a[0], 10, None);
    let mut hits = Vec::new();
    pool.lookup([10].into_iter(), &mut hits);
    assert_eq!((hits.len(), pool.num_keys(), pool.num_idle_cached()), (0, 0, 0));
    pool.give_back(&mut a);
    assert_eq!(numbers(pool.free_blocks()), [3, 2, 1, 6]);
    pool.validate(b.iter().copied()).unwrap();
    pool.give_back(&mut b);
    assert_eq!(numbers(pool.free_blocks()), [5, 4, 3, 2, 1, 6]);
}

#[test]
fn registered_blocks_go_to_the_tail_reversed_and_the_rest_to_the_front() {
    let mut story = Story::new(8, Eviction::Lru);
    let request = story.admit(&[10, 11, 12], 2);
    assert_eq!(story.table(request), [1, 2, 3, 4, 5]);
    story.check(&[6, 7, 8], 0, 3);
    story.finish(request);
    story.check(&[5, 4, 6, 7, 8, 3, 2, 1], 3, 3);
}

#[test]
fn taking_from_the_head_evicts_tails_before_prefixes() {
    let mut story = Story::new(6, Eviction::Lru);
    for keys in [[10, 11, 12], [20, 21, 22]] {
        let request = story.admit(&keys, 0);
        story.finish(request);
    }
    story.check(&[3, 2, 1, 6, 5, 4], 6, 6);
    story.take(4);
    assert_eq!(story.table(2), [3, 2, 1, 6]);
    story.check(&[5, 4], 2, 2);
    assert_eq!(story.find(&[10, 11, 12]), []);
    assert_eq!(numbers(story.find(&[20, 21, 22])), [4, 5]);
}

#[test]
fn a_hit_block_leaves_the_queue_and_the_others_keep_their_order() {
    let mut story = Story::new(6, Eviction::Lru);
    let (a, b) = (story.admit(&[10, 11], 0), story.admit(&[10, 11, 12, 13], 1));
    // The prefix is shared while both run.
    assert_eq!((story.table(a), story.table(b)), (vec![1, 2], vec![1, 2, 3, 4, 5]));
    story.finish(a);
    story.check(&[6], 0, 4);
    story.finish(b);
    story.check(&[5, 6, 4, 3, 2, 1], 4, 4);
    let hits = story.find(&[10, 99]);
    assert_eq!(numbers(hits.iter().copied()), [1]);
    assert_eq!(story.pool.idle_among(&hits), 1);
    // What is found is not used: a lookup moves nothing.
    story.find(&[10, 11, 12]);
    story.check(&[5, 6, 4, 3, 2, 1], 4, 4);
    let c = story.admit(&[10, 11, 12], 0);
    story.check(&[5, 6, 4], 1, 4);
    assert_eq!(story.pool.idle_among(&story.tables[c]), 0);
    story.finish(c);
    story.check(&[5, 6, 4, 3, 2, 1], 4, 4);
}

#[test]
fn a_lookup_stops_at_the_first_unknown_key() {
    let mut story = Story::new(6, Eviction::Lru);
    story.admit(&[10, 11, 12], 0);
    assert_eq!(numbers(story.find(&[10, 99, 12])), [1]);
    assert_eq!(story.find(&[99, 10]), []);
    // It continues what was found before.
    let mut hits = story.find(&[10]);
    story.pool.lookup([11, 12, 13].into_iter(), &mut hits);
    assert_eq!(numbers(hits), [1, 2, 3]);
}

#[test]
fn of_equal_blocks_the_one_registered_first_is_hit_then_the_next() {
    let mut story = Story::new(4, Eviction::Lru);
    let (a, b) = (story.compute(&[10]), story.compute(&[10]));
    let c = story.compute(&[10]);
    story.check(&[4], 0, 1);
    for request in [b, a, c] {
        story.finish(request);
    }
    // Block 1 is first in the map and block 2 first in the queue.
    story.check(&[4, 2, 1, 3], 3, 1);
    assert_eq!(numbers(story.find(&[10])), [1]);
    story.take(2);
    assert_eq!(numbers(story.find(&[10])), [1]);
    story.take(1);
    assert_eq!(numbers(story.find(&[10])), [3]);
    story.check(&[3], 1, 1);
    story.take(1);
    assert_eq!(story.find(&[10]), []);
    story.check(&[], 0, 0);
}

#[test]
fn a_request_admitted_in_the_same_step_hits_what_the_first_will_compute() {
    let mut story = Story::new(4, Eviction::Lru);
    story.admit(&[10, 11], 0);
    let hits = story.find(&[10, 11]);
    assert_eq!((numbers(hits.iter().copied()), story.pool.idle_among(&hits)), (vec![1, 2], 0));
}

/// Four blocks, of which one is unregistered, 12 is idle, 10 and 11 are held by request 1, and all three are watched.
/// Returns whether the watch is still valid after `change`.
fn watch_survives(change: impl FnOnce(&mut Story)) -> bool {
    let mut story = Story::new(4, Eviction::Lru);
    let first = story.admit(&[10, 11, 12], 0);
    story.admit(&[10, 11], 0);
    story.finish(first);
    story.check(&[4, 3], 1, 3);
    assert!(!story.pool.watch_is_valid());
    let hits = story.find(&[10, 11, 12]);
    story.pool.watch(&hits);
    assert!(story.pool.watch_is_valid());
    change(&mut story);
    story.pool.watch_is_valid()
}

#[test]
fn a_watch_ends_with_the_first_change_to_what_it_watches() {
    // 12 is evicted.
    assert!(!watch_survives(|story| story.take(2)));
    // 12 is held again, for however short a time.
    assert!(!watch_survives(|story| {
        let request = story.admit(&[10, 11, 12], 0);
        story.finish(request);
    }));
    // 10 and 11 become idle.
    assert!(!watch_survives(|story| story.finish(1)));
}

#[test]
fn a_watch_outlives_what_does_not_concern_it() {
    // Another block is taken.
    assert!(watch_survives(|story| story.take(1)));
    // 10 and 11 are held once more, and once less.
    assert!(watch_survives(|story| {
        let request = story.admit(&[10, 11], 0);
        story.finish(request);
    }));
    // 10 is computed again and goes.
    assert!(watch_survives(|story| {
        let request = story.compute(&[10]);
        story.finish(request);
    }));
    // A new watch takes the place of the old.
    assert!(watch_survives(|story| {
        story.finish(1);
        story.pool.watch(&[]);
        story.take(4);
    }));
}

#[test]
fn radix_counts_a_lookup_as_a_use() {
    let mut story = Story::new(6, Eviction::Radix);
    for keys in [[10, 11], [20, 21], [30, 31]] {
        let request = story.admit(&keys, 0);
        story.finish(request);
    }
    story.check(&[2, 1, 4, 3, 6, 5], 6, 6);
    // All of a path is used at one moment, and what continues it goes first.
    story.find(&[10, 11]);
    story.check(&[4, 3, 6, 5, 2, 1], 6, 6);
    // The prefix alone: what continues it stays where it was, and still goes first.
    story.find(&[20]);
    story.check(&[4, 6, 5, 2, 1, 3], 6, 6);
    // A lookup continued is a use of the whole path.
    let mut hits = story.find(&[30]);
    story.find(&[10]);
    story.pool.lookup([31].into_iter(), &mut hits);
    story.check(&[4, 2, 3, 1, 6, 5], 6, 6);
    // Held blocks are not in the queue to be moved.
    story.admit(&[10], 0);
    story.find(&[10, 11]);
    story.check(&[4, 3, 6, 5, 2], 5, 6);
}

#[test]
fn radix_keeps_no_idle_copy_of_a_cached_key() {
    let mut story = Story::new(5, Eviction::Radix);
    let (a, b) = (story.compute(&[10, 11]), story.compute(&[10, 11]));
    story.finish(a);
    // The second request has both keys: the first one's blocks are free like unregistered ones.
    story.check(&[2, 1, 5], 0, 2);
    story.finish(b);
    story.check(&[2, 1, 5, 4, 3], 2, 2);
    // Recomputed while the first copy is idle: the held one takes its place.
    let hits = story.find(&[10, 11]);
    story.pool.watch(&hits);
    let c = story.compute(&[10]);
    assert_eq!(story.table(c), [2]);
    assert!(!story.pool.watch_is_valid());
    story.check(&[3, 1, 5, 4], 1, 2);
    assert_eq!(numbers(story.find(&[10, 11])), [2, 4]);
}

#[test]
fn settings_are_written_in_snake_case() {
    assert_eq!(serde_json::to_string(&[Eviction::default(), Eviction::Radix]).unwrap(), r#"["lru","radix"]"#);
    assert_eq!(serde_json::to_string(&[Sharing::default(), Sharing::Global]).unwrap(), r#"["tenant","global"]"#);
}

#[test]
#[should_panic(expected = "the caller tests for free blocks")]
fn taking_more_than_is_free_is_a_mistake() {
    PrefixPool::new(2, true, Eviction::Lru).take(2, &mut Vec::new());
}

#[test]
#[should_panic(expected = "registered already")]
fn registering_a_block_twice_is_a_mistake() {
    let mut story = Story::new(2, Eviction::Lru);
    let request = story.admit(&[10], 0);
    story.pool.register(story.tables[request][0], 11, None);
}

#[test]
#[should_panic(expected = "given back once for each table")]
fn giving_back_twice_is_a_mistake() {
    let mut story = Story::new(2, Eviction::Lru);
    let request = story.admit(&[10], 0);
    let mut again = story.tables[request].clone();
    story.finish(request);
    story.pool.give_back(&mut again);
}
