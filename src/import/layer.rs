//! A layer as it was found: two tensors and their names.

use super::tensors::Tensor;

/// Weight `[outputs, inputs]` and bias `[outputs]` of a layer, each with its name; a layer may have no bias.
#[derive(Debug, Clone)]
pub(super) struct LayerTensors {
    pub(super) weight: (String, Tensor),
    pub(super) bias: Option<(String, Tensor)>,
}
