//! Conversations as rows of attention.

use rand::seq::SliceRandom;

use crate::seed;

/// The attention of one conversation, block by block.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    prompt_blocks: u32,
    rows: u32,
    /// Row after row; row `j` has `prompt_blocks + j` shares.
    masses: Vec<f32>,
}

/// A row that is none: which, and why.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("rows[{row}] {fault}")]
pub struct MisshapenRow {
    /// Its index.
    pub row: usize,
    /// What is wrong with it.
    pub fault: String,
}

/// How far the sum of a row may be from one: shares are written with a few digits.
const ROUNDING: f64 = 0.02;

impl Conversation {
    /// A conversation of a prompt of `prompt_blocks` full blocks. Row 0 is the attention of its last block's queries to the prompt's blocks,
    /// row `j` that of the `j`-th block of the answer to all blocks up to itself: `prompt_blocks + j` shares, which sum to one.
    ///
    /// # Errors
    /// A row has another length, or shares that are none.
    pub fn new(prompt_blocks: u32, rows: impl IntoIterator<Item = Vec<f32>>) -> Result<Conversation, MisshapenRow> {
        let mut conversation = Conversation { prompt_blocks, rows: 0, masses: Vec::new() };
        for (row, masses) in rows.into_iter().enumerate() {
            let wrong = |fault: String| MisshapenRow { row, fault };
            let blocks = prompt_blocks as usize + row;
            if masses.len() != blocks {
                return Err(wrong(format!("has {} shares, must have {blocks}", masses.len())));
            }
            if let Some(bad) = masses.iter().find(|mass| !(0.0..=1.0 + ROUNDING as f32).contains(*mass)) {
                return Err(wrong(format!("has the share {bad}, which is not from 0 to 1")));
            }
            let sum: f64 = masses.iter().map(|&mass| f64::from(mass)).sum();
            if (sum - 1.0).abs() > ROUNDING {
                return Err(wrong(format!("sums to {sum:.4}, must sum to 1")));
            }
            conversation.masses.extend(masses.iter().map(|&mass| (f64::from(mass) / sum) as f32));
            conversation.rows += 1;
        }
        Ok(conversation)
    }

    /// Blocks of its prompt.
    pub fn prompt_blocks(&self) -> u32 {
        self.prompt_blocks
    }

    /// Blocks of its answer.
    pub fn answer_blocks(&self) -> u32 {
        self.rows.saturating_sub(1)
    }

    /// Row `row`, from 0 for the prompt's to [`Self::answer_blocks`].
    pub fn row(&self, row: u32) -> &[f32] {
        let (row, blocks) = (row as usize, self.prompt_blocks as usize);
        let start = row * blocks + row * row.saturating_sub(1) / 2;
        &self.masses[start..start + blocks + row]
    }
}

/// Conversations of one source.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// What they are called.
    pub name: String,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// The conversations, of which there is at least one.
    pub conversations: Vec<Conversation>,
}

impl Attention {
    /// The first half to learn from, the second to be judged on; `None` of a single conversation.
    pub fn halves(self) -> Option<(Attention, Attention)> {
        let Attention { name, block_tokens, mut conversations } = self;
        let second = conversations.split_off(conversations.len() / 2);
        let part = |conversations| Attention { name: name.clone(), block_tokens, conversations };
        (!conversations.is_empty()).then(|| (part(conversations), part(second)))
    }

    /// The same conversations in another order, of which `seed` draws one; of seed 1 they stay as they are.
    #[must_use]
    pub fn shuffled(mut self, seed: u64) -> Attention {
        if seed != 1 {
            self.conversations.shuffle(&mut seed::stream(seed, "token-pd.order", 0));
        }
        self
    }

    /// Most blocks that one of them comes to.
    pub fn longest(&self) -> u32 {
        self.conversations.iter().map(|one| one.prompt_blocks + one.answer_blocks()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_as_long_as_there_are_blocks_and_sum_to_one() {
        let rows = vec![vec![0.5, 0.49], vec![0.25, 0.25, 0.5], vec![0.1, 0.2, 0.3, 0.4]];
        let conversation = Conversation::new(2, rows).unwrap();
        assert_eq!((conversation.prompt_blocks(), conversation.answer_blocks()), (2, 2));
        assert_eq!(conversation.row(1), [0.25, 0.25, 0.5]);
        assert_eq!(conversation.row(2).len(), 4);
        assert!((conversation.row(0).iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn another_seed_is_another_order_of_the_same() {
        let one = |blocks| Conversation::new(blocks, [vec![1.0 / blocks as f32; blocks as usize]]).unwrap();
        let all = Attention { name: "a".to_owned(), block_tokens: 16, conversations: (1..20).map(one).collect() };
        assert_eq!(all.clone().shuffled(1), all);
        let [two, again, three] = [2, 2, 3].map(|seed| all.clone().shuffled(seed));
        assert!(two == again && two != three && two != all);
        let mut sorted = two.conversations;
        sorted.sort_by_key(Conversation::prompt_blocks);
        assert_eq!(sorted, all.conversations);
    }

    #[test]
    fn what_is_no_row_is_named() {
        let fault = |rows: Vec<Vec<f32>>| Conversation::new(2, rows).unwrap_err().to_string();
        assert_eq!(fault(vec![vec![0.5, 0.5], vec![1.0]]), "rows[1] has 1 shares, must have 3");
        assert_eq!(fault(vec![vec![0.5, 0.4]]), "rows[0] sums to 0.9000, must sum to 1");
        for bad in [-0.1, f32::NAN, f32::INFINITY, 2.0] {
            assert!(fault(vec![vec![bad, 1.0]]).contains("which is not from 0 to 1"), "{bad}");
        }
        assert!(fault(vec![vec![0.0, 0.0]]).contains("sums to 0.0000"));
    }
}
