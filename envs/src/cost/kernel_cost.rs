//! Measured kernels, ready to price steps of one deployment. The formulas stand at the head of `roofline.rs`.

use super::kernels::between;
use super::{Chunk, Deployment, Kernels, StepLoad};

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
    pub(super) attention_pair: f64,
    chunk_tile: u32,
    fixed: f64,
    launch: f64,
    /// Share of the shorter of computing and copying that is hidden.
    pub(super) overlap: f64,
}

impl KernelCost {
    /// # Panics
    /// If there are no knots, which validation refuses.
    pub(super) fn new(kernels: &Kernels, deployment: &Deployment) -> KernelCost {
        let Deployment { model, hardware, devices } = deployment;
        let devices = f64::from(*devices);
        let layers = f64::from(model.num_layers);
        assert!(!kernels.tokens.is_empty(), "a curve without knots");
        KernelCost {
            knots: kernels.tokens.iter().copied().map(f64::from).collect(),
            weight: kernels.ps_per_weight.iter().map(|ps| ps * 1e-12 / devices).collect(),
            layer_params: model.layer_params,
            head_params: model.head_params,
            context_token: model.kv_bytes_per_token() / (hardware.peak_bandwidth * kernels.decode_bandwidth * devices),
            sequence: layers * kernels.decode_sequence,
            attention_pair: model.attention_flops_per_pair() / (hardware.peak_flops * kernels.chunk_compute * devices),
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

    /// Time of a token in the layers' matrix products of the largest batch measured.
    pub(super) fn seconds_per_token(&self) -> f64 {
        let last = self.knots.len() - 1;
        self.layer_params * self.weight[last] / self.knots[last]
    }

    fn per_weight(&self, tokens: f64) -> f64 {
        let [(below, low), (above, high)] = between(&self.knots, tokens);
        self.weight[below] * low + self.weight[above] * high
    }
}
