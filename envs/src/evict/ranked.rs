//! Blocks by rank: a heap that knows where each of its blocks is.

/// Children of a node: a wide heap is a shallow one, and the four lie in one cache line.
const WIDTH: usize = 4;

/// In `place`: the block is not in the heap.
const NOWHERE: u32 = u32::MAX;

/// A heap of blocks, the least rank first and of equal ranks what was ranked first. Ranking, taking any out and the first take
/// logarithmic time and allocate nothing.
#[derive(Debug, Clone)]
pub(super) struct Ranked {
    /// Rank, moment and block in one number, in the order in which they are compared: 56, 40 and 32 bits.
    heap: Vec<u128>,
    /// Per block, where in the heap it is.
    place: Vec<u32>,
    moment: u64,
}

/// Greatest rank; greater ones count as this.
pub(super) const MAX_RANK: u64 = (1 << 56) - 1;

impl Ranked {
    /// An empty heap of blocks with numbers below `num_blocks`.
    pub(super) fn new(num_blocks: u32) -> Ranked {
        let place = vec![NOWHERE; num_blocks as usize];
        Ranked { heap: Vec::with_capacity(num_blocks as usize), place, moment: 0 }
    }

    /// Ranks a block that is not in the heap, behind those of its rank.
    pub(super) fn insert(&mut self, block: u32, rank: u64) {
        let entry = self.entry(block, rank);
        self.heap.push(entry);
        self.rise(self.heap.len() - 1, entry);
    }

    /// Ranks a block of the heap anew.
    pub(super) fn update(&mut self, block: u32, rank: u64) {
        let entry = self.entry(block, rank);
        self.settle(self.place[block as usize] as usize, entry);
    }

    /// Takes a block of the heap out.
    pub(super) fn remove(&mut self, block: u32) {
        let at = std::mem::replace(&mut self.place[block as usize], NOWHERE) as usize;
        if let Some(last) = self.heap.pop()
            && at < self.heap.len()
        {
            self.settle(at, last);
        }
    }

    /// Takes the first out: its block and its rank.
    pub(super) fn pop(&mut self) -> Option<(u32, u64)> {
        let first = *self.heap.first()?;
        self.remove(first as u32);
        Some((first as u32, (first >> 72) as u64))
    }

    /// In order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let mut all = self.heap.clone();
        all.sort_unstable();
        all.into_iter().map(|entry| entry as u32)
    }

    /// Whether a block of the heap is where it is said to be, and behind its parent.
    pub(super) fn is_placed(&self, block: u32) -> bool {
        let at = self.place[block as usize] as usize;
        let is = |entry: &u128| *entry as u32 == block && (at == 0 || self.heap[(at - 1) / WIDTH] < *entry);
        self.heap.get(at).is_some_and(is)
    }

    fn entry(&mut self, block: u32, rank: u64) -> u128 {
        self.moment += 1;
        u128::from(rank.min(MAX_RANK)) << 72 | u128::from(self.moment & ((1 << 40) - 1)) << 32 | u128::from(block)
    }

    /// Puts `entry` where it belongs, from `at`, which is free.
    fn settle(&mut self, at: usize, entry: u128) {
        if at > 0 && entry < self.heap[(at - 1) / WIDTH] {
            self.rise(at, entry);
        } else {
            self.sink(at, entry);
        }
    }

    fn rise(&mut self, mut at: usize, entry: u128) {
        while at > 0 {
            let parent = (at - 1) / WIDTH;
            if self.heap[parent] <= entry {
                break;
            }
            self.put(at, self.heap[parent]);
            at = parent;
        }
        self.put(at, entry);
    }

    fn sink(&mut self, mut at: usize, entry: u128) {
        loop {
            let first = at * WIDTH + 1;
            let children = self.heap.get(first..self.heap.len().min(first + WIDTH)).unwrap_or_default();
            let Some((child, &least)) = children.iter().enumerate().min_by_key(|child| *child.1) else { break };
            if entry <= least {
                break;
            }
            self.put(at, least);
            at = first + child;
        }
        self.put(at, entry);
    }

    fn put(&mut self, at: usize, entry: u128) {
        self.heap[at] = entry;
        self.place[entry as u32 as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_sorted_list(ops in vec((0..4_u8, 0..20_u32, 0..6_u64), 0..200)) {
            let (mut ranked, mut list) = (Ranked::new(20), Vec::<(u64, usize, u32)>::new());
            for (moment, (op, block, rank)) in ops.into_iter().enumerate() {
                match (op, list.iter().position(|entry| entry.2 == block)) {
                    (0, None) => {
                        ranked.insert(block, rank);
                        list.push((rank, moment, block));
                    }
                    (1, Some(at)) => {
                        ranked.update(block, rank);
                        list[at] = (rank, moment, block);
                    }
                    (2, Some(at)) => {
                        ranked.remove(block);
                        list.remove(at);
                    }
                    (3, _) => {
                        let first = (!list.is_empty()).then(|| list.remove(0));
                        prop_assert_eq!(ranked.pop(), first.map(|(rank, _, block)| (block, rank)));
                    }
                    _ => {}
                }
                list.sort_unstable();
                prop_assert!(ranked.iter().eq(list.iter().map(|entry| entry.2)));
                prop_assert!(list.iter().all(|entry| ranked.is_placed(entry.2)));
            }
        }
    }
}
