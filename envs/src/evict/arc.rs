//! ARC, the adaptive replacement cache.

use super::ghosts::Ghosts;
use super::queues::Queues;
use super::{BlockView, Evict};

const ONCE: u32 = 0;
const AGAIN: u32 = 1;

/// Two LRU queues, of blocks used once and of blocks used again, and behind each the ghosts of what was evicted from it. How much
/// room the first is given is learned: a ghost of it that is asked for says more, one of the second says less.
///
/// A use is a giving back. A block that a request holds is in no queue and counts for that which it was in. The source asks for a
/// victim when it knows what comes; here a block is evicted before what takes its place is told, so that a ghost's lesson counts
/// from the next victim on, and the source's rule for a tie is not needed.
///
/// Source: N. Megiddo, D. Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003.
#[derive(Debug, Clone)]
pub struct Arc {
    queues: Queues,
    blocks: Vec<Record>,
    /// Ghosts of each queue.
    ghosts: Box<Ghosts>,
    /// Blocks of each queue, held ones included.
    lengths: [usize; 2],
    /// How many of the first queue are spared.
    target: usize,
    capacity: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Record {
    key: u64,
    is_known: bool,
    is_again: bool,
}

impl Arc {
    /// Which queue new content enters, and what its being a ghost teaches.
    #[inline]
    fn learn(&mut self, key: u64) -> bool {
        let lengths = [self.ghosts.len(0), self.ghosts.len(1)];
        let Some(list) = self.ghosts.recall(key) else { return false };
        let [once, again] = lengths;
        self.target = if list == 0 {
            self.capacity.min(self.target + (again / once).max(1))
        } else {
            self.target.saturating_sub((once / again).max(1))
        };
        true
    }

    /// The ghosts that are too many are forgotten: of the first queue and its ghosts there are as many as blocks at most, of
    /// all twice as many.
    #[inline]
    fn trim(&mut self) {
        while self.lengths[0] + self.ghosts.len(0) > self.capacity && self.ghosts.forget_oldest(0) {}
        while self.lengths[0] + self.lengths[1] + self.ghosts.len(0) + self.ghosts.len(1) > 2 * self.capacity
            && self.ghosts.forget_oldest(1)
        {}
    }
}

impl Evict for Arc {
    fn new(num_blocks: u32, _block_tokens: u32) -> Arc {
        let capacity = num_blocks.saturating_sub(1) as usize;
        Arc {
            queues: Queues::new(2, num_blocks),
            blocks: vec![Record::default(); num_blocks as usize],
            ghosts: Box::new(Ghosts::new(2 * capacity)),
            lengths: [0; 2],
            target: 0,
            capacity,
        }
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        let record = &mut self.blocks[block.block as usize];
        if record.is_known {
            if !std::mem::replace(&mut record.is_again, true) {
                self.lengths[0] -= 1;
                self.lengths[1] += 1;
            }
            self.queues.push(AGAIN, block.block);
            return;
        }
        let is_again = self.learn(block.key);
        self.blocks[block.block as usize] = Record { key: block.key, is_known: true, is_again };
        self.lengths[usize::from(is_again)] += 1;
        self.queues.push(if is_again { AGAIN } else { ONCE }, block.block);
        self.trim();
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.queues.remove(block.block);
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        let (once, again) = (self.queues.head(ONCE), self.queues.head(AGAIN));
        let block = if self.lengths[0] > self.target { once.or(again) } else { again.or(once) }?;
        self.queues.remove(block);
        let Record { key, is_again, .. } = std::mem::take(&mut self.blocks[block as usize]);
        self.lengths[usize::from(is_again)] -= 1;
        self.ghosts.remember(is_again.into(), key);
        Some(block)
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        super::drained(self)
    }

    fn is_sound(&self, block: u32) -> bool {
        self.queues.is_linked(block)
    }
}

#[cfg(test)]
super::kit::tells! { Arc weighs:
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
