//! T-LRU, tail-optimised LRU.

use super::queues::Queues;
use super::{BlockView, Evict};

/// Tokens of a history that its next turn can do without: a first token comes in time with 4,096 tokens to compute, of which
/// the turn's own prompt is given half.
const SPARE_TOKENS: u32 = 2048;

const SPARE: u32 = 0;
const NEEDED: u32 = 1;

/// Of the blocks that no history needs for its next turn's latency target the least recent, and only then of the others. With
/// a history of `L` tokens, a next prompt of `Q` and a target that is met while at most `X` tokens are uncached, the next
/// turn needs the first `L + Q - X` tokens: a history of less is not worth keeping, of a longer one the tail is spare, and
/// what is kept is kept for those who would wait longest. Here `X - Q` is 2,048 tokens, whatever the history.
///
/// What one history needs stays needed while it is cached, also after a shorter one that shares it. The source counts a
/// conversation's tokens; here a history is the path that a block is given back with.
///
/// Source: W. Zhang, Y. Li, C. Moallemi, T. Peng, "Tail-optimized caching for LLM inference", Advances in
/// Neural Information Processing Systems, 2025.
#[derive(Debug, Clone)]
pub struct TailLru {
    queues: Queues,
    is_needed: Vec<bool>,
    spare: u32,
}

impl Evict for TailLru {
    fn new(num_blocks: u32, block_tokens: u32) -> TailLru {
        TailLru {
            queues: Queues::new(2, num_blocks),
            is_needed: vec![false; num_blocks as usize],
            spare: SPARE_TOKENS / block_tokens.max(1),
        }
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        let is_needed = &mut self.is_needed[block.block as usize];
        *is_needed |= block.length - block.position > self.spare;
        self.queues.push(if *is_needed { NEEDED } else { SPARE }, block.block);
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.queues.remove(block.block);
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        let block = self.queues.pop(SPARE).or_else(|| self.queues.pop(NEEDED))?;
        self.is_needed[block as usize] = false;
        Some(block)
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        self.queues.iter(SPARE).chain(self.queues.iter(NEEDED))
    }

    fn is_sound(&self, block: u32) -> bool {
        self.queues.is_linked(block)
    }
}

#[cfg(test)]
super::kit::tells! { TailLru:
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
