//! What a prefix pool knows of each block: one record, so that whatever an operation asks of a block comes together. Links
//! are block numbers.

/// In `next_copy`: the block is not registered.
const UNREGISTERED: u32 = u32::MAX;

/// In `prev_copy`: the block is registered without a key, so that it has no copies.
const KEYLESS: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// Content key; means something only while the block is registered.
    pub(super) key: u64,
    /// Tables that hold the block.
    pub(super) refs: u32,
    /// The watch that the block was last marked by.
    pub(super) watch: u32,
    /// The block registered next under the same key, the first again after the last.
    next_copy: u32,
    /// The other direction.
    prev_copy: u32,
}

/// Every block of a pool, and through them, for each key, the ring of its **copies** in the order of registration.
#[derive(Debug, Clone)]
pub(super) struct Blocks(Vec<Block>);

impl Blocks {
    pub(super) fn new(num_blocks: u32) -> Blocks {
        let fresh = Block { key: 0, refs: 0, watch: 0, next_copy: UNREGISTERED, prev_copy: UNREGISTERED };
        Blocks(vec![fresh; num_blocks as usize])
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, block: u32) -> &Block {
        &self.0[block as usize]
    }

    pub(super) fn get_mut(&mut self, block: u32) -> &mut Block {
        &mut self.0[block as usize]
    }

    pub(super) fn is_registered(&self, block: u32) -> bool {
        self.get(block).next_copy != UNREGISTERED
    }

    /// Whether the block is registered without a key.
    pub(super) fn is_keyless(&self, block: u32) -> bool {
        self.is_registered(block) && self.get(block).prev_copy == KEYLESS
    }

    /// Registers a block without a key.
    pub(super) fn enter_keyless(&mut self, block: u32) {
        let record = self.get_mut(block);
        record.next_copy = block;
        record.prev_copy = KEYLESS;
    }

    /// Unregisters a block that has no key.
    pub(super) fn remove_keyless(&mut self, block: u32) {
        self.get_mut(block).next_copy = UNREGISTERED;
    }

    /// Whether no other block is registered under the key of this registered one.
    pub(super) fn is_sole_copy(&self, block: u32) -> bool {
        self.get(block).next_copy == block
    }

    /// The block registered next under the same key.
    pub(super) fn next_copy(&self, block: u32) -> u32 {
        self.get(block).next_copy
    }

    /// Makes `block` the only copy of its key.
    pub(super) fn start_ring(&mut self, block: u32) {
        self.join_copies(block, block);
    }

    /// Makes `block` the last copy in the ring that starts at `first`.
    pub(super) fn append_copy(&mut self, first: u32, block: u32) {
        self.join_copies(self.get(first).prev_copy, block);
        self.join_copies(block, first);
    }

    /// Takes `block` out of its ring; it is then unregistered.
    pub(super) fn remove_copy(&mut self, block: u32) {
        let Block { next_copy, prev_copy, .. } = *self.get(block);
        self.join_copies(prev_copy, next_copy);
        self.get_mut(block).next_copy = UNREGISTERED;
    }

    /// Whether each link of the ring of copies that leads to `block` has its counterpart.
    pub(super) fn copy_links_agree(&self, block: u32) -> bool {
        let Block { next_copy, prev_copy, .. } = *self.get(block);
        self.get(next_copy).prev_copy == block && self.get(prev_copy).next_copy == block
    }

    /// Forgets every mark, so that watches can be numbered anew.
    pub(super) fn clear_watches(&mut self) {
        self.0.iter_mut().for_each(|block| block.watch = 0);
    }

    fn join_copies(&mut self, before: u32, after: u32) {
        self.get_mut(before).next_copy = after;
        self.get_mut(after).prev_copy = before;
    }
}
