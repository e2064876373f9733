//! GreedyDual-Size-Frequency, with what it costs to compute a block again.

use super::aged::Aged;
use super::{BlockView, Evict};

/// Tokens of context that a token's attention costs as much over as everything else does that is computed for it: of
/// Llama 3 8B, 2 x 8e9 operations against 4 x 4096 x 32 a token of context.
const EVEN_TOKENS: u64 = 1 << 15;

/// The block of the least sum of its uses times what it costs to compute again and of the cache's age, as
/// [`LfuDa`](super::LfuDa) has it. All blocks are of one size; their cost grows with the tokens before them, which attention
/// reads.
///
/// The later blocks of a history cost more, so that by the formula alone a prefix would go before what continues it, which is
/// then worth nothing. Hence of a path a block ranks no lower than the one behind it: who loses it loses that as well.
///
/// Source: L. Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy", HP Labs
/// HPL-98-69R1, 1998.
#[derive(Debug, Clone)]
pub struct Gdsf {
    aged: Aged,
    block_tokens: u64,
    /// Position and rank of the block told last.
    last: (u32, u64),
}

impl Gdsf {
    /// What a use of the block is worth, and the least rank that its path allows.
    #[inline]
    fn worth(&self, block: &BlockView) -> (u64, u64) {
        let cost = EVEN_TOKENS + u64::from(block.position) * self.block_tokens;
        let continues = self.last.0 == block.position.wrapping_add(1);
        (cost, if continues { self.last.1 } else { 0 })
    }
}

impl Evict for Gdsf {
    fn new(num_blocks: u32, block_tokens: u32) -> Gdsf {
        Gdsf { aged: Aged::new(num_blocks), block_tokens: block_tokens.into(), last: (0, 0) }
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        let (cost, least) = self.worth(&block);
        self.last = (block.position, self.aged.idle(block.block, cost, least));
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.aged.taken(block.block);
    }

    #[inline]
    fn used(&mut self, block: BlockView) {
        let (cost, least) = self.worth(&block);
        self.last = (block.position, self.aged.used(block.block, cost, least));
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        self.aged.victim()
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        self.aged.order()
    }

    fn is_sound(&self, block: u32) -> bool {
        self.aged.is_sound(block)
    }
}

#[cfg(test)]
super::kit::tells! { Gdsf:
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
