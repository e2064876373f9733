//! Segmented LRU.

use super::queues::Queues;
use super::{BlockView, Evict};

/// Of the capacity, for those that were used again: four fifths, as is common; the source leaves it open.
const PROTECTED: f64 = 0.8;

const PROBATION: u32 = 0;
const PROTECTION: u32 = 1;

/// Of the blocks that were used once the least recent, and only then of those used again. What overflows the protected
/// segment goes back among the others, as the most recent of them.
///
/// A use is a giving back. A block's segment outlasts its being held; it does not count for the segment's size meanwhile.
///
/// Source: R. Karedla, J. Love, B. Wherry, "Caching strategies to improve disk system performance", IEEE Computer 27(3), 1994.
#[derive(Debug, Clone)]
pub struct Slru {
    segments: Segments,
}

/// Two queues, of those that were used once and again, and which block is of which.
#[derive(Debug, Clone)]
pub(super) struct Segments {
    queues: Queues,
    kinds: Vec<Kind>,
    protected: u32,
    most_protected: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    New,
    OnProbation,
    Protected,
}

impl Segments {
    /// Empty segments for at most `capacity` blocks.
    pub(super) fn new(num_blocks: u32, capacity: u32) -> Segments {
        Segments {
            queues: Queues::new(2, num_blocks),
            kinds: vec![Kind::New; num_blocks as usize],
            protected: 0,
            most_protected: (f64::from(capacity) * PROTECTED) as u32,
        }
    }

    /// A block enters: on probation, or protected if it was in either segment before.
    #[inline]
    pub(super) fn idle(&mut self, block: u32) {
        let kind = &mut self.kinds[block as usize];
        if *kind == Kind::New {
            *kind = Kind::OnProbation;
            self.queues.push(PROBATION, block);
            return;
        }
        *kind = Kind::Protected;
        self.queues.push(PROTECTION, block);
        self.protected += 1;
        if self.protected > self.most_protected
            && let Some(demoted) = self.queues.pop(PROTECTION)
        {
            self.protected -= 1;
            self.kinds[demoted as usize] = Kind::OnProbation;
            self.queues.push(PROBATION, demoted);
        }
    }

    #[inline]
    pub(super) fn taken(&mut self, block: u32) {
        self.protected -= u32::from(self.kinds[block as usize] == Kind::Protected);
        self.queues.remove(block);
    }

    /// The block that goes next.
    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        self.queues.head(PROBATION).or_else(|| self.queues.head(PROTECTION))
    }

    #[inline]
    pub(super) fn evict(&mut self, block: u32) {
        self.taken(block);
        self.kinds[block as usize] = Kind::New;
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        self.queues.iter(PROBATION).chain(self.queues.iter(PROTECTION))
    }

    pub(super) fn is_linked(&self, block: u32) -> bool {
        self.queues.is_linked(block)
    }
}

impl Evict for Slru {
    fn new(num_blocks: u32, _block_tokens: u32) -> Slru {
        Slru { segments: Segments::new(num_blocks, num_blocks.saturating_sub(1)) }
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        self.segments.idle(block.block);
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.segments.taken(block.block);
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        let first = self.segments.first()?;
        self.segments.evict(first);
        Some(first)
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        self.segments.iter()
    }

    fn is_sound(&self, block: u32) -> bool {
        self.segments.is_linked(block)
    }
}

#[cfg(test)]
super::kit::tells! { Slru:
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
