//! Environments that write into arrays somebody else allocated.

use std::sync::{Mutex, MutexGuard};

use kvtide_envs::env::{ResetOptions, snapshot};
use kvtide_envs::time::Micros;
use kvtide_runtime::{Action, FEATURES, Head, NUM_FEATURES};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::actions::{Actions, Wrong};
use super::arrays::{Array, Arrays};
use super::group::{Autoreset, Ended, Group, GroupError};
use crate::sim::error::{ResetNeeded, refused, wrong};
use crate::sim::pool::pool;
use crate::sim::scenario::PyScenario;

/// Most environments of one object.
const MAX_ENVS: usize = 65_536;

/// Environments stepped together, by one call, with the interpreter's lock released. What they show is written into the arrays of
/// `bind` at the end of every `reset` and `step`.
#[pyclass(name = "Envs", module = "kvtide._sim", frozen)]
#[derive(Debug)]
pub struct PyEnvs {
    // Never waited for: two threads that step the same environments are a mistake.
    inner: Mutex<Envs>,
}

#[derive(Debug)]
struct Envs {
    group: Group,
    actions: Actions,
    arrays: Option<Arrays>,
    /// Choices that are forbidden are refused, not replaced.
    strict: bool,
    threads: usize,
    /// Of the last step, to be used again.
    given: Vec<i64>,
    taken: Vec<Action>,
}

#[pymethods]
impl PyEnvs {
    /// `num_envs` of `scenario`. `autoreset` is next-step, same-step or disabled; `heads` are names, by default those of which a world
    /// leaves a choice; `joint`: one number for all heads; `strict`: what is forbidden is refused, not replaced by the first choice
    /// that is allowed. Raises `ScenarioError`.
    #[new]
    #[pyo3(signature = (scenario, num_envs, *, autoreset, part = "train", heads = None, joint = false, strict = false, threads = 0))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn new(
        py: Python<'_>,
        scenario: &Bound<'_, PyScenario>,
        num_envs: usize,
        autoreset: &str,
        part: &str,
        heads: Option<Vec<String>>,
        joint: bool,
        strict: bool,
        threads: usize,
    ) -> PyResult<PyEnvs> {
        if !(1..=MAX_ENVS).contains(&num_envs) {
            return Err(wrong(format!("num_envs = {num_envs}: expected 1 to {MAX_ENVS}")));
        }
        let autoreset = match autoreset {
            "next-step" => Autoreset::NextStep,
            "same-step" => Autoreset::SameStep,
            "disabled" => Autoreset::Disabled,
            other => return Err(wrong(format!("autoreset {other:?}: expected next-step, same-step or disabled"))),
        };
        let heads =
            heads.map(|names| names.iter().map(|name| head(name)).collect::<PyResult<Vec<Head>>>()).transpose()?;
        let scenario = scenario.get();
        let made = py.detach(|| {
            let config = scenario.env_config(part)?;
            let actions = Actions::new(&config, heads, joint).map_err(|error| refused(&error))?;
            let group = Group::new(&config, num_envs, autoreset).map_err(|error| refused(&error))?;
            Ok::<_, PyErr>((group, actions))
        });
        let (group, actions) = made?;
        let envs = Envs { group, actions, arrays: None, strict, threads, given: Vec::new(), taken: Vec::new() };
        Ok(PyEnvs { inner: Mutex::new(envs) })
    }

    /// Names of the heads that are chosen.
    #[getter]
    fn heads(&self) -> PyResult<Vec<&'static str>> {
        Ok(self.inner()?.actions.heads().iter().map(|head| head.name()).collect())
    }

    /// How many choices each number of an action has.
    #[getter]
    fn sizes(&self) -> PyResult<Vec<usize>> {
        Ok(self.inner()?.actions.sizes().to_vec())
    }

    /// What each joint choice chooses of each head; `None` if actions are a choice of each head.
    #[getter]
    fn joint_choices(&self) -> PyResult<Option<Vec<Vec<u32>>>> {
        let wide = |choices: &Vec<u8>| choices.iter().copied().map(u32::from).collect();
        Ok(self.inner()?.actions.joint().map(|joint| joint.iter().map(wide).collect()))
    }

    /// Smallest and largest value of each feature.
    #[staticmethod]
    fn ranges() -> (Vec<f32>, Vec<f32>) {
        FEATURES.iter().map(|feature| (feature.min, feature.max)).unzip()
    }

    /// The arrays that are written to, contiguous: `[num_envs, features]` float32, `[num_envs, sum of sizes]` int8, and
    /// `[num_envs]` float64, uint8, uint8, float64, float64. Raises `ValueError`, `BufferError`.
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn bind(
        &self,
        py: Python<'_>,
        observations: &Bound<'_, PyAny>,
        masks: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        terminated: &Bound<'_, PyAny>,
        truncated: &Bound<'_, PyAny>,
        loads: &Bound<'_, PyAny>,
        elapsed_s: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let mut inner = self.inner()?;
        let envs = inner.group.num_envs();
        inner.arrays = Some(Arrays {
            observations: Array::new(py, "observations", observations, envs * NUM_FEATURES)?,
            masks: Array::new(py, "masks", masks, envs * inner.num_choices())?,
            rewards: Array::new(py, "rewards", rewards, envs)?,
            terminated: Array::new(py, "terminated", terminated, envs)?,
            truncated: Array::new(py, "truncated", truncated, envs)?,
            loads: Array::new(py, "loads", loads, envs)?,
            elapsed_s: Array::new(py, "elapsed_s", elapsed_s, envs)?,
        });
        Ok(())
    }

    /// Begins an episode in each environment that `chosen` says: by its seed, or the next under the seed it has. Raises
    /// `ScenarioError` if none can be drawn as asked.
    #[pyo3(signature = (seeds, chosen, *, load = None, start_s = None, world = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn reset(
        &self,
        py: Python<'_>,
        seeds: Vec<Option<u64>>,
        chosen: Vec<bool>,
        load: Option<f64>,
        start_s: Option<f64>,
        world: Option<usize>,
    ) -> PyResult<()> {
        if let Some(load) = load.filter(|load| !(1e-6..=1e3).contains(load)) {
            return Err(wrong(format!("load = {load}: expected a number from 0.000001 to 1000")));
        }
        let options = ResetOptions { load, start: start_s.map(start).transpose()?, world };
        self.inner()?.reset(py, &seeds, &chosen, &options)
    }

    /// Takes the actions in `actions`, int64, `[num_envs, numbers of an action]`. What ended is returned, as dicts. Raises
    /// `ValueError` for an action that is none, or in `strict` is forbidden, and `ResetNeeded`; then nothing was done.
    fn step<'py>(&self, py: Python<'py>, actions: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyList>>> {
        let mut inner = self.inner()?;
        inner.take(py, actions)?;
        inner.step(py)?;
        let ended: Vec<Bound<'py, PyDict>> =
            inner.group.ended().map(|ended| inner.told(py, ended)).collect::<PyResult<_>>()?;
        if ended.is_empty() { Ok(None) } else { PyList::new(py, ended).map(Some) }
    }

    /// What the engine of environment `env` does by itself, as an action.
    fn default_action(&self, env: usize) -> PyResult<Vec<usize>> {
        let inner = self.inner()?;
        inner.check(env)?;
        let own = inner.own_action(env);
        let shown = inner.group.shown().nth(env).ok_or_else(needs_reset)?;
        Ok(inner.actions.numbers(shown.info.mask.repair(own)))
    }

    /// The node of environment `env` in numbers.
    fn state<'py>(&self, py: Python<'py>, env: usize) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner()?;
        inner.check(env)?;
        let (node, episode) = inner.group.node(env).zip(inner.group.episode(env)).ok_or_else(needs_reset)?;
        let shot = snapshot(node);
        let running = node.scheduler().running().len();
        let dict = PyDict::new(py);
        dict.set_item("elapsed_s", node.now().as_secs_f64())?;
        dict.set_item("decisions", episode.decisions)?;
        dict.set_item("return", episode.episode_return)?;
        dict.set_item("load", episode.served.load)?;
        dict.set_item("requests", episode.served.requests)?;
        dict.set_item("on_time", episode.served.on_time)?;
        dict.set_item("completed", node.collector().completed)?;
        dict.set_item("running", running)?;
        dict.set_item("waiting", node.scheduler().num_open().saturating_sub(running))?;
        dict.set_item("preemptions", episode.served.preemptions)?;
        dict.set_item("num_gpu_blocks", shot.num_gpu_blocks)?;
        dict.set_item("free_gpu_blocks", shot.free_gpu_blocks)?;
        dict.set_item("evictable_blocks", shot.evictable_blocks)?;
        dict.set_item("output_tok_s", episode.served.output_tok_s)?;
        Ok(dict)
    }
}

