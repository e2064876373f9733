//! Random weights in a model's shapes.

use std::sync::Arc;

use kvtide_envs::deploy::Model;
use kvtide_envs::memory::MemoryError;
use kvtide_envs::seed;
use rand::Rng;

use super::Element;
use super::device::Device;
use super::driver::{DeviceBuffer, copy};

/// Widths of a dense decoder, as far as its matrices go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Widths {
    pub(super) layers: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) hidden: u32,
    pub(super) intermediate: u32,
    pub(super) vocabulary: u32,
}

impl Widths {
    /// Those of `model`, which names its parameters only in sum.
    ///
    /// # Errors
    /// The sums do not come from such a decoder, or a width is one the kernels cannot do.
    pub(super) fn of(model: &Model) -> Result<Widths, MemoryError> {
        let unsupported = |what: &str| MemoryError::Unsupported(format!("{}: {what}", model.name));
        if !model.is_plain() {
            return Err(unsupported(
                "dense decoders with grouped-query attention over all tokens and weights of 2 bytes are supported",
            ));
        }
        let hidden = f64::from(model.hidden_size);
        let attention = hidden * f64::from(model.head_dim * (2 * model.num_heads + 2 * model.num_kv_heads));
        let intermediate = (model.layer_params / f64::from(model.num_layers) - attention) / (3.0 * hidden);
        let vocabulary = model.head_params / hidden;
        let whole = |value: f64| value >= 1.0 && value.fract() == 0.0 && value < f64::from(u32::MAX);
        if !whole(intermediate) || !whole(vocabulary) {
            return Err(unsupported("its parameters are not those of a dense decoder with a gated feed-forward layer"));
        }
        let widths = Widths {
            layers: model.num_layers,
            heads: model.num_heads,
            kv_heads: model.num_kv_heads,
            head_dim: model.head_dim,
            hidden: model.hidden_size,
            intermediate: intermediate as u32,
            vocabulary: vocabulary as u32,
        };
        if ![64, 128].contains(&widths.head_dim) || !widths.heads.is_multiple_of(widths.kv_heads) {
            return Err(unsupported("heads of 64 or 128, a whole number to a key/value head, are supported"));
        }
        if [widths.hidden, widths.intermediate, widths.vocabulary].iter().any(|width| !width.is_multiple_of(8)) {
            return Err(unsupported("widths of a multiple of 8 are supported"));
        }
        Ok(widths)
    }

    /// Query heads to a key/value head.
    pub(super) fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    /// Elements of a token's queries, keys and values.
    pub(super) fn qkv(&self) -> u32 {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Elements of a token's attention output.
    pub(super) fn attention(&self) -> u32 {
        self.heads * self.head_dim
    }
}

/// Addresses of a layer's weights, each `[outputs, inputs]`, norms `[hidden]`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LayerWeights {
    pub(super) input_norm: u64,
    pub(super) qkv: u64,
    pub(super) attention_out: u64,
    pub(super) feed_forward_norm: u64,
    pub(super) gate_up: u64,
    pub(super) down: u64,
}

/// All weights of a model, in one piece of memory.
#[derive(Debug)]
pub(super) struct ModelWeights {
    pub(super) layers: Vec<LayerWeights>,
    pub(super) norm: u64,
    /// `[vocabulary, hidden]`.
    pub(super) embedding: u64,
    /// `[vocabulary, hidden]`; the embedding again where they are tied.
    pub(super) head: u64,
    _buffer: DeviceBuffer,
}

/// Elements of the pattern that weights are made of: 64 MiB, larger than any cache of a device.
const PATTERN: u64 = 1 << 25;

