//! What a policy is measured against and may itself not be: controllers that look at the engine directly.
//!
//! The two rules here are those of the watermark study of vLLM's scheduler; fixed controls need no code, since
//! [`Controls`] is a controller.

use kvtide_runtime::Controls;

use crate::env::{Controller, Node};

/// `opt-factor:a`: leave free `a · N / block_size` blocks for `N` running requests.
///
/// Each running request takes a new block every `block_size` steps, so `N / block_size` blocks are taken a step: the
/// watermark is `a` steps of growth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptFactor {
    /// `a`, in steps.
    pub factor: f64,
}

impl Controller for OptFactor {
    fn control(&mut self, node: &Node) -> Controls {
        let scheduler = node.scheduler();
        let blocks = self.factor * scheduler.running().len() as f64 / f64::from(scheduler.config().block_size);
        leaving_free(node, blocks)
    }
}

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
        leaving_free(node, self.blocks * scheduler.running().len() as f64 - held as f64)
    }
}

/// The engine's default with a watermark of that many blocks, rounded down and limited to the pool.
fn leaving_free(node: &Node, blocks: f64) -> Controls {
    let pool = f64::from(node.scheduler().config().num_gpu_blocks);
    // Half a block more, so that the scheduler's own truncation gives the number back.
    let watermark = ((blocks.max(0.0).floor() + 0.5) / pool).min(1.0);
    Controls { watermark, ..node.scheduler().default_controls() }
}
