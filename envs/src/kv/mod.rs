//! Blocks: identifiers, pools and the tables that map a request's tokens onto them. Integer arithmetic only.

mod pool;

pub use pool::{BlockId, BlockPool};

/// Blocks that hold `tokens` tokens.
pub fn blocks_for(tokens: u32, block_size: u32) -> u32 {
    tokens.div_ceil(block_size)
}
