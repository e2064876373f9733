//! The forward pass in plain Rust: what a decision costs in rollouts and evaluation.
//!
//! For the few rows of a rollout step libtorch spends its time on dispatch, not on arithmetic; this pass has none, needs
//! no lock, and does the same operations in the same order on every machine (no fused multiply-add, no library `tanh`),
//! so a decision does not depend on where it is taken.

use serde::{Deserialize, Serialize};

/// Outputs summed at a time: eight SSE registers, so that a layer's sums stay out of memory.
const LANES: usize = 32;

/// What is between two layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// The hyperbolic tangent: of every network that is trained here.
    #[default]
    Tanh,
    /// The larger of the value and zero; networks of others may have it.
    Relu,
}

impl Activation {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Activation::Tanh => "tanh",
            Activation::Relu => "relu",
        }
    }

    fn apply(self, values: &mut [f32]) {
        match self {
            Activation::Tanh => values.iter_mut().for_each(|value| *value = tanh(*value)),
            Activation::Relu => values.iter_mut().for_each(|value| *value = value.max(0.0)),
        }
    }
}

/// A multilayer perceptron with an activation between layers, laid out for the forward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Inference {
    layers: Vec<Layer>,
    widest: usize,
    activation: Activation,
    /// Added to the outputs, past all layers.
    beside: Option<Layer>,
}

/// One layer; its outputs are padded with zeros to whole blocks of [`LANES`].
#[derive(Debug, Clone, PartialEq)]
struct Layer {
    inputs: usize,
    outputs: usize,
    /// One block after another, each `[1 + inputs, LANES]`: its biases, then its weights by input.
    blocks: Vec<[f32; LANES]>,
}

impl Inference {
    /// From weights `[outputs, inputs]`, row-major, and biases of each layer, with tanh between them.
    pub fn new<'a>(layers: impl Iterator<Item = (&'a [f32], &'a [f32])>) -> Inference {
        let layers: Vec<Layer> = layers.map(|(weight, bias)| Layer::new(weight, bias)).collect();
        let widest = layers.iter().map(|layer| layer.inputs.max(layer.outputs)).max().unwrap_or(0);
        Inference { layers, widest, activation: Activation::Tanh, beside: None }
    }

    /// The same with another activation.
    #[must_use]
    pub fn activated_by(self, activation: Activation) -> Inference {
        Inference { activation, ..self }
    }

    /// The same with one more layer, of these weights `[outputs, inputs]` and biases, that leads from the inputs to the outputs past
    /// all others.
    #[must_use]
    pub fn beside(self, weight: &[f32], bias: &[f32]) -> Inference {
        Inference { beside: Some(Layer::new(weight, bias)), ..self }
    }

    /// Adds what the layer that leads past all others, if there is one, makes of `inputs` `[batch, inputs]` to `outputs`
    /// `[batch, outputs]`.
    fn add_beside(&self, inputs: &[f32], outputs: &mut [f32]) {
        let Some(layer) = &self.beside else { return };
        let mut sums = vec![0.0; layer.outputs];
        for (row, output) in inputs.chunks_exact(layer.inputs).zip(outputs.chunks_exact_mut(layer.outputs)) {
            layer.forward(row, &mut sums);
            output.iter_mut().zip(&sums).for_each(|(output, sum)| *output += sum);
        }
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.outputs)
    }

    /// Fills `outputs` `[batch, outputs]` from `inputs` `[batch, inputs]`.
    ///
    /// # Panics
    /// If the lengths are not those of as many rows.
    pub fn forward(&self, inputs: &[f32], outputs: &mut [f32]) {
        let (Some(first), Some(last)) = (self.layers.first(), self.layers.last()) else { return };
        assert_eq!(inputs.len() / first.inputs, outputs.len() / last.outputs, "rows");
        if self.layers.len() == 1 {
            let rows = inputs.chunks_exact(first.inputs).zip(outputs.chunks_exact_mut(first.outputs));
            rows.for_each(|(row, output)| first.forward(row, output));
            return self.add_beside(inputs, outputs);
        }
        let mut current = vec![0.0; self.widest];
        let mut next = vec![0.0; self.widest];
        for (row, output) in inputs.chunks_exact(first.inputs).zip(outputs.chunks_exact_mut(last.outputs)) {
            current[..first.inputs].copy_from_slice(row);
            for (index, layer) in self.layers.iter().enumerate() {
                layer.forward(&current[..layer.inputs], &mut next[..layer.outputs]);
                if index + 1 < self.layers.len() {
                    self.activation.apply(&mut next[..layer.outputs]);
                }
                std::mem::swap(&mut current, &mut next);
            }
            output.copy_from_slice(&current[..last.outputs]);
        }
        self.add_beside(inputs, outputs);
    }
}

