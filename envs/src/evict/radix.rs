//! SGLang's radix tree.

use super::order::Order;
use super::{BlockView, Evict};

/// Of the idle blocks that no cached block continues, the one accessed least recently. An access is a lookup that hits the
/// block, whether or not its request is then admitted, a touch, or a giving back; one call accesses its whole path at one
/// moment of a logical clock. Two leaves never share a moment, so there are no ties.
///
/// Because tables are paths, no block is accessed earlier than what continues it, and the order of access is a queue, of
/// which the head is always a leaf. So this differs from [`Lru`](super::Lru) in two things only:
///
/// - a lookup moves the idle blocks that it hits to the tail, last block first, as giving back does (a scheduler that
///   remembers a lookup does not access the blocks again);
/// - the tree has one place for each key, so an idle block is the only one of its key: a repetition given back while
///   another block has its key, and an idle block whose key a held one registers, lose their entry and are free like
///   unregistered ones.
///
/// Source: `python/sglang/srt/mem_cache/radix_cache.py`, the `lru` strategy: `_match_prefix_helper` and `_insert_helper`
/// set `last_access_time` along the path, `evict` takes unlocked leaves from a heap. Not modelled: nodes of several pages,
/// which are evicted whole, maybe more than was asked for, and accessed whole by a match that ends within them; that a
/// block enters the tree only after its prefill chunk has run or its request has finished, when a repetition is freed at
/// once and the request goes on with the tree's copy (here it stays in use until its table is given back); that the newest
/// tokens of a retracted request are not kept; the allocator's order of free pages (here vLLM's); host memory and the other
/// strategies.
#[derive(Debug, Clone)]
pub struct Radix(Order);

impl Evict for Radix {
    const LOOKUP_IS_USE: bool = true;
    const KEEPS_REPEATS: bool = false;

    fn new(num_blocks: u32, _block_tokens: u32) -> Radix {
        Radix(Order::new(num_blocks))
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        self.0.push(block.block);
    }

    #[inline]
    fn accessed(&mut self, block: BlockView) {
        self.0.remove(block.block);
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
super::kit::tells! { Radix:
    a_table_is_given_back [3, 2, 1],
    another_is [3, 2, 1, 6, 5, 4],
    a_lookup_hits_the_first_two [3, 6, 5, 4, 2, 1],
    a_request_takes_them [3, 6, 5, 4],
    it_goes_on_and_gives_them_back [3, 6, 5, 4, 7, 2, 1],
    three_are_evicted [4, 7, 2, 1],
    a_lookup_hits_what_is_left_of_the_second [7, 2, 1, 4],
    the_content_of_one_is_gone [2, 1, 4],
    all_are_evicted [],
}
