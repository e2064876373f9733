//! Classes of blocks, chosen by whoever gives them back.

use kvtide_rules::{Branches, Term, Walk};
use kvtide_runtime::Retention;

use super::{BlockView, Evict};

/// Of the lowest class that has any idle block, the first in the order in force: idle longest, or used least and of those
/// idle longest. What a class means, how it ages and what becomes of a block that several requests have given back is
/// `kvtide_rules::retention`; a block nobody chose a class for is normal, and with everything normal in the order of time
/// this is [`Lru`](super::Lru), decision for decision.
///
/// A use is a giving back by any of its holders since the block was cached, told by [`released`](Self::released). Uses are
/// counted up to `MOST_USES` and in steps that grow, so that each step has a queue and a victim is found without a search:
/// every operation takes constant time, amortised over ageing, and allocates nothing.
#[derive(Debug, Clone)]
pub struct Classes {
    num_blocks: u32,
    /// Queues by time, one a class; and by uses, a class's [`STEPS`] side by side.
    by_time: Queues,
    by_use: Queues,
    /// Of each class, which of its queues by uses are not empty, one bit each.
    used: [u16; CLASSES],
    blocks: Vec<Block>,
    branches: Branches,
    is_by_use: bool,
    /// Victims come in the order of time, whatever their class.
    is_flat: bool,
    /// Counts the blocks that entered a queue.
    entered: u64,
    /// Blocks evicted since the beginning, in all and by class.
    evicted: u64,
    evicted_of: [u64; CLASSES],
    idle_of: [u32; CLASSES],
}

/// What is kept of a block.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// What it was given, and until when.
    term: Term,
    /// The class whose queues it is in while it is idle.
    class: Retention,
    uses: u8,
    /// When it entered its queues, in blocks that did.
    entered: u64,
}

impl Block {
    /// Without content.
    const EMPTY: Block = Block { term: Term::NONE, class: Retention::Normal, uses: 0, entered: 0 };
}

const CLASSES: usize = Retention::ALL.len();

/// Steps in which uses are told apart.
const STEPS: usize = 16;

/// Uses beyond which a block is used no more often than others.
const MOST_USES: u8 = 129;

/// Of the steps beyond the first eight, each of which is one use, the most uses.
const LONGER_STEPS: [u8; 8] = [12, 16, 24, 32, 48, 64, 128, MOST_USES];

/// The step of so many uses, at most `MOST_USES`.
fn step(uses: u8) -> usize {
    if uses <= 8 {
        return usize::from(uses.max(1)) - 1;
    }
    8 + LONGER_STEPS.iter().take_while(|&&most| most < uses).count()
}

impl Classes {
    /// A table is given back, last block first: `chosen` gives each of its cached blocks, from the last to the first, the class
    /// of its part. To be told before the blocks become idle, of all of them, whoever else holds them.
    pub fn released(&mut self, table: impl Iterator<Item = (u32, Retention)>) {
        let mut walk = Walk::default();
        let mut behind = None;
        for (number, class) in table {
            let given = Term::of(class, self.evicted, self.num_blocks);
            let block = &mut self.blocks[number as usize];
            block.term = walk.next(given, block.term, self.branches.has_others(number, behind));
            block.uses = block.uses.saturating_add(1).min(MOST_USES);
            behind = Some(number);
        }
    }

    /// Orders blocks within a class by uses, or by time.
    pub fn set_by_use(&mut self, is_by_use: bool) {
        self.is_by_use = is_by_use;
    }

    /// Sets classes aside, those in force included: the block that is idle longest goes, as under LRU.
    pub fn set_flat(&mut self, is_flat: bool) {
        self.is_flat = is_flat;
    }

    /// The class whose front is idle longest.
    fn oldest(&self) -> Option<usize> {
        let entered = |class: &usize| self.by_time.head(*class).map(|head| self.blocks[head as usize].entered);
        (0..CLASSES).filter(|class| self.used[*class] != 0).min_by_key(entered)
    }

    /// Blocks evicted since the beginning.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The same by the class they were in.
    pub fn evicted_of(&self) -> [u64; CLASSES] {
        self.evicted_of
    }

    /// Idle blocks by class.
    pub fn idle_of(&self) -> [u32; CLASSES] {
        self.idle_of
    }

    /// Makes the blocks whose term is over the most recent of the class below. Only the front of a class is looked at.
    fn age(&mut self) {
        for class in [Retention::KeepLong, Retention::Keep] {
            while let Some(block) = self.by_time.head(class as usize) {
                let now = self.blocks[block as usize].term.class(self.evicted);
                if now >= class {
                    break;
                }
                self.unlink(block);
                self.link(block, now);
            }
        }
    }

