//! What a unit of work takes on a deployment: what the price of a step and the price list of preemptions have in common.

use kvtide_rules::Pricing;

use super::model::UNQUANTISED_BYTES;
use super::{Deployment, KernelTimes, TabledTimes};

/// Seconds per unit over all devices of a deployment, by the shares of the peaks they reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rates {
    /// A token in the layers' matrix products, where their arithmetic is what takes time.
    pub(crate) layers_per_token: f64,
    /// Attention of one token of a chunk to one before it.
    pub(crate) attention_pair: f64,
    /// All-reduces of a token's activations.
    pub(crate) reduce_per_token: f64,
    /// A block copied between accelerators and host.
    pub(crate) swap_per_block: f64,
}

impl Rates {
    /// Those of `deployment` with blocks of `block_size` tokens.
    pub(crate) fn of(deployment: &Deployment, block_size: u32) -> Rates {
        let Deployment { model, hardware, devices, .. } = deployment;
        let devices = f64::from(*devices);
        let flops = hardware.peak_flops * hardware.compute_efficiency * devices;
        let product_flops = hardware.product_flops_of(model) * hardware.compute_efficiency * devices;
        let reduce_bytes = 2.0
            * f64::from(model.num_layers)
            * 2.0
            * ((devices - 1.0) / devices)
            * f64::from(model.hidden_size)
            * UNQUANTISED_BYTES;
        Rates {
            layers_per_token: 2.0 * model.active_layer_params() / product_flops,
            attention_pair: model.attention_flops_per_pair() / flops,
            reduce_per_token: reduce_bytes / hardware.link_bandwidth,
            swap_per_block: deployment.kv_bytes_per_token() * f64::from(block_size)
                / (hardware.pcie_bandwidth * devices),
        }
    }
}

impl KernelTimes {
    /// Seconds that a weight takes at each knot, over `devices` devices.
    pub(crate) fn weight_seconds(&self, devices: u32) -> impl Iterator<Item = f64> {
        let devices = f64::from(devices);
        self.ps_per_weight.iter().map(move |ps| ps * 1e-12 / devices)
    }

    /// Seconds that attention of one token of a chunk to one before it takes on `deployment`.
    pub(crate) fn attention_pair(&self, deployment: &Deployment) -> f64 {
        let Deployment { model, hardware, devices, .. } = deployment;
        model.attention_flops_per_pair() / (hardware.peak_flops * self.chunk_compute * f64::from(*devices))
    }

    /// Seconds of a token in the layers' matrix products of the largest batch measured, which is where recomputing ends up;
    /// none without knots.
    fn seconds_per_token(&self, deployment: &Deployment) -> f64 {
        let last = self.tokens.iter().zip(self.weight_seconds(deployment.devices)).last();
        last.map_or(0.0, |(tokens, weight)| deployment.model.layer_params * weight / f64::from(*tokens))
    }
}

impl Deployment {
    /// What a token takes by itself, and for each token before it: layers with a window are by the token, as if it were full.
    fn windowed(&self, rates: Rates) -> (f64, f64) {
        let Some(window) = self.model.structure.window else { return (rates.layers_per_token, rates.attention_pair) };
        let share = f64::from(window.layers) / f64::from(self.model.num_layers);
        let by_itself = rates.attention_pair * share * f64::from(window.tokens);
        (rates.layers_per_token + by_itself, rates.attention_pair * (1.0 - share))
    }

    /// The price list a scheduler compares preemptions by, with blocks of `block_size` tokens: of measured kernels where
    /// the hardware has them.
    pub fn pricing(&self, block_size: u32) -> Pricing {
        let rates = Rates::of(self, block_size);
        let (per_token, pair) = match (&self.hardware.kernels, &self.hardware.tables) {
            (Some(kernels), _) => {
                (kernels.seconds_per_token(self) + rates.reduce_per_token, kernels.attention_pair(self))
            }
            (None, Some(tables)) => TabledTimes::new(self, tables).per_token_and_pair(),
            (None, None) => {
                let (per_token, pair) = self.windowed(rates);
                (per_token + rates.reduce_per_token, pair)
            }
        };
        Pricing {
            swap_ns_per_block: rates.swap_per_block * 1e9,
            prefill_ns_per_token: per_token * 1e9,
            attention_ns_per_token_pair: pair * 1e9,
        }
    }
}
