//! Least frequently used, with dynamic ageing.

use super::aged::Aged;
use super::{BlockView, Evict};

/// The block of the least sum of its uses and of the cache's age at the last of them; the age is the sum at which the last
/// victim went. Of equal ones the one used least recently. So yesterday's favourites are overtaken by what is asked for
/// today, which plain [`Lfu`](super::Lfu) never lets happen.
///
/// A prefix is used as often as what continues it and not earlier, so it never goes first.
///
/// Source: M. Arlitt, L. Cherkasova, J. Dilley, R. Friedrich, T. Jin, "Evaluating content management techniques for web proxy
/// caches", ACM SIGMETRICS Performance Evaluation Review 27(4), 2000.
#[derive(Debug, Clone)]
pub struct LfuDa(Aged);

impl Evict for LfuDa {
    fn new(num_blocks: u32, _block_tokens: u32) -> LfuDa {
        LfuDa(Aged::new(num_blocks))
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        self.0.idle(block.block, 1, 0);
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.0.taken(block.block);
    }

    #[inline]
    fn used(&mut self, block: BlockView) {
        self.0.used(block.block, 1, 0);
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        self.0.victim()
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        self.0.order()
    }

    fn is_sound(&self, block: u32) -> bool {
        self.0.is_sound(block)
    }
}

#[cfg(test)]
super::kit::tells! { LfuDa:
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
