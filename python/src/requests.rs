//! Per-request numbers from Python: sequences of tuples, or one buffer of 64-bit integers.

use std::vec::IntoIter;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// Rows of `N` integers; a missing number is -1.
pub struct IntegerRows<const N: usize>(Vec<[i64; N]>);

impl<const N: usize> IntegerRows<N> {
    pub fn none() -> IntegerRows<N> {
        IntegerRows(Vec::new())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &[i64; N]> {
        self.0.iter()
    }
}

impl<const N: usize> IntoIterator for IntegerRows<N> {
    type Item = [i64; N];
    type IntoIter = IntoIter<[i64; N]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'py, const N: usize> FromPyObject<'_, 'py> for IntegerRows<N> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<IntegerRows<N>> {
        if let Ok(list) = object.cast::<PyList>() {
            return list.iter().map(|item| row(&item)).collect::<PyResult<_>>().map(IntegerRows);
        }
        if let Ok(tuple) = object.cast::<PyTuple>() {
            return tuple.iter().map(|item| row(&item)).collect::<PyResult<_>>().map(IntegerRows);
        }
        if let Ok(buffer) = PyBuffer::<i64>::get(&object) {
            return from_buffer(&buffer, object.py());
        }
        object.try_iter()?.map(|item| row(&item?)).collect::<PyResult<_>>().map(IntegerRows)
    }
}

/// A flat buffer of `N` numbers a request, or one of that many columns.
fn from_buffer<const N: usize>(buffer: &PyBuffer<i64>, py: Python<'_>) -> PyResult<IntegerRows<N>> {
    let columns_fit = buffer.dimensions() == 1 || buffer.shape().last() == Some(&N);
    let values = buffer.to_vec(py)?;
    let (rows, rest) = values.as_chunks::<N>();
    if !columns_fit || !rest.is_empty() {
        return Err(PyValueError::new_err(format!(
            "expected {N} numbers a request, found a buffer of {}",
            values.len()
        )));
    }
    Ok(IntegerRows(rows.to_vec()))
}

fn row<const N: usize>(item: &Bound<'_, PyAny>) -> PyResult<[i64; N]> {
    if let Ok(tuple) = item.cast::<PyTuple>()
        && tuple.len() == N
    {
        let mut row = [0; N];
        for (number, value) in row.iter_mut().zip(tuple.iter_borrowed()) {
            *number = if value.is_none() { -1 } else { value.extract()? };
        }
        return Ok(row);
    }
    let values: Vec<Option<i64>> = item.extract()?;
    let found = values.len();
    let numbers: Vec<i64> = values.into_iter().map(|value| value.unwrap_or(-1)).collect();
    numbers.try_into().map_err(|_| PyValueError::new_err(format!("expected {N} numbers a request, found {found}")))
}

/// A count, from a number that may be out of its range.
pub fn count(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

/// A time or a sum, from a number that may be negative.
pub fn unsigned(number: i64) -> u64 {
    number.max(0).cast_unsigned()
}
