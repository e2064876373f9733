//! Attention as items of work: what one CTA takes, and how many of them fill the device evenly.

use std::cmp::Reverse;

use super::Geometry;

/// Tokens of a block, as the attention kernels have it.
pub const BLOCK_SIZE: u32 = 16;
/// [`DecodeItem::partial`] of an item that is all of its sequence.
pub const NO_PARTIAL: u32 = u32::MAX;

/// Query heads that one CTA of `kvtide_paged_decode_*` serves.
const DECODE_HEADS: u32 = 8;
/// CTAs of `kvtide_paged_decode_*` that a multiprocessor holds at once: their shared memory allows two.
const DECODE_RESIDENT: u32 = 2;
/// Rounds of items that a batch is cut into where it is large enough: the last round, in which multiprocessors run
/// empty, is then a small part of all.
const DECODE_ROUNDS: u64 = 4;
/// Blocks below which cutting a sequence gains nothing: two for each warp of a CTA.
const DECODE_FEWEST_BLOCKS: u64 = 8;
/// Stages of `kvtide_paged_decode_*`, bytes, for either `head_dim`.
const DECODE_SHARED_BYTES: u32 = 98_304;
/// Rows of queries that one CTA of `kvtide_paged_prefill_*` holds.
const PREFILL_ROWS: u32 = 128;
/// What `x` of a grid may be at most.
const MAX_ITEMS: usize = 0x7FFF_FFFF;

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

/// Partial results of one sequence for `kvtide_paged_merge_*`, as the kernel reads them.
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

/// Part of a chunk of a prompt for `kvtide_paged_prefill_*`, as the kernel reads it.
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
}

impl PrefillItem {
    /// The fields in the order in which the kernel reads them.
    pub const fn words(&self) -> [u32; 4] {
        [self.row, self.tokens, self.context, self.table]
    }
}

/// Items of one decode step: sequence `i` is query row `i`, has `lengths[i]` tokens in the cache, and its block table at
/// `table_starts[i]`. Long sequences are cut into pieces whose results the merge items put together.
///
/// Partial results are as many as the sum of the merge items' counts. Items are sorted, longest first, so that the device
/// ends evenly.
pub fn decode_items(
    lengths: &[u32],
    table_starts: &[u32],
    kv_heads: u32,
    multiprocessors: u32,
) -> (Vec<DecodeItem>, Vec<MergeItem>) {
    assert_eq!(lengths.len(), table_starts.len(), "a block table for each sequence");
    let most = piece_blocks(lengths, kv_heads, multiprocessors);
    let (mut items, mut merges, mut partials) = (Vec::new(), Vec::new(), 0);
    for (row, (&length, &table)) in (0_u32..).zip(lengths.iter().zip(table_starts)) {
        let blocks = u64::from(length.div_ceil(BLOCK_SIZE));
        let pieces = blocks.div_ceil(most).max(1);
        if pieces == 1 {
            items.push(DecodeItem { row, table, begin: 0, end: length, partial: NO_PARTIAL });
            continue;
        }
        // Pieces differ by a block at most.
        let start = |piece: u64| (blocks * piece / pieces) as u32 * BLOCK_SIZE;
        for piece in 0..pieces {
            let (begin, end) = (start(piece), start(piece + 1).min(length));
            items.push(DecodeItem { row, table, begin, end, partial: partials + piece as u32 });
        }
        merges.push(MergeItem { row, first: partials, count: pieces as u32 });
        partials += pieces as u32;
    }
    items.sort_by_key(|item| Reverse(item.end - item.begin));
    (items, merges)
}

/// Blocks that a piece has at most.
fn piece_blocks(lengths: &[u32], kv_heads: u32, multiprocessors: u32) -> u64 {
    let blocks: u64 = lengths.iter().map(|length| u64::from(length.div_ceil(BLOCK_SIZE))).sum();
    let places = u64::from(DECODE_RESIDENT * multiprocessors.max(1));
    let wanted = (DECODE_ROUNDS * places).div_ceil(u64::from(kv_heads.max(1)));
    blocks.div_ceil(wanted).max(DECODE_FEWEST_BLOCKS)
}

