//! A roofline model of one step.
//!
//! A step is a sequence of kernels, and each takes the longer of its arithmetic and its memory traffic (Williams,
//! Waterman, Patterson 2009, "Roofline"). With `n` tokens in the batch, of `s` sequences, each of which is taken to be sampled (a
//! chunk that does not end its prompt is not; the head is far from its arithmetic bound, so nothing is lost):
//!
//! - layers: `max(2 · n · layer_params / F, layer_params · weight_bytes / B)`
//! - head: `max(2 · s · head_params / F, head_params · weight_bytes / B)`
//! - attention of decodes: `kv_bytes · context / B`, each token reading the keys and values before it
//! - attention of a prompt chunk of `k` tokens after `c`: `max(4 · layers · heads · head_dim · pairs / F,
//!   kv_bytes · (c + k) / B)` with `pairs = k · c + k · (k + 1) / 2`
//! - all-reduces over `d` devices: `2 · layers · 2 · (d - 1) / d · n · hidden · 2 bytes / link`
//!
//! `F` and `B` are peak FLOP/s and bytes/s times the share reached, times `d`. To this come the host's fixed time, its
//! time per sequence, and swaps: `blocks · block_bytes / PCIe`, not overlapped with compute, as in vLLM's V0. The
//! arithmetic is that of Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2 and appendix.
//!
//! Where the hardware has measured [`KernelTimes`](crate::deploy::KernelTimes), they replace the two shares:
//!
//! - layers and head: `layer_params · w(n) / d + head_params · w(s) / d`, with `w` the measured time per weight
//! - attention of decodes: `kv_bytes · context / (share · peak_bandwidth · d)`, and `layers · decode_sequence` for each
//! - attention of a chunk: the same `max`, with its own share of the peak, and `k` rounded up to tiles of
//!   `chunk_tile` in `pairs = k · (c + (k + 1) / 2)`
//! - `layers · attention_fixed` for decodes, where there are any, and for chunks
//! - altogether never less than `launch`
//! - swaps: with `C` the time of all this, all-reduces included, and `S` that of the copies, `C + S - swap_overlap · min(C, S)`
//!
//! Models with experts, windows or latent attention are priced in `structured.rs`. Quantised weights are read in their bytes;
//! in fp8 they are multiplied at that rate where the accelerator has one, otherwise at that of 16 bits. Embedding and head are
//! of two bytes.

use std::sync::Arc;

use super::host_cost::HostCost;
use super::kernel_cost::KernelCost;
use super::structured::StructuredCost;
use super::tabled::TabledCost;
use super::{Chunk, StepLoad};
use crate::deploy::{Deployment, EngineConfig, EngineKind, Hardware, Rates, TabledTimes, UNQUANTISED_BYTES};
use crate::sched::{Pricing, StepPlan};
use crate::tier::{Link, Links};
use crate::time::Micros;

/// What copies over one link take. Seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LinkPrice {
    /// A block, in one direction.
    block: f64,
    /// Any number of them on top.
    fixed: f64,
}

/// Prices steps of one deployment. All constants are seconds per unit.
#[derive(Debug, Clone, PartialEq)]
pub struct CostModel {
    layers_per_token: f64,
    layers_at_least: f64,
    head_per_sample: f64,
    head_at_least: f64,
    context_token: f64,
    attention_pair: f64,
    reduce_per_token: f64,
    links: Links<LinkPrice>,
    step_fixed: f64,
    sequence_fixed: f64,
    /// Boxed, so that a plain model stays as small as it is.
    other: Option<Box<OtherCost>>,
    pricing: Pricing,
}

/// What is not priced by the plain roofline and two overheads.
#[derive(Debug, Clone, PartialEq)]
struct OtherCost {
    device: DeviceCost,
    /// The host's share of a step in more than two numbers.
    host: Option<HostCost>,
}

/// How the accelerator's time is priced.
#[derive(Debug, Clone, PartialEq)]
enum DeviceCost {
    /// By the plain roofline.
    Plain,
    /// An accelerator with measured kernels.
    Measured(KernelCost),
    /// A model that is not dense, or does not attend to all tokens alike.
    Structured(StructuredCost),
    /// An accelerator whose kernels were measured by shape. Shared, because every node has a cost model of its own.
    Tabled(Arc<TabledCost>),
}

