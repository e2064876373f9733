//! vLLM's free queue.

use super::order::Order;
use super::{BlockView, Evict};

/// The block that became idle first. Being looked up is not being used: a prefix found for a request that is then refused
/// does not move. Blocks that repeat a cached key keep their own entries.
///
/// Source: vLLM 0.33.0, `vllm/v1/core/kv_cache_utils.py`, `FreeKVCacheBlockQueue`, as its decision logs show it (rules L,
/// C and R of `SEMANTICS.md` beside the logs).
#[derive(Debug, Clone)]
pub struct Lru(Order);

impl Evict for Lru {
    fn new(num_blocks: u32, _block_tokens: u32) -> Lru {
        Lru(Order::new(num_blocks))
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        self.0.push(block.block);
    }

    #[inline]
    fn idle_path(&mut self, path: impl Iterator<Item = BlockView>) {
        self.0.extend(path.map(|block| block.block));
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.0.remove(block.block);
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        self.0.pop()
    }

    #[inline]
    fn victims(&mut self, count: u32, some: impl FnMut(&[u32])) {
        self.0.pop_many(count, some);
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        self.0.iter()
    }

    fn is_sound(&self, block: u32) -> bool {
        self.0.is_placed(block)
    }
}

#[cfg(test)]
super::kit::tells! { Lru:
    a_table_is_given_back [3, 2, 1],
    another_is [3, 2, 1, 6, 5, 4],
    a_lookup_hits_the_first_two [3, 2, 1, 6, 5, 4],
    a_request_takes_them [3, 6, 5, 4],
    it_goes_on_and_gives_them_back [3, 6, 5, 4, 7, 2, 1],
    three_are_evicted [4, 7, 2, 1],
    a_lookup_hits_what_is_left_of_the_second [4, 7, 2, 1],
    the_content_of_one_is_gone [4, 2, 1],
    all_are_evicted [],
}
