//! A recount that finds nothing wrong proves something only if it would have found it.

use crate::evict::{BlockView, Evict, Eviction, policy};
use crate::kv::{BlockId, PrefixPool};

/// Blocks 1 and 2 are held, the first registered; 5, 4 and 3 are idle; 6 and 7 are copies of one key, held; 8 is
/// unregistered. Also returned is what is held.
fn pool() -> (PrefixPool, Vec<BlockId>) {
    let mut pool = PrefixPool::new(9, true, Eviction::Radix);
    let (mut held, mut idle) = (Vec::new(), Vec::new());
    pool.take(2, &mut held);
    pool.register(held[0], 10, None);
    pool.take(3, &mut idle);
    for &block in &idle {
        pool.register(block, 30 + u64::from(block.0), None);
    }
    pool.give_back(&mut idle);
    pool.take(2, &mut held);
    for &block in &held[2..] {
        pool.register(block, 50, None);
    }
    (pool, held)
}

type Damage = fn(&mut PrefixPool, &mut Vec<BlockId>);

#[test]
fn whatever_is_damaged_the_recount_notices() {
    let damages: [(&str, Damage); 17] = [
        ("block 9 is held, but not in the pool", |_, held| held.push(BlockId(9))),
        ("the null block was given out", |_, held| held.push(BlockId(0))),
        ("the null block was given out", |pool, _| pool.cache.unregistered.push(BlockId(0))),
        ("block 7 is in 0 tables and free: false", |_, held| held.truncate(3)),
        ("block 8 is in 1 tables and free: true", |_, held| held.push(BlockId(8))),
        ("block 1 is in 2 tables and counts 1", |_, held| held.push(BlockId(1))),
        ("block 2 is in 1 tables and counts 0", |pool, _| assert_eq!(pool.cache.blocks.get_mut(2).let_go(), 0)),
        ("block 8 is twice in the free queue", |pool, _| pool.cache.unregistered.push(BlockId(8))),
        ("block 4 is twice in the free queue", |pool, _| pool.cache.unregistered.push(BlockId(4))),
        ("4 blocks are free, 5 are counted", |pool, _| pool.cache.num_idle += 1),
        ("block 6 is in a broken ring", |pool, _| pool.cache.blocks.keys[7] = 51),
        ("block 3 is not found under its key", |pool, _| pool.cache.blocks.get_mut(3).home ^= 1),
        ("7 blocks are registered, 6 are in the map", |pool, _| pool.cache.blocks.enter(2, 60, 0)),
        ("block 3 is idle and not registered", |pool, _| pool.cache.registry.remove(&mut pool.cache.blocks, 3)),
        ("block 3 is free and registered, but not idle", |pool, _| {
            policy!(&mut pool.policy, policy => {
                policy.taken(BlockView::of(3));
                policy.idle(BlockView::of(8));
            });
            pool.cache.unregistered[0] = BlockId(3);
        }),
        ("block 7 is idle, and another has its key", |pool, held| {
            let block = held.pop().unwrap().0;
            assert_eq!(pool.cache.blocks.get_mut(block).let_go(), 0);
            pool.cache.num_idle += 1;
            policy!(&mut pool.policy, policy => policy.idle(BlockView::of(block)));
        }),
        ("block 3 is idle, and the policy contradicts itself", |pool, _| {
            policy!(&mut pool.policy, policy => {
                // It is idle twice and taken once.
                policy.idle(BlockView::of(3));
                policy.taken(BlockView::of(3));
            });
        }),
    ];
    for (finding, damage) in damages {
        let (mut pool, mut held) = pool();
        pool.validate(held.iter().copied()).unwrap();
        damage(&mut pool, &mut held);
        assert_eq!(pool.validate(held.iter().copied()).unwrap_err().find(finding), Some(0), "{finding}");
    }
}

#[test]
fn without_caching_a_block_is_in_one_table() {
    let mut pool = PrefixPool::new(3, false, Eviction::Lru);
    let mut table = Vec::new();
    pool.take(1, &mut table);
    pool.validate(table.iter().copied()).unwrap();
    table.push(BlockId(1));
    assert_eq!(pool.validate(table.iter().copied()).unwrap_err(), "block 1 is in 2 tables, and nothing is shared");
}

#[test]
fn what_was_watched_before_is_watched_no_more() {
    let mut pool = PrefixPool::new(3, true, Eviction::Lru);
    let mut table = Vec::new();
    pool.take(1, &mut table);
    pool.watch(&table);
    pool.watch(&[]);
    pool.give_back(&mut table);
    assert!(pool.watch_is_valid());
}
