//! What a prefix pool knows of each block: one small record, so that whatever an operation asks of a block comes together and
//! those of a whole pool stay near. Links are block numbers.

/// In `state`, beside the tables that hold the block: it is watched.
const WATCHED: u32 = 1 << 31;

/// It is registered.
const REGISTERED: u32 = 1 << 30;

/// It is registered without a key.
const KEYLESS: u32 = 1 << 29;

/// Others are registered under its key.
const COPIED: u32 = 1 << 28;

const HOLDERS: u32 = COPIED - 1;

#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// Content key; means something only while the block is registered.
    pub(super) key: u64,
    state: u32,
    /// Of the first copy of its key: the next block in its bucket of the [registry](super::registry), or the null block.
    pub(super) behind: u32,
}

impl Block {
    /// Tables that hold the block.
    #[inline]
    pub(super) fn refs(&self) -> u32 {
        self.state & HOLDERS
    }

    /// Whether it is watched.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.state & WATCHED != 0
    }

    /// One table more holds it.
    #[inline]
    pub(super) fn hold(&mut self) {
        self.state += 1;
    }

    /// One table less; how many do now.
    #[inline]
    pub(super) fn let_go(&mut self) -> u32 {
        assert!(self.refs() > 0, "a block is given back once for each table that holds it");
        self.state -= 1;
        self.refs()
    }

    #[inline]
    pub(super) fn is_registered(&self) -> bool {
        self.state & REGISTERED != 0
    }

    /// Whether the block is registered without a key.
    #[inline]
    pub(super) fn is_keyless(&self) -> bool {
        self.state & KEYLESS != 0
    }

    /// Whether no other block is registered under the key of this registered one.
    #[inline]
    pub(super) fn is_sole_copy(&self) -> bool {
        self.state & COPIED == 0
    }

    /// Registers the block without a key.
    #[inline]
    pub(super) fn enter_keyless(&mut self) {
        self.state |= REGISTERED | KEYLESS;
    }

    /// Registers the block as the only one of `key`, before `behind` in its bucket.
    #[inline]
    pub(super) fn enter(&mut self, key: u64, behind: u32) {
        *self = Block { key, behind, state: self.state | REGISTERED };
    }

    /// Unregisters a block that has no copies.
    #[inline]
    pub(super) fn unregister(&mut self) {
        self.state &= WATCHED | HOLDERS;
    }

    /// A block that nobody holds is taken.
    #[inline]
    pub(super) fn take(&mut self) {
        self.state |= 1;
    }

    pub(super) fn set_watched(&mut self, is_watched: bool) {
        self.state = self.state & !WATCHED | if is_watched { WATCHED } else { 0 };
    }
}

/// A block's neighbours among the copies of its key; of no meaning where it has none.
#[derive(Debug, Clone, Copy)]
struct Links {
    /// The block registered next under the same key, the first again after the last.
    next: u32,
    /// The other direction.
    prev: u32,
}

/// Every block of a pool, and through them, for each key that several have, the ring of its **copies** in the order of
/// registration.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    all: Vec<Block>,
    copies: Vec<Links>,
}

impl Blocks {
    pub(super) fn new(num_blocks: u32) -> Blocks {
        let count = num_blocks as usize;
        Blocks {
            all: vec![Block { key: 0, state: 0, behind: 0 }; count],
            copies: vec![Links { next: 0, prev: 0 }; count],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    #[inline]
    pub(super) fn get(&self, block: u32) -> &Block {
        &self.all[block as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, block: u32) -> &mut Block {
        &mut self.all[block as usize]
    }

    /// The block registered next under the same key.
    #[inline]
    pub(super) fn next_copy(&self, block: u32) -> u32 {
        if self.get(block).is_sole_copy() { block } else { self.copies[block as usize].next }
    }

    /// Makes `block` the last copy in the ring that starts at `first`, if only of that one.
    pub(super) fn append_copy(&mut self, first: u32, block: u32) {
        let record = self.get_mut(first);
        let (key, was_sole) = (record.key, record.is_sole_copy());
        record.state |= COPIED;
        let record = self.get_mut(block);
        record.key = key;
        record.state |= REGISTERED | COPIED;
        let last = if was_sole { first } else { self.copies[first as usize].prev };
        self.join(last, block);
        self.join(block, first);
    }

    /// Takes `block` out of its ring of several; it is then unregistered.
    pub(super) fn remove_copy(&mut self, block: u32) {
        let Links { next, prev } = self.copies[block as usize];
        self.join(prev, next);
        if next == prev {
            self.get_mut(next).state &= !COPIED;
        }
        self.get_mut(block).unregister();
    }

    /// Whether each link of the ring of copies that leads to `block` has its counterpart.
    pub(super) fn copy_links_agree(&self, block: u32) -> bool {
        if self.get(block).is_sole_copy() {
            return true;
        }
        let Links { next, prev } = self.copies[block as usize];
        next != block && self.copies[next as usize].prev == block && self.copies[prev as usize].next == block
    }

    fn join(&mut self, before: u32, after: u32) {
        self.copies[before as usize].next = after;
        self.copies[after as usize].prev = before;
    }
}
