//! A queue of blocks from whose middle any can be taken.

/// The null block, which is never in the queue, closes it into a ring.
const NULL: u32 = 0;

#[derive(Debug, Clone, Copy)]
struct Links {
    /// Towards the tail.
    next: u32,
    /// Towards the head.
    prev: u32,
}

/// A doubly linked queue through an array: every operation takes constant time and allocates nothing.
#[derive(Debug, Clone)]
pub(super) struct Order(Vec<Links>);

impl Order {
    /// An empty queue of blocks with numbers below `num_blocks`.
    pub(super) fn new(num_blocks: u32) -> Order {
        Order(vec![Links { next: NULL, prev: NULL }; num_blocks.max(1) as usize])
    }

    /// Appends a block that is not in the queue.
    pub(super) fn push(&mut self, block: u32) {
        let tail = std::mem::replace(&mut self.0[NULL as usize].prev, block);
        self.0[block as usize] = Links { next: NULL, prev: tail };
        self.0[tail as usize].next = block;
    }

    /// Takes a block of the queue out; the order of the others stays.
    pub(super) fn remove(&mut self, block: u32) {
        let Links { next, prev } = self.0[block as usize];
        self.0[prev as usize].next = next;
        self.0[next as usize].prev = prev;
    }

    /// Takes the head out.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let head = self.0[NULL as usize].next;
        (head != NULL).then(|| {
            let next = self.0[head as usize].next;
            self.0[NULL as usize].next = next;
            self.0[next as usize].prev = NULL;
            head
        })
    }

    /// Head first. Never more than there are blocks, whatever became of the links.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let after = |&block: &u32| Some(self.0[block as usize].next).filter(|&next| next != NULL);
        std::iter::successors(after(&NULL), after).take(self.0.len())
    }

    /// Whether each link that leads to a block of the queue has its counterpart.
    pub(super) fn is_linked(&self, block: u32) -> bool {
        let Links { next, prev } = self.0[block as usize];
        self.0[next as usize].prev == block && self.0[prev as usize].next == block
    }
}
