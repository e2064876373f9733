//! The blocks that requests ask for.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::evict::BlockView;
use crate::kv::{Content, Sharing};
use crate::workload::Workload;

/// More references than there are moments to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {} blocks are asked for; larger blocks are fewer", u32::MAX - 1)]
pub struct TooManyReferences;

/// The blocks of each request's prompt, in order, as numbers from 0 in the order of their first use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct References {
    blocks: Vec<u32>,
    /// Per reference, when its block is asked for again.
    next_uses: Vec<u32>,
    /// Per reference, how often its block was asked for before.
    past_uses: Vec<u32>,
    /// Per request, where its references end, and its prompt's tokens.
    requests: Vec<(u32, u32)>,
    distinct: u32,
    block_tokens: u32,
    prompt_tokens: u64,
}

/// What one request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked<'a> {
    /// Its blocks.
    pub blocks: &'a [u32],
    /// For each of them the number of the reference that asks for it again, [`BlockView::NEVER`] if none does.
    pub next_uses: &'a [u32],
    /// For each of them, how often it was asked for before.
    pub past_uses: &'a [u32],
    /// Its prompt's tokens.
    pub prompt_tokens: u32,
}

impl References {
    /// What the prompts of `workload` ask for in blocks of `block_tokens` tokens. An engine caches full blocks alone; with
    /// `partial` a prompt's last block counts too where it is not full, as traces of hash ids count.
    ///
    /// # Errors
    /// [`TooManyReferences`].
    pub fn of(workload: &Workload, block_tokens: u32, partial: bool) -> Result<References, TooManyReferences> {
        let block_tokens = block_tokens.max(1);
        // Of each key: its number.
        let mut numbers: HashTable<(u64, u32)> = HashTable::new();
        let (mut blocks, mut requests, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        for (index, request) in (0..).zip(workload.requests()) {
            let tokens = request.prompt_tokens;
            keys.clear();
            let count = if partial { tokens.div_ceil(block_tokens) } else { tokens / block_tokens };
            Content::of(request, index, Sharing::default()).extend_keys(&mut keys, count, block_tokens);
            for &key in &keys {
                let next = numbers.len() as u32;
                let number = match numbers.entry(key, |known| known.0 == key, |known| known.0) {
                    Entry::Occupied(entry) => entry.get().1,
                    Entry::Vacant(entry) => {
                        entry.insert((key, next));
                        next
                    }
                };
                blocks.push(number);
            }
            let end = u32::try_from(blocks.len()).ok().filter(|&end| end < BlockView::NEVER);
            requests.push((end.ok_or(TooManyReferences)?, tokens));
        }
        Ok(References::over(blocks, requests, numbers.len() as u32, block_tokens))
    }

    /// Blocks that are asked for one by one, in one request; they have numbers below `distinct`, and every number occurs.
    pub fn of_objects(blocks: Vec<u32>, distinct: u32) -> Result<References, TooManyReferences> {
        let end = u32::try_from(blocks.len()).ok().filter(|&end| end < BlockView::NEVER).ok_or(TooManyReferences)?;
        Ok(References::over(blocks, vec![(end, end)], distinct, 1))
    }

    fn over(blocks: Vec<u32>, requests: Vec<(u32, u32)>, distinct: u32, block_tokens: u32) -> References {
        let mut next_of = vec![BlockView::NEVER; distinct as usize];
        let mut next_uses = vec![BlockView::NEVER; blocks.len()];
        for (index, (&block, next_use)) in blocks.iter().zip(&mut next_uses).enumerate().rev() {
            *next_use = std::mem::replace(&mut next_of[block as usize], index as u32);
        }
        let mut uses_of = vec![0; distinct as usize];
        let mut past = |&block: &u32| {
            let uses: &mut u32 = &mut uses_of[block as usize];
            *uses += 1;
            *uses - 1
        };
        let past_uses = blocks.iter().map(&mut past).collect();
        let prompt_tokens = requests.iter().map(|&(_, tokens)| u64::from(tokens)).sum();
        References { blocks, next_uses, past_uses, requests, distinct, block_tokens, prompt_tokens }
    }

    /// Request by request.
    pub fn requests(&self) -> impl ExactSizeIterator<Item = Asked<'_>> {
        let mut start = 0;
        self.requests.iter().map(move |&(end, prompt_tokens)| {
            let range = start..end as usize;
            start = range.end;
            Asked {
                blocks: &self.blocks[range.clone()],
                next_uses: &self.next_uses[range.clone()],
                past_uses: &self.past_uses[range],
                prompt_tokens,
            }
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether nobody asks for a block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// How many blocks are asked for, each counted once.
    pub fn distinct(&self) -> u32 {
        self.distinct
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Tokens of all prompts.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// The share of references that hit where nothing is ever evicted: all but the first to each block.
    pub fn ideal(&self) -> f64 {
        1.0 - f64::from(self.distinct) / (self.blocks.len() as f64).max(1.0)
    }
}
