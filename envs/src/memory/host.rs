//! Blocks in ordinary memory.

use super::text::draw_row;
use super::{Contents, Filled, KvShape, MemoryBackend, MemoryError, Tier, Work, checksum};
use crate::kv::BlockId;
use crate::time::Micros;

/// What memory holds that nobody has written.
const POISON: u32 = 0xa5a5_a5a5;

/// Both pools in ordinary memory. Every copy and every write is carried out, word by word, before
/// [`submit`](MemoryBackend::submit) returns; nothing is measured.
#[derive(Debug)]
pub struct HostMemory {
    shape: KvShape,
    gpu: Vec<u32>,
    host: Vec<u32>,
}

impl HostMemory {
    /// Pools of so many blocks of `shape`, filled with a pattern nobody writes.
    ///
    /// # Errors
    /// The machine has not that much memory.
    pub fn new(shape: KvShape, num_gpu_blocks: u32, num_cpu_blocks: u32) -> Result<HostMemory, MemoryError> {
        let pool = |tier, blocks: u32| {
            let words = blocks as usize * shape.words_per_block();
            let mut pool: Vec<u32> = Vec::new();
            pool.try_reserve_exact(words).map_err(|_| MemoryError::OutOfMemory {
                tier: Tier::Host,
                what: format!("the {tier} pool of {blocks} blocks"),
                needed: words as u64 * 4,
                free: None,
            })?;
            pool.resize(words, POISON);
            Ok(pool)
        };
        Ok(HostMemory { shape, gpu: pool(Tier::Gpu, num_gpu_blocks)?, host: pool(Tier::Host, num_cpu_blocks)? })
    }

    fn write(&mut self, block: BlockId, slot: u32, seed: u64) {
        let (rows, words) = (self.shape.block_size as usize, self.shape.words_per_row() as usize);
        let range = self.range(block);
        for (plane, rows) in (0..).zip(self.gpu[range].chunks_exact_mut(rows * words)) {
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
        for copy in work.copies_out {
            let (from, to) = (self.range(copy.src), self.range(copy.dst));
            self.host[to].copy_from_slice(&self.gpu[from]);
        }
        for copy in work.copies_in {
            let (from, to) = (self.range(copy.src), self.range(copy.dst));
            self.gpu[to].copy_from_slice(&self.host[from]);
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
        let pool = match tier {
            Tier::Gpu => &self.gpu,
            Tier::Host => &self.host,
        };
        let sum = |filled: &Filled| checksum(&pool[self.range(filled.block)], filled.tokens, &self.shape);
        sums.extend(blocks.iter().map(sum));
        Ok(())
    }

    fn reset(&mut self) -> Result<(), MemoryError> {
        self.gpu.fill(POISON);
        self.host.fill(POISON);
        Ok(())
    }
}