/// Most tokens of an item of `kvtide_paged_prefill_*` for a group of query heads.
pub fn prefill_tile_tokens(group: u32) -> u32 {
    assert!((1..=PREFILL_ROWS).contains(&group), "1 to {PREFILL_ROWS} query heads a KV head, not {group}");
    PREFILL_ROWS / group
}

/// Items of a chunk: query rows `row..row + tokens` are the tokens at positions `context..context + tokens` of the
/// sequence whose block table starts at `table`.
///
/// The last tokens come first: they attend to the most, so the device ends evenly.
pub fn prefill_items(row: u32, tokens: u32, context: u32, table: u32, group: u32) -> Vec<PrefillItem> {
    let tile = prefill_tile_tokens(group);
    let item = |start: u32| PrefillItem {
        row: row + start,
        tokens: tile.min(tokens - start),
        context: context + start,
        table,
    };
    (0..tokens.div_ceil(tile)).rev().map(|i| item(i * tile)).collect()
}

fn attention(items: usize, y: u32, z: u32, threads: u32, shared_bytes: u32) -> Geometry {
    assert!(items <= MAX_ITEMS, "{items} items are more than a grid has");
    assert!(y <= super::MAX_GRID_Y && z <= super::MAX_GRID_Y, "{y} x {z} heads are more than a grid has");
    Geometry { grid: (items.max(1) as u32, y, z), block: (threads, 1, 1), shared_bytes }
}

/// `kvtide_paged_decode_*`. There must be an item: an empty step is not launched.
pub fn paged_decode(items: usize, kv_heads: u32, group: u32) -> Geometry {
    attention(items, kv_heads, group.div_ceil(DECODE_HEADS), 128, DECODE_SHARED_BYTES)
}

/// `kvtide_paged_merge_*` over `heads` query heads. There must be an item: where no sequence was cut, nothing is launched.
pub fn paged_merge(items: usize, heads: u32, head_dim: u32) -> Geometry {
    attention(items, heads, 1, super::threads_for(head_dim), 0)
}

/// `kvtide_paged_prefill_*`: 128 rows of queries, and two stages of 64 tokens' keys and values. There must be an item.
pub fn paged_prefill(items: usize, kv_heads: u32, head_dim: u32) -> Geometry {
    attention(items, kv_heads, 1, 128, 768 * head_dim)
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_SIZE, NO_PARTIAL, decode_items, prefill_items, prefill_tile_tokens};

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
    fn a_lone_long_sequence_fills_the_device_and_no_piece_is_tiny() {
        let (items, _) = decode_items(&[131_072], &[0], 8, 132);
        let ctas = items.len() * 8;
        assert!((1000..=4 * 264).contains(&ctas), "{ctas}");
        let (items, merges) = decode_items(&[4096], &[0], 8, 132);
        assert_eq!((items.len(), merges.len()), (32, 1));
        assert!(items.iter().all(|item| item.end - item.begin == 128));
    }

    #[test]
    fn a_chunk_is_cut_into_tiles_whose_last_tokens_come_first() {
        for group in [1, 3, 4, 8, 64] {
            let tile = prefill_tile_tokens(group);
            for tokens in [0, 1, tile, tile + 1, 5 * tile - 1] {
                let mut items = prefill_items(10, tokens, 100, 7, group);
                assert!(items.is_sorted_by(|a, b| a.context > b.context));
                items.reverse();
                let mut next = 0;
                for item in items {
                    assert_eq!((item.row, item.context, item.table), (10 + next, 100 + next, 7));
                    assert!((1..=tile).contains(&item.tokens));
                    next += item.tokens;
                }
                assert_eq!(next, tokens);
            }
        }
    }
}
