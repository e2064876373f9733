//! CLOCK, second chance.

use super::places::Places;
use super::{BlockView, Evict};

/// The block that came first to the head without having been used since it was last there: a used one loses its mark and
/// goes to the tail.
///
/// While a request holds a block it keeps its place (`places.rs`) in the queue, and being given back marks it. A held one that
/// the hand comes to is given back to the tail, marked.
///
/// Source: F. Corbató, "A paging experiment with the Multics system", MIT Project MAC report M-384, 1968; one bit.
#[derive(Debug, Clone)]
pub struct Clock(Places);

impl Evict for Clock {
    fn new(num_blocks: u32, _block_tokens: u32) -> Clock {
        Clock(Places::new(num_blocks))
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        if self.0.is_known(block.block) {
            self.0.mark(block.block);
        }
        if !self.0.give_back(block.block) {
            self.0.enter(block.block);
        }
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.0.hold(block.block);
    }

    #[inline]
    fn used(&mut self, block: BlockView) {
        self.0.mark(block.block);
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        loop {
            let first = self.0.first()?;
            if !self.0.unmark(first) {
                self.0.evict(first);
                return Some(first);
            }
            self.0.requeue(first);
        }
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        super::drained(self)
    }

    fn is_sound(&self, block: u32) -> bool {
        self.0.is_linked(block)
    }
}

#[cfg(test)]
super::kit::tells! { Clock:
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
