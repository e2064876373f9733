//! Attention, against softmax in `f64`; what no query may see is NaN.

use super::buffer::{Buffer, Plain, guarded, poisoned};
use super::layer::{Want, compare, near};
use super::random::Random;
use super::{Arg, Check, Launcher};
use crate::launch::{self, BLOCK_SIZE, DecodeItem, MergeItem, NO_PARTIAL};
use crate::reference::{Attended, Element, KvLayer, KvSequence, attend};

pub(super) const CHECKS: &[(&str, Check)] =
    &[("paged_decode", paged_decode), ("paged_decode_split", paged_decode_split), ("paged_prefill", paged_prefill)];

/// Sequences in a pool: their lengths, block tables, and keys and values in one layer of it.
struct Cache {
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

impl Cache {
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
    fn attend(&self, query: &[u16], head: usize, sequence: usize, tokens: std::ops::Range<u32>) -> Attended {
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

    /// A batch of query rows, a stride apart, with a result of each that is untouched so far.
    fn queries(&self, random: &mut Random, rows: usize) -> (usize, Vec<u16>) {
        let stride = self.width() + 8 * random.range(0, 3) as usize;
        (stride, random.normals(self.element, rows * stride, 1.0))
    }
}

/// Bytes of items.
fn words<const N: usize>(items: impl Iterator<Item = [u32; N]>) -> Buffer {
    Buffer::of(&guarded(items.flatten().collect::<Vec<u32>>()))
}

/// Accumulators and states: `f32` as bits.
struct Partials {
    values: Buffer,
    states: Buffer,
}

impl Partials {
    fn new(count: usize, cache: &Cache) -> Self {
        // All bits set is a NaN; the guard's pattern stays what it is.
        let values = guarded(vec![u32::MAX; count * cache.width()]);
        let states = guarded(vec![u32::MAX; count * cache.heads() * 2]);
        Self { values: Buffer::of(&values), states: Buffer::of(&states) }
    }

    fn compare(&self, cache: &Cache, item: &DecodeItem, query: &[u16]) -> Result<(), String> {
        let number = |buffer: &[u32], i: usize| f64::from(f32::from_bits(buffer[i]));
        let (values, states) = (self.values.read::<u32>(), self.states.read::<u32>());
        for head in 0..cache.heads() {
            let want = cache.attend(query, head, item.row as usize, item.begin..item.end);
            let at = item.partial as usize * cache.heads() + head;
            let (maximum, sum) = (number(&states, 2 * at), number(&states, 2 * at + 1));
            let close = |got: f64, want: f64, tolerance: f64| (got - want).abs() <= tolerance;
            if !close(maximum, want.maximum, cache.noise) || !close(sum, want.sum, want.sum * 4.0 * cache.noise) {
                return Err(format!("state of {item:?} head {head} is ({maximum}, {sum}), must be {want:?}"));
            }
            for (i, (value, magnitude)) in want.values.iter().zip(&want.magnitudes).enumerate() {
                let got = number(&values, at * cache.layer.head_dim + i);
                let lost = cache.element.smallest() * f64::from(item.end - item.begin);
                if !close(got, *value, magnitude * (cache.element.unit() + 4.0 * cache.noise) + lost) {
                    return Err(format!("partial value {i} of {item:?} head {head} is {got}, must be {value}"));
                }
            }
        }
        Ok(())
    }

