//! W-TinyLFU: LRU with admission.

use super::queues::Queues;
use super::sketch::Sketch;
use super::slru::Segments;
use super::{BlockView, Evict};

/// Of the capacity, for what is new: the window.
const WINDOW_SHARE: f64 = 0.01;

const WINDOW: u32 = 0;

/// A small LRU window for what is new, and a main part, which is a [segmented LRU](super::Slru). What the window has no room for
/// asks to be admitted to the main part: it takes the place of that part's victim if it was asked for more often lately, as a
/// sketch counts, and else goes itself.
///
/// A pool admits every block that was computed, so admission is decided when a victim is asked for: of the oldest of a full
/// window and the main part's victim the one goes that was asked for less, and the next block pushes the other on. A block
/// that a request holds counts for its part.
///
/// Source: G. Einziger, R. Friedman, B. Manes, "`TinyLFU`: a highly efficient cache admission policy", ACM Transactions on Storage
/// 13(4), 2017, section 4.
#[derive(Debug, Clone)]
pub struct TinyLfu {
    window: Queues,
    main: Segments,
    blocks: Vec<Record>,
    sketch: Box<Sketch>,
    /// Blocks of the window and of the main part, held ones included.
    lengths: [u32; 2],
    most: [u32; 2],
}

#[derive(Debug, Clone, Copy, Default)]
struct Record {
    key: u64,
    is_known: bool,
    is_main: bool,
}

impl TinyLfu {
    /// Moves an idle block from the window to the main part.
    #[inline]
    fn admit(&mut self, block: u32) {
        self.window.remove(block);
        self.main.idle(block);
        self.blocks[block as usize].is_main = true;
        self.lengths[0] -= 1;
        self.lengths[1] += 1;
    }

    #[inline]
    fn evict(&mut self, block: u32) -> u32 {
        let Record { is_main, .. } = std::mem::take(&mut self.blocks[block as usize]);
        self.lengths[usize::from(is_main)] -= 1;
        if is_main {
            self.main.evict(block);
        } else {
            self.window.remove(block);
        }
        block
    }

    fn count(&self, block: u32) -> u64 {
        self.sketch.count(self.blocks[block as usize].key)
    }
}

impl Evict for TinyLfu {
    fn new(num_blocks: u32, _block_tokens: u32) -> TinyLfu {
        let capacity = num_blocks.saturating_sub(1);
        let window = ((f64::from(capacity) * WINDOW_SHARE) as u32).max(1);
        let main = capacity.saturating_sub(window);
        TinyLfu {
            window: Queues::new(1, num_blocks),
            main: Segments::new(num_blocks, main),
            blocks: vec![Record::default(); num_blocks as usize],
            sketch: Box::new(Sketch::new(capacity)),
            lengths: [0; 2],
            most: [window, main],
        }
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        let record = &mut self.blocks[block.block as usize];
        if !record.is_known {
            *record = Record { key: block.key, is_known: true, is_main: false };
            self.lengths[0] += 1;
        }
        let Record { key, is_main, .. } = *record;
        self.sketch.see(key);
        if is_main {
            self.main.idle(block.block);
            return;
        }
        self.window.push(WINDOW, block.block);
        if self.lengths[0] > self.most[0]
            && self.lengths[1] < self.most[1]
            && let Some(oldest) = self.window.head(WINDOW)
        {
            self.admit(oldest);
        }
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        if self.blocks[block.block as usize].is_main {
            self.main.taken(block.block);
        } else {
            self.window.remove(block.block);
        }
    }

    #[inline]
    fn victim(&mut self) -> Option<u32> {
        let main = self.main.first();
        // What comes will push the oldest of a full window out of it.
        let candidate = self.window.head(WINDOW).filter(|_| self.lengths[0] >= self.most[0]);
        let block = match (candidate, main) {
            (Some(candidate), Some(main)) if self.count(candidate) > self.count(main) => main,
            (Some(candidate), _) => candidate,
            (None, Some(main)) => main,
            (None, None) => self.window.head(WINDOW)?,
        };
        Some(self.evict(block))
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        super::drained(self)
    }

    fn is_sound(&self, block: u32) -> bool {
        if self.blocks[block as usize].is_main { self.main.is_linked(block) } else { self.window.is_linked(block) }
    }
}

#[cfg(test)]
super::kit::tells! { TinyLfu weighs:
    a_table_is_given_back [1, 3, 2],
    another_is [4, 3, 2, 1, 6, 5],
    a_lookup_hits_the_first_two [4, 3, 2, 1, 6, 5],
    a_request_takes_them [4, 3, 6, 5],
    it_goes_on_and_gives_them_back [7, 3, 6, 5, 4, 2, 1],
    three_are_evicted [5, 4, 2, 1],
    a_lookup_hits_what_is_left_of_the_second [5, 4, 2, 1],
    the_content_of_one_is_gone [5, 4, 2, 1],
    all_are_evicted [],
}
