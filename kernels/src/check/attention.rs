//! Attention, against softmax in `f64`; what no query may see is NaN.

use std::ops::Range;

use super::buffer::{AlignedBuffer, Plain, guarded, poisoned};
use super::layer::{Want, compare, near};
use super::random::Random;
use super::{Check, CheckArg, Launcher};
use crate::launch::{self, BLOCK_SIZE, DecodeItem, Geometry, MergeItem, NO_PARTIAL, PrefillChunk, PrefillItem};
use crate::reference::{Attended, Element, KvLayer, KvSequence, attend};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("paged_decode", paged_decode),
    ("paged_decode_split", paged_decode_split),
    ("paged_prefill", paged_prefill),
    ("paged_prefill_split", paged_prefill_split),
];

/// Sequences in a pool: their lengths, block tables, and keys and values in one layer of it.
struct PagedCache {
    element: Element,
    layer: KvLayer,
    group: usize,
    lengths: Vec<u32>,
    table_starts: Vec<u32>,
    tables: Vec<u32>,
    pool: Vec<u16>,
    scale: f32,
    /// Absolute error of a score, which is the relative error of its weight: products summed in `f32`, in any order and
    /// with the truncation of tensor cores.
    noise: f64,
}

impl PagedCache {
    fn draw(random: &mut Random, lengths: Vec<u32>, most_heads: u32) -> Self {
        let element = random.element();
        let (layers, head_dim) = (random.range(1, 2) as usize, random.one_of(&[64, 128]));
        let kv_heads = random.range(1, 2) as usize;
        let group = random.range(1, most_heads) as usize;
        let layer_index = random.range(0, layers as u32 - 1) as usize;
        let layer = KvLayer::new(layers, layer_index, kv_heads, BLOCK_SIZE as usize, head_dim);
        let needed: usize = lengths.iter().map(|length| length.div_ceil(BLOCK_SIZE) as usize).sum();
        let blocks = needed + 2;
        let mut free = random.distinct(needed, blocks).into_iter();
        let (mut tables, mut table_starts) = (Vec::new(), Vec::new());
        for length in &lengths {
            // A gap between tables: block numbers that lead nowhere would be noticed.
            tables.extend((0..random.range(0, 2)).map(|_| (blocks - 1) as u32));
            table_starts.push(tables.len() as u32);
            tables.extend(free.by_ref().take(length.div_ceil(BLOCK_SIZE) as usize));
        }
        // NaN in either type.
        let mut pool = vec![0x7FFF; blocks * layer.block_stride];
        for (&length, &start) in lengths.iter().zip(&table_starts) {
            for token in 0..length {
                let slot = tables[(start + token / BLOCK_SIZE) as usize] * BLOCK_SIZE + token % BLOCK_SIZE;
                for head in 0..kv_heads {
                    let (key, value) = layer.rows(slot as usize, head);
                    pool[key..key + head_dim].copy_from_slice(&random.normals(element, head_dim, 1.0));
                    pool[value..value + head_dim].copy_from_slice(&random.normals(element, head_dim, 1.0));
                }
            }
        }
        // From flat softmax to one that is nearly a maximum.
        let sharpness = random.one_of(&[0.1, 1.0, 4.0]);
        let scale = sharpness / (head_dim as f32).sqrt();
        let noise = f64::from(sharpness) * 6e-5 + 4e-6;
        Self { element, layer, group, lengths, table_starts, tables, pool, scale, noise }
    }

    fn heads(&self) -> usize {
        self.layer.kv_heads * self.group
    }

    fn width(&self) -> usize {
        self.heads() * self.layer.head_dim
    }

    fn entry(&self, kernel: &str) -> String {
        format!("kvtide_{kernel}_{}_{}", self.element.suffix(), self.layer.head_dim)
    }

