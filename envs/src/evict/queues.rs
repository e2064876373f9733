//! Several queues of blocks, from whose middle any can be taken.

#[derive(Debug, Clone, Copy)]
struct Links {
    /// Towards the tail.
    next: u32,
    /// Towards the head.
    prev: u32,
}

/// Doubly linked queues through one array: a block is in one of them at most, every operation takes constant time and
/// allocates nothing. Behind the blocks' links stand those of one end for each queue, which closes it into a ring.
#[derive(Debug, Clone)]
pub(super) struct Queues {
    links: Vec<Links>,
    num_blocks: u32,
}

impl Queues {
    /// So many empty queues of blocks with numbers below `num_blocks`.
    pub(super) fn new(queues: u32, num_blocks: u32) -> Queues {
        let ends = (0..num_blocks + queues).map(|end| Links { next: end, prev: end });
        Queues { links: ends.collect(), num_blocks }
    }

    /// Appends a block that is in no queue.
    #[inline]
    pub(super) fn push(&mut self, queue: u32, block: u32) {
        let end = self.end(queue);
        self.link(self.links[end as usize].prev, block, end);
    }

    /// Puts a block that is in no queue before all others.
    #[inline]
    pub(super) fn push_front(&mut self, queue: u32, block: u32) {
        let end = self.end(queue);
        self.link(end, block, self.links[end as usize].next);
    }

    /// Takes a block out of whichever queue it is in.
    #[inline]
    pub(super) fn remove(&mut self, block: u32) {
        let Links { next, prev } = self.links[block as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
    }

    /// Takes the head out.
    #[inline]
    pub(super) fn pop(&mut self, queue: u32) -> Option<u32> {
        let head = self.head(queue)?;
        self.remove(head);
        Some(head)
    }

    #[inline]
    pub(super) fn head(&self, queue: u32) -> Option<u32> {
        self.after(self.end(queue))
    }

    /// The block behind this one of a queue.
    #[inline]
    pub(super) fn after(&self, block: u32) -> Option<u32> {
        Some(self.links[block as usize].next).filter(|&next| next < self.num_blocks)
    }

    /// Head first. Never more than there are blocks, whatever became of the links.
    pub(super) fn iter(&self, queue: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.head(queue), |&block| self.after(block)).take(self.links.len())
    }

    /// Whether each link that leads to a block of a queue has its counterpart.
    pub(super) fn is_linked(&self, block: u32) -> bool {
        let Links { next, prev } = self.links[block as usize];
        next != block && self.links[next as usize].prev == block && self.links[prev as usize].next == block
    }

    fn end(&self, queue: u32) -> u32 {
        self.num_blocks + queue
    }

    #[inline]
    fn link(&mut self, prev: u32, block: u32, next: u32) {
        self.links[block as usize] = Links { next, prev };
        self.links[prev as usize].next = block;
        self.links[next as usize].prev = block;
    }
}
