//! Worlds, and how episodes are cut from them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvtide::experiment::{Experiment, ExperimentError};
use kvtide::world::World;
use kvtide_envs::env::EnvConfig;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::error::{refused, wrong};
use super::shipped;

/// What is served on what, by which targets, and how episodes are cut from it: an experiment, with its first world set up.
#[pyclass(name = "Scenario", module = "kvtide._sim", frozen)]
#[derive(Debug)]
pub struct PyScenario {
    experiment: Experiment,
    world: World,
}

impl PyScenario {
    /// What everything about it stands in.
    pub fn experiment(&self) -> &Experiment {
        &self.experiment
    }

    /// Its first world.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What environments are made of: `part` of the traffic is `train`, `validation` or `unseen`.
    pub fn env_config(&self, part: &str) -> PyResult<Arc<EnvConfig>> {
        let Self { experiment, world } = self;
        let config = match part {
            "train" => experiment.env_config(world).map(Some),
            "validation" => experiment.validation_config(world),
            "unseen" => experiment.unseen_config(world).map(|(config, _)| Some(config)),
            other => return Err(wrong(format!("part {other:?}: expected train, validation or unseen"))),
        };
        let config = config.map_err(|error| refused(&error))?;
        config.ok_or_else(|| wrong(format!("{} has no [validation], so no traffic is kept for it", experiment.name)))
    }

    fn set_up(
        py: Python<'_>,
        load: impl Send + FnOnce() -> Result<Experiment, ExperimentError>,
    ) -> PyResult<PyScenario> {
        let set_up = move || {
            let experiment = load()?;
            let world = experiment.world.world()?;
            Ok::<_, ExperimentError>(PyScenario { experiment, world })
        };
        // Long traces take a while to read.
        py.detach(set_up).map_err(|error| refused(&error))
    }
}

#[pymethods]
impl PyScenario {
    /// The experiment in the file at `path`; paths in it are relative to its folder. Raises `ScenarioError`, `OSError`.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<PyScenario> {
        PyScenario::set_up(py, move || Experiment::load(&path))
    }

    /// The experiment that `toml` is; paths in it are relative to the working directory. Raises `ScenarioError`, `OSError`.
    #[new]
    fn new(py: Python<'_>, toml: &str) -> PyResult<PyScenario> {
        let mut experiment = Experiment::parse(toml).map_err(wrong)?;
        // It may be read again elsewhere, by another process.
        let folder = std::env::current_dir()?;
        relative_to(&mut experiment, &folder);
        PyScenario::set_up(py, move || experiment.validate().map(|()| experiment))
    }

    /// One of `SCENARIOS`, as a checkpoint of that name was trained. Recorded traffic does not ship: it is looked for in the
    /// folder `traces`; without one, only generated traffic is served. Raises `ScenarioError`, `OSError`.
    #[staticmethod]
    #[pyo3(signature = (name, traces = None))]
    #[expect(clippy::needless_pass_by_value, reason = "Python's paths and lists are converted, not borrowed")]
    fn shipped(py: Python<'_>, name: &str, traces: Option<PathBuf>) -> PyResult<PyScenario> {
        let mut experiment = shipped::experiment(name, traces.as_deref()).map_err(wrong)?;
        let folder = std::env::current_dir()?;
        relative_to(&mut experiment, &folder);
        PyScenario::set_up(py, move || experiment.validate().map(|()| experiment))
    }

    /// What it is called.
    #[getter]
    fn name(&self) -> &str {
        &self.experiment.name
    }

    /// The heads that are decided: watermark, core, full or cache.
    #[getter]
    fn profile(&self) -> &str {
        &self.experiment.profile
    }

    /// The engine it is decided for: vllm-0.33, sglang-0.5 or kvtide.
    #[getter]
    fn host(&self) -> &'static str {
        self.world.node.host.name
    }

    /// Scheduler steps between decisions.
    #[getter]
    fn interval(&self) -> u32 {
        self.world.decision_interval
    }

    /// How many worlds episodes are drawn from.
    #[getter]
    fn num_worlds(&self) -> usize {
        1 + self.experiment.also.len()
    }

    /// All of it, as an experiment file.
    #[getter]
    fn toml(&self) -> String {
        self.experiment.to_toml()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, (String,)) {
        (slf.get_type(), (slf.get().toml(),))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PyScenario>().is_ok_and(|other| other.get().experiment == self.experiment)
    }

    fn __hash__(&self) -> u64 {
        kvtide_envs::seed::derive(0, &self.experiment.to_toml(), 0)
    }

    fn __repr__(&self) -> String {
        let World { trace, deployment, .. } = &self.world;
        let also = self.experiment.also.len();
        let also = if also == 0 { String::new() } else { format!(", and {also} further worlds") };
        format!("<Scenario {}: {trace} on {}{also}>", self.experiment.name, deployment.name())
    }
}

fn relative_to(experiment: &mut Experiment, folder: &Path) {
    experiment.world = experiment.world.clone().relative_to(folder);
    for also in &mut experiment.also {
        also.world = also.world.clone().relative_to(folder);
    }
}
