//! `opt-factor`.

use kvtide_runtime::Controls;

use super::leaving_free;
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
        leaving_free(node, blocks, scheduler.default_controls())
    }
}
