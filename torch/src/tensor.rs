//! The one place where numbers change hands with libtorch: as slices, row-major, because tch brings its own ndarray.

use tch::Tensor;
use tch::kind::Element;

/// A tensor of `shape` holding a copy of `values`.
///
/// # Panics
/// If `shape` is not that of as many values.
pub fn of<T: Element>(values: &[T], shape: &[usize]) -> Tensor {
    assert_eq!(values.len(), shape.iter().product::<usize>(), "shape {shape:?}");
    let shape: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
    Tensor::from_slice(values).view(shape.as_slice())
}

/// The tensor's values, row-major.
pub fn values(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.detach().contiguous();
    let mut values = vec![0.0_f32; tensor.numel()];
    tensor.copy_data(&mut values, tensor.numel());
    values
}

/// A tensor `[rows, width]` of `values`.
///
/// # Panics
/// If there is a part of a row.
pub fn rows_of(values: &[f32], width: usize) -> Tensor {
    of(values, &[values.len() / width, width])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_keeps_order() {
        let tensor = of(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
        assert_eq!(tensor.double_value(&[1, 0]), 4.0);
        assert_eq!(values(&tensor.transpose(0, 1)), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
