//! A network as libtorch multiplies it, many rows at a time, and its derivative written out: for a multilayer perceptron that is
//! a few products, and nothing has to be recorded.

use tch::{Kind, Tensor};

use super::tensor;

/// A multilayer perceptron with tanh between layers.
pub(crate) struct Network {
    /// Weights `[outputs, inputs]` and biases `[outputs]`.
    layers: Vec<(Tensor, Tensor)>,
}

/// What a forward pass leaves for the way back: the inputs of every layer, `[rows, inputs]` each.
pub(crate) struct Pass(Vec<Tensor>);

impl Network {
    /// From weights `[outputs, inputs]`, row-major, and biases of each layer.
    pub(crate) fn new<'a>(layers: impl Iterator<Item = (&'a [f32], &'a [f32])>) -> Network {
        let layer = |(weight, bias): (&[f32], &[f32])| {
            let outputs = bias.len();
            (tensor::of(weight, &[outputs, weight.len() / outputs]), tensor::of(bias, &[outputs]))
        };
        Network { layers: layers.map(layer).collect() }
    }

    /// Outputs `[rows, outputs]` for `inputs` `[rows, inputs]`.
    pub(crate) fn forward(&self, inputs: &Tensor) -> (Tensor, Pass) {
        let mut pass = vec![inputs.shallow_clone()];
        let mut outputs = None;
        for (weight, bias) in &self.layers {
            pass.extend(outputs.take().map(tanh));
            outputs = pass.last().map(|inputs| inputs.linear(weight, Some(bias)));
        }
        (outputs.expect("a network has a layer"), Pass(pass))
    }

    /// The derivative of a loss by every weight and bias, in the order of [`Network::new`], from that by the outputs
    /// `[rows, outputs]` of `pass`.
    pub(crate) fn backward(&self, Pass(inputs): &Pass, mut gradient: Tensor) -> Vec<Vec<f32>> {
        let mut gradients = Vec::with_capacity(2 * self.layers.len());
        for (index, ((weight, _), inputs)) in self.layers.iter().zip(inputs).enumerate().rev() {
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
