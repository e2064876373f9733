//! Ranks that age: what `GreedyDual` keeps.

use super::ranked::{MAX_RANK, Ranked};

/// Blocks ranked by what their uses are worth, above the rank at which the last one went: so what is not used any more is
/// overtaken by what comes, however much it was used.
#[derive(Debug, Clone)]
pub(super) struct Aged {
    ranked: Ranked,
    /// Per block; 0 for one whose content is new.
    uses: Vec<u32>,
    /// Rank of the last victim.
    age: u64,
}

impl Aged {
    pub(super) fn new(num_blocks: u32) -> Aged {
        Aged { ranked: Ranked::new(num_blocks), uses: vec![0; num_blocks as usize], age: 0 }
    }

    /// A block becomes idle each of whose uses is worth `cost`; its rank, `least` at least.
    #[inline]
    pub(super) fn idle(&mut self, block: u32, cost: u64, least: u64) -> u64 {
        let rank = self.use_up(block, cost, least);
        self.ranked.insert(block, rank);
        rank
    }

    /// The same of one that is idle.
    #[inline]
    pub(super) fn used(&mut self, block: u32, cost: u64, least: u64) -> u64 {
        let rank = self.use_up(block, cost, least);
        self.ranked.update(block, rank);
        rank
    }

    #[inline]
    fn use_up(&mut self, block: u32, cost: u64, least: u64) -> u64 {
        let uses = &mut self.uses[block as usize];
        *uses = uses.saturating_add(1);
        u64::from(*uses).saturating_mul(cost).saturating_add(self.age).max(least).min(MAX_RANK)
    }

    pub(super) fn taken(&mut self, block: u32) {
        self.ranked.remove(block);
    }

    #[inline]
    pub(super) fn victim(&mut self) -> Option<u32> {
        let (block, rank) = self.ranked.pop()?;
        self.age = rank;
        self.uses[block as usize] = 0;
        Some(block)
    }

    pub(super) fn order(&self) -> impl Iterator<Item = u32> + use<> {
        self.ranked.iter()
    }

    pub(super) fn is_sound(&self, block: u32) -> bool {
        self.ranked.is_placed(block)
    }
}
