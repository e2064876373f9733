//! A planned step, as memory has to carry it out.

use crate::kv::{BlockId, blocks_for};
use crate::sched::{BlockCopy, RequestId};
use crate::tier::Routes;

/// Tokens of one request computed in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The request whose tokens they are.
    pub id: RequestId,
    /// Tokens computed before, so the position of the first one.
    pub context: u32,
    /// How many; at least 1.
    pub tokens: u32,
    /// Whether a token is sampled from the last one.
    pub samples: bool,
    /// Where its block table starts in [`Work::tables`]; it reaches as far as its tokens.
    pub table: usize,
    /// Where its seeds start in [`Work::seeds`].
    pub seeds: usize,
}

impl Span {
    /// Tokens computed after the step.
    pub fn end(&self) -> u32 {
        self.context + self.tokens
    }
}

/// One step: the copies of each route, in the order of routes, then the keys and values of every span's tokens.
#[derive(Debug, Clone, Copy)]
pub struct Work<'a> {
    /// Along each route.
    pub copies: Routes<&'a [BlockCopy]>,
    /// In scheduled order.
    pub spans: &'a [Span],
    /// Block tables of all spans, end to end.
    pub tables: &'a [BlockId],
    /// A seed for each token of each span, which binds it and every token before it.
    pub seeds: &'a [u64],
    /// Tokens of a block.
    pub block_size: u32,
}

impl<'a> Work<'a> {
    /// The block table of a span, as far as its tokens reach.
    pub fn table(&self, span: &Span) -> &'a [BlockId] {
        &self.tables[span.table..][..blocks_for(span.end(), self.block_size) as usize]
    }

    /// `(block, slot)` of each token of a span, in order.
    pub fn slots(&self, span: &Span) -> impl Iterator<Item = (BlockId, u32)> + use<'a> {
        let (table, block_size) = (self.table(span), self.block_size);
        (span.context..span.end()).map(move |position| (table[(position / block_size) as usize], position % block_size))
    }
}

/// A block and how many of its slots count, from the first on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// The block.
    pub block: BlockId,
    /// Slots written; from 1 to the block size.
    pub tokens: u32,
}
