//! The networks as libtorch differentiates them: actor and critic, two multilayer perceptrons that share nothing.

use tch::Tensor;

use super::tensor;
use super::weights::{Architecture, Weights};

/// Actor and critic with tanh between layers.
#[derive(Debug)]
pub(crate) struct Network {
    architecture: Architecture,
    /// In the order of [`Architecture::parameters`].
    parameters: Vec<Tensor>,
}

impl Network {
    pub(crate) fn new(weights: &Weights) -> Network {
        let architecture = weights.architecture().clone();
        let parameters = architecture
            .parameters()
            .iter()
            .zip(weights.values())
            .map(|((_, shape), values)| tensor::of(values, shape).set_requires_grad(true))
            .collect();
        Network { architecture, parameters }
    }

    /// A copy as plain numbers.
    pub(crate) fn weights(&self) -> Weights {
        let values = self.parameters.iter().map(tensor::values).collect();
        Weights::new(self.architecture.clone(), values).expect("parameters keep their shapes")
    }

    pub(crate) fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    pub(crate) fn parameters_mut(&mut self) -> &mut [Tensor] {
        &mut self.parameters
    }

    /// Logits of the actor, `[batch, num_choices]`, for observations `[batch, observation_size]`.
    pub(crate) fn logits(&self, observations: &Tensor) -> Tensor {
        forward(&self.parameters[..self.parameters.len() / 2], observations)
    }

    /// Values of the critic, `[batch]`, for observations `[batch, observation_size]`.
    pub(crate) fn values(&self, observations: &Tensor) -> Tensor {
        forward(&self.parameters[self.parameters.len() / 2..], observations).squeeze_dim(1)
    }
}

fn forward(parameters: &[Tensor], inputs: &Tensor) -> Tensor {
    let layer = |inputs: &Tensor, pair: &[Tensor]| inputs.linear(&pair[0], Some(&pair[1]));
    let mut layers = parameters.chunks_exact(2);
    let first = layers.next().expect("a network has a layer");
    layers.fold(layer(inputs, first), |hidden, pair| layer(&hidden.tanh(), pair))
}
