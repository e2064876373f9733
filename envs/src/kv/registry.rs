//! The prefix cache's map: content key → the block registered first under it, of those still cached.

use super::block::Blocks;

/// The null block, which is never registered: an empty bucket.
const EMPTY: u32 = 0;

/// Buckets side by side that the blocks of one path have.
const RUN: u32 = 16;

/// The first copy of each key. The others hang in its ring (see [`Blocks`]), so that however often a prefix was
/// computed twice, entering and removing a block takes constant time.
///
/// The table is one of **buckets**, lists linked through the blocks: the key is compared in the block's own, and there are no
/// tombstones to clear out. A content key is a mixed hash already and is its own hash, but only one in [`RUN`] is asked: the
/// blocks of a path lie in buckets side by side, as many as fill a line of the processor's cache, and they are entered, found and
/// removed one behind the other. Which bucket that is, its [`home`](Registry::home), follows from the path's content alone, so
/// that who asks for a path finds what others have registered of it.
#[derive(Debug, Clone)]
pub(super) struct Registry {
    /// The first block of each bucket; a power of two.
    buckets: Vec<u32>,
    num_keys: usize,
}

impl Registry {
    /// An empty map that never grows: there are at most `num_blocks` keys, a quarter as many as buckets, so that a path
    /// seldom lies over another.
    pub(super) fn new(num_blocks: u32) -> Registry {
        Registry { buckets: vec![EMPTY; (4 * num_blocks as usize).next_power_of_two()], num_keys: 0 }
    }

    pub(super) fn num_keys(&self) -> usize {
        self.num_keys
    }

    /// The bucket of a block with `key` behind one whose bucket is `before`, or at the beginning of its path.
    #[inline]
    pub(super) fn home(&self, before: Option<u32>, key: u64) -> u32 {
        let mask = (self.buckets.len() - 1) as u32;
        match before {
            Some(before) if before % RUN < RUN - 1 => (before + 1) & mask,
            Some(_) => key as u32 & mask & !(RUN - 1),
            None => key as u32 & mask,
        }
    }

    /// The block registered first under `key`, whose bucket is `home`.
    #[inline]
    pub(super) fn first(&self, blocks: &Blocks, key: u64, home: u32) -> Option<u32> {
        let mut at = Some(self.buckets[home as usize]).filter(|&block| block != EMPTY);
        while let Some(block) = at {
            if blocks.key(block) == key {
                break;
            }
            at = blocks.behind(block);
        }
        at
    }

    /// The first copy of every key with the bucket it is in, in no order that means anything. Never more than there are blocks,
    /// whatever became of the links.
    pub(super) fn firsts(&self, blocks: &Blocks) -> impl Iterator<Item = (u32, u32)> {
        let of = move |(bucket, &first): (u32, &u32)| {
            let first = Some(first).filter(|&block| block != EMPTY);
            std::iter::successors(first, move |&block| blocks.behind(block)).map(move |block| (bucket, block))
        };
        (0..).zip(&self.buckets).flat_map(of).take(blocks.len())
    }

    /// Registers `block` under `key` in the bucket `home`, behind its other copies.
    #[inline]
    pub(super) fn enter(&mut self, blocks: &mut Blocks, block: u32, key: u64, home: u32) {
        let head = &mut self.buckets[home as usize];
        if *head == EMPTY {
            *head = block;
            blocks.enter(block, key, home);
            self.num_keys += 1;
        } else {
            self.enter_before(blocks, block, key, home);
        }
    }

    /// The same in a bucket that is not empty.
    #[inline(never)]
    fn enter_before(&mut self, blocks: &mut Blocks, block: u32, key: u64, home: u32) {
        if let Some(first) = self.first(blocks, key, home) {
            blocks.append_copy(first, block);
            return;
        }
        let head = std::mem::replace(&mut self.buckets[home as usize], block);
        blocks.enter(block, key, home);
        blocks.set_behind(block, Some(head));
        self.num_keys += 1;
    }

    /// Removes the entry of a registered block; the copy registered next after it takes its place.
    #[inline]
    pub(super) fn remove(&mut self, blocks: &mut Blocks, block: u32) {
        let record = *blocks.get(block);
        let bucket = &mut self.buckets[record.home as usize];
        if *bucket == block && record.is_sole_copy() {
            *bucket = blocks.behind(block).unwrap_or(EMPTY);
            blocks.get_mut(block).unregister();
            self.num_keys -= 1;
        } else {
            self.remove_from_within(blocks, block);
        }
    }

    /// The same of a block that has copies, or is not the first of its bucket.
    #[inline(never)]
    fn remove_from_within(&mut self, blocks: &mut Blocks, block: u32) {
        let record = *blocks.get(block);
        if record.is_sole_copy() {
            self.replace_first(blocks, block, blocks.behind(block));
            blocks.get_mut(block).unregister();
            self.num_keys -= 1;
            return;
        }
        if self.first(blocks, blocks.key(block), record.home) == Some(block) {
            let heir = blocks.next_copy(block);
            blocks.set_behind(heir, blocks.behind(block));
            self.replace_first(blocks, block, Some(heir));
        }
        blocks.remove_copy(block);
    }

    /// Lets `heir` follow whatever a first copy follows in its bucket.
    fn replace_first(&mut self, blocks: &mut Blocks, first: u32, heir: Option<u32>) {
        let home = blocks.get(first).home as usize;
        let mut at = self.buckets[home];
        if at == first {
            self.buckets[home] = heir.unwrap_or(EMPTY);
            return;
        }
        loop {
            let behind = blocks.behind(at).expect("a registered block's key is in the map");
            if behind == first {
                break;
            }
            at = behind;
        }
        blocks.set_behind(at, heir);
    }
}
