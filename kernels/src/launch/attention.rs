//! Attention as items of work: what one CTA takes, and how many of them fill the device evenly.

use std::cmp::Reverse;

use super::Geometry;

/// Tokens of a block, as the attention kernels have it.
pub const BLOCK_SIZE: u32 = 16;
/// [`DecodeItem::partial`] and [`PrefillItem::partial`] of an item that sees all that its tokens attend to.
pub const NO_PARTIAL: u32 = u32::MAX;

/// Query heads that one CTA of `kvtide_paged_decode_*` serves.
const DECODE_HEADS: u32 = 8;
/// CTAs of `kvtide_paged_decode_*` that a multiprocessor holds at once: their shared memory allows two.
const DECODE_RESIDENT: u32 = 2;
/// Rounds of items that a batch is cut into where it is large enough: the last round, in which multiprocessors run
/// empty, is then a small part of all.
const DECODE_ROUNDS: u64 = 4;
/// Blocks of a piece from which there is more than one round: shorter ones cost more to merge than rounds even out.
const DECODE_LONG_BLOCKS: u64 = 64;
/// Blocks that a piece has at least: two for each warp of a CTA.
const DECODE_FEWEST_BLOCKS: u64 = 8;
/// Stages of `kvtide_paged_decode_*`, bytes, for either `head_dim`.
const DECODE_SHARED_BYTES: u32 = 98_304;
/// Rows of queries that one CTA of `kvtide_paged_prefill_*` holds.
const PREFILL_ROWS: u32 = 128;
/// Tokens of the tiles in which `kvtide_paged_prefill_*` walks over keys and values; pieces start at multiples of it.
const PREFILL_TILE: u32 = 64;
/// CTAs of `kvtide_paged_prefill_*` that a multiprocessor holds at once: their registers allow two.
const PREFILL_RESIDENT: u32 = 2;
/// Tiles that a piece has at least.
const PREFILL_FEWEST_TILES: u64 = 4;
/// What `x` of a grid may be at most.
const MAX_CTAS: usize = 0x7FFF_FFFF;

/// A piece of a sequence for `kvtide_paged_decode_*`, as the kernel reads it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeItem {
    /// Row of the query and of the result.
    pub row: u32,
    /// Where the sequence's block table starts in `tables`.
    pub table: u32,
    /// First token, a multiple of [`BLOCK_SIZE`].
    pub begin: u32,
    /// One past the last token.
    pub end: u32,
    /// Row of the partial result, or [`NO_PARTIAL`].
    pub partial: u32,
}

impl DecodeItem {
    /// The fields in the order in which the kernel reads them.
    pub const fn words(&self) -> [u32; 5] {
        [self.row, self.table, self.begin, self.end, self.partial]
    }
}

/// Partial results of one token for `kvtide_paged_merge_*`, as the kernel reads them.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergeItem {
    /// Row of the result.
    pub row: u32,
    /// First partial result.
    pub first: u32,
    /// How many follow each other.
    pub count: u32,
}

impl MergeItem {
    /// The fields in the order in which the kernel reads them.
    pub const fn words(&self) -> [u32; 3] {
        [self.row, self.first, self.count]
    }
}

/// A chunk of a prompt: query rows `row..row + tokens` are the tokens at positions `context..context + tokens` of the
/// sequence whose block table starts at `table`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillChunk {
    /// Row of the first token's query and result.
    pub row: u32,
    /// Tokens of the chunk, one row each.
    pub tokens: u32,
    /// Position of the first token in its sequence: tokens before it.
    pub context: u32,
    /// Where the sequence's block table starts in `tables`.
    pub table: u32,
}

/// Part of a chunk of a prompt, or a piece of what it attends to, for `kvtide_paged_prefill_*`, as the kernel reads it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillItem {
    /// Row of the first token's query and result.
    pub row: u32,
    /// Tokens, at most [`prefill_tile_tokens`].
    pub tokens: u32,
    /// Position of the first token in its sequence: tokens before it.
    pub context: u32,
    /// Where the sequence's block table starts in `tables`.
    pub table: u32,
    /// First position attended to, a multiple of 64.
    pub begin: u32,
    /// One past the last position attended to: `context + tokens`, or a multiple of 64 before it. A token attends to no
    /// position behind its own.
    pub end: u32,
    /// Row of the first token's partial result, or [`NO_PARTIAL`].
    pub partial: u32,
    /// Partial rows from one token to the next: a token's pieces follow each other.
    pub stride: u32,
}

