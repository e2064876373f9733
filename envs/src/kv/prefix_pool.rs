//! A block pool with a prefix cache.

use serde::{Deserialize, Serialize};

use super::BlockId;
use super::block::Blocks;
use super::registry::Registry;

/// A pool of blocks with a prefix cache: what vLLM's V1 scheduler takes blocks from.
///
/// A full block can be **registered** under the key of its content; a later request with the same prefix **hits** it
/// instead of computing it again. A block counts the tables that hold it. One that nobody holds is free, and if it is
/// registered it is *idle*: it can still be hit, and it can still be taken, which evicts its entry. So the free queue
/// has two parts, and nothing ever moves a block from one to the other but the rules below:
///
/// - in front the unregistered blocks, a stack: what was given back last is taken first;
/// - behind them the idle ones, a queue: what became idle first is taken first. [`Eviction`] says what else counts as
///   use.
///
/// A table is given back from its last block to its first. Of the blocks that nobody holds then, the unregistered ones
/// come to the front as a group, last block foremost (so that without caching the pool is a stack, as [`BlockPool`]
/// is), the registered ones to the tail, so that a prefix outlives what continues it. Taking the head of the queue is
/// the only way an entry is lost, but for the repetitions that [`Eviction::Radix`] drops.
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
    pub(super) caching: bool,
    pub(super) eviction: Eviction,
    /// Free blocks without an entry; the head of the queue is the end.
    pub(super) unregistered: Vec<BlockId>,
    /// Without caching, neither reference counts nor anything else in here is kept.
    pub(super) blocks: Blocks,
    pub(super) registry: Registry,
    pub(super) num_idle: u32,
    /// Blocks registered without a key.
    pub(super) num_keyless: u32,
    /// Number of the last watch.
    pub(super) watch: u32,
    watch_is_valid: bool,
}

/// Which idle block loses its entry when no unregistered block is left to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Eviction {
    /// vLLM's free queue: the block that became idle first. Being looked up is not being used: a prefix found for a
    /// request that is then refused does not move. Blocks that repeat a cached key keep their own entries.
    #[default]
    Lru,
    /// SGLang's radix tree: of the idle blocks that no cached block continues, the one accessed least recently. An
    /// access is a lookup that hits the block, whether or not its request is then admitted, a touch, or a giving
    /// back; one call accesses its whole path at one moment of a logical clock. Two leaves never share a moment, so
    /// there are no ties.
    ///
    /// Because tables are paths, no block is accessed earlier than what continues it, and the order of access is a
    /// queue as well, of which the head is always a leaf. So this differs from [`Eviction::Lru`] in two things only:
    ///
    /// - a lookup moves the idle blocks that it hits to the tail, last block first, as giving back does (a scheduler
    ///   that remembers a lookup does not access the blocks again);
    /// - the tree has one place for each key, so an idle block is the only one of its key: a repetition given back
    ///   while another block has its key, and an idle block whose key a held one registers, lose their entry and are
    ///   free like unregistered ones.
    ///
    /// Source: `python/sglang/srt/mem_cache/radix_cache.py`, the `lru` strategy: `_match_prefix_helper` and
    /// `_insert_helper` set `last_access_time` along the path, `evict` takes unlocked leaves from a heap. Not modelled:
    /// nodes of several pages, which are evicted whole, maybe more than was asked for, and accessed whole by a match
    /// that ends within them; that a block enters the tree only after its prefill chunk has run or its request has
    /// finished, when a repetition is freed at once and the request goes on with the tree's copy (here it stays in use
    /// until its table is given back); that the newest tokens of a retracted request are not kept; the allocator's
    /// order of free pages (here [`Eviction::Lru`]'s); host memory and the other strategies.
    Radix,
}

impl PrefixPool {
    /// A pool of `num_blocks` blocks with vLLM's null block, number 0, among them: it is never given out, so one block
    /// less is usable. The free queue is 1, 2, 3, …
    ///
    /// # Panics
    /// If there is no null block: `num_blocks` is 0.
    pub fn new(num_blocks: u32, caching: bool, eviction: Eviction) -> PrefixPool {
        assert!(num_blocks > 0, "the pool holds at least the null block");
        PrefixPool {
            caching,
            eviction,
            unregistered: (1..num_blocks).rev().map(BlockId).collect(),
            blocks: Blocks::new(num_blocks),
            registry: Registry::new(if caching { num_blocks } else { 0 }),
            num_idle: 0,
            num_keyless: 0,
            watch: 0,
            watch_is_valid: false,
        }
    }