impl DeviceCost {
    fn of(deployment: &Deployment, rates: &Rates) -> DeviceCost {
        let Hardware { kernels, tables, .. } = &deployment.hardware;
        match (kernels, tables) {
            (Some(kernels), _) => DeviceCost::Measured(KernelCost::new(kernels, deployment)),
            (None, Some(tables)) => {
                DeviceCost::Tabled(Arc::new(TabledCost::new(&TabledTimes::new(deployment, tables))))
            }
            _ if deployment.model.structure.is_dense_over_all_tokens() => DeviceCost::Plain,
            _ => DeviceCost::Structured(StructuredCost::new(deployment, rates)),
        }
    }
}

impl OtherCost {
    fn of(deployment: &Deployment, rates: &Rates) -> Option<Box<OtherCost>> {
        let device = DeviceCost::of(deployment, rates);
        let host = deployment.hardware.host.as_ref().map(|host| HostCost::new(host, deployment));
        let is_plain = device == DeviceCost::Plain && host.is_none();
        (!is_plain).then(|| Box::new(OtherCost { device, host }))
    }
}

impl CostModel {
    /// The model of `deployment` with blocks of `block_size` tokens.
    pub fn new(deployment: &Deployment, block_size: u32) -> CostModel {
        let Deployment { model, hardware, devices, .. } = deployment;
        let devices = f64::from(*devices);
        let flops = hardware.peak_flops * hardware.compute_efficiency * devices;
        let bandwidth = hardware.peak_bandwidth * hardware.bandwidth_efficiency * devices;
        let kv_bytes = deployment.kv_bytes_per_token();
        let rates = Rates::of(deployment, block_size);
        let Rates { layers_per_token, attention_pair, reduce_per_token, swap_per_block } = rates;
        CostModel {
            layers_per_token,
            layers_at_least: model.layer_params * model.weight_bytes / bandwidth,
            head_per_sample: 2.0 * model.head_params / flops,
            head_at_least: model.head_params * UNQUANTISED_BYTES / bandwidth,
            context_token: kv_bytes / bandwidth,
            attention_pair,
            reduce_per_token,
            links: Links::from_fn(|link| match link {
                Link::Pcie => LinkPrice { block: swap_per_block, fixed: hardware.swap_overhead },
            }),
            step_fixed: hardware.step_overhead,
            sequence_fixed: hardware.sequence_overhead,
            other: OtherCost::of(deployment, &rates),
            pricing: deployment.pricing(block_size),
        }
    }

    /// The same under the settings of `engine`: whether the host works beside the accelerator.
    #[must_use]
    pub fn under(mut self, engine: &EngineConfig) -> CostModel {
        if let Some(host) = self.other.as_mut().and_then(|other| other.host.as_mut()) {
            host.set_async(engine.engine == EngineKind::V1 && engine.async_scheduling);
        }
        self
    }

    /// How long `plan` takes, in whole microseconds, at least one: what the host's cache copies takes no time of its own
    /// unless the links are busy for longer than all the rest.
    pub fn step_time(&self, plan: &StepPlan) -> Micros {
        let load = plan.load();
        let seconds = self.step_seconds(&load);
        let beside = plan.blocks_beside();
        let seconds = if beside.iter().all(|&blocks| blocks == 0) {
            seconds
        } else {
            seconds.max(self.copies(Links::from_fn(|link| load.blocks[link] + beside[link])))
        };
        Micros::from_secs_f64(seconds).max(Micros(1))
    }

    /// How long a step with `load` takes, host and accelerator together. Seconds.
    #[inline]
    pub fn step_seconds<C: ExactSizeIterator<Item = Chunk> + Clone>(&self, load: &StepLoad<C>) -> f64 {
        let sequences = load.sequences();
        let host = f64::from(sequences) * self.sequence_fixed;
        if let Some(other) = &self.other {
            let device = self.by_other(&other.device, load);
            return other.host.as_ref().map_or_else(|| self.step_fixed + host + device, |host| host.step(load, device));
        }
        let compute = if sequences == 0 { 0.0 } else { self.roofline(load, f64::from(sequences)) + host };
        // In this order of additions, which committed simulations depend on to the last bit.
        self.step_fixed + compute + self.copies(load.blocks)
    }

