//! A pool of equally sized blocks on one device.

use serde::{Deserialize, Serialize};

/// Index of a block within its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockId(pub u32);

/// A pool whose free blocks form a stack, as in vLLM's V0 `NaiveBlockAllocator`: the block given back last is taken
/// first, and a fresh pool hands out 0, 1, 2, ….
#[derive(Debug, Clone)]
pub struct BlockPool {
    /// Top of the stack is the end.
    free: Vec<BlockId>,
    num_blocks: u32,
}

impl BlockPool {
    /// A pool of `num_blocks` free blocks; 0 is allowed.
    pub fn new(num_blocks: u32) -> BlockPool {
        BlockPool { free: (0..num_blocks).rev().map(BlockId).collect(), num_blocks }
    }

    /// Size of the pool.
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Free blocks.
    pub fn num_free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Appends `count` blocks to `table`.
    ///
    /// # Panics
    /// If fewer are free: the caller tests first.
    pub fn take(&mut self, count: u32, table: &mut Vec<BlockId>) {
        let left = self.free.len().checked_sub(count as usize).expect("the caller tests for free blocks");
        table.extend(self.free.drain(left..).rev());
    }

    /// Gives back every block of `table`, first block first, so that a freed table comes back reversed.
    pub fn give_back(&mut self, table: &mut Vec<BlockId>) {
        self.free.append(table);
        debug_assert!(self.free.len() <= self.num_blocks as usize, "a block was given back twice");
    }

    /// The free blocks, next to be taken last.
    pub fn free_blocks(&self) -> &[BlockId] {
        &self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(table: &[BlockId]) -> Vec<u32> {
        table.iter().map(|block| block.0).collect()
    }

    #[test]
    fn a_freed_table_comes_back_reversed() {
        let mut pool = BlockPool::new(5);
        let mut table = Vec::new();
        pool.take(3, &mut table);
        assert_eq!(ids(&table), [0, 1, 2]);
        pool.give_back(&mut table);
        assert!(table.is_empty());
        pool.take(4, &mut table);
        assert_eq!(ids(&table), [2, 1, 0, 3]);
        assert_eq!(pool.num_free(), 1);
    }

    #[test]
    #[should_panic(expected = "the caller tests for free blocks")]
    fn taking_more_than_is_free_is_a_mistake() {
        BlockPool::new(1).take(2, &mut Vec::new());
    }
}
