//! Who is kept: rules that rank blocks, and the heap of the whole pool that blocks are popped from, the least first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{BlockStats, Return, ReturnPredictor};

/// How Token-PD's price is made.
#[derive(Clone, Copy)]
pub struct PriceRule<'a> {
    /// `λ`, percent of attention for each percent squared of variance.
    pub risk_aversion: f32,
    /// `η`, how far a step moves the price.
    pub rate: f64,
    /// What it begins with, percent of attention for a block.
    pub first_price: f64,
    /// `M`, blocks that the price aims at.
    pub target: u32,
    /// Who predicts.
    pub predictor: &'a dyn ReturnPredictor,
}

/// Who goes first.
#[derive(Clone, Copy)]
pub enum KeepRule<'a> {
    /// Whoever came first.
    Fifo,
    /// Whoever has been without a fair share of attention for longest.
    Lru,
    /// Whoever has had least attention in all, but for the latest blocks of each conversation, which have half of the pool (Zhang et al.
    /// 2023, "H2O", section 4).
    H2o,
    /// Whoever is worth least above its price, and everybody who is worth less than that, pressure or not.
    TokenPd(PriceRule<'a>),
}

impl KeepRule<'_> {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            KeepRule::Fifo => "fifo",
            KeepRule::Lru => "lru",
            KeepRule::H2o => "h2o",
            KeepRule::TokenPd(_) => "token-pd",
        }
    }
}

/// A block of a stream that is or was in the pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) stats: BlockStats,
    pub(super) is_kept: bool,
    /// What it came as, of all blocks, and the row it was last used in.
    born: u32,
    used: u32,
    /// Which of its entries in the heap counts; none if it is 0.
    version: u32,
    /// Rows that had been seen of it when it was ranked last.
    ranked_at: u32,
}

impl Block {
    pub(super) fn new(index: u32, born: u32, row: u32) -> Block {
        Block { stats: BlockStats::new(index), is_kept: true, born, used: row, version: 0, ranked_at: 0 }
    }
}

/// The blocks of a stream's conversation.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    /// Conversations before it.
    pub(super) turn: u32,
    /// Every block there has been, in order.
    pub(super) blocks: Vec<Block>,
    /// How many of them are kept.
    pub(super) kept: u32,
}

/// Where a block is: its stream, which of the stream's conversations, its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) stream: u32,
    pub(super) turn: u32,
    pub(super) index: u32,
}

/// An entry of the heap: rank, of equals the oldest, and whether it still counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    rank: u32,
    born: u32,
    place: Place,
    version: u32,
}

/// Ranks blocks under one rule.
pub(super) struct Keeper<'a> {
    rule: KeepRule<'a>,
    heap: BinaryHeap<Reverse<Entry>>,
    price: f64,
    /// Latest blocks of each stream that H2O does not touch.
    protected: u32,
    versions: u32,
}

/// Between what the price stays, percent of attention for a block.
const PRICES: (f64, f64) = (1e-3, 1e2);
/// Blocks of a stream that are ranked anew after each of its rows, in turn: what was overrated would never come up otherwise.
const REVIEWED: u32 = 4;

