//! SIEVE.

use super::places::Places;
use super::{BlockView, Evict};

/// The block at the hand, which goes from the oldest to the newest and round again, takes the marks of those that were used and
/// evicts the first that was not. Nothing ever moves: what survives stays among the old, what is new is soon looked at.
///
/// While a request holds a block it keeps its place (`places.rs`), and being given back marks it. A held one that the hand
/// comes to is given back as the newest, marked.
///
/// Source: Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. Rashmi, "SIEVE is simpler than LRU", NSDI 2024.
#[derive(Debug, Clone)]
pub struct Sieve {
    places: Places,
    /// Where the hand goes on; at the oldest if `None`.
    hand: Option<u32>,
    num_idle: u32,
}

impl Evict for Sieve {
    fn new(num_blocks: u32, _block_tokens: u32) -> Sieve {
        Sieve { places: Places::new(num_blocks), hand: None, num_idle: 0 }
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        self.num_idle += 1;
        if self.places.is_known(block.block) {
            self.places.mark(block.block);
        }
        if !self.places.give_back(block.block) {
            self.places.enter(block.block);
        }
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.num_idle -= 1;
        self.places.hold(block.block);
    }

    #[inline]
    fn used(&mut self, block: BlockView) {
        self.places.mark(block.block);
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        self.num_idle = self.num_idle.checked_sub(1)?;
        let mut at = self.hand.and_then(|hand| self.places.from(hand));
        loop {
            // One at least is idle.
            let block = at.or_else(|| self.places.first())?;
            let next = self.places.after(block);
            if !self.places.unmark(block) {
                self.hand = next;
                self.places.evict(block);
                return Some(block);
            }
            at = next;
        }
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        super::drained(self)
    }

    fn is_sound(&self, block: u32) -> bool {
        self.places.is_linked(block)
    }
}

#[cfg(test)]
super::kit::tells! { Sieve:
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
