//! Blocks: identifiers, pools and the tables that map a request's tokens onto them. Integer arithmetic only.

mod block;
mod cache;
mod content;
mod host;
mod pool;
mod prefix_pool;
mod recount;
mod registry;

#[cfg(test)]
mod tests;

pub use content::{Content, Segment, Sharing, shared_prefixes};
pub use host::HostPool;
pub use pool::{BlockId, BlockPool};
pub use prefix_pool::PrefixPool;

/// Blocks that hold `tokens` tokens.
pub fn blocks_for(tokens: u32, block_size: u32) -> u32 {
    tokens.div_ceil(block_size)
}