    /// Query head `head` of `query` over the tokens of a sequence.
    fn attend(&self, query: &[u16], head: usize, sequence: usize, tokens: Range<u32>) -> Attended {
        let width = self.layer.head_dim;
        let table = &self.tables[self.table_starts[sequence] as usize..];
        let (query, tokens) = (&query[head * width..][..width], tokens.start as usize..tokens.end as usize);
        let kv_head = head / self.group;
        let sequence = KvSequence { element: self.element, pool: &self.pool, layer: &self.layer, table };
        attend(&sequence, query, kv_head, tokens, self.scale)
    }

    /// The normalised result: weights are rounded to the element before they meet the values.
    fn result(&self, attended: &Attended) -> Vec<Want> {
        let weights = self.element.unit() + self.noise;
        let want = |(&value, &magnitude): (&f64, &f64)| {
            if attended.sum == 0.0 {
                return Want::Near(0.0, f64::MIN_POSITIVE);
            }
            // Small weights of a type with few exponents are rounded to a multiple of its smallest number.
            let lost = self.element.smallest() * self.lengths.iter().max().copied().map_or(0.0, f64::from) * 4.0;
            near(self.element, value / attended.sum, magnitude / attended.sum * weights + lost)
        };
        attended.values.iter().zip(&attended.magnitudes).map(want).collect()
    }
}

/// Bytes of items.
fn words<const N: usize>(items: impl Iterator<Item = [u32; N]>) -> AlignedBuffer {
    AlignedBuffer::of(&guarded(items.flatten().collect::<Vec<u32>>()))
}

/// Accumulators and states: `f32` as bits.
struct Partials {
    values: Vec<u32>,
    states: Vec<u32>,
}

