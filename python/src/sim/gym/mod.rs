//! What `kvtide.gym` is made of: environments that write into arrays, their actions, and play in Rust to compare them with.

mod actions;
mod arrays;
mod envs;
mod group;
mod reference;

use pyo3::prelude::*;

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<envs::PyEnvs>()?;
    m.add_class::<reference::PyReference>()
}
