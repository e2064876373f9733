//! `avg-blocks`.

use kvtide_runtime::Controls;

use super::leaving_free;
use crate::env::{Controller, Node};

/// `avg-blocks:t`: leave free what the running requests will still take if each ends at `t` blocks on average, that is
/// `N · t` less the blocks they hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AverageBlocks {
    /// `t`, in blocks.
    pub blocks: f64,
}

impl Controller for AverageBlocks {
    fn control(&mut self, node: &Node) -> Controls {
        let scheduler = node.scheduler();
        let held: usize = scheduler.running().iter().map(|&id| scheduler.view(id).held_blocks as usize).sum();
        let blocks = self.blocks * scheduler.running().len() as f64 - held as f64;
        leaving_free(node, blocks, scheduler.default_controls())
    }
}
