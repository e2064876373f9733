//! Parameters and optimiser state as safetensors.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::CheckpointError;
use crate::agent::adam::AdamState;
use crate::agent::{Architecture, LinearStart, Weights};

/// The policy that learning started from, where it was one.
const START: [&str; 2] = ["start.weight", "start.bias"];

const STEP: &str = "step";

pub(super) fn encode_weights(weights: &Weights) -> Vec<u8> {
    let mut tensors = named(weights.architecture(), "", weights.values());
    if let Some(start) = weights.start() {
        for ((name, shape), values) in
            START.into_iter().zip(start_shapes(weights.architecture())).zip([&start.weight, &start.bias])
        {
            tensors.push((name.to_owned(), Dtype::F32, shape, bytes(values)));
        }
    }
    encode(&tensors)
}

pub(super) fn decode_weights(
    path: &Path,
    bytes: &[u8],
    architecture: Architecture,
) -> Result<Weights, CheckpointError> {
    let count = architecture.parameters().len();
    let has_start = File::holds(path, bytes, START[0])?;
    let file = File::open(path, bytes, count + if has_start { START.len() } else { 0 })?;
    let values = file.all(&architecture, "")?;
    let start = if has_start {
        let [weight, bias] = start_shapes(&architecture);
        Some(LinearStart { weight: file.floats(START[0], &weight)?, bias: file.floats(START[1], &bias)? })
    } else {
        None
    };
    let weights = Weights::new(architecture, values).and_then(|weights| weights.with_start(start));
    Ok(weights.expect("every shape was checked"))
}

pub(super) fn encode_optimiser(architecture: &Architecture, state: &AdamState) -> Vec<u8> {
    let mut tensors = named(architecture, "first.", &state.first);
    tensors.extend(named(architecture, "second.", &state.second));
    tensors.push((STEP.to_owned(), Dtype::U64, vec![1], state.step.to_le_bytes().to_vec()));
    encode(&tensors)
}

pub(super) fn decode_optimiser(
    path: &Path,
    bytes: &[u8],
    architecture: &Architecture,
) -> Result<AdamState, CheckpointError> {
    let file = File::open(path, bytes, 2 * architecture.parameters().len() + 1)?;
    let step = file.tensor(STEP, Dtype::U64, &[1])?;
    Ok(AdamState {
        step: u64::from_le_bytes(step.try_into().expect("one u64 was checked")),
        first: file.all(architecture, "first.")?,
        second: file.all(architecture, "second.")?,
    })
}

fn start_shapes(architecture: &Architecture) -> [Vec<usize>; 2] {
    let choices = architecture.num_choices();
    [vec![choices, architecture.observation_size], vec![choices]]
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

type Named = (String, Dtype, Vec<usize>, Vec<u8>);

fn named(architecture: &Architecture, prefix: &str, values: &[Vec<f32>]) -> Vec<Named> {
    let parameters = architecture.parameters().into_iter().zip(values);
    parameters.map(|((name, shape), values)| (format!("{prefix}{name}"), Dtype::F32, shape, bytes(values))).collect()
}

fn encode(tensors: &[Named]) -> Vec<u8> {
    let view = |dtype, shape, bytes| TensorView::new(dtype, shape, bytes).expect("values fill their shape");
    let views: Vec<(String, TensorView)> =
        tensors.iter().map(|(name, dtype, shape, bytes)| (name.clone(), view(*dtype, shape.clone(), bytes))).collect();
    safetensors::serialize(views, None).expect("a header of known size")
}

struct File<'a> {
    path: &'a Path,
    tensors: SafeTensors<'a>,
}

impl<'a> File<'a> {
    /// Whether a file has a tensor of that name.
    fn holds(path: &Path, bytes: &[u8], name: &str) -> Result<bool, CheckpointError> {
        let tensors = SafeTensors::deserialize(bytes)
            .map_err(|source| CheckpointError::Safetensors { path: path.to_owned(), source })?;
        Ok(tensors.names().contains(&name))
    }

