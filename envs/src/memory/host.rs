//! Blocks in ordinary memory.

use super::text::draw_row;
use super::{Contents, Filled, KvShape, MemoryBackend, MemoryError, Work, checksum};
use crate::kv::BlockId;
use crate::tier::{Route, Tier, Tiers};
use crate::time::Micros;

/// What memory holds that nobody has written.
const POISON: u32 = 0xa5a5_a5a5;

/// The pool of every tier in ordinary memory. Every copy and every write is carried out, word by word, before
/// [`submit`](MemoryBackend::submit) returns; nothing is measured.
#[derive(Debug)]
pub struct HostMemory {
    shape: KvShape,
    pools: Tiers<Vec<u32>>,
}

impl HostMemory {
    /// Pools of so many blocks of `shape`, filled with a pattern nobody writes.
    ///
    /// # Errors
    /// The machine has not that much memory.
    pub fn new(shape: KvShape, blocks: Tiers<u32>) -> Result<HostMemory, MemoryError> {
        let mut pools: Tiers<Vec<u32>> = Tiers::default();
        for tier in Tier::ALL {
            let (pool, blocks) = (&mut pools[tier], blocks[tier]);
            let words = blocks as usize * shape.words_per_block();
            pool.try_reserve_exact(words).map_err(|_| MemoryError::OutOfMemory {
                tier: Tier::Host,
                what: format!("the {tier} pool of {blocks} blocks"),
                needed: words as u64 * 4,
                free: None,
            })?;
            pool.resize(words, POISON);
        }
        Ok(HostMemory { shape, pools })
    }

    fn write(&mut self, block: BlockId, slot: u32, seed: u64) {
        let (rows, words) = (self.shape.block_size as usize, self.shape.words_per_row() as usize);
        let range = self.range(block);
        for (plane, rows) in (0..).zip(self.pools[Tier::Gpu][range].chunks_exact_mut(rows * words)) {
            draw_row(seed, plane, &mut rows[slot as usize * words..][..words]);
        }
    }

    fn range(&self, block: BlockId) -> std::ops::Range<usize> {
        let words = self.shape.words_per_block();
        block.0 as usize * words..(block.0 as usize + 1) * words
    }
}

impl MemoryBackend for HostMemory {
    fn name(&self) -> String {
        "host memory".to_owned()
    }

    fn contents(&self) -> Contents {
        Contents::Drawn
    }

    fn submit(&mut self, work: &Work<'_>) -> Result<(), MemoryError> {
        for route in Route::ALL {
            for copy in work.copies[route] {
                let (src, dst) = (self.range(copy.src), self.range(copy.dst));
                let (from, to) = self.pools.ends(route);
                to[dst].copy_from_slice(&from[src]);
            }
        }
        for span in work.spans {
            for ((block, slot), &seed) in work.slots(span).zip(&work.seeds[span.seeds..]) {
                self.write(block, slot, seed);
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<Option<Micros>, MemoryError> {
        Ok(None)
    }

    fn checksums(&mut self, tier: Tier, blocks: &[Filled], sums: &mut Vec<u64>) -> Result<(), MemoryError> {
        let pool = &self.pools[tier];
        let sum = |filled: &Filled| checksum(&pool[self.range(filled.block)], filled.tokens, &self.shape);
        sums.extend(blocks.iter().map(sum));
        Ok(())
    }

    fn reset(&mut self) -> Result<(), MemoryError> {
        self.pools.iter_mut().for_each(|pool| pool.fill(POISON));
        Ok(())
    }
}
