//! The prefix cache's map: content key → the block registered first under it, of those still cached.

use super::block::Blocks;

/// The null block, which is never registered: the end of a bucket.
const END: u32 = 0;

/// The first copy of each key. The others hang in its ring (see [`Blocks`]), so that however often a prefix was
/// computed twice, entering and removing a block takes constant time.
///
/// A content key is a mixed hash already and is its own hash here. The table is one of **buckets**, lists linked through the
/// blocks' own records: the key is compared in the block's record, which whoever asks for the block reads next anyway, so that
/// beside it one number is read, and there are no tombstones to clear out.
#[derive(Debug, Clone)]
pub(super) struct Registry {
    /// The first block of each bucket; a power of two.
    buckets: Vec<u32>,
    num_keys: usize,
}

impl Registry {
    /// An empty map that never grows: there are at most `num_blocks` keys, half as many as buckets.
    pub(super) fn new(num_blocks: u32) -> Registry {
        Registry { buckets: vec![END; (2 * num_blocks as usize).next_power_of_two()], num_keys: 0 }
    }

    pub(super) fn num_keys(&self) -> usize {
        self.num_keys
    }

    #[inline]
    fn bucket(&self, key: u64) -> usize {
        key as usize & (self.buckets.len() - 1)
    }

    /// The block registered first under `key`.
    #[inline]
    pub(super) fn first(&self, blocks: &Blocks, key: u64) -> Option<u32> {
        let mut at = self.buckets[self.bucket(key)];
        while at != END {
            let record = blocks.get(at);
            if record.key == key {
                return Some(at);
            }
            at = record.behind;
        }
        None
    }

    /// The first copy of every key, in no order that means anything. Never more than there are blocks, whatever became of the
    /// links.
    pub(super) fn firsts(&self, blocks: &Blocks) -> impl Iterator<Item = u32> {
        let end = |&block: &u32| block != END;
        let of = move |&first: &u32| {
            std::iter::successors(Some(first).filter(end), move |&block| Some(blocks.get(block).behind).filter(end))
        };
        self.buckets.iter().flat_map(of).take(blocks.len())
    }

    /// Registers `block` under `key`, behind its other copies.
    #[inline]
    pub(super) fn enter(&mut self, blocks: &mut Blocks, block: u32, key: u64) {
        if let Some(first) = self.first(blocks, key) {
            blocks.append_copy(first, block);
            return;
        }
        let bucket = self.bucket(key);
        let behind = std::mem::replace(&mut self.buckets[bucket], block);
        blocks.get_mut(block).enter(key, behind);
        self.num_keys += 1;
    }

    /// Removes the entry of a registered block; the copy registered next after it takes its place.
    #[inline]
    pub(super) fn remove(&mut self, blocks: &mut Blocks, block: u32) {
        let record = *blocks.get(block);
        if record.is_sole_copy() {
            self.replace_first(blocks, block, record.behind);
            blocks.get_mut(block).unregister();
            self.num_keys -= 1;
            return;
        }
        if self.first(blocks, record.key) == Some(block) {
            let heir = blocks.next_copy(block);
            blocks.get_mut(heir).behind = record.behind;
            self.replace_first(blocks, block, heir);
        }
        blocks.remove_copy(block);
    }

    /// Lets `heir` follow whatever a first copy follows in its bucket.
    #[inline]
    fn replace_first(&mut self, blocks: &mut Blocks, first: u32, heir: u32) {
        let bucket = self.bucket(blocks.get(first).key);
        let mut at = self.buckets[bucket];
        if at == first {
            self.buckets[bucket] = heir;
            return;
        }
        while blocks.get(at).behind != first {
            at = blocks.get(at).behind;
            assert!(at != END, "a registered block's key is in the map");
        }
        blocks.get_mut(at).behind = heir;
    }
}