impl PrefillItem {
    /// The fields in the order in which the kernel reads them.
    pub const fn words(&self) -> [u32; 8] {
        [self.row, self.tokens, self.context, self.table, self.begin, self.end, self.partial, self.stride]
    }
}

/// Items of one decode step: sequence `i` is query row `i`, has `lengths[i]` tokens in the cache, and its block table at
/// `table_starts[i]`. Long sequences are cut into pieces whose results the merge items put together.
///
/// Partial results are numbered from 0 and as many as the sum of the merge items' counts. Items are sorted, longest first,
/// so that the device ends evenly.
pub fn decode_items(
    lengths: &[u32],
    table_starts: &[u32],
    kv_heads: u32,
    multiprocessors: u32,
) -> (Vec<DecodeItem>, Vec<MergeItem>) {
    assert_eq!(lengths.len(), table_starts.len(), "a block table for each sequence");
    let blocks_of = |length: u32| u64::from(length.div_ceil(BLOCK_SIZE));
    let total: u64 = lengths.iter().map(|&length| blocks_of(length)).sum();
    let places = places(DECODE_RESIDENT, kv_heads, multiprocessors);
    let rounds = (total / (places.max(1) * DECODE_LONG_BLOCKS)).clamp(1, DECODE_ROUNDS);
    let (mut items, mut merges, mut partials) = (Vec::new(), Vec::new(), 0);
    for (row, (&length, &table)) in (0_u32..).zip(lengths.iter().zip(table_starts)) {
        let blocks = blocks_of(length);
        let pieces = pieces(blocks, total, rounds * places, DECODE_FEWEST_BLOCKS);
        if pieces == 1 {
            items.push(DecodeItem { row, table, begin: 0, end: length, partial: NO_PARTIAL });
            continue;
        }
        for (partial, (begin, end)) in (partials..).zip(ranges(blocks, pieces, BLOCK_SIZE, length)) {
            items.push(DecodeItem { row, table, begin, end, partial });
        }
        merges.push(MergeItem { row, first: partials, count: pieces as u32 });
        partials += pieces as u32;
    }
    items.sort_by_key(|item| Reverse(item.end - item.begin));
    (items, merges)
}

/// Most tokens of an item of `kvtide_paged_prefill_*` for a group of query heads.
pub fn prefill_tile_tokens(group: u32) -> u32 {
    assert!((1..=PREFILL_ROWS).contains(&group), "1 to {PREFILL_ROWS} query heads a KV head, not {group}");
    PREFILL_ROWS / group
}

/// Items of all chunks of a step.
///
/// Where they would leave multiprocessors idle, or one keep the device waiting for it, what they attend to is cut into
/// pieces, whose results the merge items put together, one for each token. Partial results are numbered from
/// `first_partial`, where those of [`decode_items`] end, and as many as the sum of the merge items' counts: for one KV head
/// those of `2 * multiprocessors / kv_heads` items at most, which makes 64 KiB a CTA for `head_dim` 128 and 17 MB on 132
/// multiprocessors.
///
/// Items are sorted, longest first, so that the device ends evenly.
pub fn prefill_items(
    chunks: &[PrefillChunk],
    kv_heads: u32,
    group: u32,
    multiprocessors: u32,
    first_partial: u32,
) -> (Vec<PrefillItem>, Vec<MergeItem>) {
    let most = prefill_tile_tokens(group);
    let wholes: Vec<PrefillItem> = chunks.iter().flat_map(|chunk| whole_items(chunk, most)).collect();
    let tiles_of = |item: &PrefillItem| u64::from(item.end.div_ceil(PREFILL_TILE));
    let total: u64 = wholes.iter().map(tiles_of).sum();
    let places = places(PREFILL_RESIDENT, kv_heads, multiprocessors);
    let (mut items, mut merges, mut partials) = (Vec::new(), Vec::new(), first_partial);
    for whole in wholes {
        let tiles = tiles_of(&whole);
        let pieces = pieces(tiles, total, places, PREFILL_FEWEST_TILES);
        if pieces == 1 {
            items.push(whole);
            continue;
        }
        let stride = pieces as u32;
        for (partial, (begin, end)) in (partials..).zip(ranges(tiles, pieces, PREFILL_TILE, whole.end)) {
            items.push(PrefillItem { begin, end, partial, stride, ..whole });
        }
        merges.extend((0..whole.tokens).map(|token| MergeItem {
            row: whole.row + token,
            first: partials + token * stride,
            count: stride,
        }));
        partials += whole.tokens * stride;
    }
    items.sort_by_key(|item| Reverse(item.end - item.begin));
    (items, merges)
}

