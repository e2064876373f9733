//! What a step has to do, in the terms it is priced by.

use serde::{Deserialize, Serialize};

use crate::sched::StepPlan;
use crate::tier::{Links, Route};

/// A prompt, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunk {
    /// Tokens of the prompt computed before.
    pub context: u32,
    /// Tokens computed in the step.
    pub tokens: u32,
}

impl Chunk {
    /// Pairs of a token computed and one it attends to, itself included.
    pub fn pairs(self) -> f64 {
        let (context, tokens) = (f64::from(self.context), f64::from(self.tokens));
        tokens * context + tokens * (tokens + 1.0) / 2.0
    }

    /// Pairs where tokens are computed `tile` at a time, each attending to as many as the chunk's do on average; 0 for a
    /// chunk without tokens.
    pub(crate) fn tiled_pairs(self, tile: u32) -> f64 {
        let tiles = i64::from(self.tokens.div_ceil(tile)) * i64::from(tile);
        tiles as f64 * (f64::from(self.context) + f64::midpoint(f64::from(self.tokens), 1.0))
    }

    /// Tokens attended to by the chunk's last token.
    pub fn end(self) -> f64 {
        f64::from(self.context) + f64::from(self.tokens)
    }
}

/// The load of one step. A [`StepPlan`] and a [`StepShape`](crate::calibrate::StepShape) both make one, so that what is scheduled
/// and what is timed is priced by the same code.
#[derive(Debug, Clone)]
pub struct StepLoad<C> {
    /// Sequences that compute one token each.
    pub decodes: u32,
    /// Sum over them of the tokens each attends to, its new one included.
    pub decode_context: u64,
    /// Chunks, in any order.
    pub chunks: C,
    /// Blocks copied over each link before the step computes, both ways together.
    pub blocks: Links<usize>,
}

impl<C: ExactSizeIterator<Item = Chunk> + Clone> StepLoad<C> {
    /// Tokens computed.
    #[inline]
    pub fn tokens(&self) -> u32 {
        self.chunks.clone().map(|chunk| chunk.tokens).sum::<u32>() + self.decodes
    }

    /// Sequences of which tokens are computed.
    #[inline]
    pub fn sequences(&self) -> u32 {
        self.chunks.len() as u32 + self.decodes
    }
}

impl StepPlan {
    /// What the step has to do, but for the copies of the host's cache, which are made [beside](Self::blocks_beside) it.
    #[inline]
    pub fn load(&self) -> StepLoad<impl ExactSizeIterator<Item = Chunk> + Clone> {
        let mut blocks = Links::default();
        for route in Route::ALL {
            blocks[route.link()] += self.copies[route].len() - self.cached_blocks(route);
        }
        StepLoad {
            decodes: self.cohort,
            decode_context: self.decode_context,
            chunks: self.prefills.iter().map(|prefill| Chunk { context: prefill.context, tokens: prefill.tokens }),
            blocks,
        }
    }

    /// Blocks that are copied over each link for the host's cache while the step computes, both ways together.
    pub fn blocks_beside(&self) -> Links<usize> {
        let mut blocks = Links::default();
        for route in Route::ALL {
            blocks[route.link()] += self.cached_blocks(route);
        }
        blocks
    }

    #[inline]
    fn cached_blocks(&self, route: Route) -> usize {
        match route {
            Route::GpuToHost => self.stored as usize,
            Route::HostToGpu => self.fetched.iter().map(|fetched| fetched.blocks as usize).sum(),
        }
    }
}
