//! Measured kernels, ready to price steps of one deployment. The formulas stand at the head of `roofline.rs`.

use super::{Chunk, StepLoad};
use crate::deploy::{Deployment, KernelTimes, between};

/// All constants are seconds per unit, over all devices of the deployment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct KernelCost {
    knots: Vec<f64>,
    /// At each knot, seconds a weight of the model takes.
    weight: Vec<f64>,
    layer_params: f64,
    head_params: f64,
    context_token: f64,
    sequence: f64,
    /// A pair of a token and one it attends to, in a chunk.
    attention_pair: f64,
    chunk_tile: u32,
    fixed: f64,
    launch: f64,
    /// Share of the shorter of computing and copying that is hidden.
    pub(super) overlap: f64,
}

impl KernelCost {
    /// # Panics
    /// If there are no knots, which validation refuses.
    pub(super) fn new(kernels: &KernelTimes, deployment: &Deployment) -> KernelCost {
        let Deployment { model, hardware, devices, .. } = deployment;
        let devices = f64::from(*devices);
        let layers = f64::from(model.num_layers);
        assert!(!kernels.tokens.is_empty(), "a curve without knots");
        KernelCost {
            knots: kernels.tokens.iter().copied().map(f64::from).collect(),
            weight: kernels.weight_seconds(deployment.devices).collect(),
            layer_params: model.layer_params,
            head_params: model.head_params,
            context_token: deployment.kv_bytes_per_token()
                / (hardware.peak_bandwidth * kernels.decode_bandwidth * devices),
            sequence: layers * kernels.decode_sequence,
            attention_pair: kernels.attention_pair(deployment),
            chunk_tile: kernels.chunk_tile,
            fixed: layers * kernels.attention_fixed,
            launch: kernels.launch,
            overlap: kernels.swap_overlap,
        }
    }

    /// Time of a step of `tokens` of `sequences`, at least one, without copies. Seconds.
    pub(super) fn seconds<C>(&self, load: &StepLoad<C>, tokens: f64, sequences: f64) -> f64
    where
        C: ExactSizeIterator<Item = Chunk> + Clone,
    {
        let products = self.layer_params * self.per_weight(tokens) + self.head_params * self.per_weight(sequences);
        let decodes = if load.decodes == 0 {
            0.0
        } else {
            self.fixed + load.decode_context as f64 * self.context_token + f64::from(load.decodes) * self.sequence
        };
        let chunks = if load.chunks.len() == 0 {
            0.0
        } else {
            self.fixed + load.chunks.clone().map(|chunk| self.chunk(chunk)).sum::<f64>()
        };
        (products + decodes + chunks).max(self.launch)
    }

    /// Attention of a chunk: its tokens, in whole tiles, attend to as many others as they do on average.
    fn chunk(&self, chunk: Chunk) -> f64 {
        (chunk.tiled_pairs(self.chunk_tile) * self.attention_pair).max(chunk.end() * self.context_token)
    }

    fn per_weight(&self, tokens: f64) -> f64 {
        let [(below, low), (above, high)] = between(&self.knots, tokens);
        self.weight[below] * low + self.weight[above] * high
    }
}
