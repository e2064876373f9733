//! Tensors of a file, by name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;

use super::ImportError;

/// No file of a policy is larger.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// A tensor.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tensor {
    /// Numbers, row-major.
    Values { shape: Vec<usize>, values: Vec<f64> },
    /// Of a type nothing here is of.
    Other { kind: String, shape: Vec<usize> },
}

impl Tensor {
    /// Type and shape, as errors show them.
    pub(super) fn found(&self) -> String {
        match self {
            Tensor::Values { shape, .. } => format!("{shape:?}"),
            Tensor::Other { kind, shape } => format!("{kind} {shape:?}"),
        }
    }

    pub(super) fn shape(&self) -> &[usize] {
        match self {
            Tensor::Values { shape, .. } | Tensor::Other { shape, .. } => shape,
        }
    }

    /// Rows as columns, of a tensor of two dimensions; any other as it is.
    pub(super) fn transposed(self) -> Tensor {
        match self {
            Tensor::Values { shape, values } if shape.len() == 2 => {
                let (rows, columns) = (shape[0], shape[1]);
                let turned = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
                Tensor::Values { values: turned.map(|index| values[index]).collect(), shape: vec![columns, rows] }
            }
            other => other,
        }
    }
}

/// The bytes of a file, of which there are not too many.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, ImportError> {
    let io = |source| ImportError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ImportError::TooLarge { path: path.to_owned(), limit: MAX_FILE_BYTES });
    }
    Ok(bytes)
}

/// Every tensor of a safetensors file.
#[derive(Debug)]
pub(super) struct TensorFile {
    path: PathBuf,
    tensors: BTreeMap<String, Tensor>,
}

impl TensorFile {
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<TensorFile, ImportError> {
        let file = SafeTensors::deserialize(bytes)
            .map_err(|source| ImportError::Safetensors { path: path.to_owned(), source: Box::new(source) })?;
        let tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
            let shape = view.shape().to_vec();
            let values: Option<Vec<f64>> = match view.dtype() {
                Dtype::F32 => {
                    Some(view.data().as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect())
                }
                Dtype::F64 => Some(view.data().as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()),
                _ => None,
            };
            let kind = || format!("{:?}", view.dtype());
            (
                name,
                values.map_or_else(
                    || Tensor::Other { kind: kind(), shape: shape.clone() },
                    |values| Tensor::Values { shape: shape.clone(), values },
                ),
            )
        };
        Ok(TensorFile { path: path.to_owned(), tensors: file.tensors().into_iter().map(tensor).collect() })
    }

    /// None, of a file that names none.
    pub(super) fn empty(path: &Path) -> TensorFile {
        TensorFile { path: path.to_owned(), tensors: BTreeMap::new() }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The tensor of that name, which `expected` says of what shape it must be.
    pub(super) fn get(&self, name: &str, expected: &str) -> Result<Tensor, ImportError> {
        self.tensors.get(name).cloned().ok_or_else(|| ImportError::tensor(&self.path, name, "missing", expected))
    }
}

/// The values of a tensor of exactly that shape, all of them finite.
pub(super) fn values(
    path: &Path,
    name: &str,
    tensor: &Tensor,
    shape: &[usize],
    why: &str,
) -> Result<Vec<f64>, ImportError> {
    let wanted = || if why.is_empty() { format!("{shape:?}") } else { format!("{shape:?}: {why}") };
    match tensor {
        Tensor::Values { shape: found, values } if found == shape => {
            match values.iter().find(|value| !(**value as f32).is_finite()) {
                Some(value) => {
                    Err(ImportError::NonFinite { path: path.to_owned(), name: name.to_owned(), value: *value })
                }
                None => Ok(values.clone()),
            }
        }
        Tensor::Values { .. } => Err(ImportError::tensor(path, name, &tensor.found(), &wanted())),
        Tensor::Other { .. } => {
            let wanted = format!("F32 or F64 {shape:?} (`.float()` of PyTorch's makes it so)");
            Err(ImportError::tensor(path, name, &tensor.found(), &wanted))
        }
    }
}