    /// A file of exactly `count` tensors.
    fn open(path: &'a Path, bytes: &'a [u8], count: usize) -> Result<File<'a>, CheckpointError> {
        let tensors = SafeTensors::deserialize(bytes)
            .map_err(|source| CheckpointError::Safetensors { path: path.to_owned(), source })?;
        if tensors.len() == count {
            Ok(File { path, tensors })
        } else {
            Err(CheckpointError::Tensor {
                path: path.to_owned(),
                name: "*".to_owned(),
                found: format!("{} tensors", tensors.len()),
                expected: format!("{count} tensors"),
            })
        }
    }

    /// Bytes of a tensor of this type and shape.
    fn tensor(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<&'a [u8], CheckpointError> {
        let error = |found: String| CheckpointError::Tensor {
            path: self.path.to_owned(),
            name: name.to_owned(),
            found,
            expected: format!("{dtype:?} {shape:?}"),
        };
        let view = self.tensors.tensor(name).map_err(|_| error("missing".to_owned()))?;
        if view.dtype() == dtype && view.shape() == shape {
            Ok(view.data())
        } else {
            Err(error(format!("{:?} {:?}", view.dtype(), view.shape())))
        }
    }

    /// Values of every parameter under `prefix`.
    fn all(&self, architecture: &Architecture, prefix: &str) -> Result<Vec<Vec<f32>>, CheckpointError> {
        let read = |(name, shape): (String, Vec<usize>)| self.floats(&format!("{prefix}{name}"), &shape);
        architecture.parameters().into_iter().map(read).collect()
    }

    /// Values of a tensor of this shape, all finite.
    fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, CheckpointError> {
        let values: Vec<f32> = self
            .tensor(name, Dtype::F32, shape)?
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        match values.iter().find(|value| !value.is_finite()) {
            Some(&value) => {
                Err(CheckpointError::NonFinite { path: self.path.to_owned(), name: name.to_owned(), value })
            }
            None => Ok(values),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn architecture() -> Architecture {
        Architecture { observation_size: 3, hidden: vec![4], head_sizes: vec![2] }
    }

    #[test]
    fn weights_and_optimiser_come_back_bit_for_bit() {
        let weights = Weights::orthogonal(architecture(), 9);
        let path = Path::new("weights.safetensors");
        assert_eq!(decode_weights(path, &encode_weights(&weights), architecture()).unwrap(), weights);

        let state = AdamState { step: 7, first: weights.values().to_vec(), second: weights.values().to_vec() };
        let bytes = encode_optimiser(&architecture(), &state);
        assert_eq!(decode_optimiser(path, &bytes, &architecture()).unwrap(), state);
    }

    #[test]
    fn the_policy_that_was_started_from_is_kept() {
        let plain = Weights::orthogonal(architecture(), 9);
        let start = LinearStart { weight: vec![0.1, -0.2, 0.3, 0.4, 0.5, -0.6], bias: vec![1.0, -1.0] };
        let weights = plain.clone().starting_from(start).unwrap();
        let path = Path::new("weights.safetensors");
        assert_eq!(decode_weights(path, &encode_weights(&weights), architecture()).unwrap(), weights);
        assert!(
            encode_weights(&plain).len() < encode_weights(&weights).len(),
            "where there is none nothing is written"
        );
    }

    #[test]
    fn another_architecture_names_the_tensor() {
        let bytes = encode_weights(&Weights::orthogonal(architecture(), 9));
        let path = Path::new("weights.safetensors");
        let wider = Architecture { hidden: vec![5], ..architecture() };
        let error = decode_weights(path, &bytes, wider).unwrap_err().to_string();
        assert_eq!(error, "weights.safetensors: tensor actor.0.weight is F32 [4, 3], must be F32 [5, 3]");
        let deeper = Architecture { hidden: vec![4, 4], ..architecture() };
        let error = decode_weights(path, &bytes, deeper).unwrap_err().to_string();
        assert_eq!(error, "weights.safetensors: tensor * is 8 tensors, must be 12 tensors");
    }

    #[test]
    fn infinities_are_refused() {
        let weights = Weights::orthogonal(architecture(), 9);
        let mut values = weights.values().to_vec();
        values[1][2] = f32::INFINITY;
        let bytes = encode_weights(&Weights::new(architecture(), values).unwrap());
        let error = decode_weights(Path::new("w"), &bytes, architecture()).unwrap_err();
        assert_eq!(error.to_string(), "w: tensor actor.0.bias holds inf");
    }
}
