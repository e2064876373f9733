//! A block pool with a prefix cache.

use std::ops::Range;

use kvtide_rules::intent::Standing;
use kvtide_runtime::Retention;

use super::BlockId;
use super::cache::Cache;
use crate::evict::{Classes, Evict, Eviction, EvictionPolicy, policy};

/// Tokens of vLLM's block.
const DEFAULT_BLOCK_TOKENS: u32 = 16;

/// A pool of blocks with a prefix cache: what vLLM's V1 scheduler takes blocks from.
///
/// A full block can be **registered** under the key of its content; a later request with the same prefix **hits** it
/// instead of computing it again. A block counts the tables that hold it. One that nobody holds is free, and if it is
/// registered it is *idle*: it can still be hit, and it can still be taken, which evicts its entry. So the free queue
/// has two parts, and nothing ever moves a block from one to the other but the rules below:
///
/// - in front the unregistered blocks, a stack: what was given back last is taken first;
/// - behind them the idle ones, in the order of the [policy](crate::evict) of eviction.
///
/// A table is given back from its last block to its first. Of the blocks that nobody holds then, the unregistered ones
/// come to the front as a group, last block foremost (so that without caching the pool is a stack, as [`BlockPool`]
/// is), the registered ones become idle, the policy being told of the last block first, so that a prefix outlives what
/// continues it. Taking the head of the queue is the only way an entry is lost, but for the repetitions that a policy does
/// not [keep](crate::evict::Evict::KEEPS_REPEATS).
///
/// **Tables are paths.** The caller's tables must be what a scheduler's are: the hits of one lookup, or the first few
/// of them, then blocks taken, registered in order and held until the whole table is given back. Then whoever holds a
/// block, or used it last, holds or used everything before it as well; so the queue, without any tree, never offers a
/// prefix before what continues it.
///
/// Source: the decision logs of vLLM 0.33.0 and the rules L, C and R drawn from them (`SEMANTICS.md` beside the logs).
/// Every operation takes constant time per block and allocates nothing.
///
/// [`BlockPool`]: super::BlockPool
#[derive(Debug, Clone)]
pub struct PrefixPool {
    pub(super) policy: EvictionPolicy,
    pub(super) cache: Cache,
}

impl PrefixPool {
    /// A pool of `num_blocks` blocks with vLLM's null block, number 0, among them: it is never given out, so one block
    /// less is usable. The free queue is 1, 2, 3, …
    ///
    /// # Panics
    /// If there is no null block: `num_blocks` is 0.
    pub fn new(num_blocks: u32, caching: bool, eviction: Eviction) -> PrefixPool {
        PrefixPool::of_blocks(num_blocks, DEFAULT_BLOCK_TOKENS, caching, eviction)
    }

    /// The same of blocks of `block_tokens` tokens, which only a policy wants to know that weighs tokens.
    ///
    /// # Panics
    /// If there is no null block: `num_blocks` is 0.
    pub fn of_blocks(num_blocks: u32, block_tokens: u32, caching: bool, eviction: Eviction) -> PrefixPool {
        assert!(num_blocks > 0, "the pool holds at least the null block");
        let policy = EvictionPolicy::new(eviction, num_blocks, block_tokens);
        PrefixPool { policy, cache: Cache::new(num_blocks, caching) }
    }

    /// Size of the pool, null block included.
    pub fn num_blocks(&self) -> u32 {
        self.cache.blocks.len() as u32
    }

    /// Blocks that requests can hold: all but the null block.
    pub fn num_usable(&self) -> u32 {
        self.num_blocks() - 1
    }

    /// Free blocks, idle ones included.
    pub fn num_free(&self) -> u32 {
        self.cache.num_free()
    }

    /// Free blocks that hold a cache entry: idle, evictable.
    pub fn num_idle_cached(&self) -> u32 {
        self.cache.num_idle
    }

    /// Distinct content keys in the cache.
    pub fn num_keys(&self) -> usize {
        self.cache.registry.num_keys() + self.cache.num_keyless as usize
    }