    fn link(&mut self, number: u32, class: Retention) {
        let block = &mut self.blocks[number as usize];
        block.class = class;
        block.entered = self.entered;
        self.entered += 1;
        let (class, step) = (class as usize, step(block.uses));
        self.by_time.push(class, number);
        self.by_use.push(class * STEPS + step, number);
        self.used[class] |= 1 << step;
        self.idle_of[class] += 1;
    }

    fn unlink(&mut self, number: u32) {
        let Block { class, uses, .. } = self.blocks[number as usize];
        let (class, step) = (class as usize, step(uses));
        self.by_time.remove(number);
        self.by_use.remove(number);
        if self.by_use.head(class * STEPS + step).is_none() {
            self.used[class] &= !(1 << step);
        }
        self.idle_of[class] -= 1;
    }

    /// The content of a block is gone.
    fn empty(&mut self, number: u32) {
        self.branches.emptied(number);
        self.blocks[number as usize] = Block::EMPTY;
    }
}

impl Evict for Classes {
    fn new(num_blocks: u32, _: u32) -> Classes {
        Classes {
            num_blocks,
            by_time: Queues::new(num_blocks, CLASSES),
            by_use: Queues::new(num_blocks, CLASSES * STEPS),
            used: [0; CLASSES],
            blocks: vec![Block::EMPTY; num_blocks.max(1) as usize],
            branches: Branches::new(num_blocks),
            is_by_use: false,
            is_flat: false,
            entered: 0,
            evicted: 0,
            evicted_of: [0; CLASSES],
            idle_of: [0; CLASSES],
        }
    }

    fn registered(&mut self, block: u32, parent: Option<u32>) {
        self.branches.registered(block, parent.filter(|&parent| parent != 0));
        self.blocks[block as usize] = Block::EMPTY;
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        let known = &self.blocks[block.block as usize];
        // Nobody chose: what every engine does.
        let class = if known.uses == 0 { Retention::Normal } else { known.term.class(self.evicted) };
        self.link(block.block, class);
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.unlink(block.block);
    }

    fn victim(&mut self) -> Option<u32> {
        self.age();
        let lowest = || (0..CLASSES).find(|&class| self.used[class] != 0);
        let class = if self.is_flat { self.oldest() } else { lowest() }?;
        let queue = class * STEPS + self.used[class].trailing_zeros() as usize;
        let is_by_use = self.is_by_use && !self.is_flat;
        let block = if is_by_use { self.by_use.head(queue) } else { self.by_time.head(class) }?;
        self.unlink(block);
        self.empty(block);
        self.evicted += 1;
        self.evicted_of[class] += 1;
        Some(block)
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        let mut rest = self.clone();
        std::iter::from_fn(move || rest.victim()).take(self.blocks.len())
    }

    fn is_sound(&self, block: u32) -> bool {
        let Block { class, uses, .. } = self.blocks[block as usize];
        let queue = class as usize * STEPS + step(uses);
        self.by_time.is_linked(block)
            && self.by_use.is_linked(block)
            && self.by_use.head(queue).is_some()
            && self.used[class as usize] >> step(uses) & 1 == 1
    }
}

#[derive(Debug, Clone, Copy)]
struct Links {
    /// Towards the tail.
    next: u32,
    /// Towards the head.
    prev: u32,
}

/// Several doubly linked queues through one array; a block is in one of them at most. Behind the blocks' links lie those that
/// close each queue into a ring.
#[derive(Debug, Clone)]
struct Queues {
    links: Vec<Links>,
    num_blocks: u32,
}

impl Queues {
    fn new(num_blocks: u32, queues: usize) -> Queues {
        let ends = (num_blocks..).take(queues).map(|end| Links { next: end, prev: end });
        let blocks = (0..num_blocks).map(|_| Links { next: 0, prev: 0 });
        Queues { links: blocks.chain(ends).collect(), num_blocks }
    }

    fn push(&mut self, queue: usize, block: u32) {
        let end = self.num_blocks + queue as u32;
        let tail = std::mem::replace(&mut self.links[end as usize].prev, block);
        self.links[block as usize] = Links { next: end, prev: tail };
        self.links[tail as usize].next = block;
    }

