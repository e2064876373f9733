//! The host's share of a step, ready to be added. The formulas stand at the head of `mod.rs`.

use super::{Chunk, StepLoad};
use crate::deploy::{Deployment, HostTimes};

/// All constants are seconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HostCost {
    step: f64,
    sequence: f64,
    exposed: f64,
    exposed_sequence: f64,
    chunks: f64,
    /// Launches of a step by where its graphs are.
    graph: f64,
    pieces: f64,
    eager: f64,
    graph_tokens: u32,
    is_async: bool,
}

impl HostCost {
    pub(super) fn new(host: &HostTimes, deployment: &Deployment) -> HostCost {
        let layers = f64::from(deployment.model.num_layers);
        HostCost {
            step: host.step,
            sequence: host.sequence,
            exposed: host.exposed,
            exposed_sequence: host.exposed_sequence,
            chunks: host.chunk_overhead,
            graph: host.launch,
            pieces: layers * f64::from(host.piece_launches) * host.launch,
            eager: layers * f64::from(host.layer_launches) * host.launch,
            graph_tokens: host.cudagraph_tokens,
            is_async: false,
        }
    }

    /// Whether steps are planned beside the accelerator.
    pub(super) fn set_async(&mut self, is_async: bool) {
        self.is_async = is_async;
    }

    /// A step whose kernels take `device`, host and accelerator together. Seconds.
    pub(super) fn step<C>(&self, load: &StepLoad<C>, device: f64) -> f64
    where
        C: ExactSizeIterator<Item = Chunk> + Clone,
    {
        let sequences = f64::from(load.sequences());
        let own = self.step + sequences * self.sequence;
        let chunks = if load.chunks.len() > 0 { self.chunks } else { 0.0 };
        let launches = self.launches(load);
        if self.is_async {
            device.max(own + launches) + self.exposed + sequences * self.exposed_sequence + chunks
        } else {
            own + device.max(launches) + chunks
        }
    }

    fn launches<C>(&self, load: &StepLoad<C>) -> f64
    where
        C: ExactSizeIterator<Item = Chunk> + Clone,
    {
        if load.sequences() == 0 {
            0.0
        } else if load.tokens() > self.graph_tokens {
            self.eager
        } else if load.chunks.len() > 0 {
            self.pieces
        } else {
            self.graph
        }
    }
}
