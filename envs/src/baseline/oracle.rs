//! `oracle`.

use kvtide_runtime::Controls;

use super::leaving_free;
use super::peak::{LengthPredictor, reserve};
use crate::env::{Controller, Node};
use crate::sched::{RequestId, RequestView};

/// `oracle`: [`PastFuture`](super::PastFuture) with every answer's length known, the "theoretical optimum" of Gong et al.
/// 2025, section 4: admit while the true peak fits. A reference, not an upper bound: nobody is preempted for want of blocks, but
/// that is not always best for the targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Oracle {
    /// The other heads; its watermark is ignored. `None` for the engine's default.
    pub controls: Option<Controls>,
}

struct KnownLengths;

impl LengthPredictor for KnownLengths {
    fn draws(&self, _: usize) -> usize {
        1
    }

    fn remaining(&mut self, node: &Node, id: RequestId, request: &RequestView) -> u32 {
        node.output_tokens(id).saturating_sub(request.generated)
    }
}

impl Controller for Oracle {
    fn control(&mut self, node: &Node) -> Controls {
        let controls = self.controls.unwrap_or_else(|| node.scheduler().default_controls());
        leaving_free(node, reserve(node, controls.admission, &mut KnownLengths, 1.0), controls)
    }

    fn interval(&self) -> Option<u32> {
        Some(1)
    }
}
