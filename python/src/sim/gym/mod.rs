//! What `kvtide.gym` is made of: environments that write into arrays, their actions, and play in Rust to compare them with.

mod actions;
mod arrays;
mod envs;
mod group;
mod reference;

use pyo3::prelude::*;

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(episode_seed, m)?)?;
    m.add_class::<envs::PyEnvs>()?;
    m.add_class::<reference::PyReference>()
}

/// The seed of episode number `episode`, from 0, of an environment that was reset by `seed`: `Arena.play(…, seeds=[that])` plays the same.
#[pyfunction]
fn episode_seed(seed: u64, episode: u64) -> u64 {
    group::episode_seed(seed, episode)
}
