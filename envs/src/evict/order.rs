//! A queue of blocks from whose middle any can be taken.

/// In a place of the ring: nobody. The null block is never in the queue.
const NULL: u32 = 0;

/// A queue in a ring of places, in the order in which blocks came. Who is taken out of the middle leaves a gap behind, and when
/// the ring is full of blocks and gaps, blocks close up: there is room for half as many gaps as blocks at least, so that every
/// operation takes constant time, amortised, and allocates nothing. What comes and goes in turn is next to each other in memory,
/// and the next head is known without looking at the one before it, which links through the blocks cannot give.
#[derive(Debug, Clone)]
pub(super) struct Order {
    ring: Vec<u32>,
    /// Of each block of the queue, where in the ring it is.
    place: Vec<u32>,
    /// Counts the places left behind at the head, and those given out at the tail; modulo the ring's length, a power of two.
    head: u32,
    tail: u32,
}

impl Order {
    /// An empty queue of blocks with numbers below `num_blocks`.
    pub(super) fn new(num_blocks: u32) -> Order {
        let places = (num_blocks as usize + num_blocks as usize / 2).max(2).next_power_of_two();
        Order { ring: vec![NULL; places], place: vec![0; num_blocks as usize], head: 0, tail: 0 }
    }

    /// Appends a block that is not in the queue.
    #[inline]
    pub(super) fn push(&mut self, block: u32) {
        if self.tail.wrapping_sub(self.head) as usize == self.ring.len() {
            self.close_up();
        }
        self.put(self.tail, block);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Appends blocks that are not in the queue.
    #[inline]
    pub(super) fn extend(&mut self, blocks: impl Iterator<Item = u32>) {
        let most = blocks.size_hint().1.unwrap_or(usize::MAX);
        let used = self.tail.wrapping_sub(self.head) as usize;
        if used.saturating_add(most) > self.ring.len() {
            self.close_up();
        }
        let Order { ring, place, tail, .. } = self;
        let mask = ring.len() - 1;
        let mut next = *tail;
        blocks.for_each(|block| {
            let at = next as usize & mask;
            ring[at] = block;
            place[block as usize] = at as u32;
            next = next.wrapping_add(1);
        });
        *tail = next;
    }

    /// Takes a block of the queue out; the order of the others stays.
    #[inline]
    pub(super) fn remove(&mut self, block: u32) {
        self.ring[self.place[block as usize] as usize] = NULL;
    }

    /// Takes the head out.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<u32> {
        while self.head != self.tail {
            let block = self.at(self.head);
            self.head = self.head.wrapping_add(1);
            if block != NULL {
                return Some(block);
            }
        }
        None
    }

    /// Takes out `count` blocks from the head on, or as many as there are, and gives them to `some` in stretches without a gap.
    #[inline]
    pub(super) fn pop_many(&mut self, count: u32, mut some: impl FnMut(&[u32])) {
        let mut left = count;
        while left > 0 && self.head != self.tail {
            let at = self.head as usize & (self.ring.len() - 1);
            let most = self.tail.wrapping_sub(self.head).min(left) as usize;
            let ahead = &self.ring[at..(at + most).min(self.ring.len())];
            let stretch = ahead.iter().position(|&block| block == NULL).unwrap_or(ahead.len());
            some(&ahead[..stretch]);
            left -= stretch as u32;
            // The gap behind the stretch, if that is why it ends.
            let passed = (stretch + 1).min(ahead.len());
            self.head = self.head.wrapping_add(passed as u32);
        }
    }

    /// Head first.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let places = 0..self.tail.wrapping_sub(self.head);
        places.map(|ahead| self.at(self.head.wrapping_add(ahead))).filter(|&block| block != NULL)
    }

    /// Whether a block of the queue is where it is said to be.
    pub(super) fn is_placed(&self, block: u32) -> bool {
        let place = self.place[block as usize];
        let ahead = place.wrapping_sub(self.head) as usize & (self.ring.len() - 1);
        self.ring[place as usize] == block && ahead < self.tail.wrapping_sub(self.head) as usize
    }

    /// Moves every block up to the one before it.
    #[cold]
    fn close_up(&mut self) {
        let (mut from, mut to) = (self.head, self.head);
        while from != self.tail {
            let block = self.at(from);
            if block != NULL {
                self.put(to, block);
                to = to.wrapping_add(1);
            }
            from = from.wrapping_add(1);
        }
        self.tail = to;
    }

    #[inline]
    fn at(&self, count: u32) -> u32 {
        self.ring[count as usize & (self.ring.len() - 1)]
    }

    #[inline]
    fn put(&mut self, count: u32, block: u32) {
        let place = count as usize & (self.ring.len() - 1);
        self.ring[place] = block;
        self.place[block as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_list(ops in vec((0..5_u8, 1..8_u32), 0..400)) {
            let (mut order, mut list) = (Order::new(8), Vec::<u32>::new());
            for (op, block) in ops {
                match (op, list.iter().position(|&other| other == block)) {
                    (0, None) => {
                        order.push(block);
                        list.push(block);
                    }
                    (1, Some(at)) => {
                        order.remove(block);
                        list.remove(at);
                    }
                    (2, _) => {
                        let head = (!list.is_empty()).then(|| list.remove(0));
                        prop_assert_eq!(order.pop(), head);
                    }
                    (3, _) => {
                        let missing: Vec<u32> = (1..=block).filter(|block| !list.contains(block)).collect();
                        order.extend(missing.iter().copied());
                        list.extend(missing);
                    }
                    (4, _) => {
                        let mut taken = Vec::new();
                        order.pop_many(block, |blocks| taken.extend_from_slice(blocks));
                        prop_assert!(taken.into_iter().eq(list.drain(..list.len().min(block as usize))));
                    }
                    _ => {}
                }
                prop_assert!(order.iter().eq(list.iter().copied()));
                prop_assert!(list.iter().all(|&block| order.is_placed(block)));
            }
        }
    }
}
