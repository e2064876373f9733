//! What a step tells the device: one list of words, copied at once.

use std::collections::VecDeque;
use std::sync::Arc;

use kvtide_envs::memory::{KvShape, MemoryError, Span, Work};
use kvtide_kernels::launch::{DecodeItem, MergeItem, PrefillChunk, PrefillItem, decode_items, prefill_items};

use super::device::Device;
use super::driver::{DeviceBuffer, Event, Pinned, copy};
use super::pools::slot;

/// A list of a step's inputs: where it starts, in words, and how many entries it has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct List {
    pub(super) offset: u32,
    pub(super) count: u32,
}

/// The inputs of one step on the device. Lists hold, in the order of spans and their tokens:
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Inputs {
    /// Tokens computed.
    pub(super) tokens: u32,
    /// Partial results of attention that is cut into pieces: those of single tokens, then those of longer spans.
    pub(super) partials: u32,
    /// A slot of the pool for each token.
    pub(super) slots: List,
    /// Seeds of the tokens, 64 bits each.
    pub(super) seeds: List,
    /// Position of each token in its sequence.
    pub(super) positions: List,
    /// What each token is, as an entry of the vocabulary.
    pub(super) ids: List,
    /// Rows that a token is sampled from.
    pub(super) sampled: List,
    /// Block tables of all spans, end to end.
    pub(super) tables: List,
    /// Attention of single tokens.
    pub(super) decodes: List,
    /// Attention of longer spans.
    pub(super) prefills: List,
    /// What puts the pieces of either together.
    pub(super) merges: List,
}

/// Sizes that inputs depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) shape: KvShape,
    pub(super) group: u32,
    pub(super) vocabulary: u32,
    pub(super) multiprocessors: u32,
}

/// Builds a step's inputs.
#[derive(Debug, Default)]
pub(super) struct Builder {
    words: Vec<u32>,
    lengths: Vec<u32>,
    tables: Vec<u32>,
    rows: Vec<u32>,
    chunks: Vec<PrefillChunk>,
}

impl Builder {
    /// The inputs of `work`, and their words.
    pub(super) fn build(&mut self, work: &Work<'_>, layout: &Layout) -> (Inputs, &[u32]) {
        self.words.clear();
        let mut inputs = Inputs { tokens: work.spans.iter().map(|span| span.tokens).sum(), ..Inputs::default() };
        inputs.seeds = self.list(|words| {
            for span in work.spans {
                let seeds = &work.seeds[span.seeds..][..span.tokens as usize];
                words.extend(seeds.iter().flat_map(|&seed| [seed as u32, (seed >> 32) as u32]));
            }
        });
        inputs.slots = self.list(|words| {
            for span in work.spans {
                words.extend(work.slots(span).map(|(block, offset)| slot(block, offset, work.block_size)));
            }
        });
        inputs.positions = self.list(|words| work.spans.iter().for_each(|span| words.extend(span.context..span.end())));
        inputs.ids = self.list(|words| {
            for span in work.spans {
                let seeds = &work.seeds[span.seeds..][..span.tokens as usize];
                words.extend(seeds.iter().map(|&seed| (seed % u64::from(layout.vocabulary.max(1))) as u32));
            }
        });
        inputs.sampled = self.list(|words| {
            let mut end = 0;
            for span in work.spans {
                end += span.tokens;
                words.extend(span.samples.then_some(end - 1));
            }
        });
        inputs.tables = self.list(|words| words.extend(work.tables.iter().map(|block| block.0)));
        self.attention(work, layout, &mut inputs);
        (inputs, &self.words)
    }

    fn attention(&mut self, work: &Work<'_>, layout: &Layout, inputs: &mut Inputs) {
        self.lengths.clear();
        self.tables.clear();
        self.rows.clear();
        self.chunks.clear();
        let mut row = 0;
        for &Span { tokens, context, table, .. } in work.spans {
            let table = table as u32;
            if tokens == 1 {
                self.lengths.push(context + 1);
                self.tables.push(table);
                self.rows.push(row);
            } else {
                self.chunks.push(PrefillChunk { row, tokens, context, table });
            }
            row += tokens;
        }
        let (kv_heads, multiprocessors) = (layout.shape.kv_heads, layout.multiprocessors);
        let (mut decodes, mut merges) = decode_items(&self.lengths, &self.tables, kv_heads, multiprocessors);
        // Items name sequences; rows of the batch are where they stand in it.
        let rows = &self.rows;
        for row in decodes.iter_mut().map(|item| &mut item.row).chain(merges.iter_mut().map(|item| &mut item.row)) {
            *row = rows[*row as usize];
        }
        let partials = |merges: &[MergeItem]| merges.iter().map(|merge| merge.count).sum();
        let (prefills, more) = prefill_items(&self.chunks, kv_heads, layout.group, multiprocessors, partials(&merges));
        merges.extend(more);
        inputs.partials = partials(&merges);
        inputs.decodes = self.records(decodes.iter().map(DecodeItem::words));
        inputs.prefills = self.records(prefills.iter().map(PrefillItem::words));
        inputs.merges = self.records(merges.iter().map(MergeItem::words));
    }

