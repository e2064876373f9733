//! What every live block has to hold, and whether it does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::text::{Text, draw_row};
use super::{Contents, Corruption, Filled, KvShape, MemoryBackend, MemoryError, Tier, checksum};
use crate::kv::{BlockId, Content};
use crate::sched::RequestId;
use crate::seed::RunHash;

/// What memory did in a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Whose memory: `host memory`, or the name of a device.
    pub backend: String,
    /// Tokens whose keys and values were written, those computed again included.
    pub written_tokens: u64,
    /// Blocks copied to the host.
    pub blocks_out: u64,
    /// Blocks copied back.
    pub blocks_in: u64,
    /// Blocks whose checksum was compared with what was written to them. All agreed, or there is no report.
    pub blocks_checked: u64,
    /// Of those, blocks that had been to the host and back.
    pub round_trips_checked: u64,
    /// Hash of every checksum, in order: equal for equal contents. Where contents are drawn it is the same for every
    /// backend.
    pub checksum: String,
}

/// The expectations of a run.
#[derive(Debug)]
pub(super) struct Audit {
    contents: Contents,
    shape: KvShape,
    requests: BTreeMap<RequestId, Held>,
    report: MemoryReport,
    hash: RunHash,
    /// A block as it should be.
    image: Vec<u32>,
    filled: Vec<Filled>,
    sums: Vec<u64>,
}

/// What is known of one request that is not done.
#[derive(Debug)]
struct Held {
    text: Text,
    /// Tokens whose keys and values exist or are being written.
    written: u32,
    /// Where contents are computed: checksums of its leading full blocks.
    recorded: Vec<u64>,
    /// The same of its last block when it was swapped out, with the tokens in it.
    tail: Option<(u32, u64)>,
}

/// Blocks of one request that are looked at: some of its table, from number `first` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) id: RequestId,
    pub(super) tier: Tier,
    pub(super) first: u32,
    pub(super) blocks: &'a [BlockId],
    /// Tokens of the whole request that count.
    pub(super) tokens: u32,
}

impl Audit {
    pub(super) fn new(backend: &dyn MemoryBackend, shape: KvShape) -> Audit {
        Audit {
            contents: backend.contents(),
            shape,
            requests: BTreeMap::new(),
            report: MemoryReport { backend: backend.name(), ..MemoryReport::default() },
            hash: RunHash::default(),
            image: vec![0; shape.words_per_block()],
            filled: Vec::new(),
            sums: Vec::new(),
        }
    }

    pub(super) fn arrived(&mut self, id: RequestId, content: Content) {
        self.requests.insert(id, Held { text: Text::new(content), written: 0, recorded: Vec::new(), tail: None });
    }

    pub(super) fn left(&mut self, id: RequestId) {
        self.requests.remove(&id);
    }

    /// Tokens of a request whose keys and values exist.
    pub(super) fn written(&self, id: RequestId) -> u32 {
        self.held(id).written
    }

    /// Seeds of a request's first `tokens` tokens.
    pub(super) fn seeds(&mut self, id: RequestId, tokens: u32) -> &[u64] {
        self.held_mut(id).text.seeds(tokens)
    }

    pub(super) fn copied(&mut self, out: usize, back: usize) {
        self.report.blocks_out += out as u64;
        self.report.blocks_in += back as u64;
    }

    /// `tokens` more were computed of a request that had `context`. What is not known of its first `table`, it has taken
    /// over from others, or computed: then it is read now.
    ///
    /// # Errors
    /// The backend failed.
    pub(super) fn wrote(
        &mut self,
        id: RequestId,
        (context, tokens): (u32, u32),
        table: &[BlockId],
        backend: &mut dyn MemoryBackend,
    ) -> Result<(), MemoryError> {
        let block_size = self.shape.block_size;
        self.report.written_tokens += u64::from(tokens);
        let held = self.held_mut(id);
        held.written = context + tokens;
        held.tail = None;
        if self.contents == Contents::Drawn {
            return Ok(());
        }
        let known = self.held(id).recorded.len();
        let full = (context + tokens) / block_size;
        let fresh = table.get(known..full as usize).unwrap_or(&[]);
        self.filled.clear();
        self.filled.extend(fresh.iter().map(|&block| Filled { block, tokens: block_size }));
        self.sums.clear();
        backend.checksums(Tier::Gpu, &self.filled, &mut self.sums)?;
        let sums = std::mem::take(&mut self.sums);
        self.held_mut(id).recorded.extend_from_slice(&sums);
        self.sums = sums;
        Ok(())
    }