impl PyEnvs {
    fn inner(&self) -> PyResult<MutexGuard<'_, Envs>> {
        self.inner.try_lock().map_err(|_| PyRuntimeError::new_err("the environments are in use by another thread"))
    }
}

impl Envs {
    fn num_choices(&self) -> usize {
        self.actions.sizes().iter().sum()
    }

    /// Refuses an environment that cannot be looked at.
    fn check(&self, env: usize) -> PyResult<()> {
        if env >= self.group.num_envs() {
            return Err(PyValueError::new_err(format!("environment {env}: there are {}", self.group.num_envs())));
        }
        if self.group.is_whole() { Ok(()) } else { Err(needs_reset()) }
    }

    /// What the engine of environment `env` does by itself.
    fn own_action(&self, env: usize) -> Action {
        let node = self.group.node(env);
        node.map_or(Action::V1_DEFAULT, |node| node.scheduler().config().engine.default_action())
    }

    fn reset(
        &mut self,
        py: Python<'_>,
        seeds: &[Option<u64>],
        chosen: &[bool],
        options: &ResetOptions,
    ) -> PyResult<()> {
        if (seeds.len(), chosen.len()) != (self.group.num_envs(), self.group.num_envs()) {
            return Err(wrong(format!("expected {} seeds, found {}", self.group.num_envs(), seeds.len())));
        }
        let pool = pool(self.threads)?;
        let reset = self.group.reset(py, &pool, (seeds, chosen), options)?;
        reset.map_err(|error| failed(&error))?;
        self.write(py)
    }

