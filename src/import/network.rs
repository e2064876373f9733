//! Layers of another's network as weights over kvtide's observation and action.

use std::path::Path;

use kvtide_runtime::action::NUM_CHOICES;
use kvtide_runtime::{Action, Head, NUM_FEATURES};

use super::layer::LayerTensors;
use super::tensors::{Tensor, values};
use super::{ImportError, Place};
use crate::agent::{Architecture, Weights};

/// Most layers between input and output, and their largest width: see the settings of PPO.
const MOST_HIDDEN: usize = 8;
/// See [`MOST_HIDDEN`].
const WIDEST: usize = 4096;
/// Logit of a choice of a head the network has no output for, other than the engine's own.
const NEVER: f32 = -1e3;

/// What the network's inputs and outputs are.
pub(super) struct Interface<'a> {
    /// The file its layers were read from.
    pub(super) path: &'a Path,
    /// Index of the feature that each input is.
    pub(super) inputs: &'a [usize],
    /// The heads its outputs may be of: those that were named, or what there is to choose from by its width.
    pub(super) heads: &'a [Vec<Head>],
    /// What is done of a head it has no outputs for.
    pub(super) default: Action,
}

/// A layer checked: rows of its weight, and its bias.
struct Layer {
    inputs: usize,
    rows: Vec<Vec<f32>>,
    bias: Vec<f32>,
}

impl Interface<'_> {
    /// The network over all features and heads, and the heads its outputs are of.
    pub(super) fn weights(&self, layers: &[LayerTensors]) -> Result<(Weights, Vec<Head>), ImportError> {
        let place = Place(self.path);
        if layers.len() > MOST_HIDDEN + 1 {
            let found = layers.len() - 1;
            return Err(place.refuse(format!("it has {found} hidden layers, must have at most {MOST_HIDDEN}")));
        }
        let Some(last) = layers.last() else { return Err(place.refuse("it has no layer".to_owned())) };
        let heads = self.output_heads(last)?;
        let (mut width, mut checked) = (self.inputs.len(), Vec::new());
        for (index, layer) in layers.iter().enumerate() {
            let is_last = index + 1 == layers.len();
            let outputs = if is_last { outputs(&heads) } else { self.hidden_width(layer)? };
            let why = match (index, is_last) {
                (0, _) => format!("the policy sees {width} features"),
                (_, true) => sizes(&heads),
                (_, false) => format!("the layer before has {width} outputs"),
            };
            checked.push(self.layer(layer, (outputs, width), &why)?);
            width = outputs;
        }
        let hidden: Vec<usize> = checked[..checked.len() - 1].iter().map(|layer| layer.bias.len()).collect();
        if let Some(first) = checked.first_mut() {
            self.spread_inputs(first);
        }
        if let Some(last) = checked.last_mut() {
            self.spread_outputs(last, &heads);
        }
        let architecture =
            Architecture { observation_size: NUM_FEATURES, hidden, head_sizes: Head::ALL.map(Head::size).to_vec() };
        // The critic's: zeros.
        let mut values = Weights::zeros(architecture.clone()).values().to_vec();
        for (values, layer) in values.chunks_exact_mut(2).zip(checked) {
            (values[0], values[1]) = (layer.rows.concat(), layer.bias);
        }
        let weights = Weights::new(architecture, values);
        weights.map(|weights| (weights, heads)).ok_or_else(|| place.refuse("its layers do not fit together".to_owned()))
    }

    /// The heads its outputs are of, of which there is one answer.
    fn output_heads(&self, last: &LayerTensors) -> Result<Vec<Head>, ImportError> {
        let (name, tensor) = &last.weight;
        let [found, inputs] = *tensor.shape() else {
            return Err(ImportError::tensor(self.path, name, &tensor.found(), "[outputs, inputs]"));
        };
        if let Some(heads) = self.heads.iter().find(|heads| outputs(heads) == found) {
            return Ok(heads.clone());
        }
        let wanted: Vec<String> =
            self.heads.iter().map(|heads| format!("[{}, {inputs}] ({})", outputs(heads), sizes(heads))).collect();
        let joint = if found > NUM_CHOICES {
            "; a flat Discrete over joint choices is not one choice a head: train on the MultiDiscrete actions"
        } else {
            "; name the heads it has outputs for under `heads`"
        };
        Err(ImportError::tensor(self.path, name, &tensor.found(), &format!("{}{joint}", wanted.join(" or "))))
    }

    fn hidden_width(&self, layer: &LayerTensors) -> Result<usize, ImportError> {
        let (name, tensor) = &layer.weight;
        match tensor.shape() {
            [outputs, _] if (1..=WIDEST).contains(outputs) => Ok(*outputs),
            _ => {
                let expected = format!("[outputs, inputs] with 1 to {WIDEST} outputs");
                Err(ImportError::tensor(self.path, name, &tensor.found(), &expected))
            }
        }
    }

    fn layer(
        &self,
        LayerTensors { weight: (name, tensor), bias }: &LayerTensors,
        (outputs, inputs): (usize, usize),
        why: &str,
    ) -> Result<Layer, ImportError> {
        let narrow = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect::<Vec<f32>>();
        let weight = narrow(values(self.path, name, tensor, &[outputs, inputs], why)?);
        let bias = match bias {
            Some((name, tensor)) => narrow(values(self.path, name, &row(tensor), &[outputs], "")?),
            None => vec![0.0; outputs],
        };
        Ok(Layer { inputs, rows: weight.chunks_exact(inputs).map(<[f32]>::to_vec).collect(), bias })
    }

    /// A weight for every feature, zero for those that are no input.
    fn spread_inputs(&self, layer: &mut Layer) {
        for row in &mut layer.rows {
            let mut spread = vec![0.0; NUM_FEATURES];
            for (&feature, weight) in self.inputs.iter().zip(&*row) {
                spread[feature] = *weight;
            }
            *row = spread;
        }
        layer.inputs = NUM_FEATURES;
    }

    /// A row for every choice of every head; of a head that is no output the engine's own choice is always the likeliest.
    fn spread_outputs(&self, layer: &mut Layer, heads: &[Head]) {
        let (mut rows, mut bias) = (Vec::with_capacity(NUM_CHOICES), Vec::with_capacity(NUM_CHOICES));
        for head in Head::ALL {
            if let Some(place) = heads.iter().position(|known| *known == head) {
                let first = outputs(&heads[..place]);
                rows.extend_from_slice(&layer.rows[first..first + head.size()]);
                bias.extend_from_slice(&layer.bias[first..first + head.size()]);
            } else {
                rows.extend(std::iter::repeat_n(vec![0.0; layer.inputs], head.size()));
                let own = usize::from(self.default.get(head));
                bias.extend((0..head.size()).map(|choice| if choice == own { 0.0 } else { NEVER }));
            }
        }
        (layer.rows, layer.bias) = (rows, bias);
    }
}

/// A bias of one row is one of no rows: exporters of graphs write both.
fn row(tensor: &Tensor) -> Tensor {
    match tensor {
        Tensor::Values { shape, values } if shape.len() == 2 && shape[0] == 1 => {
            Tensor::Values { shape: vec![shape[1]], values: values.clone() }
        }
        other => other.clone(),
    }
}

fn outputs(heads: &[Head]) -> usize {
    heads.iter().map(|head| head.size()).sum()
}

/// `watermark 20, victim 5`.
fn sizes(heads: &[Head]) -> String {
    heads.iter().map(|head| format!("{} {}", head.name(), head.size())).collect::<Vec<String>>().join(", ")
}
