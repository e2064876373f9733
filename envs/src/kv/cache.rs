//! What a prefix pool knows but the order of eviction. Whatever concerns that is generic over the policy.

use super::BlockId;
use super::block::Blocks;
use super::registry::Registry;
use crate::evict::{BlockView, Evict};

/// Blocks, who holds them, and what they are found by.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    pub(super) caching: bool,
    /// Free blocks without an entry; the head of the queue is the end.
    pub(super) unregistered: Vec<BlockId>,
    /// Without caching, neither reference counts nor anything else in here is kept.
    pub(super) blocks: Blocks,
    pub(super) registry: Registry,
    pub(super) num_idle: u32,
    /// Blocks registered without a key.
    pub(super) num_keyless: u32,
    /// Blocks watched, each of which is marked.
    watched: Vec<BlockId>,
    pub(super) watch_is_valid: bool,
    /// Blocks evicted with the keys they had, where somebody asks for them.
    pub(super) evicted: Option<Vec<(BlockId, u64)>>,
}

impl Cache {
    pub(super) fn new(num_blocks: u32, caching: bool) -> Cache {
        Cache {
            caching,
            unregistered: (1..num_blocks).rev().map(BlockId).collect(),
            blocks: Blocks::new(num_blocks),
            registry: Registry::new(if caching { num_blocks } else { 0 }),
            num_idle: 0,
            num_keyless: 0,
            watched: Vec::new(),
            watch_is_valid: false,
            evicted: None,
        }
    }

    pub(super) fn num_free(&self) -> u32 {
        self.unregistered.len() as u32 + self.num_idle
    }

    /// Takes as many as there are of `count` blocks from those that hold no entry. How many are still missing.
    pub(super) fn take_unregistered(&mut self, count: u32, table: &mut Vec<BlockId>) -> u32 {
        let taken = table.len();
        let left = self.unregistered.len().saturating_sub(count as usize);
        table.extend(self.unregistered.drain(left..).rev());
        if self.caching {
            for &BlockId(block) in &table[taken..] {
                self.blocks.get_mut(block).take();
            }
        }
        count - (table.len() - taken) as u32
    }

    /// Takes `count` blocks whose entries the policy gives up, of which there are as many.
    pub(super) fn take_idle<E: Evict>(&mut self, policy: &mut E, count: u32, table: &mut Vec<BlockId>) {
        let taken = table.len();
        table.reserve(count as usize);
        policy.victims(count, |victims| table.extend(victims.iter().map(|&block| BlockId(block))));
        assert_eq!(table.len() - taken, count as usize, "as many are idle as are counted");
        self.num_idle -= count;
        let Cache { blocks, registry, num_keyless, watch_is_valid, evicted, .. } = self;
        if let Some(evicted) = evicted {
            let keyed = table[taken..].iter().filter(|block| !blocks.get(block.0).is_keyless());
            evicted.extend(keyed.map(|&block| (block, blocks.key(block.0))));
        }
        for &BlockId(block) in &table[taken..] {
            let record = blocks.get_mut(block);
            *watch_is_valid &= !record.is_watched();
            if record.is_keyless() {
                record.unregister();
                *num_keyless -= 1;
            } else {
                registry.remove(blocks, block);
            }
            blocks.get_mut(block).take();
        }
    }

    /// Gives a table back where nothing is cached.
    pub(super) fn give_back_unregistered(&mut self, table: &mut Vec<BlockId>) {
        self.unregistered.append(table);
        debug_assert!(self.unregistered.len() < self.blocks.len(), "a block was given back twice");
    }

    pub(super) fn give_back<E: Evict>(&mut self, policy: &mut E, table: &mut Vec<BlockId>) {
        let group = self.unregistered.len();
        let length = table.len() as u32;
        let mut num_idle = 0;
        let Cache { blocks, registry, unregistered, watch_is_valid, .. } = self;
        let last_first = table.drain(..).enumerate().rev();
        policy.idle_path(last_first.filter_map(|(position, BlockId(block))| {
            let record = blocks.get_mut(block);
            if record.let_go() > 0 {
                return None;
            }
            let record = *record;
            *watch_is_valid &= !record.is_watched();
            let is_kept = record.is_registered() && (E::KEEPS_REPEATS || record.is_sole_copy());
            if !is_kept {
                if record.is_registered() {
                    registry.remove(blocks, block);
                }
                unregistered.push(BlockId(block));
                return None;
            }
            num_idle += 1;
            let key = if record.is_keyless() { 0 } else { blocks.key_if_any(block) };
            Some(BlockView { key, position: position as u32, length, ..BlockView::of(block) })
        }));
        self.num_idle += num_idle;
        self.unregistered[group..].reverse();
    }

