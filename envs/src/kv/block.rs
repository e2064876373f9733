//! What a prefix pool knows of each block. What every operation asks lies together in one small record, so that the records of a
//! whole pool stay near; keys and links, which few ask for, lie apart. Links are block numbers.

/// In `state`, beside the tables that hold the block: it is watched.
const WATCHED: u32 = 1 << 31;

/// It is registered.
const REGISTERED: u32 = 1 << 30;

/// It is registered without a key.
const KEYLESS: u32 = 1 << 29;

/// Others are registered under its key.
const COPIED: u32 = 1 << 28;

/// The first copy of its key: another block is behind it in its bucket.
const FOLLOWED: u32 = 1 << 27;

const HOLDERS: u32 = FOLLOWED - 1;

#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    state: u32,
    /// Its bucket of the [registry](super::registry); means something only while the block is registered under a key.
    pub(super) home: u32,
}

impl Block {
    /// Tables that hold the block.
    #[inline]
    pub(super) fn refs(self) -> u32 {
        self.state & HOLDERS
    }

    /// Whether it is watched.
    #[inline]
    pub(super) fn is_watched(self) -> bool {
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
    pub(super) fn is_registered(self) -> bool {
        self.state & REGISTERED != 0
    }

    /// Whether the block is registered without a key.
    #[inline]
    pub(super) fn is_keyless(self) -> bool {
        self.state & KEYLESS != 0
    }

    /// Whether no other block is registered under the key of this registered one.
    #[inline]
    pub(super) fn is_sole_copy(self) -> bool {
        self.state & COPIED == 0
    }

    /// Whether another block is behind this one in its bucket.
    #[inline]
    pub(super) fn is_followed(self) -> bool {
        self.state & FOLLOWED != 0
    }

    /// Registers the block without a key.
    #[inline]
    pub(super) fn enter_keyless(&mut self) {
        self.state |= REGISTERED | KEYLESS;
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

/// A block's neighbours; each of no meaning where it has none.
#[derive(Debug, Clone, Copy)]
struct Links {
    /// The block registered next under the same key, the first again after the last.
    next: u32,
    /// The other direction.
    prev: u32,
    /// Of the first copy of a key: the next block in its bucket.
    behind: u32,
}

/// Every block of a pool, and through them, for each key that several have, the ring of its **copies** in the order of
/// registration.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    all: Vec<Block>,
    /// Content keys; each means something only while its block is registered under one.
    pub(super) keys: Vec<u64>,
    links: Vec<Links>,
}

impl Blocks {
    pub(super) fn new(num_blocks: u32) -> Blocks {
        let count = num_blocks as usize;
        Blocks {
            all: vec![Block { state: 0, home: 0 }; count],
            keys: vec![0; count],
            links: vec![Links { next: 0, prev: 0, behind: 0 }; count],
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

    /// The key of a block registered under one.
    #[inline]
    pub(super) fn key(&self, block: u32) -> u64 {
        self.keys[block as usize]
    }

    /// The same for whoever may not look at it: it has no way to fail that would have to be taken.
    #[inline]
    pub(super) fn key_if_any(&self, block: u32) -> u64 {
        self.keys.get(block as usize).copied().unwrap_or(0)
    }

    /// Registers `block` as the only one of `key`, at the end of the bucket `home`.
    #[inline]
    pub(super) fn enter(&mut self, block: u32, key: u64, home: u32) {
        self.keys[block as usize] = key;
        let record = self.get_mut(block);
        *record = Block { state: record.state | REGISTERED, home };
    }

    /// The next block in the bucket of a first copy.
    #[inline]
    pub(super) fn behind(&self, block: u32) -> Option<u32> {
        self.get(block).is_followed().then(|| self.links[block as usize].behind)
    }

    pub(super) fn set_behind(&mut self, block: u32, behind: Option<u32>) {
        let record = &mut self.all[block as usize];
        match behind {
            None => record.state &= !FOLLOWED,
            Some(behind) => {
                record.state |= FOLLOWED;
                self.links[block as usize].behind = behind;
            }
        }
    }

    /// The block registered next under the same key.
    #[inline]
    pub(super) fn next_copy(&self, block: u32) -> u32 {
        if self.get(block).is_sole_copy() { block } else { self.links[block as usize].next }
    }

    /// Makes `block` the last copy in the ring that starts at `first`, if only of that one.
    pub(super) fn append_copy(&mut self, first: u32, block: u32) {
        let record = self.get_mut(first);
        let (home, was_sole) = (record.home, record.is_sole_copy());
        record.state |= COPIED;
        let record = self.get_mut(block);
        *record = Block { state: record.state | REGISTERED | COPIED, home };
        self.keys[block as usize] = self.keys[first as usize];
        let last = if was_sole { first } else { self.links[first as usize].prev };
        self.join(last, block);
        self.join(block, first);
    }

    /// Takes `block` out of its ring of several; it is then unregistered.
    pub(super) fn remove_copy(&mut self, block: u32) {
        let Links { next, prev, .. } = self.links[block as usize];
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
        let Links { next, prev, .. } = self.links[block as usize];
        next != block && self.links[next as usize].prev == block && self.links[prev as usize].next == block
    }

    fn join(&mut self, before: u32, after: u32) {
        self.links[before as usize].next = after;
        self.links[after as usize].prev = before;
    }
}
