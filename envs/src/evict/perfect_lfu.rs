//! Least frequently used, with every use remembered.

use super::ranked::Ranked;
use super::{BlockView, Evict};

/// The block that was asked for least often, before it was evicted as well as since; of several the one used least recently.
/// It remembers every block there ever was, which no pool does, so it is for replays of references alone: what
/// [`Lfu`](super::Lfu) loses by forgetting.
///
/// Source: L. Breslau, P. Cao, L. Fan, G. Phillips, S. Shenker, "Web caching and Zipf-like distributions: evidence and
/// implications", INFOCOM 1999, which calls it Perfect-LFU.
#[derive(Debug, Clone)]
pub struct PerfectLfu(Ranked);

impl Evict for PerfectLfu {
    fn new(num_blocks: u32, _block_tokens: u32) -> PerfectLfu {
        PerfectLfu(Ranked::new(num_blocks))
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        self.0.insert(block.block, block.past_uses.into());
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.0.remove(block.block);
    }

    #[inline]
    fn used(&mut self, block: BlockView) {
        self.0.update(block.block, block.past_uses.into());
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        self.0.pop().map(|(block, _)| block)
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        self.0.iter()
    }

    fn is_sound(&self, block: u32) -> bool {
        self.0.is_placed(block)
    }
}

#[cfg(test)]
super::kit::tells! { PerfectLfu:
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