    fn list(&mut self, extend: impl FnOnce(&mut Vec<u32>)) -> List {
        self.align();
        let offset = self.words.len();
        extend(&mut self.words);
        List { offset: offset as u32, count: (self.words.len() - offset) as u32 }
    }

    /// A list of records of `N` words; its count is that of records.
    fn records<const N: usize>(&mut self, records: impl Iterator<Item = [u32; N]>) -> List {
        let list = self.list(|words| words.extend(records.flatten()));
        List { count: list.count / N as u32, ..list }
    }

    /// Lists start at 16 bytes.
    fn align(&mut self) {
        let aligned = self.words.len().next_multiple_of(4);
        self.words.resize(aligned, 0);
    }
}

/// Steps that may be under way at once: one computed, one sent, and room.
const SLOTS: usize = 4;

/// Inputs on their way to the device, and steps under way.
#[derive(Debug)]
pub(super) struct StepQueue {
    slots: Vec<InputSlot>,
    /// Slots of steps that were sent and not waited for, first first.
    under_way: VecDeque<usize>,
    next: usize,
    device: Arc<Device>,
}

#[derive(Debug)]
struct InputSlot {
    host: Pinned,
    gpu: DeviceBuffer,
    started: Event,
    ended: Event,
}

impl StepQueue {
    pub(super) fn new(device: &Arc<Device>) -> Result<StepQueue, MemoryError> {
        let slot = |_| {
            let (host, gpu) = StepQueue::lists(device, 1 << 16)?;
            Ok(InputSlot { host, gpu, started: device.event()?, ended: device.event()? })
        };
        let slots = (0..SLOTS).map(slot).collect::<Result<_, MemoryError>>()?;
        Ok(StepQueue { slots, under_way: VecDeque::new(), next: 0, device: Arc::clone(device) })
    }

    fn lists(device: &Device, bytes: u64) -> Result<(Pinned, DeviceBuffer), MemoryError> {
        let what = "the inputs of a step";
        Ok((Pinned::new(&device.context, bytes, what)?, DeviceBuffer::new(&device.context, bytes, what)?))
    }

    /// Starts a step on the compute stream: its clock, and the copy of its inputs. Their address on the device.
    ///
    /// # Errors
    /// The device failed, or too many steps are under way.
    pub(super) fn start(&mut self, words: &[u32]) -> Result<u64, MemoryError> {
        if self.under_way.len() >= SLOTS {
            return Err(MemoryError::Unsupported(format!("more than {SLOTS} steps under way at once")));
        }
        let stream = &self.device.compute;
        let slot = &mut self.slots[self.next];
        // The step before in this slot is done: it was waited for. The first time there was none.
        slot.ended.synchronise()?;
        let bytes = size_of_val(words) as u64;
        if bytes > slot.host.bytes() {
            (slot.host, slot.gpu) = StepQueue::lists(&self.device, bytes.next_power_of_two())?;
        }
        slot.host.put(0, words);
        slot.started.record(stream)?;
        if bytes > 0 {
            // SAFETY: both are as long as was just made sure, and are used again only after the step.
            unsafe { copy(slot.gpu.address(), slot.host.address(), bytes, stream)? };
        }
        Ok(slot.gpu.address())
    }

    /// Ends the step that was started last.
    pub(super) fn end(&mut self) -> Result<(), MemoryError> {
        self.slots[self.next].ended.record(&self.device.compute)?;
        self.under_way.push_back(self.next);
        self.next = (self.next + 1) % SLOTS;
        Ok(())
    }

    /// The moment at which the step ended last ends; `None` before the first.
    pub(super) fn last_end(&self) -> Option<&Event> {
        self.under_way.back().map(|&slot| &self.slots[slot].ended)
    }

    /// Waits for the first step under way: how long it took, seconds; `None` if there is none.
    pub(super) fn wait(&mut self) -> Result<Option<f64>, MemoryError> {
        let Some(slot) = self.under_way.pop_front() else { return Ok(None) };
        let InputSlot { started, ended, .. } = &self.slots[slot];
        ended.synchronise()?;
        started.seconds_to(ended).map(Some)
    }
}
