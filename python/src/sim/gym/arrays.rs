//! Arrays that somebody else allocated, and what is written into them.

use std::cell::Cell;

use kvtide_envs::env::{EnvGroup, Shown};
use kvtide_runtime::{ActionMask, NUM_FEATURES};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::actions::Actions;

/// Where what is shown is written. Nothing is held but the arrays' buffers, so they can neither move nor shrink.
#[derive(Debug)]
pub struct Arrays {
    pub observations: PyBuffer<f32>,
    pub masks: PyBuffer<i8>,
    pub rewards: PyBuffer<f64>,
    pub terminated: PyBuffer<u8>,
    pub truncated: PyBuffer<u8>,
    pub loads: PyBuffer<f64>,
    pub elapsed_s: PyBuffer<f64>,
}

impl Arrays {
    /// Writes what every environment of `group` shows.
    pub fn write(&self, py: Python<'_>, group: &EnvGroup, actions: &Actions) -> PyResult<()> {
        let num_choices: usize = actions.sizes().iter().sum();
        let observations = cells(&self.observations, py)?.chunks_exact(NUM_FEATURES);
        let masks = cells(&self.masks, py)?.chunks_exact(num_choices);
        let (rewards, loads, elapsed_s) =
            (cells(&self.rewards, py)?, cells(&self.loads, py)?, cells(&self.elapsed_s, py)?);
        let (terminated, truncated) = (cells(&self.terminated, py)?, cells(&self.truncated, py)?);
        let mut last: Option<(ActionMask, &[Cell<i8>])> = None;
        for (env, ((shown, observation), mask)) in group.shown().zip(observations).zip(masks).enumerate() {
            let Shown { observation: seen, reward, terminated: at_end, truncated: cut, info } = shown;
            observation.iter().zip(seen.values).for_each(|(cell, value)| cell.set(value));
            match last {
                // Nearly always that of the one before: a mask depends on the world alone.
                Some((known, written)) if known == info.mask => {
                    mask.iter().zip(written).for_each(|(cell, known)| cell.set(known.get()));
                }
                _ => actions.write_mask(info.mask, mask),
            }
            last = Some((info.mask, mask));
            rewards[env].set(f64::from(*reward));
            terminated[env].set(u8::from(*at_end));
            truncated[env].set(u8::from(*cut));
            loads[env].set(info.load);
            elapsed_s[env].set(info.elapsed_s);
        }
        Ok(())
    }
}

/// The buffer of `object`, which has `items`, can be written to and is contiguous.
pub fn array<T: Element>(py: Python<'_>, name: &str, object: &Bound<'_, PyAny>, items: usize) -> PyResult<PyBuffer<T>> {
    let buffer = PyBuffer::<T>::get(object)?;
    if buffer.item_count() != items {
        return Err(PyValueError::new_err(format!("{name}: expected {items} values, found {}", buffer.item_count())));
    }
    cells(&buffer, py).map_err(|_| PyValueError::new_err(format!("{name}: expected an array to write to, contiguous")))?;
    Ok(buffer)
}

fn cells<'a, T: Element>(buffer: &'a PyBuffer<T>, py: Python<'a>) -> PyResult<&'a [Cell<T>]> {
    buffer.as_mut_slice(py).ok_or_else(|| PyValueError::new_err("the array can no longer be written to"))
}
