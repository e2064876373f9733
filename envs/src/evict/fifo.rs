//! First in, first out.

use super::places::Places;
use super::{BlockView, Evict};

/// The block whose content was computed first, however often it was used since.
///
/// While a request holds a block it keeps its place (`places.rs`) in the queue. A prefix is older than what continues it, so
/// that of a history it goes first, and what is left of the history cannot be hit: this is a yardstick, no policy for prefixes.
///
/// Source: L. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966.
#[derive(Debug, Clone)]
pub struct Fifo(Places);

impl Evict for Fifo {
    fn new(num_blocks: u32, _block_tokens: u32) -> Fifo {
        Fifo(Places::new(num_blocks))
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        if !self.0.give_back(block.block) {
            if self.0.is_known(block.block) {
                // Whatever was before it is gone.
                self.0.enter_first(block.block);
            } else {
                self.0.enter(block.block);
            }
        }
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.0.hold(block.block);
    }

    #[inline]
    fn used(&mut self, _block: BlockView) {}

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        let first = self.0.first()?;
        self.0.evict(first);
        Some(first)
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        self.0.iter()
    }

    fn is_sound(&self, block: u32) -> bool {
        self.0.is_linked(block)
    }
}

#[cfg(test)]
super::kit::tells! { Fifo:
    a_table_is_given_back [3, 2, 1],
    another_is [3, 2, 1, 6, 5, 4],
    a_lookup_hits_the_first_two [3, 2, 1, 6, 5, 4],
    a_request_takes_them [3, 6, 5, 4],
    it_goes_on_and_gives_them_back [3, 2, 1, 6, 5, 4, 7],
    three_are_evicted [6, 5, 4, 7],
    a_lookup_hits_what_is_left_of_the_second [6, 5, 4, 7],
    the_content_of_one_is_gone [6, 5, 4],
    all_are_evicted [],
}
