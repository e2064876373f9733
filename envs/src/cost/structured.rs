//! The roofline of models that are not dense, or do not attend to all tokens alike: experts, windows, latents.
//!
//! Each kernel takes the longer of its arithmetic and its memory traffic, as in `roofline.rs`. What differs:
//!
//! - routed experts, in the layers that have them: `max(2 · n · per_token · params / F, distinct(n) · params · bytes / B)`, with
//!   `distinct` as in [`Experts::distinct`](crate::deploy::Experts::distinct)
//! - attention of layers with a window of `w`: of decodes over `min(context, s · w)` tokens (the sum over sequences is what a step
//!   knows, so that this is the most it can be), of a chunk over `min(context, w)` before each of its tokens
//! - latent attention: of decodes `max(2 · layers · heads · (2 · rank + rotary) · context / F, bytes · context / B)`, because all heads
//!   share what is read; of a chunk over expanded keys and values, which takes
//!   `2 · rank · heads · (key + value width) · layers / F` for each token before it

use super::{Chunk, StepLoad};
use crate::deploy::{Deployment, Rates, UNQUANTISED_BYTES};

/// All constants are seconds per unit, over all devices of the deployment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StructuredCost {
    layers_per_token: f64,
    layers_at_least: f64,
    experts: Option<ExpertCost>,
    head_per_sample: f64,
    head_at_least: f64,
    /// Of the layers that attend to all tokens.
    full: AttentionCost,
    /// Of those with a window, and its tokens.
    window: Option<(f64, AttentionCost)>,
    reduce_per_token: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct ExpertCost {
    per_token: f64,
    /// Reading one expert of every layer that has them.
    expert: f64,
    count: f64,
    log_passed_over: f64,
}

/// Attention of some of the layers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct AttentionCost {
    /// Reading a token before.
    read: f64,
    /// Multiplying with it, for a token that is generated.
    decode_pair: f64,
    /// The same for a token of a prompt.
    chunk_pair: f64,
    /// Expanding a token before a chunk.
    expand: f64,
}

impl AttentionCost {
    /// Of a share of the layers.
    fn of(deployment: &Deployment, rates: &Rates, share: f64) -> AttentionCost {
        let Deployment { model, hardware, devices, .. } = deployment;
        let devices = f64::from(*devices);
        let flops = hardware.peak_flops * hardware.compute_efficiency * devices;
        let bandwidth = hardware.peak_bandwidth * hardware.bandwidth_efficiency * devices;
        let expand = model.structure.latent.map_or(0.0, |latent| {
            let width = f64::from(model.head_dim - latent.rotary) + f64::from(latent.value);
            2.0 * f64::from(latent.rank) * f64::from(model.num_heads) * width * f64::from(model.num_layers) / flops
        });
        AttentionCost {
            read: share * deployment.kv_bytes_per_token() / bandwidth,
            decode_pair: share * model.decode_flops_per_pair() / flops,
            chunk_pair: share * rates.attention_pair,
            expand: share * expand,
        }
    }

    fn decodes(&self, context: f64) -> f64 {
        context * self.read.max(self.decode_pair)
    }

    fn chunk(&self, pairs: f64, read: f64, before: f64) -> f64 {
        (pairs * self.chunk_pair).max(read * self.read) + before * self.expand
    }
}

impl StructuredCost {
    pub(super) fn new(deployment: &Deployment, rates: &Rates) -> StructuredCost {
        let Deployment { model, hardware, devices, .. } = deployment;
        let devices = f64::from(*devices);
        let product_flops = hardware.product_flops_of(model) * hardware.compute_efficiency * devices;
        let flops = hardware.peak_flops * hardware.compute_efficiency * devices;
        let bandwidth = hardware.peak_bandwidth * hardware.bandwidth_efficiency * devices;
        let windowed =
            model.structure.window.map_or(0.0, |window| f64::from(window.layers) / f64::from(model.num_layers));
        let window = model.structure.window.map(|window| f64::from(window.tokens));
        StructuredCost {
            layers_per_token: 2.0 * model.layer_params / product_flops,
            layers_at_least: model.layer_params * model.weight_bytes / bandwidth,
            experts: model.structure.experts.map(|experts| ExpertCost {
                per_token: 2.0 * experts.params_of(f64::from(experts.per_token)) / product_flops,
                expert: experts.params_of(1.0) * experts.weight_bytes / bandwidth,
                count: f64::from(experts.count),
                log_passed_over: experts.log_passed_over(),
            }),
            head_per_sample: 2.0 * model.head_params / flops,
            head_at_least: model.head_params * UNQUANTISED_BYTES / bandwidth,
            full: AttentionCost::of(deployment, rates, 1.0 - windowed),
            window: window.map(|tokens| (tokens, AttentionCost::of(deployment, rates, windowed))),
            reduce_per_token: rates.reduce_per_token,
        }
    }

    /// Time on the accelerator, without copies, of at least one sequence. Seconds.
    pub(super) fn seconds<C>(&self, load: &StepLoad<C>, sequences: f64) -> f64
    where
        C: ExactSizeIterator<Item = Chunk> + Clone,
    {
        let tokens = f64::from(load.tokens());
        let context = load.decode_context as f64;
        let mut attention = self.full.decodes(context);
        if let Some((window, cost)) = &self.window {
            attention += cost.decodes(context.min(f64::from(load.decodes) * window));
        }
        attention += load.chunks.clone().map(|chunk| self.chunk(chunk)).sum::<f64>();
        (tokens * self.layers_per_token).max(self.layers_at_least)
            + self.experts.as_ref().map_or(0.0, |experts| experts.seconds(tokens))
            + (sequences * self.head_per_sample).max(self.head_at_least)
            + attention
            + tokens * self.reduce_per_token
    }

    fn chunk(&self, chunk: Chunk) -> f64 {
        let before = f64::from(chunk.context);
        let full = self.full.chunk(chunk.pairs(), chunk.end(), before);
        let Some((window, cost)) = &self.window else { return full };
        let tokens = f64::from(chunk.tokens);
        // Its first tokens see all before them, the others a whole window.
        let growing = (window - before).clamp(0.0, tokens);
        let pairs = growing * before + growing * (growing + 1.0) / 2.0 + (tokens - growing) * window;
        let seen_before = before.min(window - 1.0);
        full + cost.chunk(pairs, seen_before + tokens, seen_before)
    }
}

impl ExpertCost {
    fn seconds(&self, tokens: f64) -> f64 {
        let distinct = -self.count * (self.log_passed_over * tokens).exp_m1();
        (tokens * self.per_token).max(distinct * self.expert)
    }
}
