//! A network as libtorch multiplies it, many rows at a time, and its derivative written out: for a multilayer perceptron that is
//! a few products, and nothing has to be recorded.

use kvtide::agent::Network;
use tch::{Kind, Tensor};

use crate::tensor;

/// A multilayer perceptron with tanh between layers.
pub(crate) struct Perceptron {
    /// Weights `[outputs, inputs]` and biases `[outputs]`.
    layers: Vec<(Tensor, Tensor)>,
    /// What the last forward pass left for the way back: the inputs of every layer, `[rows, inputs]` each.
    pass: Vec<Tensor>,
}

impl Perceptron {
    /// From weights `[outputs, inputs]`, row-major, and biases of each layer.
    pub(crate) fn new<'a>(layers: impl Iterator<Item = (&'a [f32], &'a [f32])>) -> Perceptron {
        let layer = |(weight, bias): (&[f32], &[f32])| {
            let outputs = bias.len();
            (tensor::of(weight, &[outputs, weight.len() / outputs]), tensor::of(bias, &[outputs]))
        };
        Perceptron { layers: layers.map(layer).collect(), pass: Vec::new() }
    }
}

impl Network for Perceptron {
    fn forward(&mut self, inputs: &[f32]) -> Vec<f32> {
        let width = self.layers.first().map_or(1, |(weight, _)| weight.size()[1] as usize);
        self.pass = vec![tensor::rows_of(inputs, width)];
        let mut outputs = None;
        for (weight, bias) in &self.layers {
            self.pass.extend(outputs.take().map(tanh));
            outputs = self.pass.last().map(|inputs| inputs.linear(weight, Some(bias)));
        }
        tensor::values(&outputs.expect("a network has a layer"))
    }

    fn backward(&self, gradient: &[f32]) -> Vec<Vec<f32>> {
        let outputs = self.layers.last().map_or(1, |(_, bias)| bias.numel());
        let mut gradient = tensor::rows_of(gradient, outputs);
        let mut gradients = Vec::with_capacity(2 * self.layers.len());
        for (index, ((weight, _), inputs)) in self.layers.iter().zip(&self.pass).enumerate().rev() {
            gradients.push(tensor::values(&gradient.sum_dim_intlist(0, false, Kind::Float)));
            gradients.push(tensor::values(&gradient.tr().mm(inputs)));
            if index > 0 {
                gradient = Tensor::tanh_backward(&gradient.mm(weight), inputs);
            }
        }
        gradients.reverse();
        gradients
    }
}

/// `2 σ(2x) − 1`, which is tanh to 1e-7: libtorch leaves tanh to MKL, which takes four times as long for it on AMD.
fn tanh(mut values: Tensor) -> Tensor {
    values *= 2.0;
    let mut values = values.sigmoid_();
    values *= 2.0;
    values -= 1.0;
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_is_tanh() {
        let x: Vec<f32> = (-100_000..=100_000).map(|step| step as f32 * 1e-4).collect();
        for (found, x) in tensor::values(&tanh(tensor::of(&x, &[x.len()]))).iter().zip(x) {
            assert!((f64::from(*found) - f64::from(x).tanh()).abs() < 2e-7, "tanh({x}) = {found}");
        }
    }
}
