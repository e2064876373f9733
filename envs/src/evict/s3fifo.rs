//! S3-FIFO.

use super::ghosts::Ghosts;
use super::queues::Queues;
use super::{BlockView, Evict};

/// Of the capacity, for what is new.
const SMALL_SHARE: f64 = 0.1;
/// Uses above so many are not told apart.
const MAX_USES: u8 = 3;
/// Uses after its first that bring a block from the small queue to the main one.
const PROMOTION_USES: u8 = 2;

const SMALL: u32 = 0;
const MAIN: u32 = 1;
const GHOST: u8 = 0;

/// Three queues. New content enters the small one, or the main one if its key is among the ghosts. What comes to the head of the
/// small one goes to the main one if it was used twice since, and else becomes a ghost; what comes to the head of the main one
/// goes round again with one use less, if it has any. The small one gives while it has a tenth of the capacity, else the main
/// one. There are as many ghosts as the main one has room for.
///
/// While a request holds a block it keeps its place. A held one that comes to the head is in use, and goes to the main queue when
/// it is given back.
///
/// Source: J. Yang, Y. Zhang, Z. Qiu, Y. Yue, K. Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023.
#[derive(Debug, Clone)]
pub struct S3Fifo {
    queues: Queues,
    blocks: Vec<Record>,
    ghosts: Box<Ghosts>,
    /// Blocks with a place in the small and in the main queue.
    lengths: [u32; 2],
    small: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Record {
    key: u64,
    uses: u8,
    is_known: bool,
    is_held: bool,
    is_placed: bool,
}

impl S3Fifo {
    #[inline]
    fn enter(&mut self, queue: u32, block: u32) {
        self.blocks[block as usize].is_placed = true;
        self.queues.push(queue, block);
        self.lengths[queue as usize] += 1;
    }

    /// Takes the head of a queue that is not empty out. `None` if it is held.
    #[inline]
    fn leave(&mut self, queue: u32) -> Option<u32> {
        let head = self.queues.pop(queue)?;
        self.lengths[queue as usize] -= 1;
        let record = &mut self.blocks[head as usize];
        record.is_placed = false;
        (!record.is_held).then_some(head)
    }

    /// Evicts the head of the small queue, or moves it on.
    #[inline]
    fn turn_small(&mut self) -> Option<u32> {
        let head = self.leave(SMALL)?;
        let record = &mut self.blocks[head as usize];
        if record.uses >= PROMOTION_USES {
            record.uses = 0;
            self.enter(MAIN, head);
            return None;
        }
        let key = record.key;
        *record = Record::default();
        self.ghosts.remember(GHOST, key);
        Some(head)
    }

    /// Evicts the head of the main queue, or lets it go round again.
    #[inline]
    fn turn_main(&mut self) -> Option<u32> {
        let head = self.leave(MAIN)?;
        let record = &mut self.blocks[head as usize];
        if record.uses > 0 {
            record.uses -= 1;
            self.enter(MAIN, head);
            return None;
        }
        *record = Record::default();
        Some(head)
    }
}

impl Evict for S3Fifo {
    fn new(num_blocks: u32, _block_tokens: u32) -> S3Fifo {
        let capacity = num_blocks.saturating_sub(1);
        let small = (f64::from(capacity) * SMALL_SHARE) as u32;
        S3Fifo {
            queues: Queues::new(2, num_blocks),
            blocks: vec![Record::default(); num_blocks as usize],
            ghosts: Box::new(Ghosts::new((capacity - small) as usize)),
            lengths: [0; 2],
            small,
        }
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        let record = &mut self.blocks[block.block as usize];
        record.is_held = false;
        if record.is_known {
            record.uses = (record.uses + 1).min(MAX_USES);
            if !record.is_placed {
                self.enter(MAIN, block.block);
            }
            return;
        }
        (record.is_known, record.key) = (true, block.key);
        let queue = if self.ghosts.recall(block.key).is_some() { MAIN } else { SMALL };
        self.enter(queue, block.block);
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.blocks[block.block as usize].is_held = true;
    }

    #[inline]
    fn used(&mut self, block: BlockView) {
        let record = &mut self.blocks[block.block as usize];
        record.uses = (record.uses + 1).min(MAX_USES);
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        loop {
            let [small, main] = self.lengths;
            let victim = match (small, main) {
                (0, 0) => return None,
                (_, 0) => self.turn_small(),
                _ if small > self.small => self.turn_small(),
                _ => self.turn_main(),
            };
            if victim.is_some() {
                return victim;
            }
        }
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        super::drained(self)
    }

    fn is_sound(&self, block: u32) -> bool {
        let Record { is_held, is_placed, .. } = self.blocks[block as usize];
        is_placed && !is_held && self.queues.is_linked(block)
    }
}

#[cfg(test)]
super::kit::tells! { S3Fifo weighs:
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
