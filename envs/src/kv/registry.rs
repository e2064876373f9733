//! The prefix cache's map: content key → the block registered first under it, of those still cached.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::block::Blocks;

/// The first copy of each key. The others hang in its ring (see [`Blocks`]), so that however often a prefix was
/// computed twice, entering and removing a block takes constant time.
///
/// A content key is a mixed hash already and is its own hash here. The table holds block numbers only; the key is
/// compared in the block's record, which whoever asks for the block reads next anyway.
#[derive(Debug, Clone)]
pub(super) struct Registry {
    first: HashTable<u32>,
}

impl Registry {
    /// An empty map that never grows: there are at most `num_blocks` keys, and with twice the room the table clears out
    /// its tombstones in place.
    pub(super) fn new(num_blocks: u32) -> Registry {
        Registry { first: HashTable::with_capacity(2 * num_blocks as usize) }
    }

    pub(super) fn num_keys(&self) -> usize {
        self.first.len()
    }

    /// The block registered first under `key`.
    #[inline]
    pub(super) fn first(&self, blocks: &Blocks, key: u64) -> Option<u32> {
        self.first.find(key, |&first| blocks.get(first).key == key).copied()
    }

    /// The first copy of every key, in no order that means anything.
    pub(super) fn firsts(&self) -> impl Iterator<Item = u32> {
        self.first.iter().copied()
    }

    /// Registers `block` under `key`, behind its other copies.
    pub(super) fn enter(&mut self, blocks: &mut Blocks, block: u32, key: u64) {
        blocks.get_mut(block).key = key;
        let entry = self.first.entry(key, |&first| blocks.get(first).key == key, |&first| blocks.get(first).key);
        match entry {
            Entry::Occupied(entry) => blocks.append_copy(*entry.get(), block),
            Entry::Vacant(entry) => {
                entry.insert(block);
                blocks.start_ring(block);
            }
        }
    }

    /// Removes the entry of a registered block; the copy registered next after it takes its place.
    pub(super) fn remove(&mut self, blocks: &mut Blocks, block: u32) {
        let key = blocks.get(block).key;
        let mut entry = self
            .first
            .find_entry(key, |&first| blocks.get(first).key == key)
            .expect("a registered block's key is in the map");
        if blocks.is_sole_copy(block) {
            entry.remove();
        } else if *entry.get() == block {
            *entry.get_mut() = blocks.next_copy(block);
        }
        blocks.remove_copy(block);
    }
}