    /// A request starts again with its first `blocks` blocks from elsewhere: what was known of them is void.
    pub(super) fn restarted(&mut self, id: RequestId, blocks: usize) {
        let held = self.held_mut(id);
        held.recorded.truncate(blocks);
        held.tail = None;
    }

    /// A request's blocks are about to be copied out: what its last block holds is known from now on.
    ///
    /// # Errors
    /// The backend failed.
    pub(super) fn leaves(
        &mut self,
        id: RequestId,
        sources: &[BlockId],
        backend: &mut dyn MemoryBackend,
    ) -> Result<(), MemoryError> {
        let block_size = self.shape.block_size;
        let written = self.held(id).written;
        let tokens = written % block_size;
        if self.contents == Contents::Drawn || tokens == 0 {
            return Ok(());
        }
        let Some(&block) = sources.get((written / block_size) as usize) else { return Ok(()) };
        self.sums.clear();
        backend.checksums(Tier::Gpu, &[Filled { block, tokens }], &mut self.sums)?;
        self.held_mut(id).tail = self.sums.first().map(|&sum| (tokens, sum));
        Ok(())
    }

    /// Compares blocks with what was written to them.
    ///
    /// # Errors
    /// One differs, or the backend failed.
    pub(super) fn check(&mut self, part: Part<'_>, backend: &mut dyn MemoryBackend) -> Result<(), MemoryError> {
        let block_size = self.shape.block_size;
        let tokens_in = |index: u32| part.tokens.saturating_sub(index * block_size).min(block_size);
        self.filled.clear();
        let written = (part.first..).zip(part.blocks).filter(|(index, _)| tokens_in(*index) > 0);
        self.filled.extend(written.map(|(index, &block)| Filled { block, tokens: tokens_in(index) }));
        self.sums.clear();
        let mut sums = std::mem::take(&mut self.sums);
        backend.checksums(part.tier, &self.filled, &mut sums)?;
        for (index, (at, &found)) in (part.first..).zip(sums.iter().enumerate()) {
            let Filled { block, tokens } = self.filled[at];
            let Some(expected) = self.expected(part.id, index, tokens) else { continue };
            if found != expected {
                let (request, tier, block) = (part.id.0, part.tier, block.0);
                let wrong = Corruption { request, index, tier, block, tokens, expected, found };
                return Err(MemoryError::Corrupt(Box::new(wrong)));
            }
            self.report.blocks_checked += 1;
            self.hash.absorb(u64::from(part.id.0) << 32 | u64::from(index));
            self.hash.absorb(found);
        }
        self.sums = sums;
        Ok(())
    }

    /// [`check`](Self::check) of blocks that have been to the host and back.
    pub(super) fn check_returned(
        &mut self,
        part: Part<'_>,
        backend: &mut dyn MemoryBackend,
    ) -> Result<(), MemoryError> {
        let before = self.report.blocks_checked;
        self.check(part, backend)?;
        self.report.round_trips_checked += self.report.blocks_checked - before;
        Ok(())
    }

    /// The checksum of a request's block number `index` with so many tokens in it; `None` if nobody looked when they were
    /// computed.
    fn expected(&mut self, id: RequestId, index: u32, tokens: u32) -> Option<u64> {
        let block_size = self.shape.block_size;
        if self.contents == Contents::Computed {
            let held = self.held(id);
            let tail = held.tail.filter(|tail| tail.0 == tokens && index == held.written / block_size);
            return if tokens == block_size {
                held.recorded.get(index as usize).copied()
            } else {
                tail.map(|tail| tail.1)
            };
        }
        let first = index * block_size;
        let mut image = std::mem::take(&mut self.image);
        let (rows, words) = (block_size as usize, self.shape.words_per_row() as usize);
        let seeds = &self.seeds(id, first + tokens)[first as usize..];
        for (plane, slots) in (0..).zip(image.chunks_exact_mut(rows * words)) {
            for (&seed, row) in seeds.iter().zip(slots.chunks_exact_mut(words)) {
                draw_row(seed, plane, row);
            }
        }
        let sum = checksum(&image, tokens, &self.shape);
        self.image = image;
        Some(sum)
    }

    pub(super) fn report(&self) -> MemoryReport {
        MemoryReport { checksum: format!("{:016x}", self.hash.value()), ..self.report.clone() }
    }

    fn held(&self, id: RequestId) -> &Held {
        self.requests.get(&id).expect("requests are known from their arrival to their end")
    }

    fn held_mut(&mut self, id: RequestId) -> &mut Held {
        self.requests.get_mut(&id).expect("requests are known from their arrival to their end")
    }
}