    fn guards(&self) -> Result<(), String> {
        for buffer in [&self.values, &self.states] {
            let numbers = buffer.read::<u32>();
            if numbers[numbers.len() - guarded::<u32>(vec![]).len()..].iter().any(|&bits| bits != u32::POISON) {
                return Err("a partial result is written behind the last".to_owned());
            }
        }
        Ok(())
    }
}

/// Sequences as the launch functions cut them.
fn paged_decode(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let sequences = random.range(1, 3);
    let lengths = (0..sequences).map(|_| random.one_of(&[0, 1, 15, 16, 17, 63, 64, 130, 300])).collect();
    let cache = Cache::draw(random, lengths, 8);
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
    // Pieces long enough that each warp's stages are filled anew several times, or pieces of all sizes.
    let most_blocks = random.one_of(&[7, 7, 60]);
    let lengths = vec![random.range(0, 16 * most_blocks), random.range(1, 100)];
    let cache = Cache::draw(random, lengths, 10);
    let (mut items, mut merges, mut partial) = (Vec::new(), Vec::new(), 0);
    for (row, (&length, &table)) in (0_u32..).zip(cache.lengths.iter().zip(&cache.table_starts)) {
        let first = partial;
        let mut begin = 0;
        while begin < length {
            let end = length.min(begin + BLOCK_SIZE * random.range(if most_blocks > 7 { 40 } else { 1 }, most_blocks));
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
    cache: &Cache,
    items: &[DecodeItem],
    merges: &[MergeItem],
) -> Result<(), String> {
    let rows = cache.lengths.len();
    let (stride, query) = cache.queries(random, rows);
    let out_stride = cache.width() + 2 * random.range(0, 3) as usize;
    let mut out = Buffer::of(&poisoned::<u16>(rows * out_stride));
    let mut partials = Partials::new(merges.iter().map(|merge| merge.count as usize).sum(), cache);
    let (kv_heads, group, heads) = (cache.layer.kv_heads as u32, cache.group as u32, cache.heads() as u32);
    launcher.launch(
        &cache.entry("paged_decode"),
        &launch::paged_decode(items.len(), kv_heads, group),
        &mut [
            Arg::In(Buffer::of(&guarded(query.clone())).bytes()),
            Arg::U64(stride as u64),
            Arg::In(Buffer::of(&cache.pool).bytes()),
            Arg::U64(cache.layer.block_stride as u64),
            Arg::U64(cache.layer.key_offset as u64),
            Arg::U64(cache.layer.value_offset as u64),
            Arg::In(Buffer::of(&guarded(cache.tables.clone())).bytes()),
            Arg::In(words(items.iter().map(DecodeItem::words)).bytes()),
            Arg::Out(partials.values.bytes_mut()),
            Arg::Out(partials.states.bytes_mut()),
            Arg::Out(out.bytes_mut()),
            Arg::U64(out_stride as u64),
            Arg::U32(kv_heads),
            Arg::U32(group),
            Arg::F32(cache.scale),
        ],
    )?;
    partials.guards()?;
    for item in items.iter().filter(|item| item.partial != NO_PARTIAL) {
        partials.compare(cache, item, &query[item.row as usize * stride..])?;
    }
    if !merges.is_empty() {
        launcher.launch(
            &format!("kvtide_paged_merge_{}", cache.element.suffix()),
            &launch::paged_merge(merges.len(), heads, cache.layer.head_dim as u32),
            &mut [
                Arg::In(partials.values.bytes()),
                Arg::In(partials.states.bytes()),
                Arg::In(words(merges.iter().map(MergeItem::words)).bytes()),
                Arg::Out(out.bytes_mut()),
                Arg::U64(out_stride as u64),
                Arg::U32(heads),
                Arg::U32(cache.layer.head_dim as u32),
            ],
        )?;
    }
    let mut want = vec![Want::Poison; rows * out_stride];
    for (row, &length) in cache.lengths.iter().enumerate() {
        for head in 0..cache.heads() {
            let result = cache.result(&cache.attend(&query[row * stride..], head, row, 0..length));
            want[row * out_stride + head * cache.layer.head_dim..][..result.len()].copy_from_slice(&result);
        }
    }
    compare("out", cache.element, &out, &want)
}

/// Chunks of several prompts in one launch, in items of whole tiles or less.
fn paged_prefill(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let chunks: Vec<[u32; 2]> = (0..random.range(1, 2))
        .map(|_| [random.one_of(&[0, 0, 1, 16, 63, 70, 128]), random.one_of(&[1, 7, 16, 33, 60, 130])])
        .collect();
    let lengths = chunks.iter().map(|[context, tokens]| context + tokens).collect();
    let cache = Cache::draw(random, lengths, 8);
    let (group, kv_heads, width) = (cache.group as u32, cache.layer.kv_heads as u32, cache.layer.head_dim);
    let (mut items, mut rows) = (Vec::new(), 0);
    for (&[context, tokens], &table) in chunks.iter().zip(&cache.table_starts) {
        items.extend(launch::prefill_items(rows, tokens, context, table, group));
        rows += tokens;
    }
    let (stride, query) = cache.queries(random, rows as usize);
    let out_stride = cache.width() + 2 * random.range(0, 3) as usize;
    let mut out = Buffer::of(&poisoned::<u16>(rows as usize * out_stride));
    launcher.launch(
        &cache.entry("paged_prefill"),
        &launch::paged_prefill(items.len(), kv_heads, width as u32),
        &mut [
            Arg::In(Buffer::of(&guarded(query.clone())).bytes()),
            Arg::U64(stride as u64),
            Arg::In(Buffer::of(&cache.pool).bytes()),
            Arg::U64(cache.layer.block_stride as u64),
            Arg::U64(cache.layer.key_offset as u64),
            Arg::U64(cache.layer.value_offset as u64),
            Arg::In(Buffer::of(&guarded(cache.tables.clone())).bytes()),
            Arg::In(words(items.iter().map(launch::PrefillItem::words)).bytes()),
            Arg::Out(out.bytes_mut()),
            Arg::U64(out_stride as u64),
            Arg::U32(kv_heads),
            Arg::U32(group),
            Arg::F32(cache.scale),
        ],
    )?;
    let mut want = vec![Want::Poison; rows as usize * out_stride];
    let mut row = 0;
    for (sequence, &[context, tokens]) in chunks.iter().enumerate() {
        for position in context..context + tokens {
            for head in 0..cache.heads() {
                let result = cache.result(&cache.attend(&query[row * stride..], head, sequence, 0..position + 1));
                want[row * out_stride + head * width..][..width].copy_from_slice(&result);
            }
            row += 1;
        }
    }
    compare("out", cache.element, &out, &want)
}