impl ModelWeights {
    /// Random weights: uniform, of the variance that keeps activations of order one (`LeCun` et al. 1998, "Efficient
    /// `BackProp`", section 4.6). Made of one pattern from different places on: a device's time depends on shapes, and a
    /// little on how many bits flip, which random bits settle.
    pub(super) fn random(
        device: &Arc<Device>,
        model: &Model,
        widths: &Widths,
        element: Element,
    ) -> Result<ModelWeights, MemoryError> {
        let mut plan = WeightLayout::default();
        let (hidden, intermediate) = (u64::from(widths.hidden), u64::from(widths.intermediate));
        let layers = (0..widths.layers).map(|_| LayerWeights {
            input_norm: plan.take(hidden),
            qkv: plan.take(u64::from(widths.qkv()) * hidden),
            attention_out: plan.take(u64::from(widths.attention()) * hidden),
            feed_forward_norm: plan.take(hidden),
            gate_up: plan.take(2 * intermediate * hidden),
            down: plan.take(intermediate * hidden),
        });
        let mut layers: Vec<LayerWeights> = layers.collect();
        let vocabulary = u64::from(widths.vocabulary) * hidden;
        let norm = plan.take(hidden);
        let embedding = plan.take(vocabulary);
        let head = if model.tied_embeddings { embedding } else { plan.take(vocabulary) };
        let buffer = DeviceBuffer::new(&device.context, plan.elements * 2, &format!("the weights of {}", model.name))?;
        fill(device, &buffer, widths, element)?;
        let base = buffer.address();
        for layer in &mut layers {
            let LayerWeights { input_norm, qkv, attention_out, feed_forward_norm, gate_up, down } = layer;
            for offset in [input_norm, qkv, attention_out, feed_forward_norm, gate_up, down] {
                *offset = base + *offset * 2;
            }
        }
        let at = |offset: u64| base + offset * 2;
        Ok(ModelWeights { layers, norm: at(norm), embedding: at(embedding), head: at(head), _buffer: buffer })
    }
}

/// Where each matrix lies, in elements.
#[derive(Debug, Default)]
struct WeightLayout {
    elements: u64,
}

impl WeightLayout {
    fn take(&mut self, elements: u64) -> u64 {
        let start = self.elements;
        // Matrices start at 256 bytes, as allocations do.
        self.elements += elements.next_multiple_of(128);
        start
    }
}

fn fill(device: &Arc<Device>, buffer: &DeviceBuffer, widths: &Widths, element: Element) -> Result<(), MemoryError> {
    let bound = (3.0 / f64::from(widths.hidden)).sqrt() as f32;
    let mut stream = seed::stream(0, "weights", 0);
    let length = (buffer.bytes() / 2).min(PATTERN);
    let uniform = |word: u32| (word as f32 / 2_147_483_648.0 - 1.0) * bound;
    let pattern: Vec<u16> = (0..length).map(|_| element.narrow(uniform(stream.next_u32()))).collect();
    let source = DeviceBuffer::new(&device.context, length * 2, "a pattern of weights")?;
    source.write(&pattern, &device.compute)?;
    let (mut done, mut turn) = (0, 0_u64);
    while done < buffer.bytes() {
        // From another place each time, so that no two matrices are alike.
        let skip = (turn * 0x9e37_79b1 % (length / 2) * 2) & !255;
        let bytes = (length * 2 - skip).min(buffer.bytes() - done);
        // SAFETY: both ranges were just cut to their allocations, which outlive the wait below.
        unsafe { copy(buffer.address() + done, source.address() + skip, bytes, &device.compute)? };
        done += bytes;
        turn += 1;
    }
    device.compute.synchronise()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_those_of_the_published_configurations() {
        for (name, intermediate, vocabulary) in
            [("llama-3-8b", 14_336, 128_256), ("qwen2.5-7b", 18_944, 152_064), ("llama-3-70b", 28_672, 128_256)]
        {
            let widths = Widths::of(&Model::named(name).unwrap()).unwrap();
            assert_eq!((widths.intermediate, widths.vocabulary), (intermediate, vocabulary), "{name}");
        }
        let odd = Model { head_dim: 96, ..Model::named("llama-3-8b").unwrap() };
        assert!(matches!(Widths::of(&odd), Err(MemoryError::Unsupported(_))));
    }
}
