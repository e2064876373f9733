//! The host's blocks: those of swapped requests, and, where the tier is a cache, those that outlive their requests.

use kvtide_rules::intent::Standing;

use super::{BlockId, BlockPool, PrefixPool};
use crate::evict::Eviction;

/// The pool of the host tier.
///
/// As a cache it is a [`PrefixPool`] of its own, with a null block of its own: a block is **stored** under the key of its
/// content and held while it is copied or on a path that is being stored; once nobody holds it, it is idle, and goes in the
/// order of a policy of [`evict`](crate::evict). What a swapped request takes evicts idle blocks, like anything taken.
#[derive(Debug, Clone)]
pub enum HostPool {
    /// Of swapped requests alone.
    Swap(BlockPool),
    /// Of swapped requests and of what is cached.
    Cache(Box<PrefixPool>),
}

impl HostPool {
    /// A pool in which `num_blocks` blocks of `block_tokens` tokens can be held; `order` is that of eviction, if it is a
    /// cache.
    pub fn new(num_blocks: u32, block_tokens: u32, order: Option<Eviction>) -> HostPool {
        match order {
            None => HostPool::Swap(BlockPool::new(num_blocks)),
            Some(order) => {
                let pool = PrefixPool::of_blocks(num_blocks.saturating_add(1), block_tokens, true, order);
                HostPool::Cache(Box::new(pool))
            }
        }
    }

    /// Blocks that nobody holds, cached ones included.
    pub fn num_free(&self) -> u32 {
        match self {
            HostPool::Swap(pool) => pool.num_free(),
            HostPool::Cache(pool) => pool.num_free(),
        }
    }

    /// Blocks that are cached and that nobody holds.
    pub fn num_idle_cached(&self) -> u32 {
        match self {
            HostPool::Swap(_) => 0,
            HostPool::Cache(pool) => pool.num_idle_cached(),
        }
    }

    /// Appends `count` blocks to `table`, evicting cached ones if no others are left.
    ///
    /// # Panics
    /// If fewer are free: the caller tests first.
    pub fn take(&mut self, count: u32, table: &mut Vec<BlockId>) {
        match self {
            HostPool::Swap(pool) => pool.take(count, table),
            HostPool::Cache(pool) => pool.take(count, table),
        }
    }

    /// Gives back every block of `table`; cached ones become idle, the last block first.
    pub fn give_back(&mut self, table: &mut Vec<BlockId>) {
        match self {
            HostPool::Swap(pool) => pool.give_back(table),
            HostPool::Cache(pool) => pool.give_back(table),
        }
    }

    /// Appends to `hits` the block cached under each key, up to the first key that is not.
    pub fn lookup(&mut self, keys: impl Iterator<Item = u64>, hits: &mut Vec<BlockId>) {
        if let HostPool::Cache(pool) = self {
            // The host is told of blocks, not of paths: it may hold the end of one whose beginning the accelerator has.
            pool.lookup_each(keys, hits);
        }
    }

    /// Holds each of `hits` once more.
    pub fn touch(&mut self, hits: &[BlockId]) {
        if let HostPool::Cache(pool) = self {
            pool.touch(hits);
        }
    }

    /// Holds the block cached under `key` and appends it to `table`; whether there is one.
    pub fn hold(&mut self, key: u64, table: &mut Vec<BlockId>) -> bool {
        let known = table.len();
        self.lookup(std::iter::once(key), table);
        self.touch(&table[known..]);
        table.len() > known
    }

    /// Takes a block for what has `key`, holds it and appends it to `table`, whose last block it continues if `is_path` says so.
    ///
    /// # Panics
    /// If none is free: the caller tests first.
    pub fn store(&mut self, key: u64, is_path: bool, table: &mut Vec<BlockId>) {
        let parent = table.last().copied().filter(|_| is_path);
        self.take(1, table);
        if let (HostPool::Cache(pool), Some(&block)) = (self, table.last()) {
            pool.register_each(block, key, parent);
        }
    }

    /// Declares how the blocks of `table` stand; see [`PrefixPool::declare`].
    pub fn declare(&mut self, table: &[BlockId], standing: impl Fn(usize) -> Standing) {
        if let HostPool::Cache(pool) = self {
            pool.declare(table, standing);
        }
    }

    /// Watches the blocks of a remembered lookup; see [`PrefixPool::watch`].
    pub fn watch(&mut self, hits: &[BlockId]) {
        if let HostPool::Cache(pool) = self {
            pool.watch(hits);
        }
    }

    /// Whether the lookup watched last still stands; see [`PrefixPool::watch_is_valid`].
    pub fn watch_is_valid(&self) -> bool {
        match self {
            HostPool::Swap(_) => false,
            HostPool::Cache(pool) => pool.watch_is_valid(),
        }
    }

    /// Recounts everything; `held` is every table of every holder, with repetition.
    ///
    /// # Errors
    /// The first thing found that does not add up.
    pub fn validate(&self, held: impl Iterator<Item = BlockId>) -> Result<(), String> {
        let pool = match self {
            HostPool::Cache(pool) => return pool.validate(held),
            HostPool::Swap(pool) => pool,
        };
        let mut seen: Vec<BlockId> = pool.free_blocks().to_vec();
        seen.extend(held);
        seen.sort_unstable();
        if seen == (0..pool.num_blocks()).map(BlockId).collect::<Vec<_>>() {
            Ok(())
        } else {
            Err("a host block is in two places or in none".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_found_until_something_else_needs_the_room() {
        let mut pool = HostPool::new(4, 16, Some(Eviction::Lru));
        let mut path = Vec::new();
        (10..13).for_each(|key| pool.store(key, true, &mut path));
        assert_eq!((pool.num_free(), pool.num_idle_cached()), (1, 0));
        pool.validate(path.iter().copied()).unwrap();
        pool.give_back(&mut path);
        assert_eq!((pool.num_free(), pool.num_idle_cached()), (4, 3));
        // A swapped request takes the one that is free, then the end of the path.
        let mut swapped = Vec::new();
        pool.take(2, &mut swapped);
        let mut hits = Vec::new();
        pool.lookup(10..13, &mut hits);
        assert_eq!(hits.len(), 2);
        assert!(pool.hold(11, &mut path) && !pool.hold(12, &mut path));
        pool.validate(swapped.iter().chain(&path).copied()).unwrap();
    }

    #[test]
    fn without_a_cache_nothing_is_found() {
        let mut pool = HostPool::new(2, 16, None);
        let mut table = Vec::new();
        pool.store(1, false, &mut table);
        assert!(!pool.hold(1, &mut table) && !pool.watch_is_valid());
        assert_eq!((table.len(), pool.num_free(), pool.num_idle_cached()), (1, 1, 0));
        pool.validate(table.iter().copied()).unwrap();
        assert!(pool.validate(std::iter::empty()).is_err());
    }
}
