//! A queue in which a block keeps its place while requests hold it.

use super::queues::Queues;

/// What is known of a block, as bits. None: its content is new.
mod bits {
    /// It was idle with the content that it has.
    pub(super) const KNOWN: u8 = 1;
    /// It has a place in the queue.
    pub(super) const PLACED: u8 = 2;
    /// A request holds it.
    pub(super) const HELD: u8 = 4;
    /// It was used since it was last looked at.
    pub(super) const MARKED: u8 = 8;
}
use bits::{HELD, KNOWN, MARKED, PLACED};

/// The queue of FIFO, CLOCK and SIEVE, in which use moves nothing: a block that is held stays where it is, out of the hand's
/// reach. A held block that the hand comes to loses its place, so that it is passed once however long it is held, and gets
/// another when it is given back.
#[derive(Debug, Clone)]
pub(super) struct Places {
    queue: Queues,
    known: Vec<u8>,
}

impl Places {
    /// An empty queue of blocks with numbers below `num_blocks`.
    pub(super) fn new(num_blocks: u32) -> Places {
        Places { queue: Queues::new(1, num_blocks), known: vec![0; num_blocks as usize] }
    }

    /// Whether the block has the content that it was idle with before.
    pub(super) fn is_known(&self, block: u32) -> bool {
        self.known[block as usize] & KNOWN != 0
    }

    /// A block becomes idle; whether it still has a place.
    #[inline]
    pub(super) fn give_back(&mut self, block: u32) -> bool {
        self.known[block as usize] &= !HELD;
        self.known[block as usize] & PLACED != 0
    }

    /// Gives a block without a place the last one.
    #[inline]
    pub(super) fn enter(&mut self, block: u32) {
        self.known[block as usize] |= KNOWN | PLACED;
        self.queue.push(0, block);
    }

    /// Gives a block without a place the first one.
    pub(super) fn enter_first(&mut self, block: u32) {
        self.known[block as usize] |= KNOWN | PLACED;
        self.queue.push_front(0, block);
    }

    #[inline]
    pub(super) fn hold(&mut self, block: u32) {
        self.known[block as usize] |= HELD;
    }

    #[inline]
    pub(super) fn mark(&mut self, block: u32) {
        self.known[block as usize] |= MARKED;
    }

    /// Whether the block was marked; it is no more.
    #[inline]
    pub(super) fn unmark(&mut self, block: u32) -> bool {
        let was = self.known[block as usize] & MARKED != 0;
        self.known[block as usize] &= !MARKED;
        was
    }

    /// Takes an idle block out for good.
    #[inline]
    pub(super) fn evict(&mut self, block: u32) {
        self.queue.remove(block);
        self.known[block as usize] = 0;
    }

    /// Moves a block to the last place.
    #[inline]
    pub(super) fn requeue(&mut self, block: u32) {
        self.queue.remove(block);
        self.queue.push(0, block);
    }

    /// The first idle block.
    #[inline]
    pub(super) fn first(&mut self) -> Option<u32> {
        let at = self.queue.head(0);
        self.free_from(at)
    }

    /// The first idle block behind this one.
    #[inline]
    pub(super) fn after(&mut self, block: u32) -> Option<u32> {
        let at = self.queue.after(block);
        self.free_from(at)
    }

    /// This block, which has a place, or the first idle one behind it.
    #[inline]
    pub(super) fn from(&mut self, block: u32) -> Option<u32> {
        self.free_from(Some(block))
    }

    /// The first idle block from here on; held ones on the way lose their places.
    #[inline]
    fn free_from(&mut self, mut at: Option<u32>) -> Option<u32> {
        while let Some(block) = at {
            let known = self.known[block as usize];
            if known & HELD == 0 {
                break;
            }
            at = self.queue.after(block);
            self.queue.remove(block);
            self.known[block as usize] = known & !PLACED;
        }
        at
    }

    /// Idle blocks, first place first.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.queue.iter(0).filter(|&block| self.known[block as usize] & HELD == 0)
    }

    pub(super) fn is_linked(&self, block: u32) -> bool {
        self.known[block as usize] & (PLACED | HELD) == PLACED && self.queue.is_linked(block)
    }
}
