//! A decoder's forward pass over the blocks of a step: every matrix product, every key and value, random weights.
//!
//! A step computes what an engine's would: embedding, then for each layer norm, projections, rotary positions, new keys and
//! values into their slots, attention over the block tables, output projection, norm, gated feed-forward; at the end norm,
//! output head and greedy sampling of the rows that sample. What is sampled is not fed back: the next token is the
//! request's own text, as everywhere in a replay (teacher forcing), so that what is computed does not depend on the weights.

use std::sync::Arc;

use kvtide_envs::deploy::Model;
use kvtide_envs::memory::{KvShape, MemoryError};
use kvtide_kernels::launch::{self, Geometry};

use super::Element;
use super::blas::{Blas, Product};
use super::device::{Device, LaunchArg};
use super::driver::DeviceBuffer;
use super::step::{Inputs, List};
use super::weights::{LayerWeights, ModelWeights, Widths};

/// Base of the rotary positions, Llama 3's; a constant of the arithmetic, which takes the same time for any.
const ROPE_THETA: f32 = 500_000.0;
/// Room for partial results, bytes: more than the pieces that a device of 132 multiprocessors is cut into, so that it hardly
/// ever grows in the middle of a step.
const PARTIAL_BYTES: u64 = 32 << 20;
/// What keeps a norm from dividing by zero.
const EPSILON: f32 = 1e-5;

/// The weights, and room for the activations of the largest step.
#[derive(Debug)]
pub(super) struct Decoder {
    widths: Widths,
    shape: KvShape,
    entries: KernelNames,
    weights: ModelWeights,
    activations: Activations,
    /// Partial results of attention; grows.
    partial: DeviceBuffer,
    partial_state: DeviceBuffer,
    limits: StepLimits,
    blas: Blas,
    device: Arc<Device>,
}

/// The largest step there is room for.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepLimits {
    /// Tokens of a step.
    pub(super) tokens: u32,
    /// Tokens sampled in a step.
    pub(super) sampled: u32,
}

#[derive(Debug)]
struct Activations {
    residual: DeviceBuffer,
    normed: DeviceBuffer,
    qkv: DeviceBuffer,
    attention: DeviceBuffer,
    delta: DeviceBuffer,
    gate_up: DeviceBuffer,
    gated: DeviceBuffer,
    sampled: DeviceBuffer,
    logits: DeviceBuffer,
    ids: DeviceBuffer,
}

/// Names of the kernels for the element and head width in use.
#[derive(Debug, Clone, Copy)]
struct KernelNames {
    rms_norm: &'static str,
    silu_mul: &'static str,
    rope: &'static str,
    argmax: &'static str,
    decode: &'static str,
    merge: &'static str,
    prefill: &'static str,
}

impl KernelNames {
    fn of(element: Element, head_dim: u32) -> KernelNames {
        match (element, head_dim) {
            (Element::Bf16, _) => KernelNames {
                rms_norm: "kvtide_rms_norm_bf16",
                silu_mul: "kvtide_silu_mul_bf16",
                rope: "kvtide_rope_bf16",
                argmax: "kvtide_argmax_bf16",
                decode: if head_dim == 64 { "kvtide_paged_decode_bf16_64" } else { "kvtide_paged_decode_bf16_128" },
                merge: "kvtide_paged_merge_bf16",
                prefill: if head_dim == 64 { "kvtide_paged_prefill_bf16_64" } else { "kvtide_paged_prefill_bf16_128" },
            },
            (Element::Fp16, _) => KernelNames {
                rms_norm: "kvtide_rms_norm_fp16",
                silu_mul: "kvtide_silu_mul_fp16",
                rope: "kvtide_rope_fp16",
                argmax: "kvtide_argmax_fp16",
                decode: if head_dim == 64 { "kvtide_paged_decode_fp16_64" } else { "kvtide_paged_decode_fp16_128" },
                merge: "kvtide_paged_merge_fp16",
                prefill: if head_dim == 64 { "kvtide_paged_prefill_fp16_64" } else { "kvtide_paged_prefill_fp16_128" },
            },
        }
    }
}