impl Layer {
    fn new(weight: &[f32], bias: &[f32]) -> Layer {
        let (outputs, inputs) = (bias.len(), weight.len() / bias.len());
        let entry = |output: usize, row: usize| match (output < outputs, row) {
            (false, _) => 0.0,
            (true, 0) => bias[output],
            (true, _) => weight[output * inputs + row - 1],
        };
        let blocks = (0..outputs.div_ceil(LANES))
            .flat_map(|block| (0..=inputs).map(move |row| (block, row)))
            .map(|(block, row)| std::array::from_fn(|lane| entry(block * LANES + lane, row)))
            .collect();
        Layer { inputs, outputs, blocks }
    }

    fn forward(&self, inputs: &[f32], outputs: &mut [f32]) {
        for (block, outputs) in self.blocks.chunks_exact(self.inputs + 1).zip(outputs.chunks_mut(LANES)) {
            let sums = sum_block(block, inputs);
            outputs.copy_from_slice(&sums[..outputs.len()]);
        }
    }
}

/// Biases plus weighted inputs of one block `[1 + inputs, LANES]`.
///
/// A function of its own that is never inlined: within a larger loop the compiler may keep the sums in memory, which is five
/// times slower, and whether it does changes with the number of codegen units.
#[inline(never)]
fn sum_block(block: &[[f32; LANES]], inputs: &[f32]) -> [f32; LANES] {
    let Some((biases, rows)) = block.split_first() else { return [0.0; LANES] };
    let mut sums = *biases;
    for (input, weights) in inputs.iter().zip(rows) {
        for (sum, weight) in sums.iter_mut().zip(weights) {
            *sum += input * weight;
        }
    }
    sums
}

/// tanh to a few units in the last place: a rational minimax approximation, odd polynomial of degree 13 over even of
/// degree 6, saturating where `f32` does (the coefficients of Eigen's `ptanh_float`).
fn tanh(x: f32) -> f32 {
    let x = x.clamp(-7.905_311, 7.905_311);
    let square = x * x;
    let odd = horner(
        square,
        [
            -2.760_768_5e-16,
            2.000_188e-13,
            -8.604_672e-11,
            5.122_297_1e-8,
            1.485_722_4e-5,
            6.372_619_3e-4,
            4.893_524_6e-3,
        ],
    );
    let even = horner(square, [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3]);
    x * odd / even
}

fn horner<const TERMS: usize>(x: f32, coefficients: [f32; TERMS]) -> f32 {
    coefficients.into_iter().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::weights::{Architecture, Weights};

    #[test]
    fn tanh_is_tanh() {
        for step in -100_000..=100_000 {
            let x = step as f32 * 1e-4;
            let error = (f64::from(tanh(x)) - f64::from(x).tanh()).abs();
            assert!(error < 4e-7, "tanh({x}) off by {error}");
        }
    }

    #[test]
    fn what_is_negative_is_nothing_to_a_rectifier() {
        let layers: [(&[f32], &[f32]); 2] = [(&[1.0, -1.0], &[0.5, 0.5]), (&[2.0, 3.0], &[-1.0])];
        let inference = Inference::new(layers.into_iter()).activated_by(Activation::Relu);
        let mut outputs = [0.0; 2];
        inference.forward(&[2.0, -2.0], &mut outputs);
        assert_eq!(outputs, [2.0 * 2.5 - 1.0, 3.0 * 2.5 - 1.0]);
    }

    #[test]
    fn rows_do_not_influence_each_other() {
        let weights =
            Weights::orthogonal(Architecture { observation_size: 2, hidden: vec![7], head_sizes: vec![3] }, 1);
        let inference = Inference::new(weights.actor());
        let (mut both, mut alone) = ([0.0; 6], [0.0; 3]);
        inference.forward(&[1.0, 2.0, -3.0, 4.0], &mut both);
        inference.forward(&[-3.0, 4.0], &mut alone);
        assert_eq!(both[3..], alone);
    }
}
