//! Play without Python, to compare with.

use std::sync::{Mutex, MutexGuard};

use kvtide_envs::env::{Batch, VecEnv, VectorEnv, random_play};
use kvtide_runtime::ActionMask;
use kvtide_runtime::action::NUM_HEADS;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::sim::error::refused;
use crate::sim::pool::{interruptible, pool};
use crate::sim::scenario::PyScenario;

/// The environments that agents in Rust train on.
#[pyclass(name = "Reference", module = "kvtide._sim", frozen)]
#[derive(Debug)]
pub struct PyReference {
    inner: Mutex<Reference>,
    threads: usize,
}

#[derive(Debug)]
struct Reference {
    envs: VecEnv,
    batch: Batch,
    /// What the engine does by itself, in each environment.
    own: Vec<u8>,
}

#[pymethods]
impl PyReference {
    /// `num_envs` of `scenario`, stepped by so many threads (0: one a core). Raises `ScenarioError`.
    #[new]
    #[pyo3(signature = (scenario, num_envs, *, part = "train", threads = 0))]
    fn new(scenario: &Bound<'_, PyScenario>, num_envs: usize, part: &str, threads: usize) -> PyResult<PyReference> {
        let config = scenario.get().env_config(part)?;
        let envs = VecEnv::new(&config, num_envs).map_err(|error| refused(&error))?;
        let batch = Batch::new(num_envs, envs.observation_size(), envs.head_sizes().iter().sum());
        // Choices that every world allows.
        let masks = config.masks().map_err(|error| refused(&error))?;
        let mask = masks.into_iter().fold(ActionMask::ALL, ActionMask::and);
        let own = mask.repair(config.worlds[0].node.engine.engine.default_action()).indices();
        let inner = Mutex::new(Reference { envs, batch, own: own.repeat(num_envs) });
        Ok(PyReference { inner, threads })
    }

    /// Begins every environment anew.
    fn reset(&self, py: Python<'_>, seed: u64) -> PyResult<()> {
        let (pool, mut inner) = (pool(self.threads)?, self.inner()?);
        let Reference { envs, batch, .. } = &mut *inner;
        py.detach(|| pool.install(|| envs.reset(seed, batch)));
        Ok(())
    }

    /// Takes what the engine does by itself `decisions` times in each environment.
    fn step_default(&self, py: Python<'_>, decisions: usize) -> PyResult<()> {
        let (pool, mut inner) = (pool(self.threads)?, self.inner()?);
        let Reference { envs, batch, own } = &mut *inner;
        py.detach(|| pool.install(|| (0..decisions).for_each(|_| envs.step(own, batch))));
        Ok(())
    }

    /// Choices of the engine by itself, all heads.
    #[getter]
    fn default_choices(&self) -> PyResult<Vec<u32>> {
        Ok(self.inner()?.own.iter().take(NUM_HEADS).map(|&choice| u32::from(choice)).collect())
    }

    /// Random play from a reset by `seed`: the actions, `[decisions, num_envs, heads]` bytes; what was seen, environment by
    /// environment after the reset and after each decision (observation as little-endian float32, a byte of the mask for each
    /// choice, reward as little-endian float32, terminated, truncated); and a hash of both.
    fn random_play<'py>(
        &self,
        py: Python<'py>,
        seed: u64,
        decisions: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>, String)> {
        let (pool, mut inner) = (pool(self.threads)?, self.inner()?);
        let envs = &mut inner.envs;
        let played = interruptible(py, &pool, |_| random_play(envs, seed, decisions))?;
        let digest = format!("{:016x}", played.digest());
        Ok((PyBytes::new(py, &played.actions), PyBytes::new(py, &played.seen), digest))
    }

    /// Seeds of its environments under `seed`: with these, environments of `kvtide.gym` play the same episodes.
    #[staticmethod]
    fn env_seeds(seed: u64, num_envs: usize) -> Vec<u64> {
        (0..num_envs as u64).map(|index| kvtide_envs::seed::derive(seed, "env", index)).collect()
    }
}

impl PyReference {
    fn inner(&self) -> PyResult<MutexGuard<'_, Reference>> {
        self.inner.try_lock().map_err(|_| PyRuntimeError::new_err("it is in use by another thread"))
    }
}