/// A chunk in items of `most` tokens or fewer.
fn whole_items(chunk: &PrefillChunk, most: u32) -> impl Iterator<Item = PrefillItem> {
    let PrefillChunk { row, tokens, context, table } = *chunk;
    (0..tokens).step_by(most as usize).map(move |start| {
        let (context, tokens) = (context + start, most.min(tokens - start));
        PrefillItem {
            row: row + start,
            tokens,
            context,
            table,
            begin: 0,
            end: context + tokens,
            partial: NO_PARTIAL,
            stride: 0,
        }
    })
}

/// CTAs for each KV head that the device holds at once.
fn places(resident: u32, kv_heads: u32, multiprocessors: u32) -> u64 {
    u64::from(resident * multiprocessors.max(1) / kv_heads.max(1))
}

/// Into how many pieces `units` of work are cut where `total` are to fill `places`: the whole places that are their share,
/// but pieces of `fewest` units at least. All that is cut then has no more pieces than there are places, and a piece is
/// shorter than two places' shares, or than twice `fewest`.
fn pieces(units: u64, total: u64, places: u64, fewest: u64) -> u64 {
    (units * places / total.max(1)).min(units / fewest).max(1)
}

/// Begins and ends, in tokens, of `pieces` of `units` of `unit` tokens each; they differ by a unit at most, and the last
/// ends at `length`.
fn ranges(units: u64, pieces: u64, unit: u32, length: u32) -> impl Iterator<Item = (u32, u32)> {
    let start = move |piece: u64| (units * piece / pieces) as u32 * unit;
    (0..pieces).map(move |piece| (start(piece), start(piece + 1).min(length)))
}

/// Items and heads folded into one dimension: the other two are limited to 65,535.
fn attention(items: usize, heads: u32, shared_bytes: u32) -> Geometry {
    let ctas = items * heads as usize;
    assert!(ctas <= MAX_CTAS, "{items} items of {heads} heads are more than a grid has");
    Geometry { grid: (ctas.max(1) as u32, 1, 1), block: (128, 1, 1), shared_bytes }
}

/// `kvtide_paged_decode_*`. There must be an item: an empty step is not launched.
pub fn paged_decode(items: usize, kv_heads: u32, group: u32) -> Geometry {
    attention(items, kv_heads * group.div_ceil(DECODE_HEADS), DECODE_SHARED_BYTES)
}

/// `kvtide_paged_prefill_*`: 128 rows of queries, and two stages of 64 tokens' keys and values. There must be an item.
pub fn paged_prefill(items: usize, kv_heads: u32, head_dim: u32) -> Geometry {
    attention(items, kv_heads, 768 * head_dim)
}

