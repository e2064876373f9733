//! The block pool of vLLM's V1, as slow and plain as it can be: the free queue is a deque searched from its head, the
//! prefix cache a map from content to the blocks that hold it.

use std::collections::{BTreeMap, VecDeque};

/// The content of a block and of all blocks before it. Two are equal exactly if all those tokens are equal: the number
/// stands for (key of the block before, streams of the block's tokens), looked up in full. A token is its stream and its
/// position, and the position follows from the length of the chain. The first block's list says the scope as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(usize);

/// Hands out the keys.
#[derive(Debug, Default)]
pub struct Contents {
    known: BTreeMap<(Option<Key>, Vec<u32>), Key>,
}

impl Contents {
    pub fn key(&mut self, before: Option<Key>, streams: Vec<u32>) -> Key {
        let next = Key(self.known.len());
        *self.known.entry((before, streams)).or_insert(next)
    }
}

#[derive(Debug, Clone, Default)]
struct Block {
    /// Requests that have it in their tables.
    users: u32,
    /// What it is registered as.
    key: Option<Key>,
}

#[derive(Debug)]
pub struct Pool {
    blocks: Vec<Block>,
    /// Next to be taken first. Cached blocks nobody uses are among them.
    free: VecDeque<u32>,
    /// Blocks registered under a key, the first registered first.
    cache: BTreeMap<Key, Vec<u32>>,
}

impl Pool {
    /// Block 0 is the null block and never given out.
    pub fn new(num_blocks: u32) -> Pool {
        let blocks = vec![Block::default(); num_blocks as usize];
        Pool { blocks, free: (1..num_blocks).collect(), cache: BTreeMap::new() }
    }

    pub fn num_free(&self) -> i64 {
        self.free.len() as i64
    }

    pub fn free_queue(&self) -> Vec<u32> {
        self.free.iter().copied().collect()
    }

    /// Distinct contents in the cache.
    pub fn num_keys(&self) -> usize {
        self.cache.len()
    }

    /// The block that holds this content and was registered first.
    pub fn cached(&self, key: Key) -> Option<u32> {
        self.cache.get(&key).map(|blocks| blocks[0])
    }

    pub fn is_idle(&self, block: u32) -> bool {
        self.blocks[block as usize].users == 0
    }

    /// The head of the free queue. What it held is forgotten.
    pub fn take(&mut self) -> u32 {
        let block = self.free.pop_front().expect("the test before found enough");
        if let Some(key) = self.blocks[block as usize].key.take() {
            let holders = self.cache.get_mut(&key).expect("a registered block is in the map");
            holders.retain(|&other| other != block);
            if holders.is_empty() {
                self.cache.remove(&key);
            }
        }
        self.blocks[block as usize].users = 1;
        block
    }

    /// One more user of a cached block, which leaves the free queue if it was there.
    pub fn share(&mut self, block: u32) {
        self.free.retain(|&other| other != block);
        self.blocks[block as usize].users += 1;
    }

    /// A block computed twice is registered twice.
    pub fn register(&mut self, block: u32, key: Key) {
        let before = self.blocks[block as usize].key.replace(key);
        assert_eq!(before, None, "a block in use is registered once");
        self.cache.entry(key).or_default().push(block);
    }

    /// Gives a table back from its last block to its first: what nobody uses goes to the tail of the free queue if it is
    /// registered, to the front if not, and then the table's last block is the very first.
    pub fn give_back(&mut self, table: &[u32]) {
        let (mut cached, mut plain) = (Vec::new(), Vec::new());
        for &block in table.iter().rev() {
            let state = &mut self.blocks[block as usize];
            state.users -= 1;
            match (state.users, state.key) {
                (0, Some(_)) => cached.push(block),
                (0, None) => plain.push(block),
                _ => {}
            }
        }
        for block in plain.into_iter().rev() {
            self.free.push_front(block);
        }
        self.free.extend(cached);
    }
}
