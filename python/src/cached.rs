//! How many of vLLM's free blocks hold a cache entry.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Free blocks looked at for the first with an entry. A pool that has been full once has nearly none before it.
const WINDOW: u32 = 16;

/// Free blocks that hold a cache entry, of `free`. Those without one are in front of vLLM's free queue, so they are counted as
/// far as `WINDOW`. Beyond, the entries are counted that running requests hold: `held` are blocks by request id, of which so
/// many as `cached` says have an entry, and whatever else is cached is free. (That is exact unless several blocks hold the
/// same tokens, of which vLLM counts one.)
pub fn evictable_blocks(
    pool: &Bound<'_, PyAny>,
    free: u32,
    held: &Bound<'_, PyDict>,
    cached: &Bound<'_, PyDict>,
) -> PyResult<u32> {
    let py = pool.py();
    let entries = u32::try_from(pool.getattr(intern!(py, "cached_block_hash_to_block"))?.len()?).unwrap_or(u32::MAX);
    if entries == 0 {
        return Ok(0);
    }
    let queue = pool.getattr(intern!(py, "free_block_queue"))?;
    let end = queue.getattr(intern!(py, "fake_free_list_tail"))?;
    let (next, hash) = (intern!(py, "next_free_block"), intern!(py, "block_hash"));
    let mut block = queue.getattr(intern!(py, "fake_free_list_head"))?.getattr(next)?;
    let mut without = 0;
    while !block.is(&end) && !block.is_none() && block.getattr(hash)?.is_none() {
        without += 1;
        if without == WINDOW {
            let blocks: u32 = pool.getattr(intern!(py, "num_gpu_blocks"))?.extract()?;
            // Without the null block.
            let in_use = blocks.saturating_sub(1).saturating_sub(free);
            let entries_in_use = in_use.saturating_sub(blocks_without_entry(held, cached)?);
            return Ok(entries.saturating_sub(entries_in_use).min(free.saturating_sub(without)));
        }
        block = block.getattr(next)?;
    }
    Ok(free.saturating_sub(without))
}

/// Of requests' blocks, which nobody shares before they have an entry.
fn blocks_without_entry(held: &Bound<'_, PyDict>, cached: &Bound<'_, PyDict>) -> PyResult<u32> {
    let mut without = 0_usize;
    for (id, blocks) in held {
        let with = cached.get_item(id)?.map_or(Ok(0), |count| count.extract::<usize>())?;
        without += blocks.len()?.saturating_sub(with);
    }
    Ok(u32::try_from(without).unwrap_or(u32::MAX))
}