impl Partials {
    /// Partial row `row` is attention of a row of queries over `tokens` of a sequence.
    fn compare(
        &self,
        cache: &PagedCache,
        row: u32,
        query: &[u16],
        sequence: usize,
        tokens: Range<u32>,
    ) -> Result<(), String> {
        let number = |buffer: &[u32], i: usize| f64::from(f32::from_bits(buffer[i]));
        for head in 0..cache.heads() {
            let want = cache.attend(query, head, sequence, tokens.clone());
            let at = row as usize * cache.heads() + head;
            let (maximum, sum) = (number(&self.states, 2 * at), number(&self.states, 2 * at + 1));
            // Both may be minus infinity.
            let close = |got: f64, want: f64, tolerance: f64| got == want || (got - want).abs() <= tolerance;
            if !close(maximum, want.maximum, cache.noise) || !close(sum, want.sum, want.sum * 4.0 * cache.noise) {
                return Err(format!(
                    "state of partial row {row} ({tokens:?}) head {head} is ({maximum}, {sum}), must be {want:?}"
                ));
            }
            for (i, (value, magnitude)) in want.values.iter().zip(&want.magnitudes).enumerate() {
                let got = number(&self.values, at * cache.layer.head_dim + i);
                let lost = cache.element.smallest() * tokens.len() as f64;
                if !close(got, *value, magnitude * (cache.element.unit() + 4.0 * cache.noise) + lost) {
                    return Err(format!(
                        "value {i} of partial row {row} ({tokens:?}) head {head} is {got}, must be {value}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn guards(&self) -> Result<(), String> {
        for numbers in [&self.values, &self.states] {
            if numbers[numbers.len() - guarded::<u32>(vec![]).len()..].iter().any(|&bits| bits != u32::POISON) {
                return Err("a partial result is written behind the last".to_owned());
            }
        }
        Ok(())
    }
}

/// A batch of query rows, a stride apart, and what comes of them.
struct QueryBatch<'a> {
    cache: &'a PagedCache,
    stride: usize,
    query: Vec<u16>,
    out_stride: usize,
    out: AlignedBuffer,
    values: AlignedBuffer,
    states: AlignedBuffer,
}

impl<'a> QueryBatch<'a> {
    /// Nothing is written so far: neither the results of `rows` rows nor `partials` partial results.
    fn new(random: &mut Random, cache: &'a PagedCache, rows: usize, partials: usize) -> Self {
        let stride = cache.width() + 8 * random.range(0, 3) as usize;
        let query = random.normals(cache.element, rows * stride, 1.0);
        let out_stride = cache.width() + 4 * random.range(0, 3) as usize;
        // All bits set is a NaN; the guard's pattern stays what it is.
        let values = AlignedBuffer::of(&guarded(vec![u32::MAX; partials * cache.width()]));
        let states = AlignedBuffer::of(&guarded(vec![u32::MAX; partials * cache.heads() * 2]));
        Self {
            cache,
            stride,
            query,
            out_stride,
            out: AlignedBuffer::of(&poisoned::<u16>(rows * out_stride)),
            values,
            states,
        }
    }

    fn query(&self, row: usize) -> &[u16] {
        &self.query[row * self.stride..]
    }

    /// Decode and prefill take the same arguments.
    fn attend(
        &mut self,
        launcher: &mut dyn Launcher,
        kernel: &str,
        geometry: &Geometry,
        items: &AlignedBuffer,
    ) -> Result<Partials, String> {
        let cache = self.cache;
        launcher.launch(
            &cache.entry(kernel),
            geometry,
            &mut [
                CheckArg::In(AlignedBuffer::of(&guarded(self.query.clone())).bytes()),
                CheckArg::U64(self.stride as u64),
                CheckArg::In(AlignedBuffer::of(&cache.pool).bytes()),
                CheckArg::U64(cache.layer.block_stride as u64),
                CheckArg::U64(cache.layer.key_offset as u64),
                CheckArg::U64(cache.layer.value_offset as u64),
                CheckArg::In(AlignedBuffer::of(&guarded(cache.tables.clone())).bytes()),
                CheckArg::In(items.bytes()),
                CheckArg::Out(self.values.bytes_mut()),
                CheckArg::Out(self.states.bytes_mut()),
                CheckArg::Out(self.out.bytes_mut()),
                CheckArg::U64(self.out_stride as u64),
                CheckArg::U32(cache.layer.kv_heads as u32),
                CheckArg::U32(cache.group as u32),
                CheckArg::F32(cache.scale),
            ],
        )?;
        let partials = Partials { values: self.values.read(), states: self.states.read() };
        partials.guards()?;
        Ok(partials)
    }

    fn merge(&mut self, launcher: &mut dyn Launcher, merges: &[MergeItem]) -> Result<(), String> {
        if merges.is_empty() {
            return Ok(());
        }
        let (heads, head_dim) = (self.cache.heads() as u32, self.cache.layer.head_dim as u32);
        launcher.launch(
            &format!("kvtide_paged_merge_{}", self.cache.element.suffix()),
            &launch::paged_merge(merges.len(), heads, head_dim),
            &mut [
                CheckArg::In(self.values.bytes()),
                CheckArg::In(self.states.bytes()),
                CheckArg::In(words(merges.iter().map(MergeItem::words)).bytes()),
                CheckArg::Out(self.out.bytes_mut()),
                CheckArg::U64(self.out_stride as u64),
                CheckArg::U32(heads),
                CheckArg::U32(head_dim),
            ],
        )
    }

    /// Row `i` is attention over the first tokens of a sequence: `seen[i]` is which, and how many.
    fn compare(&self, seen: &[(usize, u32)]) -> Result<(), String> {
        let (cache, head_dim) = (self.cache, self.cache.layer.head_dim);
        let mut want = vec![Want::Poison; seen.len() * self.out_stride];
        for (row, &(sequence, tokens)) in seen.iter().enumerate() {
            for head in 0..cache.heads() {
                let result = cache.result(&cache.attend(self.query(row), head, sequence, 0..tokens));
                want[row * self.out_stride + head * head_dim..][..head_dim].copy_from_slice(&result);
            }
        }
        compare("out", cache.element, &self.out, &want)
    }
}

/// Sequences as the launch functions cut them.
fn paged_decode(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let sequences = random.range(1, 3);
    let lengths = (0..sequences).map(|_| random.one_of(&[0, 1, 15, 16, 17, 63, 64, 130, 300])).collect();
    let cache = PagedCache::draw(random, lengths, 8);
    let (items, merges) = launch::decode_items(
        &cache.lengths,
        &cache.table_starts,
        cache.layer.kv_heads as u32,
        launcher.multiprocessors(),
    );
    run_decode(launcher, random, &cache, &items, &merges)
}

/// Sequences cut at random, groups of more heads than a CTA serves.
fn paged_decode_split(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    // Blocks of the sequence, and of its pieces: many, pieces of all sizes, or pieces long enough that each warp's stages
    // are filled anew several times.
    let (most_blocks, pieces) = random.one_of(&[(7, [1, 1]), (7, [1, 7]), (60, [40, 60])]);
    // Sometimes nothing at all.
    let tokens = random.one_of(&[0, 1, 1, 1]) * random.range(0, 16 * most_blocks);
    let lengths = vec![tokens, random.range(1, 100)];
    let cache = PagedCache::draw(random, lengths, 10);
    let (mut items, mut merges, mut partial) = (Vec::new(), Vec::new(), 0);
    for (row, (&length, &table)) in (0_u32..).zip(cache.lengths.iter().zip(&cache.table_starts)) {
        let first = partial;
        let mut begin = 0;
        while begin < length {
            let end = length.min(begin + BLOCK_SIZE * random.range(pieces[0], pieces[1]));
            items.push(DecodeItem { row, table, begin, end, partial });
            (begin, partial) = (end, partial + 1);
        }
        merges.push(MergeItem { row, first, count: partial - first });
    }
    run_decode(launcher, random, &cache, &items, &merges)
}

fn run_decode(
    launcher: &mut dyn Launcher,
    random: &mut Random,
    cache: &PagedCache,
    items: &[DecodeItem],
    merges: &[MergeItem],
) -> Result<(), String> {
    let partials = merges.iter().map(|merge| merge.count as usize).sum();
    let mut batch = QueryBatch::new(random, cache, cache.lengths.len(), partials);
    let geometry = launch::paged_decode(items.len(), cache.layer.kv_heads as u32, cache.group as u32);
    let item_words = words(items.iter().map(DecodeItem::words));
    let partials = batch.attend(launcher, "paged_decode", &geometry, &item_words)?;
    for &DecodeItem { row, begin, end, partial, .. } in items.iter().filter(|item| item.partial != NO_PARTIAL) {
        partials.compare(cache, partial, batch.query(row as usize), row as usize, begin..end)?;
    }
    batch.merge(launcher, merges)?;
    let seen: Vec<(usize, u32)> = cache.lengths.iter().copied().enumerate().collect();
    batch.compare(&seen)
}

/// Chunks `[context, tokens]` of prompts of their own, one below the other.
struct Chunks {
    cache: PagedCache,
    chunks: Vec<PrefillChunk>,
}

impl Chunks {
    fn draw(random: &mut Random, sizes: &[[u32; 2]]) -> Self {
        let cache = PagedCache::draw(random, sizes.iter().map(|[context, tokens]| context + tokens).collect(), 8);
        let mut row = 0;
        let place = |(&[context, tokens], &table): (&[u32; 2], &u32)| {
            row += tokens;
            PrefillChunk { row: row - tokens, tokens, context, table }
        };
        let chunks = sizes.iter().zip(&cache.table_starts).map(place).collect();
        Self { cache, chunks }
    }

    /// The sequence of each query row, and how many of its tokens it sees.
    fn seen(&self) -> Vec<(usize, u32)> {
        let of_chunk = |(sequence, chunk): (usize, &PrefillChunk)| {
            (chunk.context..chunk.context + chunk.tokens).map(move |position| (sequence, position + 1))
        };
        self.chunks.iter().enumerate().flat_map(of_chunk).collect()
    }

    fn run(
        &self,
        launcher: &mut dyn Launcher,
        random: &mut Random,
        items: &[PrefillItem],
        merges: &[MergeItem],
    ) -> Result<(), String> {
        let seen = self.seen();
        let last = |item: &PrefillItem| item.partial as usize + (item.tokens * item.stride) as usize;
        let cut = || items.iter().filter(|item| item.partial != NO_PARTIAL);
        let mut batch = QueryBatch::new(random, &self.cache, seen.len(), cut().map(last).max().unwrap_or(0));
        let layer = &self.cache.layer;
        let geometry = launch::paged_prefill(items.len(), layer.kv_heads as u32, layer.head_dim as u32);
        let item_words = words(items.iter().map(PrefillItem::words));
        let partials = batch.attend(launcher, "paged_prefill", &geometry, &item_words)?;
        for item in cut() {
            for token in 0..item.tokens {
                let row = (item.row + token) as usize;
                let (sequence, tokens) = seen[row];
                let tokens = item.begin..item.end.min(tokens).max(item.begin);
                partials.compare(
                    &self.cache,
                    item.partial + token * item.stride,
                    batch.query(row),
                    sequence,
                    tokens,
                )?;
            }
        }
        batch.merge(launcher, merges)?;
        batch.compare(&seen)
    }
}

/// Chunks of several prompts in one launch, as the launch functions cut them.
fn paged_prefill(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let sizes: Vec<[u32; 2]> = (0..random.range(1, 2))
        .map(|_| match random.one_of(&[0, 0, 1, 16, 63, 70, 128, 520, 800]) {
            context @ 0..=128 => [context, random.one_of(&[1, 7, 16, 33, 60, 130])],
            // Long enough to be cut on a small device.
            context => [context, random.one_of(&[1, 7, 20, 33])],
        })
        .collect();
    let chunks = Chunks::draw(random, &sizes);
    let (kv_heads, group) = (chunks.cache.layer.kv_heads as u32, chunks.cache.group as u32);
    // Rows before the first are somebody else's.
    let (items, merges) =
        launch::prefill_items(&chunks.chunks, kv_heads, group, launcher.multiprocessors(), random.range(0, 3));
    chunks.run(launcher, random, &items, &merges)
}

/// Chunks in items of any number of tokens, cut at random: pieces of one tile, of which tokens may see nothing.
fn paged_prefill_split(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let sizes: Vec<[u32; 2]> = (0..random.range(1, 2))
        .map(|_| [random.one_of(&[0, 1, 63, 64, 100, 200]), random.one_of(&[1, 7, 33, 64, 130])])
        .collect();
    let chunks = Chunks::draw(random, &sizes);
    let most = launch::prefill_tile_tokens(chunks.cache.group as u32);
    let (mut items, mut merges, mut partial) = (Vec::new(), Vec::new(), 0);
    for chunk in &chunks.chunks {
        let mut start = 0;
        while start < chunk.tokens {
            let tokens = random.range(1, most).min(chunk.tokens - start);
            let (row, context) = (chunk.row + start, chunk.context + start);
            let mut ends = vec![0];
            while ends[ends.len() - 1] < context + tokens {
                ends.push((ends[ends.len() - 1] + 64 * random.range(1, 3)).min(context + tokens));
            }
            // One piece is a partial result like many; a row between those of two tokens belongs to neither.
            let count = ends.len() as u32 - 1;
            let stride = count + random.range(0, 1);
            items.extend((partial..).zip(ends.windows(2)).map(|(partial, ends)| PrefillItem {
                row,
                tokens,
                context,
                table: chunk.table,
                begin: ends[0],
                end: ends[1],
                partial,
                stride,
            }));
            merges.extend((0..tokens).map(|token| MergeItem {
                row: row + token,
                first: partial + token * stride,
                count,
            }));
            partial += tokens * stride;
            start += tokens;
        }
    }
    chunks.run(launcher, random, &items, &merges)
}
