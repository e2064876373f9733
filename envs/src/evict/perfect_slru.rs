//! Segmented LRU, with every use remembered.

use super::queues::Queues;
use super::{BlockView, Evict};

const ONCE: u32 = 0;
const AGAIN: u32 = 1;

/// Of the blocks that were asked for once in all the least recent, and only then of the others. It remembers every block there
/// ever was, which no pool does, so it is for replays of references alone: what [`Slru`](super::Slru) loses by forgetting. Its
/// protected segment may take all.
///
/// Source: [`Slru`](super::Slru)'s, with the history of [`PerfectLfu`](super::PerfectLfu).
#[derive(Debug, Clone)]
pub struct PerfectSlru(Queues);

impl Evict for PerfectSlru {
    fn new(num_blocks: u32, _block_tokens: u32) -> PerfectSlru {
        PerfectSlru(Queues::new(2, num_blocks))
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        self.0.push(if block.past_uses > 0 { AGAIN } else { ONCE }, block.block);
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.0.remove(block.block);
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        self.0.pop(ONCE).or_else(|| self.0.pop(AGAIN))
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        self.0.iter(ONCE).chain(self.0.iter(AGAIN))
    }

    fn is_sound(&self, block: u32) -> bool {
        self.0.is_linked(block)
    }
}

#[cfg(test)]
super::kit::tells! { PerfectSlru:
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
