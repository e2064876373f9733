//! How to launch each kernel: grid, block and shared memory from the sizes of the work.

mod attention;

pub use attention::{
    BLOCK_SIZE, DecodeItem, MergeItem, NO_PARTIAL, PrefillChunk, PrefillItem, decode_items, paged_decode, paged_merge,
    paged_prefill, prefill_items, prefill_tile_tokens,
};

/// Threads of a CTA where a kernel has no reason for another number.
const THREADS: u32 = 256;
/// What `y` and `z` of a grid may be at most; a kernel with more rows strides over them.
const MAX_GRID_Y: u32 = 65_535;

/// A launch configuration, as `cuLaunchKernel` takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// CTAs in x, y, z.
    pub grid: (u32, u32, u32),
    /// Threads of a CTA in x, y, z.
    pub block: (u32, u32, u32),
    /// Dynamic shared memory of a CTA, bytes. Above 48 KiB the launcher has to raise the function's limit first
    /// (`CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`).
    pub shared_bytes: u32,
}

impl Geometry {
    /// A grid of CTAs of `threads` threads without dynamic shared memory; empty work still has one CTA.
    fn plain(x: u32, y: u32, threads: u32) -> Self {
        Self { grid: (x.max(1), y.clamp(1, MAX_GRID_Y), 1), block: (threads, 1, 1), shared_bytes: 0 }
    }
}

/// Vectors that one CTA of `kvtide_block_copy` moves in one step: 256 threads, four each.
const COPY_CHUNK: u64 = 4 * THREADS as u64;

/// `kvtide_block_copy` between pools in device memory: enough CTAs for the device's bandwidth.
pub fn block_copy(pair_count: u32, vectors_per_block: u64, multiprocessors: u32) -> Geometry {
    block_copy_with(pair_count, vectors_per_block, 8 * multiprocessors)
}

/// `kvtide_block_copy` with a pool in pinned host memory on at most `ctas` CTAs: 16 keep 256 KiB in flight, which fills
/// a `PCIe` link and leaves the device to the model.
pub fn block_copy_with(pair_count: u32, vectors_per_block: u64, ctas: u32) -> Geometry {
    let chunks = vectors_per_block.div_ceil(COPY_CHUNK) * u64::from(pair_count);
    Geometry::plain(chunks.min(u64::from(ctas)) as u32, 1, THREADS)
}

/// `kvtide_block_checksum`: a CTA takes 8 vectors a thread in a step and several steps of one block, so that its start
/// and its reduction cost little; few blocks are cut finer to fill the device.
pub fn block_checksum(count: u32, vectors_per_block: u32, multiprocessors: u32) -> Geometry {
    let steps = vectors_per_block.div_ceil(8 * THREADS).max(1);
    // Four CTAs of 256 threads fill a multiprocessor; eight rounds of them even out.
    let wanted = (32 * multiprocessors).div_ceil(count.max(1));
    Geometry::plain(wanted.clamp(steps.div_ceil(16), steps), count, THREADS)
}

/// `kvtide_kv_fill`: a row of CTAs a token.
pub fn kv_fill(tokens: u32, planes: u32, words_per_row: u32) -> Geometry {
    let steps = u64::from(planes) * u64::from(words_per_row).div_ceil(4);
    // Four vectors a thread.
    Geometry::plain(steps.div_ceil(4 * u64::from(THREADS)) as u32, tokens, THREADS)
}

/// `kvtide_kv_scatter`: a CTA a token.
pub fn kv_scatter(tokens: u32, kv_heads: u32, head_dim: u32) -> Geometry {
    Geometry::plain(tokens, 1, threads_for(2 * kv_heads * head_dim / 8))
}

/// `kvtide_rms_norm_*`: a CTA a token; up to 512 threads of 8 elements.
pub fn rms_norm(tokens: u32, width: u32) -> Geometry {
    Geometry::plain(tokens, 1, (width / 8).next_multiple_of(32).clamp(32, 512))
}

/// `kvtide_silu_mul_*`: a row of CTAs a token, 8 elements a thread.
pub fn silu_mul(tokens: u32, width: u32) -> Geometry {
    Geometry::plain((width / 8).div_ceil(THREADS), tokens, THREADS)
}

/// `kvtide_rope_*`: a CTA a token.
pub fn rope(tokens: u32, heads: u32, head_dim: u32) -> Geometry {
    Geometry::plain(tokens, 1, threads_for(heads * head_dim / 2))
}

/// `kvtide_embed`: a CTA a token.
pub fn embed(tokens: u32, width: u32) -> Geometry {
    Geometry::plain(tokens, 1, threads_for(width / 8))
}

/// `kvtide_argmax_*`: a CTA a row, up to 1024 threads of 8 elements.
pub fn argmax(rows: u32, width: u32) -> Geometry {
    Geometry::plain(rows, 1, (width / 8).next_multiple_of(32).clamp(32, 1024))
}

/// `kvtide_block_price`: four blocks a thread, and no more CTAs than run at once.
pub fn block_price(count: u32, multiprocessors: u32) -> Geometry {
    Geometry::plain(count.div_ceil(4 * THREADS).min(8 * multiprocessors), 1, THREADS)
}

/// Whole warps for `steps` steps of a row, at most [`THREADS`].
fn threads_for(steps: u32) -> u32 {
    steps.next_multiple_of(32).clamp(32, THREADS)
}