    /// The same without the host's time, which is what a [`TimedDevice`](crate::calibrate::TimedDevice) measures. Seconds.
    pub fn device_seconds<C: ExactSizeIterator<Item = Chunk> + Clone>(&self, load: &StepLoad<C>) -> f64 {
        match &self.other {
            None if load.sequences() == 0 => self.copies(load.blocks),
            None => self.roofline(load, f64::from(load.sequences())) + self.copies(load.blocks),
            Some(other) => self.by_other(&other.device, load),
        }
    }

    /// The host's part of a step whose kernels were measured to take `device`: what comes on top of that.
    pub fn host_time(&self, plan: &StepPlan, device: Micros) -> Micros {
        let load = plan.load();
        let host = self.other.as_ref().and_then(|other| other.host.as_ref());
        Micros::from_secs_f64(host.map_or_else(
            || self.step_fixed + f64::from(load.sequences()) * self.sequence_fixed,
            |host| host.step(&load, device.as_secs_f64()) - device.as_secs_f64(),
        ))
    }

    /// Time of the copies over all links, one link after the other. Seconds.
    #[inline]
    fn copies(&self, blocks: Links<usize>) -> f64 {
        let time = |(price, &blocks): (&LinkPrice, &usize)| {
            if blocks == 0 { 0.0 } else { price.fixed + blocks as f64 * price.block }
        };
        self.links.iter().zip(&blocks).fold(0.0, |sum, link| sum + time(link))
    }

    /// Time on the accelerator by other than the plain roofline. Seconds. Not inlined: that is not to pay for it.
    #[inline(never)]
    fn by_other<C: ExactSizeIterator<Item = Chunk> + Clone>(&self, device: &DeviceCost, load: &StepLoad<C>) -> f64 {
        let (sequences, copies) = (load.sequences(), self.copies(load.blocks));
        if sequences == 0 {
            return copies;
        }
        match device {
            DeviceCost::Plain => self.roofline(load, f64::from(sequences)) + copies,
            DeviceCost::Tabled(tabled) => tabled.seconds(load, f64::from(sequences)) + copies,
            DeviceCost::Structured(structured) => structured.seconds(load, f64::from(sequences)) + copies,
            DeviceCost::Measured(kernels) => {
                let tokens = f64::from(load.tokens());
                let compute = kernels.seconds(load, tokens, f64::from(sequences)) + tokens * self.reduce_per_token;
                compute + copies - kernels.overlap * compute.min(copies)
            }
        }
    }

    /// Time on the accelerator by its roofline, without copies, of at least one sequence. Seconds.
    #[inline]
    fn roofline<C: ExactSizeIterator<Item = Chunk> + Clone>(&self, load: &StepLoad<C>, sequences: f64) -> f64 {
        let tokens = f64::from(load.tokens());
        let mut chunks = 0.0;
        for chunk in load.chunks.clone() {
            chunks += self.chunk_attention(chunk);
        }
        (tokens * self.layers_per_token).max(self.layers_at_least)
            + (sequences * self.head_per_sample).max(self.head_at_least)
            + load.decode_context as f64 * self.context_token
            + chunks
            + tokens * self.reduce_per_token
    }

    #[inline]
    fn chunk_attention(&self, chunk: Chunk) -> f64 {
        (chunk.pairs() * self.attention_pair).max(chunk.end() * self.context_token)
    }

    /// The price list a scheduler compares preemptions by: its [deployment's](Deployment::pricing).
    pub fn pricing(&self) -> Pricing {
        self.pricing
    }

