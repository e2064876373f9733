//! What is known of a block, and who predicts its return from that.

use super::Conversation;

/// Numbers a prediction is made of.
pub const FEATURES: usize = 10;
/// Rows that a return looks ahead.
pub const HORIZON: u32 = 8;

/// What is expected of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Return {
    /// Mean share of the next rows, percent.
    pub mean: f32,
    /// Its variance, percent squared.
    pub variance: f32,
}

/// Who says what a block will return.
pub trait ReturnPredictor: Sync {
    /// What is expected of a block with these [features](BlockStats::features).
    fn predict(&self, features: &[f32; FEATURES]) -> Return;
}

/// The same of every block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConstantReturn(pub Return);

impl ReturnPredictor for ConstantReturn {
    fn predict(&self, _: &[f32; FEATURES]) -> Return {
        self.0
    }
}

/// What the rows so far have shown of a block. Shares are percent of a row, of what was kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockStats {
    /// Its place in the conversation.
    index: u32,
    rows: u32,
    last: f32,
    fast: f32,
    slow: f32,
    total: f32,
    squares: f32,
    most: f32,
    /// Rows since it last had its fair share.
    idle: u32,
}

/// Weights of the latest row in the two moving means.
const FAST: f32 = 0.5;
const SLOW: f32 = 0.1;
/// What the most it ever had fades by, row by row.
const MOST_FADES: f32 = 0.97;

impl BlockStats {
    /// A block at that place, of which nothing is known.
    pub fn new(index: u32) -> BlockStats {
        let [last, fast, slow, total, squares, most] = [0.0; 6];
        BlockStats { index, rows: 0, last, fast, slow, total, squares, most, idle: 0 }
    }

    /// A row that gave it `share` percent, where `fair` is what everybody would have had.
    #[inline]
    pub fn observe(&mut self, share: f32, fair: f32) {
        if self.rows == 0 {
            (self.fast, self.slow) = (share, share);
        }
        self.rows += 1;
        self.last = share;
        self.fast += FAST * (share - self.fast);
        self.slow += SLOW * (share - self.slow);
        self.total += share;
        self.squares += share * share;
        self.most = (self.most * MOST_FADES).max(share);
        self.idle = if share >= fair { 0 } else { self.idle + 1 };
    }

    /// Rows seen.
    #[inline]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// All it ever had, percent.
    #[inline]
    pub fn total(&self) -> f32 {
        self.total
    }

    /// Whether the last row gave it its fair share.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.idle == 0
    }

    /// What its return is predicted from, in a conversation of `blocks` blocks: shares as logarithms, for they span four decades.
    #[inline]
    pub fn features(&self, blocks: u32) -> [f32; FEATURES] {
        let rows = self.rows.max(1) as f32;
        let mean = self.total / rows;
        let deviation = (self.squares / rows - mean * mean).max(0.0).sqrt();
        let log = |value: f32| value.ln_1p();
        [
            log(self.last),
            log(self.fast),
            log(self.slow),
            log(mean),
            log(deviation),
            log(self.most),
            log(self.idle as f32),
            log(self.rows as f32),
            1.0 / (self.index as f32 + 1.0),
            log((blocks - self.index.min(blocks)) as f32),
        ]
    }
}

/// Every example that a conversation is for a predictor, with nobody's help: what is known of each block after each row where all
/// blocks are kept, and the mean share it has in the next [`HORIZON`] rows, or in those that are left.
pub fn returns(conversation: &Conversation, each: &mut dyn FnMut(&[f32; FEATURES], f32)) {
    let last = conversation.answer_blocks();
    let mut stats: Vec<BlockStats> = Vec::new();
    for row in 0..last {
        let shares = conversation.row(row);
        stats.extend((stats.len() as u32..shares.len() as u32).map(BlockStats::new));
        let (fair, ahead) = (100.0 / shares.len() as f32, (last - row).min(HORIZON));
        for (index, stats) in stats.iter_mut().enumerate() {
            stats.observe(shares[index] * 100.0, fair);
            let future: f32 = (1..=ahead).map(|next| conversation.row(row + next)[index]).sum();
            each(&stats.features(shares.len() as u32), future * 100.0 / ahead as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_what_was_seen_and_what_came() {
        let rows = vec![vec![1.0], vec![0.5, 0.5], vec![0.25, 0.5, 0.25]];
        let mut examples = Vec::new();
        let conversation = Conversation::new(1, rows).unwrap();
        returns(&conversation, &mut |features, target| examples.push((features[0], target)));
        // The first block after the prompt's row, then both blocks after the next; nothing comes after the last.
        let log = |share: f32| share.ln_1p();
        assert_eq!(examples, [(log(100.0), 37.5), (log(50.0), 25.0), (log(50.0), 50.0)]);
    }

    #[test]
    fn a_block_is_used_while_it_has_its_fair_share() {
        let mut stats = BlockStats::new(3);
        stats.observe(2.0, 1.0);
        assert!(stats.is_used());
        stats.observe(0.5, 1.0);
        assert!(!stats.is_used() && (stats.total() - 2.5).abs() < 1e-6);
        assert!(stats.features(4).iter().all(|feature| feature.is_finite()));
    }
}