impl Decoder {
    pub(super) fn new(
        device: &Arc<Device>,
        model: &Model,
        shape: KvShape,
        element: Element,
        limits: StepLimits,
    ) -> Result<Decoder, MemoryError> {
        let widths = Widths::of(model)?;
        if shape.block_size != launch::BLOCK_SIZE {
            let wrong =
                format!("blocks of {} tokens: attention on the device needs {}", shape.block_size, launch::BLOCK_SIZE);
            return Err(MemoryError::Unsupported(wrong));
        }
        let weights = ModelWeights::random(device, model, &widths, element)?;
        let what = format!("the activations of a step of {} tokens", limits.tokens);
        let rows =
            |rows: u32, width: u32| DeviceBuffer::new(&device.context, u64::from(rows) * u64::from(width) * 2, &what);
        let (tokens, sampled) = (limits.tokens, limits.sampled);
        let activations = Activations {
            residual: rows(tokens, widths.hidden)?,
            normed: rows(tokens, widths.hidden)?,
            qkv: rows(tokens, widths.qkv())?,
            attention: rows(tokens, widths.attention())?,
            delta: rows(tokens, widths.hidden)?,
            gate_up: rows(tokens, 2 * widths.intermediate)?,
            gated: rows(tokens, widths.intermediate)?,
            sampled: rows(sampled, widths.hidden)?,
            logits: rows(sampled, widths.vocabulary)?,
            ids: rows(sampled, 2)?,
        };
        Ok(Decoder {
            entries: KernelNames::of(element, widths.head_dim),
            blas: Blas::new(device, element)?,
            partial: DeviceBuffer::new(&device.context, PARTIAL_BYTES, "partial results of attention")?,
            partial_state: DeviceBuffer::new(&device.context, PARTIAL_BYTES / 32, "partial results of attention")?,
            device: Arc::clone(device),
            widths,
            shape,
            weights,
            activations,
            limits,
        })
    }

    #[cfg(test)]
    pub(super) fn weights(&self) -> &ModelWeights {
        &self.weights
    }

    /// Where the logits of the last step are.
    #[cfg(test)]
    pub(super) fn logits(&self) -> u64 {
        self.activations.logits.address()
    }

    /// Tokens of the largest step there is room for.
    pub(super) fn most_tokens(&self) -> u32 {
        self.limits.tokens
    }

    pub(super) fn vocabulary(&self) -> u32 {
        self.widths.vocabulary
    }

    pub(super) fn group(&self) -> u32 {
        self.widths.group()
    }

    /// Sends a step to the compute stream. `lists` is where its inputs are on the device, `pool` where blocks are.
    pub(super) fn forward(&mut self, inputs: &Inputs, lists: u64, pool: u64) -> Result<(), MemoryError> {
        if inputs.tokens > self.limits.tokens || inputs.sampled.count > self.limits.sampled {
            return Err(MemoryError::Unsupported(format!(
                "a step of {} tokens that samples {}, on a device set up for {} and {}",
                inputs.tokens, inputs.sampled.count, self.limits.tokens, self.limits.sampled
            )));
        }
        if inputs.tokens == 0 {
            return Ok(());
        }
        self.make_room(inputs)?;
        let pass = Pass { decoder: self, inputs: *inputs, lists, pool };
        pass.embed()?;
        for (index, layer) in (0..).zip(&self.weights.layers) {
            pass.layer(index, layer)?;
        }
        pass.sample()
    }

    /// Room for the partial results of a step. What is under way is done first where that is too small.
    fn make_room(&mut self, inputs: &Inputs) -> Result<(), MemoryError> {
        let rows = u64::from(inputs.partials) * u64::from(self.widths.heads);
        let bytes = rows * u64::from(self.widths.head_dim) * 4;
        if bytes > self.partial.bytes() || rows * 8 > self.partial_state.bytes() {
            self.device.compute.synchronise()?;
            let context = &self.device.context;
            self.partial = DeviceBuffer::new(context, bytes.next_power_of_two(), "partial results of attention")?;
            self.partial_state =
                DeviceBuffer::new(context, (rows * 8).next_power_of_two(), "partial results of attention")?;
        }
        Ok(())
    }
}

/// One forward pass.
#[derive(Clone, Copy)]
struct Pass<'a> {
    decoder: &'a Decoder,
    inputs: Inputs,
    lists: u64,
    pool: u64,
}

