//! Arrays that somebody else allocated, and what is written into them.

use kvtide_runtime::{ActionMask, NUM_FEATURES};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::actions::Actions;
use super::group::{Group, Shown};

/// Where what is shown is written. Nothing is held but the arrays' buffers, so that they can neither move nor shrink.
#[derive(Debug)]
pub struct Arrays {
    pub observations: Array<f32>,
    pub masks: Array<i8>,
    pub rewards: Array<f64>,
    pub terminated: Array<u8>,
    pub truncated: Array<u8>,
    pub loads: Array<f64>,
    pub elapsed_s: Array<f64>,
}

/// An array, and what it is to hold: put together in memory of ours, for what Python's threads may look at meanwhile can only be
/// copied into.
#[derive(Debug)]
pub struct Array<T: Element> {
    buffer: PyBuffer<T>,
    values: Vec<T>,
}

impl<T: Element + Default> Array<T> {
    /// `object` with so many `items`, if it can be written to and is contiguous.
    pub fn new(py: Python<'_>, name: &str, object: &Bound<'_, PyAny>, items: usize) -> PyResult<Array<T>> {
        let buffer = PyBuffer::<T>::get(object)?;
        if buffer.item_count() != items {
            return Err(PyValueError::new_err(format!(
                "{name}: expected {items} values, found {}",
                buffer.item_count()
            )));
        }
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err(format!("{name}: expected an array to write to, contiguous")));
        }
        let array = Array { buffer, values: vec![T::default(); items] };
        array.copy(py)?;
        Ok(array)
    }

    fn copy(&self, py: Python<'_>) -> PyResult<()> {
        self.buffer.copy_from_slice(py, &self.values)
    }
}

impl Arrays {
    /// Writes what every environment of `group` shows.
    pub fn write(&mut self, py: Python<'_>, group: &Group, actions: &Actions) -> PyResult<()> {
        let num_choices: usize = actions.sizes().iter().sum();
        let observations = self.observations.values.chunks_exact_mut(NUM_FEATURES);
        let mut written: Option<(ActionMask, usize)> = None;
        for (env, (shown, observation)) in group.shown().zip(observations).enumerate() {
            let Shown { observation: seen, reward, terminated, truncated, info } = shown;
            observation.copy_from_slice(&seen.values);
            let place = env * num_choices;
            match written {
                // Nearly always that of the one before: a mask depends on the world alone.
                Some((mask, before)) if mask == info.mask => {
                    self.masks.values.copy_within(before..before + num_choices, place);
                }
                _ => actions.write_mask(info.mask, &mut self.masks.values[place..place + num_choices]),
            }
            written = Some((info.mask, place));
            self.rewards.values[env] = f64::from(*reward);
            self.terminated.values[env] = u8::from(*terminated);
            self.truncated.values[env] = u8::from(*truncated);
            self.loads.values[env] = info.load;
            self.elapsed_s.values[env] = info.elapsed_s;
        }
        self.observations.copy(py)?;
        self.masks.copy(py)?;
        self.terminated.copy(py)?;
        self.truncated.copy(py)?;
        [&self.rewards, &self.loads, &self.elapsed_s].into_iter().try_for_each(|array| array.copy(py))
    }
}
