//! Belady's oracle.

use super::ranked::{MAX_RANK, Ranked};
use super::{BlockView, Evict};

/// The block that is asked for again last; of several the one told first. It knows the future, which no pool does, so it is
/// for replays of references alone.
///
/// A path is told from its end, and who asks for a block asks for everything before it: so a prefix is never asked for later
/// than what continues it, and goes only when nothing cached continues it. For prefixes this is the oracle over a tree, and for
/// single objects it is MIN.
///
/// Source: L. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966;
/// R. Mattson, J. Gecsei, D. Slutz, I. Traiger, "Evaluation techniques for storage hierarchies", ibid. 9(2), 1970.
#[derive(Debug, Clone)]
pub struct Belady(Ranked);

fn rank(block: &BlockView) -> u64 {
    MAX_RANK - u64::from(block.next_use)
}

impl Evict for Belady {
    fn new(num_blocks: u32, _block_tokens: u32) -> Belady {
        Belady(Ranked::new(num_blocks))
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        self.0.insert(block.block, rank(&block));
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.0.remove(block.block);
    }

    #[inline]
    fn used(&mut self, block: BlockView) {
        self.0.update(block.block, rank(&block));
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
super::kit::tells! { Belady:
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