impl<'a> Keeper<'a> {
    pub(super) fn new(rule: KeepRule<'a>, capacity: Option<u32>, streams: u32) -> Keeper<'a> {
        let protected = capacity.map_or(0, |capacity| capacity / 2 / streams.max(1));
        let price = if let KeepRule::TokenPd(rule) = rule { rule.first_price } else { 0.0 };
        Keeper { rule, heap: BinaryHeap::new(), price, protected, versions: 0 }
    }

    pub(super) fn price(&self) -> f64 {
        self.price
    }

    /// The price after a step in which `used` blocks were asked for.
    pub(super) fn move_price(&mut self, used: u32) {
        if let KeepRule::TokenPd(rule) = self.rule {
            let (used, target) = (f64::from(used), f64::from(rule.target));
            self.price = (self.price * (rule.rate * (used - target) / target).exp()).clamp(PRICES.0, PRICES.1);
        }
    }

    /// What a block is worth, as an integer of the same order.
    fn rank(&self, block: &Block, blocks: u32) -> u32 {
        ordered(match self.rule {
            KeepRule::Fifo => return block.born,
            KeepRule::Lru => return block.used,
            KeepRule::H2o => block.stats.total(),
            KeepRule::TokenPd(rule) => {
                let Return { mean, variance } = rule.predictor.predict(&block.stats.features(blocks));
                mean - rule.risk_aversion * variance
            }
        })
    }

    fn enter(&mut self, block: &mut Block, place: Place, blocks: u32) {
        self.versions = self.versions.wrapping_add(1).max(1);
        (block.version, block.ranked_at) = (self.versions, block.stats.rows());
        let entry = Entry { rank: self.rank(block, blocks), born: block.born, place, version: block.version };
        self.heap.push(Reverse(entry));
    }

    /// The blocks `from..to` of a stream can be popped from now on, or could before and have come back.
    pub(super) fn offer(&mut self, all: &mut [Block], at: Place, (from, to): (u32, u32)) {
        let blocks = all.len() as u32;
        let (from, to) = match self.rule {
            // Each as it leaves the latest.
            KeepRule::H2o => (from.saturating_sub(self.protected), to.saturating_sub(self.protected)),
            _ => (from, to),
        };
        for index in from..to {
            let block = &mut all[index as usize];
            if block.is_kept && block.version == 0 {
                self.enter(block, Place { index, ..at }, blocks);
            }
        }
    }

    /// A row of a stream was seen: `used` is its number. Who was used has said so already by its statistics.
    pub(super) fn row(&mut self, all: &mut [Block], at: Place, row: u32, clock: u32) {
        let blocks = all.len() as u32;
        match self.rule {
            KeepRule::Lru => {
                for block in all.iter_mut().filter(|block| block.is_kept && block.stats.is_used()) {
                    block.used = clock;
                }
            }
            KeepRule::TokenPd(_) => {
                for turn in 0..REVIEWED.min(blocks) {
                    let index = (row * REVIEWED + turn) % blocks;
                    let block = &mut all[index as usize];
                    if block.is_kept && block.version != 0 {
                        self.enter(block, Place { index, ..at }, blocks);
                    }
                }
            }
            KeepRule::Fifo | KeepRule::H2o => {}
        }
    }

    /// Takes the block of least worth out of the pool, or with `is_priced` only if it is worth less than the price; whether there was one.
    /// `streams` have all blocks.
    pub(super) fn pop(&mut self, is_priced: bool, streams: &mut [Held]) -> bool {
        let price = ordered(self.price as f32);
        // What a stale entry says may be put right once a call for each entry, not for ever.
        for _ in 0..2 * self.heap.len() {
            let Some(&Reverse(entry)) = self.heap.peek() else { return false };
            if is_priced && entry.rank >= price {
                return false;
            }
            self.heap.pop();
            let held = &mut streams[entry.place.stream as usize];
            if !held.has(&entry) {
                continue;
            }
            let blocks = held.blocks.len() as u32;
            let block = &mut held.blocks[entry.place.index as usize];
            // Nothing has been seen of it since: it is what it was.
            let is_fresh = block.ranked_at == block.stats.rows();
            let rank = if is_fresh { entry.rank } else { self.rank(block, blocks) };
            block.ranked_at = block.stats.rows();
            if rank > entry.rank {
                self.heap.push(Reverse(Entry { rank, ..entry }));
                continue;
            }
            block.is_kept = false;
            block.version = 0;
            held.kept -= 1;
            return true;
        }
        false
    }

    /// Drops the entries that no longer count, where they are most of the heap.
    pub(super) fn sweep(&mut self, streams: &[Held], kept: u32) {
        if self.heap.len() > 4 * kept as usize + 1024 {
            self.heap.retain(|Reverse(entry)| streams[entry.place.stream as usize].has(entry));
        }
    }
}

impl Held {
    /// Whether that entry of the heap is the one that counts.
    fn has(&self, entry: &Entry) -> bool {
        let block = self.blocks.get(entry.place.index as usize).filter(|_| self.turn == entry.place.turn);
        block.is_some_and(|block| block.is_kept && block.version == entry.version)
    }
}

/// A float that is a number as an integer of the same order.
fn ordered(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}