    /// Takes what was read.
    fn step(&mut self, py: Python<'_>) -> PyResult<()> {
        let pool = pool(self.threads)?;
        let stepped = self.group.step(py, &pool, &self.taken)?;
        stepped.map_err(|error| failed(&error))?;
        self.write(py)
    }

    fn write(&mut self, py: Python<'_>) -> PyResult<()> {
        let arrays = self.arrays.as_mut().filter(|_| self.group.is_whole());
        arrays.map_or(Ok(()), |arrays| arrays.write(py, &self.group, &self.actions))
    }

    /// Reads and checks every action before any is taken.
    fn take(&mut self, py: Python<'_>, actions: &Bound<'_, PyAny>) -> PyResult<()> {
        if !self.group.is_whole() {
            return Err(needs_reset());
        }
        let width = self.actions.sizes().len();
        let buffer = PyBuffer::<i64>::get(actions)?;
        if buffer.item_count() != self.group.num_envs() * width {
            let expected = format!("{} environments by {width}", self.group.num_envs());
            return Err(PyValueError::new_err(format!(
                "expected actions of {expected}, found {}",
                buffer.item_count()
            )));
        }
        self.given.resize(buffer.item_count(), 0);
        buffer.copy_to_slice(py, &mut self.given)?;
        self.taken.clear();
        for (env, (given, shown)) in self.given.chunks_exact(width).zip(self.group.shown()).enumerate() {
            let default = self.own_action(env);
            // What is given to one that resets is not looked at, as in Gymnasium.
            let ignored = self.group.resets_next(env);
            match self.actions.action(given, shown.info.mask, default) {
                Ok((action, None)) => self.taken.push(action),
                Ok((action, Some(_))) if ignored || !self.strict => self.taken.push(action),
                Err(_) if ignored => self.taken.push(default),
                Ok((_, Some(what))) | Err(what) => return Err(self.refusal(env, given, what)),
            }
        }
        Ok(())
    }

    fn refusal(&self, env: usize, given: &[i64], what: Wrong) -> PyErr {
        let (Wrong::Range(number, _) | Wrong::Forbidden(number)) = what;
        let name = if self.actions.joint().is_some() { "joint choice" } else { self.actions.heads()[number].name() };
        let why = match what {
            Wrong::Range(_, size) => format!("expected 0 to {}", size - 1),
            Wrong::Forbidden(_) => "forbidden by its mask".to_owned(),
        };
        PyValueError::new_err(format!("environment {env}: {name} {}: {why}", given[number]))
    }

    /// An episode that ended, for Python.
    fn told<'py>(&self, py: Python<'py>, ended: &Ended) -> PyResult<Bound<'py, PyDict>> {
        let Ended { observation, info, episode } = ended;
        let mut mask = vec![0; self.num_choices()];
        self.actions.write_mask(info.mask, &mut mask);
        let outcome = PyDict::new(py);
        let served = &episode.served;
        outcome.set_item("return", episode.episode_return)?;
        outcome.set_item("decisions", episode.decisions)?;
        outcome.set_item("requests", served.requests)?;
        outcome.set_item("on_time", served.on_time)?;
        outcome.set_item("attained", served.slo_attainment().unwrap_or(f64::NAN))?;
        outcome.set_item("output_tok_s", served.output_tok_s)?;
        outcome.set_item("preemptions", served.preemptions)?;
        outcome.set_item("load", served.load)?;
        outcome.set_item("world", served.world)?;
        outcome.set_item("hash", format!("{:016x}", info.hash))?;
        let dict = PyDict::new(py);
        dict.set_item("env", episode.env)?;
        let values: Vec<u8> = observation.values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        dict.set_item("observation", PyBytes::new(py, &values))?;
        let mask: Vec<u8> = mask.iter().map(|&allowed| allowed as u8).collect();
        dict.set_item("action_mask", PyBytes::new(py, &mask))?;
        dict.set_item("load", info.load)?;
        dict.set_item("elapsed_s", info.elapsed_s)?;
        dict.set_item("outcome", outcome)?;
        Ok(dict)
    }
}

fn head(name: &str) -> PyResult<Head> {
    let head = Head::ALL.into_iter().find(|head| head.name() == name);
    head.ok_or_else(|| wrong(format!("no head {name:?}; there are {}", Head::ALL.map(Head::name).join(", "))))
}

fn start(seconds: f64) -> PyResult<Micros> {
    if (0.0..=1e10).contains(&seconds) {
        return Ok(Micros::from_secs_f64(seconds));
    }
    Err(wrong(format!("start_s = {seconds}: expected seconds into the traffic")))
}

fn needs_reset() -> PyErr {
    ResetNeeded::new_err("an environment needs a reset")
}

fn failed(error: &GroupError) -> PyErr {
    match error {
        GroupError::In { .. } => refused(error),
        GroupError::NeedsReset(_) | GroupError::Stopped => ResetNeeded::new_err(error.to_string()),
    }
}