    fn remove(&mut self, block: u32) {
        let Links { next, prev } = self.links[block as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
    }

    fn head(&self, queue: usize) -> Option<u32> {
        let end = self.num_blocks + queue as u32;
        Some(self.links[end as usize].next).filter(|&head| head != end)
    }

    /// Whether each link that leads to a block of a queue has its counterpart.
    fn is_linked(&self, block: u32) -> bool {
        let Links { next, prev } = self.links[block as usize];
        self.links[next as usize].prev == block && self.links[prev as usize].next == block
    }
}

#[cfg(test)]
super::kit::tells! { Classes:
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

#[cfg(test)]
mod story {
    use super::*;
    use Retention::{EvictFirst, Keep, KeepLong, Normal};

    /// A path of blocks is cached behind `parent` and given back, head of the path first in the list.
    fn cache(pool: &mut Classes, parent: Option<u32>, path: &[u32], class: Retention) {
        let mut before = parent;
        for &block in path {
            pool.registered(block, before);
            before = Some(block);
        }
        give_back(pool, path, class);
    }

    fn give_back(pool: &mut Classes, path: &[u32], class: Retention) {
        pool.released(path.iter().rev().map(|&block| (block, class)));
        path.iter().rev().for_each(|&block| pool.idle(BlockView::of(block)));
    }

    fn check(pool: &Classes, order: &[u32]) {
        assert_eq!(pool.order().collect::<Vec<_>>(), order);
        assert!(order.iter().all(|&block| pool.is_sound(block)));
    }

    #[test]
    fn a_victim_is_of_the_lowest_class() {
        let mut pool = Classes::new(9, 16);
        cache(&mut pool, None, &[1, 2], KeepLong);
        cache(&mut pool, None, &[3], Keep);
        cache(&mut pool, None, &[4, 5], Normal);
        cache(&mut pool, None, &[6], EvictFirst);
        check(&pool, &[6, 5, 4, 3, 2, 1]);
        assert_eq!(pool.idle_of(), [1, 2, 1, 2]);
        // Set aside, they are one queue in the order of time.
        pool.set_flat(true);
        check(&pool, &[2, 1, 3, 5, 4, 6]);
    }

    #[test]
    fn a_prefix_that_others_continue_is_not_evicted_before_them() {
        let mut pool = Classes::new(9, 16);
        cache(&mut pool, None, &[1, 2, 3], Normal);
        // Another request continues block 1 and would have all of its path go first.
        pool.taken(BlockView::of(1));
        pool.registered(4, Some(1));
        give_back(&mut pool, &[1, 4], EvictFirst);
        check(&pool, &[4, 3, 2, 1]);
        // Once the others are gone, nothing keeps it.
        assert_eq!([pool.victim(), pool.victim(), pool.victim()], [Some(4), Some(3), Some(2)]);
        pool.taken(BlockView::of(1));
        give_back(&mut pool, &[1], EvictFirst);
        cache(&mut pool, None, &[5], Normal);
        check(&pool, &[1, 5]);
    }

    #[test]
    fn what_is_kept_falls_class_by_class_as_the_pool_turns_over() {
        let mut pool = Classes::new(10, 16);
        cache(&mut pool, None, &[1], KeepLong);
        cache(&mut pool, None, &[2], Keep);
        let turn_over = |pool: &mut Classes, count: u32| {
            for _ in 0..count {
                cache(pool, None, &[3], Normal);
                assert_eq!(pool.victim(), Some(3));
            }
        };
        turn_over(&mut pool, 20);
        assert_eq!(pool.idle_of(), [0, 0, 1, 1]);
        // Twenty evicted: the next victim finds the term of block 2 over. It is then the most recent of the normal ones.
        cache(&mut pool, None, &[4], Normal);
        assert_eq!(pool.victim(), Some(4));
        assert_eq!(pool.idle_of(), [0, 1, 0, 1]);
        assert_eq!(pool.victim(), Some(2));
        turn_over(&mut pool, 59);
        assert_eq!((pool.evicted(), pool.idle_of()), (81, [0, 0, 1, 0]));
        turn_over(&mut pool, 20);
        assert_eq!((pool.evicted(), pool.idle_of()), (101, [0, 1, 0, 0]));
        check(&pool, &[1]);
    }

    #[test]
    fn within_a_class_the_least_used_may_go_first() {
        let mut pool = Classes::new(9, 16);
        cache(&mut pool, None, &[1], Normal);
        for block in [2, 3] {
            cache(&mut pool, None, &[block], Normal);
            pool.taken(BlockView::of(block));
            give_back(&mut pool, &[block], Normal);
        }
        cache(&mut pool, None, &[4], Normal);
        pool.taken(BlockView::of(2));
        give_back(&mut pool, &[2], Normal);
        check(&pool, &[1, 3, 4, 2]);
        pool.set_by_use(true);
        check(&pool, &[1, 4, 3, 2]);
        // Classes come before uses.
        pool.taken(BlockView::of(2));
        give_back(&mut pool, &[2], EvictFirst);
        check(&pool, &[2, 1, 4, 3]);
    }

    #[test]
    fn steps_of_uses_grow_and_end() {
        let steps: Vec<usize> = (1..=MOST_USES).map(step).collect();
        assert!(steps.is_sorted() && steps[7] == 7 && steps[8] == 8 && steps[128] == STEPS - 1);
        assert!((0..STEPS).all(|wanted| steps.contains(&wanted)));
    }
}