impl Pass<'_> {
    fn list(&self, list: List) -> LaunchArg {
        LaunchArg::Long(self.lists + u64::from(list.offset) * 4)
    }

    fn launch(&self, entry: &'static str, geometry: Geometry, args: &[LaunchArg]) -> Result<(), MemoryError> {
        let device = &self.decoder.device;
        // SAFETY: every caller gives the kernel's own arguments; activations have room for the tokens of any step that
        // `forward` lets pass, and lists are as long as their counts.
        unsafe { device.launch(entry, geometry, &device.compute, args) }
    }

    fn product(
        &self,
        input: &DeviceBuffer,
        weight: u64,
        output: &DeviceBuffer,
        rows: u32,
        sizes: (u32, u32),
    ) -> Result<(), MemoryError> {
        let (inputs, outputs) = sizes;
        let product =
            Product { input: input.address(), weight, output: output.address(), tokens: rows, inputs, outputs };
        // SAFETY: activations have room for so many rows, weights are of these sizes.
        unsafe { self.decoder.blas.product(product) }
    }

    /// Rows of the embedding for each token.
    fn embed(&self) -> Result<(), MemoryError> {
        let Decoder { widths, weights, activations, .. } = self.decoder;
        let ids = self.list(self.inputs.ids);
        self.gather(weights.embedding, ids, &activations.residual, self.inputs.tokens, widths.hidden)
    }

    fn gather(&self, table: u64, ids: LaunchArg, out: &DeviceBuffer, rows: u32, width: u32) -> Result<(), MemoryError> {
        let args =
            [LaunchArg::Long(table), ids, LaunchArg::Long(out.address()), LaunchArg::Int(rows), LaunchArg::Int(width)];
        self.launch("kvtide_embed", launch::embed(rows, width), &args)
    }

    /// `residual += delta`, and its norm.
    fn norm(
        &self,
        residual: &DeviceBuffer,
        delta: Option<&DeviceBuffer>,
        weight: u64,
        out: &DeviceBuffer,
        rows: u32,
    ) -> Result<(), MemoryError> {
        let width = self.decoder.widths.hidden;
        let args = [
            LaunchArg::Long(residual.address()),
            LaunchArg::Long(delta.map_or(0, DeviceBuffer::address)),
            LaunchArg::Long(weight),
            LaunchArg::Long(out.address()),
            LaunchArg::Int(rows),
            LaunchArg::Int(width),
            LaunchArg::Float(EPSILON),
        ];
        self.launch(self.decoder.entries.rms_norm, launch::rms_norm(rows, width), &args)
    }

    fn layer(&self, index: u32, layer: &LayerWeights) -> Result<(), MemoryError> {
        let Decoder { widths, activations, .. } = self.decoder;
        let Activations { residual, normed, qkv, attention, delta, gate_up, gated, .. } = activations;
        let (tokens, hidden) = (self.inputs.tokens, widths.hidden);
        // What the layer before added is added here.
        let before = (index > 0).then_some(delta);
        self.norm(residual, before, layer.input_norm, normed, tokens)?;
        self.product(normed, layer.qkv, qkv, tokens, (hidden, widths.qkv()))?;
        self.rope()?;
        self.scatter(index)?;
        self.attend(index)?;
        self.product(attention, layer.attention_out, delta, tokens, (widths.attention(), hidden))?;
        self.norm(residual, Some(delta), layer.feed_forward_norm, normed, tokens)?;
        self.product(normed, layer.gate_up, gate_up, tokens, (hidden, 2 * widths.intermediate))?;
        let width = widths.intermediate;
        let args = [
            LaunchArg::Long(gate_up.address()),
            LaunchArg::Long(gated.address()),
            LaunchArg::Int(tokens),
            LaunchArg::Int(width),
        ];
        self.launch(self.decoder.entries.silu_mul, launch::silu_mul(tokens, width), &args)?;
        self.product(gated, layer.down, delta, tokens, (width, hidden))
    }

    /// Queries and keys, which lie side by side, are turned by their positions.
    fn rope(&self) -> Result<(), MemoryError> {
        let widths = &self.decoder.widths;
        let (tokens, heads) = (self.inputs.tokens, widths.heads + widths.kv_heads);
        let args = [
            LaunchArg::Long(self.decoder.activations.qkv.address()),
            LaunchArg::Long(u64::from(widths.qkv())),
            self.list(self.inputs.positions),
            LaunchArg::Int(tokens),
            LaunchArg::Int(heads),
            LaunchArg::Int(widths.head_dim),
            LaunchArg::Float(ROPE_THETA),
        ];
        self.launch(self.decoder.entries.rope, launch::rope(tokens, heads, widths.head_dim), &args)
    }

    /// New keys and values into their slots.
    fn scatter(&self, layer: u32) -> Result<(), MemoryError> {
        let Decoder { widths, shape, activations, .. } = self.decoder;
        let key = activations.qkv.address() + u64::from(widths.attention()) * 2;
        let value = key + u64::from(widths.kv_heads * widths.head_dim) * 2;
        let (keys, values) = self.offsets(layer);
        let args = [
            LaunchArg::Long(key),
            LaunchArg::Long(value),
            LaunchArg::Long(u64::from(widths.qkv())),
            LaunchArg::Long(self.pool),
            self.list(self.inputs.slots),
            LaunchArg::Int(self.inputs.tokens),
            LaunchArg::Int(widths.kv_heads),
            LaunchArg::Int(widths.head_dim),
            LaunchArg::Int(shape.block_size),
            LaunchArg::Long(shape.block_bytes() / 2),
            keys,
            values,
        ];
        let geometry = launch::kv_scatter(self.inputs.tokens, widths.kv_heads, widths.head_dim);
        self.launch("kvtide_kv_scatter", geometry, &args)
    }

    /// Elements from the start of a block to a layer's keys, and to its values.
    fn offsets(&self, layer: u32) -> (LaunchArg, LaunchArg) {
        let shape = &self.decoder.shape;
        let keys = shape.layer_offset(layer);
        (LaunchArg::Long(keys), LaunchArg::Long(keys + shape.layer_elements()))
    }

    fn attend(&self, layer: u32) -> Result<(), MemoryError> {
        let Decoder { widths, shape, activations, entries, partial, partial_state, .. } = self.decoder;
        let Inputs { decodes, merges, prefills, tables, .. } = self.inputs;
        let (keys, values) = self.offsets(layer);
        let scale = LaunchArg::Float(1.0 / (widths.head_dim as f32).sqrt());
        let query = [
            LaunchArg::Long(activations.qkv.address()),
            LaunchArg::Long(u64::from(widths.qkv())),
            LaunchArg::Long(self.pool),
            LaunchArg::Long(shape.block_bytes() / 2),
            keys,
            values,
            self.list(tables),
        ];
        let out = [LaunchArg::Long(activations.attention.address()), LaunchArg::Long(u64::from(widths.attention()))];
        let heads = [LaunchArg::Int(widths.kv_heads), LaunchArg::Int(widths.group()), scale];
        let partials = [LaunchArg::Long(partial.address()), LaunchArg::Long(partial_state.address())];
        if decodes.count > 0 {
            let args = [&query[..], &[self.list(decodes)], &partials, &out, &heads].concat();
            let geometry = launch::paged_decode(decodes.count as usize, widths.kv_heads, widths.group());
            self.launch(entries.decode, geometry, &args)?;
        }
        if prefills.count > 0 {
            let args = [&query[..], &[self.list(prefills)], &partials, &out, &heads].concat();
            let geometry = launch::paged_prefill(prefills.count as usize, widths.kv_heads, widths.head_dim);
            self.launch(entries.prefill, geometry, &args)?;
        }
        if merges.count > 0 {
            let args = [
                partials[0],
                partials[1],
                self.list(merges),
                out[0],
                out[1],
                LaunchArg::Int(widths.heads),
                LaunchArg::Int(widths.head_dim),
            ];
            let geometry = launch::paged_merge(merges.count as usize, widths.heads, widths.head_dim);
            self.launch(entries.merge, geometry, &args)?;
        }
        Ok(())
    }

    /// The rows that sample: norm, output head, the most likely token.
    fn sample(&self) -> Result<(), MemoryError> {
        let Decoder { widths, weights, activations, .. } = self.decoder;
        let Activations { residual, normed, delta, sampled, logits, ids, .. } = activations;
        let rows = self.inputs.sampled.count;
        self.norm(residual, Some(delta), weights.norm, normed, self.inputs.tokens)?;
        if rows == 0 {
            return Ok(());
        }
        let (hidden, vocabulary) = (widths.hidden, widths.vocabulary);
        self.gather(normed.address(), self.list(self.inputs.sampled), sampled, rows, hidden)?;
        self.product(sampled, weights.head, logits, rows, (hidden, vocabulary))?;
        let args = [
            LaunchArg::Long(logits.address()),
            LaunchArg::Long(u64::from(vocabulary)),
            LaunchArg::Long(ids.address()),
            LaunchArg::Int(rows),
            LaunchArg::Int(vocabulary),
        ];
        self.launch(self.decoder.entries.argmax, launch::argmax(rows, vocabulary), &args)
    }
}