/// `kvtide_paged_merge_*` over `heads` query heads, four pieces at a time: a thread has four elements of a row. There must
/// be an item: where nothing was cut, nothing is launched.
pub fn paged_merge(items: usize, heads: u32, head_dim: u32) -> Geometry {
    assert!(items <= MAX_CTAS, "{items} items are more than a grid has");
    assert!(heads <= super::MAX_GRID_Y, "{heads} heads are more than a grid has");
    Geometry { grid: (items.max(1) as u32, heads, 1), block: (head_dim, 1, 1), shared_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::{
        BLOCK_SIZE, MergeItem, NO_PARTIAL, PREFILL_TILE, PrefillChunk, PrefillItem, decode_items, prefill_items,
        prefill_tile_tokens,
    };

    /// Lengths of all shapes: empty, tiny, ragged, long.
    fn batches() -> Vec<Vec<u32>> {
        let ragged = (0..97_u32).map(|i| i * i % 7919).collect();
        vec![vec![], vec![0], vec![1], vec![4096; 64], vec![131_072], vec![131_072, 1, 0, 16, 17], ragged]
    }

    #[test]
    fn pieces_cover_each_sequence_once_and_partials_are_numbered_in_order() {
        for lengths in batches() {
            for (kv_heads, multiprocessors) in [(1, 1), (8, 132), (4, 7), (128, 132)] {
                let starts: Vec<u32> = (0..lengths.len() as u32).map(|i| i * 1000).collect();
                let (mut items, merges) = decode_items(&lengths, &starts, kv_heads, multiprocessors);
                items.sort_by_key(|item| (item.row, item.begin));
                let mut partials = 0;
                for (row, &length) in lengths.iter().enumerate() {
                    let mine: Vec<_> = items.iter().filter(|item| item.row as usize == row).collect();
                    assert_eq!((mine[0].begin, mine[mine.len() - 1].end), (0, length));
                    assert!(mine.windows(2).all(|pair| pair[0].end == pair[1].begin && pair[0].begin < pair[0].end));
                    assert!(mine.iter().all(|item| item.begin % BLOCK_SIZE == 0 && item.table == starts[row]));
                    let merge = merges.iter().find(|merge| merge.row as usize == row);
                    if mine.len() == 1 {
                        assert!(merge.is_none() && mine[0].partial == NO_PARTIAL);
                        continue;
                    }
                    let merge = merge.expect("a cut sequence is merged");
                    assert_eq!((merge.first, merge.count), (partials, mine.len() as u32));
                    assert!((partials..).zip(&mine).all(|(partial, item)| item.partial == partial));
                    partials += merge.count;
                }
            }
        }
    }

    #[test]
    fn a_lone_long_sequence_fills_the_device_in_even_rounds_and_no_piece_is_tiny() {
        for (length, expected) in [(131_072, 3 * 33), (65_536, 33), (32_768, 33), (4096, 32), (112, 1)] {
            let (items, merges) = decode_items(&[length], &[0], 8, 132);
            assert_eq!((items.len(), merges.len()), (expected, usize::from(expected > 1)), "{length}");
            let lengths = items.iter().map(|item| item.end - item.begin);
            assert!(lengths.clone().max().unwrap() - lengths.clone().min().unwrap() <= BLOCK_SIZE);
            assert!(lengths.min().unwrap() >= length.min(128));
        }
    }

    #[test]
    fn a_long_sequence_among_short_ones_is_cut_and_they_are_not() {
        let mut lengths = vec![160; 256];
        lengths.push(131_072);
        let (items, merges) = decode_items(&lengths, &vec![0; 257], 8, 132);
        assert_eq!(merges.len(), 1);
        assert!(items.iter().all(|item| item.end - item.begin <= 2 * 82 * BLOCK_SIZE));
    }

    fn chunk(tokens: u32, context: u32) -> PrefillChunk {
        PrefillChunk { row: 0, tokens, context, table: 7 }
    }

    /// Chunks of all shapes, one below the other in a step.
    fn steps() -> Vec<Vec<PrefillChunk>> {
        let shapes: [&[(u32, u32)]; 8] = [
            &[],
            &[(1, 0)],
            &[(16, 24_000)],
            &[(50, 4000), (33, 24_001), (2, 1)],
            &[(4096, 0), (17, 9000)],
            &[(2048, 24_000)],
            &[(128, 131_072); 3],
            &[(700, 64), (1, 63), (64, 0), (0, 100)],
        ];
        let stacked = |step: &[(u32, u32)]| {
            let mut row = 10;
            let place = |&(tokens, context): &(u32, u32)| {
                row += tokens;
                PrefillChunk { row: row - tokens, tokens, context, table: 1000 * row }
            };
            step.iter().map(place).collect()
        };
        shapes.into_iter().map(stacked).collect()
    }

    /// Pieces of one tile of queries: they cover what it attends to once, and each of its tokens is merged from them.
    fn validate_tile(pieces: &[&PrefillItem], merges: &[MergeItem]) {
        let whole = pieces[0];
        assert_eq!((whole.begin, pieces[pieces.len() - 1].end), (0, whole.context + whole.tokens));
        assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].begin && pair[0].begin < pair[0].end));
        assert!(pieces.iter().all(|item| item.begin % PREFILL_TILE == 0 && item.tokens == whole.tokens));
        if pieces.len() == 1 {
            assert!(whole.partial == NO_PARTIAL && merges.is_empty());
            return;
        }
        assert!(pieces.iter().all(|item| item.end - item.begin > 3 * PREFILL_TILE));
        assert_eq!(merges.len(), whole.tokens as usize);
        for (token, merge) in (0..).zip(merges) {
            assert_eq!((merge.row, merge.count), (whole.row + token, pieces.len() as u32));
            let rows: Vec<u32> = pieces.iter().map(|item| item.partial + token * item.stride).collect();
            assert_eq!(rows, (merge.first..merge.first + merge.count).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn items_cover_each_chunk_once_and_partials_do_not_collide() {
        for chunks in steps() {
            for (kv_heads, group, multiprocessors) in [(8, 4, 132), (1, 1, 132), (4, 7, 7), (2, 64, 33), (300, 1, 132)]
            {
                let first = 1234;
                let (items, mut merges) = prefill_items(&chunks, kv_heads, group, multiprocessors, first);
                assert!(items.is_sorted_by_key(|item| u32::MAX - (item.end - item.begin)));
                merges.sort_by_key(|merge| merge.first);
                let mut partials = first;
                for merge in &merges {
                    assert_eq!(merge.first, partials);
                    partials += merge.count;
                }
                for chunk in &chunks {
                    let tile = prefill_tile_tokens(group);
                    for start in (0..chunk.tokens).step_by(tile as usize) {
                        let rows = chunk.row + start..chunk.row + (start + tile).min(chunk.tokens);
                        let mut mine: Vec<&PrefillItem> = items.iter().filter(|item| item.row == rows.start).collect();
                        mine.sort_by_key(|item| item.begin);
                        assert_eq!((mine[0].context, mine[0].table), (chunk.context + start, chunk.table));
                        assert_eq!(mine[0].tokens, rows.end - rows.start);
                        let mut merges: Vec<MergeItem> = merges.clone();
                        merges.retain(|merge| rows.contains(&merge.row));
                        validate_tile(&mine, &merges);
                    }
                }
                let tokens: u32 = chunks.iter().map(|chunk| chunk.tokens.div_ceil(prefill_tile_tokens(group))).sum();
                let uncut = items.iter().filter(|item| item.partial == NO_PARTIAL).count();
                assert!((items.len() - uncut) as u32 * kv_heads <= 2 * multiprocessors && uncut as u32 <= tokens);
            }
        }
    }

    #[test]
    fn a_short_chunk_behind_a_long_prefix_fills_the_device_and_a_long_one_is_not_cut() {
        let items = |chunks: &[PrefillChunk]| prefill_items(chunks, 8, 4, 132, 0).0.len();
        assert_eq!(items(&[chunk(16, 24_000)]), 33);
        assert_eq!(items(&[chunk(50, 24_000)]), 32);
        assert_eq!(items(&[chunk(32, 4000)]), 15);
        // An item is 32 tokens.
        assert_eq!(items(&[chunk(4096, 0)]), 128);
        assert_eq!(items(&[chunk(2048, 24_000)]), 64);
        assert_eq!(items(&[chunk(16, 200)]), 1);
    }
}