    /// Size of the pool, null block included.
    pub fn num_blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that requests can hold: all but the null block.
    pub fn num_usable(&self) -> u32 {
        self.num_blocks() - 1
    }

    /// Free blocks, idle ones included.
    pub fn num_free(&self) -> u32 {
        self.unregistered.len() as u32 + self.num_idle
    }

    /// Free blocks that hold a cache entry: idle, evictable.
    pub fn num_idle_cached(&self) -> u32 {
        self.num_idle
    }

    /// Distinct content keys in the cache.
    pub fn num_keys(&self) -> usize {
        self.registry.num_keys() + self.num_keyless as usize
    }

    /// The free queue, next to be taken first.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> {
        let idle = std::iter::successors(self.blocks.first_idle(), |&block| self.blocks.idle_after(block));
        self.unregistered.iter().rev().copied().chain(idle.map(BlockId))
    }

    /// Appends the `count` blocks at the head of the free queue to `table`, evicting the entries they hold.
    ///
    /// # Panics
    /// If fewer are free: the caller tests first.
    pub fn take(&mut self, count: u32, table: &mut Vec<BlockId>) {
        assert!(count <= self.num_free(), "the caller tests for free blocks");
        let taken = table.len();
        let left = self.unregistered.len().saturating_sub(count as usize);
        table.extend(self.unregistered.drain(left..).rev());
        if self.caching {
            for &BlockId(block) in &table[taken..] {
                self.blocks.get_mut(block).refs = 1;
            }
            for _ in table.len() - taken..count as usize {
                let block = self.blocks.first_idle().expect("as many are idle as are counted");
                self.evict(block);
                self.blocks.get_mut(block).refs = 1;
                table.push(BlockId(block));
            }
        }
    }

    /// Gives back every block of `table`, from its last block to its first.
    pub fn give_back(&mut self, table: &mut Vec<BlockId>) {
        if !self.caching {
            self.unregistered.append(table);
            debug_assert!(self.unregistered.len() < self.blocks.len(), "a block was given back twice");
            return;
        }
        let group = self.unregistered.len();
        for BlockId(block) in table.drain(..).rev() {
            let record = self.blocks.get_mut(block);
            record.refs = record.refs.checked_sub(1).expect("a block is given back once for each table that holds it");
            if record.refs > 0 {
                continue;
            }
            self.disturb(block);
            if !self.blocks.is_registered(block) {
                self.unregistered.push(BlockId(block));
            } else if self.eviction == Eviction::Radix && !self.blocks.is_sole_copy(block) {
                self.registry.remove(&mut self.blocks, block);
                self.unregistered.push(BlockId(block));
            } else {
                self.blocks.push_idle(block);
                self.num_idle += 1;
            }
        }
        self.unregistered[group..].reverse();
    }

    /// Appends to `hits` the block registered first under each key, up to the first key that is not cached. The keys
    /// continue the path that `hits` is, which may be empty: with [`Eviction::Radix`] this is an access to all of it.
    pub fn lookup(&mut self, keys: impl Iterator<Item = u64>, hits: &mut Vec<BlockId>) {
        hits.extend(keys.map_while(|key| self.registry.first(&self.blocks, key)).map(BlockId));
        if self.eviction == Eviction::Radix {
            for &BlockId(block) in hits.iter().rev() {
                if self.blocks.get(block).refs == 0 {
                    debug_assert!(self.blocks.is_registered(block), "block {block} is not cached: the hits are stale");
                    self.blocks.remove_idle(block);
                    self.blocks.push_idle(block);
                }
            }
        }
    }

    /// How many of `hits` nobody holds: they are among the free blocks and must be paid for.
    pub fn idle_among(&self, hits: &[BlockId]) -> u32 {
        hits.iter().map(|block| u32::from(self.blocks.get(block.0).refs == 0)).sum()
    }

    /// Holds each of `hits` once more; those that were idle leave the free queue, the order of the others stays.
    pub fn touch(&mut self, hits: &[BlockId]) {
        for &BlockId(block) in hits {
            if self.blocks.get(block).refs == 0 {
                debug_assert!(self.blocks.is_registered(block), "block {block} is not cached: the hits are stale");
                self.disturb(block);
                self.blocks.remove_idle(block);
                self.num_idle -= 1;
            }
            self.blocks.get_mut(block).refs += 1;
        }
    }

    /// Registers a full block that the caller holds under the key of its content, behind any other block of that key.
    /// `parent` is the block before it in the caller's table, registered before. Without caching nothing is entered.
    pub fn register(&mut self, block: BlockId, key: u64, parent: Option<BlockId>) {
        if !self.caching {
            return;
        }
        let BlockId(block) = block;
        debug_assert!(
            parent.is_none_or(|parent| self.blocks.is_registered(parent.0)),
            "tables are registered in order"
        );
        debug_assert!(self.blocks.get(block).refs > 0, "block {block} is registered by its holder");
        assert!(!self.blocks.is_registered(block), "block {block} is registered already");
        if self.eviction == Eviction::Radix
            && let Some(first) = self.registry.first(&self.blocks, key)
            && self.blocks.get(first).refs == 0
        {
            self.evict(first);
            self.unregistered.push(BlockId(first));
        }
        self.registry.enter(&mut self.blocks, block, key);
    }

    /// Registers a full block that the caller holds and whose content nobody else will ever ask for: what it could be
    /// found by is told when somebody does ([`publish`](PrefixPool::publish)). Apart from that it is like any other
    /// registered block. Entering and evicting it costs a fraction, because there is no key to make and to look up, and
    /// such are most blocks of most traffic: all that is generated, and every prompt that is not shared.
    pub fn register_keyless(&mut self, block: BlockId) {
        if !self.caching {
            return;
        }
        debug_assert!(self.blocks.get(block.0).refs > 0, "block {} is registered by its holder", block.0);
        assert!(!self.blocks.is_registered(block.0), "block {} is registered already", block.0);
        self.blocks.enter_keyless(block.0);
        self.num_keyless += 1;
    }

    /// Gives a block registered without a key the key of its content, so that it can be found. The caller holds it.
    pub fn publish(&mut self, block: BlockId, key: u64) {
        if !self.caching {
            return;
        }
        assert!(self.blocks.is_keyless(block.0), "block {} was not registered without a key", block.0);
        self.unregister(block.0);
        self.register(block, key, None);
    }

    /// Watches the blocks of a remembered lookup, in place of those watched before.
    pub fn watch(&mut self, hits: &[BlockId]) {
        if self.watch == u32::MAX {
            self.blocks.clear_watches();
            self.watch = 0;
        }
        self.watch += 1;
        self.watch_is_valid = true;
        for block in hits {
            self.blocks.get_mut(block.0).watch = self.watch;
        }
    }

    /// Whether since the last watch every watched block kept its entry, and held ones stayed held and idle ones idle:
    /// the remembered hits and their [`idle_among`](PrefixPool::idle_among) are then still true. That no key behind
    /// them has been registered since is not said; looking up the keys behind the hits tells. False before the first
    /// watch.
    pub fn watch_is_valid(&self) -> bool {
        self.watch_is_valid
    }

    /// Takes an idle block out of the queue and out of the cache.
    fn evict(&mut self, block: u32) {
        self.disturb(block);
        self.blocks.remove_idle(block);
        self.num_idle -= 1;
        self.unregister(block);
    }

    fn unregister(&mut self, block: u32) {
        if self.blocks.is_keyless(block) {
            self.blocks.remove_keyless(block);
            self.num_keyless -= 1;
        } else {
            self.registry.remove(&mut self.blocks, block);
        }
    }

    /// Something that a watch must notice happens to `block`.
    fn disturb(&mut self, block: u32) {
        self.watch_is_valid &= self.blocks.get(block).watch != self.watch;
    }
}