    /// Appends the block registered first under each key, up to the first key that is not cached. The path is that of `hits`,
    /// if there are any.
    pub(super) fn lookup(&self, keys: impl Iterator<Item = u64>, hits: &mut Vec<BlockId>) {
        let mut before = hits.last().map(|last| self.blocks.get(last.0).home);
        hits.extend(keys.map_while(|key| {
            let home = self.registry.home(before, key);
            before = Some(home);
            self.registry.first(&self.blocks, key, home).map(BlockId)
        }));
    }

    /// The same of blocks each of which was registered by itself.
    pub(super) fn lookup_each(&self, keys: impl Iterator<Item = u64>, hits: &mut Vec<BlockId>) {
        let first = |key| self.registry.first(&self.blocks, key, self.registry.home(None, key));
        hits.extend(keys.map_while(first).map(BlockId));
    }

    /// The bucket of a block with `key` behind `parent` in its path.
    #[inline]
    pub(super) fn home(&self, parent: Option<BlockId>, key: u64) -> u32 {
        self.registry.home(parent.map(|parent| self.blocks.get(parent.0).home), key)
    }

    /// Tells the policy of a lookup that hit `path`.
    pub(super) fn accessed<E: Evict>(&self, policy: &mut E, path: &[BlockId]) {
        if E::LOOKUP_IS_USE {
            for &BlockId(block) in path.iter().rev() {
                if self.blocks.get(block).refs() == 0 {
                    debug_assert!(
                        self.blocks.get(block).is_registered(),
                        "block {block} is not cached: the hits are stale"
                    );
                    policy.accessed(BlockView::of(block));
                }
            }
        }
    }

    pub(super) fn touch<E: Evict>(&mut self, policy: &mut E, hits: &[BlockId]) {
        for &BlockId(block) in hits {
            if self.blocks.get(block).refs() == 0 {
                debug_assert!(
                    self.blocks.get(block).is_registered(),
                    "block {block} is not cached: the hits are stale"
                );
                self.disturb(block);
                policy.taken(BlockView::of(block));
                self.num_idle -= 1;
            }
            self.blocks.get_mut(block).hold();
        }
    }

    /// A held block is about to be registered under `key`: an idle one that the policy would not keep beside it goes.
    pub(super) fn give_way<E: Evict>(&mut self, policy: &mut E, key: u64, home: u32) {
        if !E::KEEPS_REPEATS
            && let Some(first) = self.registry.first(&self.blocks, key, home)
            && self.blocks.get(first).refs() == 0
        {
            policy.taken(BlockView::of(first));
            self.forget(first);
            self.unregistered.push(BlockId(first));
        }
    }

    #[inline]
    pub(super) fn register(&mut self, block: u32, key: u64, home: u32) {
        self.assert_unregistered(block);
        self.registry.enter(&mut self.blocks, block, key, home);
    }

    pub(super) fn register_keyless(&mut self, blocks: &[BlockId]) {
        for &BlockId(block) in blocks {
            self.assert_unregistered(block);
            self.blocks.get_mut(block).enter_keyless();
        }
        self.num_keyless += blocks.len() as u32;
    }

    #[inline]
    fn assert_unregistered(&self, block: u32) {
        debug_assert!(self.blocks.get(block).refs() > 0, "block {block} is registered by its holder");
        assert!(!self.blocks.get(block).is_registered(), "block {block} is registered already");
    }

    pub(super) fn watch(&mut self, hits: &[BlockId]) {
        for block in self.watched.drain(..) {
            self.blocks.get_mut(block.0).set_watched(false);
        }
        self.watched.extend_from_slice(hits);
        for block in hits {
            self.blocks.get_mut(block.0).set_watched(true);
        }
        self.watch_is_valid = true;
    }

    /// A block that is idle no more loses its entry.
    fn forget(&mut self, block: u32) {
        self.disturb(block);
        self.num_idle -= 1;
        self.unregister(block);
    }

    #[inline]
    pub(super) fn unregister(&mut self, block: u32) {
        let record = self.blocks.get_mut(block);
        if record.is_keyless() {
            record.unregister();
            self.num_keyless -= 1;
        } else {
            self.registry.remove(&mut self.blocks, block);
        }
    }

    /// Something that a watch must notice happens to `block`.
    #[inline]
    fn disturb(&mut self, block: u32) {
        self.watch_is_valid &= !self.blocks.get(block).is_watched();
    }
}