    /// Decode throughput with `sequences` requests of `context` tokens each, tokens/s: the yardstick of rewards.
    pub fn decode_tokens_per_s(&self, sequences: u32, context: u32) -> f64 {
        let count = sequences.max(1);
        if self.other.is_some() {
            let decode_context = u64::from(count) * u64::from(context);
            let load =
                StepLoad { decodes: count, decode_context, chunks: std::iter::empty(), blocks: Links::default() };
            return f64::from(count) / self.step_seconds(&load);
        }
        let sequences = f64::from(count);
        let step = self.step_fixed
            + (sequences * self.layers_per_token).max(self.layers_at_least)
            + (sequences * self.head_per_sample).max(self.head_at_least)
            + sequences * f64::from(context) * self.context_token
            + sequences * (self.reduce_per_token + self.sequence_fixed);
        sequences / step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::BlockId;
    use crate::sched::{BlockCopy, Prefill, PrefillSource, RequestId};
    use crate::tier::{Route, Routes};

    fn cost(name: &str) -> CostModel {
        CostModel::new(&name.parse().unwrap(), 16)
    }

    fn decodes(count: u32, context: u64) -> StepPlan {
        StepPlan { cohort: count, decode_context: u64::from(count) * context, ..StepPlan::default() }
    }

    #[test]
    fn a_lone_decode_reads_the_weights_once() {
        // 15.0 GB of layers and head over 806 GB/s is 18.6 ms; 3 ms of host time come on top.
        let time = cost("llama-3-8b@rtx-4090").step_time(&decodes(1, 0)).as_millis_f64();
        assert!((time - 21.6).abs() < 0.3, "{time}");
    }

    #[test]
    fn decoding_is_bound_by_memory_and_prefill_by_arithmetic() {
        let cost = cost("llama-3-8b@rtx-4090");
        let one = cost.step_time(&decodes(1, 1000)).0 as f64;
        let sixteen = cost.step_time(&decodes(16, 1000)).0 as f64;
        assert!(sixteen < 1.2 * one, "{one} {sixteen}");
        let prompt = |tokens| {
            let source = PrefillSource::Waiting;
            let prefill = Prefill { id: RequestId(0), tokens, context: 0, source, samples: true };
            cost.step_time(&StepPlan { prefills: vec![prefill], ..StepPlan::default() }).0 as f64
        };
        let ratio = prompt(4000) / prompt(2000);
        assert!((1.8..2.2).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_swap_is_paid_by_the_block() {
        let cost = cost("llama-3-8b@rtx-4090");
        let copy = BlockCopy { src: BlockId(0), dst: BlockId(0) };
        let plan = StepPlan { copies: Routes::from_fn(|_| vec![copy; 50]), ..StepPlan::default() };
        // 100 blocks of 2 MiB over 25 GB/s are 8.4 ms.
        let swap = cost.step_time(&plan).as_millis_f64() - 3.0;
        assert!((swap - 8.5).abs() < 0.1, "{swap}");
    }

    #[test]
    fn what_the_host_cache_copies_takes_time_only_where_the_link_is_busy_for_longer() {
        let cost = cost("llama-3-8b@rtx-4090");
        let copy = BlockCopy { src: BlockId(0), dst: BlockId(0) };
        let stores = |count: u32| {
            let mut plan = decodes(64, 2000);
            plan.copies[Route::GpuToHost] = vec![copy; count as usize];
            plan.stored = count;
            plan
        };
        let alone = cost.step_time(&decodes(64, 2000));
        assert_eq!(cost.step_time(&stores(50)), alone);
        // 1,000 blocks are 84 ms, whatever is computed meanwhile.
        let busy = cost.step_time(&stores(1000)).as_millis_f64();
        assert!(busy > alone.as_millis_f64() && (busy - 84.0).abs() < 1.0, "{busy}, {alone}");
    }

    #[test]
    fn tensor_parallelism_shares_the_work_and_pays_for_it() {
        let (one, two) = (cost("llama-3-8b@h100-datasheet"), cost("llama-3-8b@2xh100-datasheet"));
        let plan = decodes(64, 2000);
        let ratio = one.step_time(&plan).0 as f64 / two.step_time(&plan).0 as f64;
        assert!((1.3..2.0).contains(&ratio), "{ratio}");
    }
}
