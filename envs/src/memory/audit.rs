//! What every live block has to hold, and whether it does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::text::{TextSeeds, draw_row};
use super::{Contents, Corruption, Filled, KvShape, MemoryBackend, MemoryError, Span, Work, checksum};
use crate::kv::{BlockId, Content};
use crate::sched::RequestId;
use crate::seed::RunHash;
use crate::tier::{Route, Tier};

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
    text: TextSeeds,
    /// Tokens whose keys and values exist or are being written.
    written: u32,
    /// Where contents are computed: checksums of its leading full blocks.
    recorded: Vec<u64>,
    /// The same of the block behind them, if it is partly filled: the tokens in it, and its checksum.
    tail: Option<(u32, u64)>,
}

/// Blocks of one request that are looked at: some of its table, from number `first` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableSlice<'a> {
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
        self.requests.insert(id, Held { text: TextSeeds::new(content), written: 0, recorded: Vec::new(), tail: None });
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

    pub(super) fn copied(&mut self, work: &Work<'_>) {
        self.report.blocks_out += work.copies[Route::GpuToHost].len() as u64;
        self.report.blocks_in += work.copies[Route::HostToGpu].len() as u64;
    }

    /// These tokens were computed, or will have been when the backend is asked. Where contents are computed, what each
    /// request's newest blocks come to is read, and what was there before is compared.
    ///
    /// # Errors
    /// A block has changed where nobody wrote, or the backend failed.
    pub(super) fn wrote(&mut self, work: &Work<'_>, backend: &mut dyn MemoryBackend) -> Result<(), MemoryError> {
        let block_size = self.shape.block_size;
        for span in work.spans {
            self.report.written_tokens += u64::from(span.tokens);
            self.held_mut(span.id).written = span.end();
        }
        if self.contents == Contents::Drawn {
            return Ok(());
        }
        self.filled.clear();
        for span in work.spans {
            let (known, tail) = self.known_before(span);
            let (table, full, rest) = (work.table(span), (span.end() / block_size) as usize, span.end() % block_size);
            // The block that was partly filled before, then those full now, then the one partly filled now.
            self.filled.extend(tail.map(|(tokens, _)| Filled { block: table[known], tokens }));
            self.filled.extend(table[known..full].iter().map(|&block| Filled { block, tokens: block_size }));
            self.filled.extend((rest > 0).then(|| Filled { block: table[full], tokens: rest }));
        }
        let mut sums = std::mem::take(&mut self.sums);
        sums.clear();
        backend.checksums(Tier::Gpu, &self.filled, &mut sums)?;
        let mut found = sums.iter().copied();
        let mut next = || found.next().expect("a checksum for each block");
        for span in work.spans {
            let (known, tail) = self.known_before(span);
            let (full, rest) = ((span.end() / block_size) as usize, span.end() % block_size);
            if let Some((tokens, expected)) = tail {
                let blocks = &work.table(span)[known..=known];
                let part = TableSlice { id: span.id, tier: Tier::Gpu, first: known as u32, blocks, tokens };
                self.compare(part, (tokens, expected, next()))?;
            }
            let held = self.held_mut(span.id);
            held.recorded.extend((known..full).map(|_| next()));
            held.tail = (rest > 0).then(|| (rest, next()));
        }
        self.sums = sums;
        Ok(())
    }

    /// What is known of the blocks a span continues: how many full ones, and the partly filled one behind them. Nothing, if
    /// it does not continue what is known.
    fn known_before(&mut self, span: &Span) -> (usize, Option<(u32, u64)>) {
        let block_size = self.shape.block_size;
        let held = self.held_mut(span.id);
        let known = held.recorded.len() as u32 * block_size + held.tail.map_or(0, |tail| tail.0);
        if known != span.context {
            held.recorded.clear();
            held.tail = None;
        }
        (held.recorded.len(), held.tail)
    }

    /// A request starts again, with what others have computed or nothing: what was known of its blocks is void.
    pub(super) fn restarted(&mut self, id: RequestId) {
        let held = self.held_mut(id);
        held.recorded.clear();
        held.tail = None;
    }

    /// One block: `(tokens, expected, found)`.
    fn compare(&mut self, part: TableSlice<'_>, (tokens, expected, found): (u32, u64, u64)) -> Result<(), MemoryError> {
        if found != expected {
            let (request, tier, index) = (part.id.0, part.tier, part.first);
            let block = part.blocks.first().map_or(u32::MAX, |block| block.0);
            let wrong = Corruption { request, index, tier, block, tokens, expected, found };
            return Err(MemoryError::Corrupt(Box::new(wrong)));
        }
        self.report.blocks_checked += 1;
        self.hash.absorb(u64::from(part.id.0) << 32 | u64::from(part.first));
        self.hash.absorb(found);
        Ok(())
    }

    /// Compares blocks with what was written to them.
    ///
    /// # Errors
    /// One differs, or the backend failed.
    pub(super) fn check(&mut self, part: TableSlice<'_>, backend: &mut dyn MemoryBackend) -> Result<(), MemoryError> {
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
            let one = TableSlice { first: index, blocks: &[block], ..part };
            self.compare(one, (tokens, expected, found))?;
        }
        self.sums = sums;
        Ok(())
    }

    /// [`check`](Self::check) of blocks that have been to the host and back.
    pub(super) fn check_returned(
        &mut self,
        part: TableSlice<'_>,
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
            let tail = held.tail.filter(|tail| tail.0 == tokens && index as usize == held.recorded.len());
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