    /// The free queue, next to be taken first.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> {
        self.cache.unregistered.iter().rev().copied().chain(self.policy.order().map(BlockId))
    }

    /// Whether a lookup changes the free queue, so that it may not be left out even where its hits change nothing.
    pub fn lookup_is_use(&self) -> bool {
        self.policy.lookup_is_use()
    }

    /// Appends the `count` blocks at the head of the free queue to `table`, evicting the entries they hold.
    ///
    /// # Panics
    /// If fewer are free: the caller tests first.
    pub fn take(&mut self, count: u32, table: &mut Vec<BlockId>) {
        assert!(count <= self.num_free(), "the caller tests for free blocks");
        let rest = self.cache.take_unregistered(count, table);
        if rest > 0 {
            policy!(&mut self.policy, policy => self.cache.take_idle(policy, rest, table));
        }
    }

    /// Gives back every block of `table`, from its last block to its first.
    pub fn give_back(&mut self, table: &mut Vec<BlockId>) {
        if self.cache.caching {
            policy!(&mut self.policy, policy => self.cache.give_back(policy, table));
        } else {
            self.cache.give_back_unregistered(table);
        }
    }

    /// The same, with a class for each of its two parts: the first `head_blocks`, and the others. Without
    /// [classes](Eviction::Classes) it is the same.
    pub fn give_back_as(&mut self, table: &mut Vec<BlockId>, head_blocks: u32, [head, tail]: [Retention; 2]) {
        if let EvictionPolicy::Classes(classes) = &mut self.policy {
            let of = |at: usize| if at < head_blocks as usize { head } else { tail };
            let cached =
                table.iter().enumerate().rev().filter(|(_, block)| self.cache.blocks.get(block.0).is_registered());
            classes.released(cached.map(|(at, block)| (block.0, of(at))));
        }
        self.give_back(table);
    }

    /// Declares how the blocks of `table` stand, which is about to be given back: `standing` is asked for their places in it. Nothing
    /// where the order of eviction does not go [by that](Eviction::scoring).
    pub fn declare(&mut self, table: &[BlockId], standing: impl Fn(usize) -> Standing) {
        let blocks = &self.cache.blocks;
        let cached = table.iter().enumerate().rev().filter(|(_, block)| blocks.get(block.0).is_registered());
        self.policy.declare(cached.map(|(at, block)| (block.0, standing(at))));
    }

    /// Its classes, if it has any.
    pub fn classes(&self) -> Option<&Classes> {
        match &self.policy {
            EvictionPolicy::Classes(classes) => Some(classes),
            _ => None,
        }
    }

    /// Evicts by uses within a class, or by time; nothing without classes.
    pub fn set_by_use(&mut self, is_by_use: bool) {
        if let EvictionPolicy::Classes(classes) = &mut self.policy {
            classes.set_by_use(is_by_use);
        }
    }

    /// Sets classes aside: the block that is idle longest goes; nothing without classes.
    pub fn set_flat(&mut self, is_flat: bool) {
        if let EvictionPolicy::Classes(classes) = &mut self.policy {
            classes.set_flat(is_flat);
        }
    }

    /// How many of `blocks`, which the caller holds, somebody else holds as well.
    pub fn shared_among(&self, blocks: &[BlockId]) -> u32 {
        blocks.iter().map(|block| u32::from(self.cache.blocks.get(block.0).refs() > 1)).sum()
    }

    /// Appends to `hits` the block registered first under each key, up to the first key that is not cached. The keys
    /// continue the path that `hits` is, which may be empty: where a [lookup is a use](Self::lookup_is_use), this is a use
    /// of all of it.
    pub fn lookup(&mut self, keys: impl Iterator<Item = u64>, hits: &mut Vec<BlockId>) {
        self.cache.lookup(keys, hits);
        policy!(&mut self.policy, policy => self.cache.accessed(policy, hits));
    }

    /// How many of `hits` nobody holds: they are among the free blocks and must be paid for.
    pub fn idle_among(&self, hits: &[BlockId]) -> u32 {
        hits.iter().map(|block| u32::from(self.cache.blocks.get(block.0).refs() == 0)).sum()
    }

    /// Holds each of `hits` once more; those that were idle leave the free queue, the order of the others stays.
    pub fn touch(&mut self, hits: &[BlockId]) {
        policy!(&mut self.policy, policy => self.cache.touch(policy, hits));
    }

    /// The same of keys whose blocks were each [registered](Self::register) without a parent, and so have no path.
    pub fn lookup_each(&mut self, keys: impl Iterator<Item = u64>, hits: &mut Vec<BlockId>) {
        self.cache.lookup_each(keys, hits);
        policy!(&mut self.policy, policy => self.cache.accessed(policy, hits));
    }

    /// Registers a full block that the caller holds under the key of its content, behind any other block of that key.
    /// `parent` is the block before it in the caller's table, registered under its key before: a block is found behind the
    /// path that it was registered behind. Without caching nothing is entered.
    pub fn register(&mut self, block: BlockId, key: u64, parent: Option<BlockId>) {
        self.register_at(block, key, parent, self.cache.home(parent, key));
    }

    /// The same for a pool whose blocks are each found [by themselves](Self::lookup_each): `parent` is for the order alone.
    pub fn register_each(&mut self, block: BlockId, key: u64, parent: Option<BlockId>) {
        self.register_at(block, key, parent, self.cache.home(None, key));
    }

    fn register_at(&mut self, block: BlockId, key: u64, parent: Option<BlockId>, home: u32) {
        if !self.cache.caching {
            return;
        }
        debug_assert!(
            parent.is_none_or(|parent| self.cache.blocks.get(parent.0).is_registered()),
            "tables are registered in order"
        );
        policy!(&mut self.policy, policy => {
            self.cache.give_way(policy, key, home);
            policy.registered(block.0, parent.map(|parent| parent.0));
        });
        self.cache.register(block.0, key, home);
    }

    /// Registers the blocks of `table` in `range`, each [behind](Self::register) the one before it in the table, under the next
    /// of `keys`.
    pub fn register_path(&mut self, table: &[BlockId], range: Range<usize>, keys: impl Iterator<Item = u64>) {
        if !self.cache.caching || range.is_empty() {
            return;
        }
        let mut parent = range.start.checked_sub(1).map(|before| table[before]);
        let mut before = parent.map(|parent| self.cache.blocks.get(parent.0).home);
        policy!(&mut self.policy, policy => {
            for (&block, key) in table[range].iter().zip(keys) {
                let home = self.cache.registry.home(before, key);
                self.cache.give_way(policy, key, home);
                policy.registered(block.0, parent.map(|parent| parent.0));
                self.cache.register(block.0, key, home);
                (parent, before) = (Some(block), Some(home));
            }
        });
    }

    /// Registers full blocks that the caller holds and whose content nobody else will ever ask for: what they could be
    /// found by is told when somebody does ([`publish`](PrefixPool::publish)). Apart from that they are like any other
    /// registered blocks. Entering and evicting them costs a fraction, because there is no key to make and to look up, and
    /// such are most blocks of most traffic: all that is generated, and every prompt that is not shared.
    pub fn register_keyless(&mut self, blocks: &[BlockId]) {
        if self.cache.caching {
            self.cache.register_keyless(blocks);
        }
    }

    /// Says behind which block of its table a block lies that was registered without a key. Only [classes](Eviction::Classes) and
    /// orders by what is [declared](Self::declare) want to know, and a scheduler without them need not say.
    pub fn continues(&mut self, block: BlockId, parent: Option<BlockId>) {
        self.policy.registered_keyless(block.0, parent.map(|parent| parent.0));
    }

    /// Gives a block registered without a key the key of its content, so that it can be found behind its
    /// [parent](Self::register). The caller holds it.
    pub fn publish(&mut self, block: BlockId, key: u64, parent: Option<BlockId>) {
        if !self.cache.caching {
            return;
        }
        assert!(self.cache.blocks.get(block.0).is_keyless(), "block {} was not registered without a key", block.0);
        self.cache.unregister(block.0);
        let home = self.cache.home(parent, key);
        policy!(&mut self.policy, policy => self.cache.give_way(policy, key, home));
        self.cache.register(block.0, key, home);
    }

    /// From now on takes down what is evicted by [`take`](Self::take), for [`evicted`](Self::evicted).
    pub fn note_evictions(&mut self) {
        self.cache.evicted = Some(Vec::new());
    }

    /// Moves to `evicted` the blocks evicted since the last call and the keys they were found by, in the order evicted.
    pub fn evicted(&mut self, evicted: &mut Vec<(BlockId, u64)>) {
        if let Some(noted) = &mut self.cache.evicted {
            evicted.append(noted);
        }
    }

    /// Watches the blocks of a remembered lookup, in place of those watched before.
    pub fn watch(&mut self, hits: &[BlockId]) {
        self.cache.watch(hits);
    }

    /// Whether since the last watch every watched block kept its entry, and held ones stayed held and idle ones idle:
    /// the remembered hits and their [`idle_among`](PrefixPool::idle_among) are then still true. That no key behind
    /// them has been registered since is not said; looking up the keys behind the hits tells. False before the first
    /// watch.
    pub fn watch_is_valid(&self) -> bool {
        self.cache.watch_is_valid
    }
}
