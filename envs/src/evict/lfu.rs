//! Least frequently used.

use super::queues::Queues;
use super::{BlockView, Evict};

/// Uses above so many are not told apart.
const MAX_USES: usize = 64 * 64 - 1;

/// The block used least often since it is cached, and of several the one used least recently. Counts do not age: what was
/// asked for often stays until others were asked for as often; [`LfuDa`](super::LfuDa) ages.
///
/// A use is a giving back. Whoever uses what continues a prefix uses the prefix, so a prefix has as many uses at least and is
/// the more recent: it never goes first.
///
/// Source: counts in the cache alone, as in A. Silberschatz, P. Galvin, "Operating system concepts"; queues by count, after
/// K. Shah, A. Mitra, D. Matani, "An O(1) algorithm for implementing the LFU cache eviction scheme", 2010.
#[derive(Debug, Clone)]
pub struct Lfu {
    /// One for each number of uses.
    queues: Queues,
    /// Per block; 0 for one whose content is new.
    uses: Vec<u16>,
    /// Which queues have any block: a bit each, and of each word of these whether it is not 0.
    any: Vec<u64>,
    any_word: u64,
}

impl Lfu {
    #[inline]
    fn enter(&mut self, block: u32) {
        let uses = &mut self.uses[block as usize];
        *uses = (*uses + 1).min(MAX_USES as u16);
        let queue = usize::from(*uses);
        self.queues.push(queue as u32, block);
        self.any[queue / 64] |= 1 << (queue % 64);
        self.any_word |= 1 << (queue / 64);
    }

    #[inline]
    fn leave(&mut self, block: u32) {
        self.queues.remove(block);
        let queue = usize::from(self.uses[block as usize]);
        if self.queues.head(queue as u32).is_none() {
            self.any[queue / 64] &= !(1 << (queue % 64));
            self.any_word &= !(u64::from(self.any[queue / 64] == 0) << (queue / 64));
        }
    }

    /// The least number of uses that any idle block has.
    #[inline]
    fn least(&self) -> Option<u32> {
        let word = self.any_word.trailing_zeros();
        (self.any_word != 0).then(|| word * 64 + self.any[word as usize].trailing_zeros())
    }
}

impl Evict for Lfu {
    fn new(num_blocks: u32, _block_tokens: u32) -> Lfu {
        Lfu {
            queues: Queues::new(MAX_USES as u32 + 1, num_blocks),
            uses: vec![0; num_blocks as usize],
            any: vec![0; 64],
            any_word: 0,
        }
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        self.enter(block.block);
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.leave(block.block);
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        let block = self.queues.head(self.least()?)?;
        self.leave(block);
        self.uses[block as usize] = 0;
        Some(block)
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        (0..=MAX_USES as u32).flat_map(|queue| self.queues.iter(queue))
    }

    fn is_sound(&self, block: u32) -> bool {
        self.queues.is_linked(block)
    }
}

#[cfg(test)]
super::kit::tells! { Lfu:
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
