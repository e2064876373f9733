//! Blocks by what was declared of them when they were given back.

use std::marker::PhantomData;

use kvtide_rules::Branches;
use kvtide_rules::intent::{Order, PathStanding, Scoring, Standing};

use super::{BlockView, Evict};

/// Which score an order goes by.
pub trait Scored: std::fmt::Debug + Clone {
    /// The score.
    const SCORING: Scoring;
}

/// Idle blocks by a score of what was declared of them when their table was given back, and of how long they are idle; see
/// [`Order`]. Of blocks of which nothing was declared, all of them where nobody declares anything, the one that became idle first
/// goes, as under [`Lru`](super::Lru).
///
/// Every operation takes constant time and allocates nothing; finding a victim takes a look at each level that has any block.
#[derive(Debug, Clone)]
pub struct Declared<S> {
    order: Order,
    branches: Branches,
    scored: PhantomData<S>,
}

impl<S: Scored> Declared<S> {
    /// A table is given back: `blocks` gives each of its cached blocks, from the last to the first, with the standing declared of
    /// it. To be told before the blocks become idle, of all of them, whoever else holds them.
    pub fn declare(&mut self, blocks: impl Iterator<Item = (u32, Standing)>) {
        let (mut path, mut behind) = (PathStanding::default(), None);
        for (block, given) in blocks {
            let is_branch = self.branches.has_others(block, behind);
            self.order.declare(block, path.next(given, self.order.declared(block), is_branch));
            behind = Some(block);
        }
    }
}

impl<S: Scored> Evict for Declared<S> {
    fn new(num_blocks: u32, _: u32) -> Declared<S> {
        let order = Order::new(num_blocks, S::SCORING);
        Declared { order, branches: Branches::new(num_blocks), scored: PhantomData }
    }

    fn registered(&mut self, block: u32, parent: Option<u32>) {
        self.branches.registered(block, parent);
        self.order.forget(block);
    }

    #[inline]
    fn idle(&mut self, block: BlockView) {
        self.order.push(block.block);
    }

    #[inline]
    fn taken(&mut self, block: BlockView) {
        self.order.remove(block.block);
    }

    fn victim(&mut self) -> Option<u32> {
        let block = self.order.pop()?;
        self.branches.emptied(block);
        Some(block)
    }

    fn order(&self) -> impl Iterator<Item = u32> {
        super::drained(self)
    }

    fn is_sound(&self, block: u32) -> bool {
        self.order.is_sound(block)
    }
}
