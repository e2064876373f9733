//! Candidates on the same worlds and seeds, thousands a call.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use kvtide::agent::{LinearPolicies, LinearSpace};
use kvtide::evaluate::Watch;
use kvtide::play::{self, Candidates, Grounds, Played, RequestRow, RunTable, StepRow};
use kvtide::train::{BestConstant, Listener};
use kvtide_envs::workload::Window;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::error::{refused, wrong};
use super::pool::{interruptible, pool};
use super::scenario::PyScenario;

/// Where candidates are played: the episodes of a scenario, or its traffic as a whole at some loads.
#[pyclass(name = "Grounds", module = "kvtide._sim", frozen)]
pub struct PyGrounds {
    scenario: Py<PyScenario>,
    grounds: Grounds,
    /// What points stand for, once somebody has asked.
    space: Mutex<Option<(LinearSpace, LinearPolicies)>>,
}

/// Nobody watches.
struct Silent;

impl Watch for Silent {
    fn planned(&self, _: usize) {}

    fn done(&self) {}
}

impl Listener for Silent {
    fn watch(&self) -> Box<dyn Watch + '_> {
        Box::new(Silent)
    }

    fn found(&self, _: BestConstant) {}
}

/// Who is played: points, or policies by name.
enum Chosen {
    Points(Box<LinearPolicies>, Vec<f64>),
    Named(Vec<(kvtide::policy::PolicyName, kvtide::policy::Subject)>),
}

impl Chosen {
    fn candidates(&self) -> Candidates<'_> {
        match self {
            Chosen::Points(policies, values) => Candidates::Points { policies, values },
            Chosen::Named(named) => Candidates::Named(named),
        }
    }
}

impl PyGrounds {
    /// What points stand for: given, found before, or looked for now.
    fn policies(&self, py: Python<'_>, threads: usize) -> PyResult<(LinearSpace, LinearPolicies)> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let scenario = self.scenario.get();
        let pool = pool(threads)?;
        let found = interruptible(py, &pool, |stop| {
            play::search_space(scenario.experiment(), scenario.world(), &Silent, stop)
        })?;
        let space = found.map_err(|error| refused(&error))?.ok_or_else(|| wrong("it was stopped"))?;
        self.know(space)
    }

    fn known(&self) -> Option<(LinearSpace, LinearPolicies)> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn know(&self, space: LinearSpace) -> PyResult<(LinearSpace, LinearPolicies)> {
        let policies = space.policies().map_err(|error| refused(&error))?;
        *self.space.lock().unwrap_or_else(PoisonError::into_inner) = Some((space.clone(), policies.clone()));
        Ok((space, policies))
    }

    fn chosen(&self, py: Python<'_>, candidates: &Bound<'_, PyAny>, threads: usize) -> PyResult<Chosen> {
        if let Ok(texts) = candidates.extract::<Vec<String>>() {
            let named = py.detach(|| play::named(&texts));
            return named.map(Chosen::Named).map_err(|error| refused(&error));
        }
        let values = PyBuffer::<f64>::get(candidates)?.to_vec(py)?;
        Ok(Chosen::Points(Box::new(self.policies(py, threads)?.1), values))
    }

    fn worlds(&self, worlds: Option<Vec<usize>>) -> Vec<usize> {
        worlds.unwrap_or_else(|| (0..self.grounds.names().len()).collect())
    }
}

#[pymethods]
impl PyGrounds {
    /// The episodes of `part` of `scenario`, each of its worlds; or with `loads` all of the traffic of its first world, or of
    /// `window`, at each. `space` is what points stand for, as `space()` of another gave it. Raises `ScenarioError`, `OSError`.
    #[new]
    #[pyo3(signature = (scenario, *, part = "train", loads = None, window = None, space = None))]
    fn new(
        py: Python<'_>,
        scenario: Py<PyScenario>,
        part: &str,
        loads: Option<Vec<f64>>,
        window: Option<&str>,
        space: Option<&str>,
    ) -> PyResult<PyGrounds> {
        let of = scenario.get();
        let window = window.map(Window::from_str).transpose().map_err(|error| refused(&error))?;
        let grounds = match (loads, window) {
            (None, Some(_)) => return Err(wrong("window: of whole traffic alone; give loads as well")),
            (Some(loads), window) => Grounds::whole(of.world(), window, &loads),
            (None, None) => {
                let config = of.env_config(part)?;
                py.detach(|| Grounds::episodes(of.experiment(), of.world(), config))
            }
        };
        let grounds = grounds.map_err(|error| refused(&error))?;
        let grounds = PyGrounds { scenario, grounds, space: Mutex::new(None) };
        if let Some(text) = space {
            let space = serde_json::from_str(text).map_err(|error| wrong(format!("space: {error}")))?;
            grounds.know(space)?;
        }
        Ok(grounds)
    }

    /// What its worlds are called.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.grounds.names().to_vec()
    }

    /// What points stand for, as JSON: the prior, the choices there are and the moments of the features, looked for and played the
    /// first time. Raises `ScenarioError`.
    #[pyo3(signature = (threads = 0))]
    fn space(&self, py: Python<'_>, threads: usize) -> PyResult<String> {
        let (space, _) = self.policies(py, threads)?;
        serde_json::to_string(&space).map_err(|error| refused(&error))
    }

    /// What points stand for, if that was given or looked for already.
    fn known_space(&self) -> PyResult<Option<String>> {
        let known = self.known().map(|(space, _)| serde_json::to_string(&space));
        known.transpose().map_err(|error| refused(&error))
    }

    /// The point that stands for the prior.
    #[pyo3(signature = (threads = 0))]
    fn start(&self, py: Python<'_>, threads: usize) -> PyResult<Vec<f64>> {
        Ok(self.policies(py, threads)?.1.start().to_vec())
    }

    /// Plays candidates, points in a contiguous array of `float64` or policies in words, in `worlds` with `seeds`: columns of 8 bytes
    /// a run, in the order candidates, worlds, seeds, and how many candidates there are. Raises `ScenarioError`, `OSError`.
    #[pyo3(signature = (candidates, seeds, worlds = None, threads = 0))]
    #[expect(clippy::needless_pass_by_value, reason = "Python's paths and lists are converted, not borrowed")]
    fn play<'py>(
        &self,
        py: Python<'py>,
        candidates: &Bound<'py, PyAny>,
        seeds: Vec<u64>,
        worlds: Option<Vec<usize>>,
        threads: usize,
    ) -> PyResult<(usize, Bound<'py, PyDict>)> {
        let chosen = self.chosen(py, candidates, threads)?;
        let worlds = self.worlds(worlds);
        let pool = pool(threads)?;
        let played =
            interruptible(py, &pool, |stop| play::play(&self.grounds, chosen.candidates(), &worlds, &seeds, stop))?;
        let played = played.map_err(|error| refused(&error))?.ok_or_else(|| wrong("it was stopped"))?;
        Ok((chosen.candidates().len(), columns(py, &played)?))
    }

    /// Runs one candidate in a world with a seed: columns of its numbers, of its requests and of its steps. Raises `ScenarioError`,
    /// `OSError`.
    #[pyo3(signature = (candidate, world, seed))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        candidate: &Bound<'py, PyAny>,
        world: usize,
        seed: u64,
    ) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let chosen = self.chosen(py, candidate, 0)?;
        let pool = pool(0)?;
        let ran =
            interruptible(py, &pool, |stop| play::run_table(&self.grounds, chosen.candidates(), world, seed, stop))?;
        let ran = ran.map_err(|error| refused(&error))?.ok_or_else(|| wrong("it was stopped"))?;
        let RunTable { played, requests, steps } = ran;
        Ok((columns(py, &[played])?, of_requests(py, &requests)?, of_steps(py, &steps)?))
    }

    /// Writes the policy of `point` as a checkpoint at `out`, which says who found it. Raises `ScenarioError`, `OSError`.
    #[pyo3(signature = (point, out, *, made_by, decisions = 0))]
    #[expect(clippy::needless_pass_by_value, reason = "Python's paths and lists are converted, not borrowed")]
    fn save(
        &self,
        py: Python<'_>,
        point: &Bound<'_, PyAny>,
        out: PathBuf,
        made_by: &str,
        decisions: u64,
    ) -> PyResult<()> {
        let point = PyBuffer::<f64>::get(point)?.to_vec(py)?;
        let (_, policies) = self.policies(py, 0)?;
        let scenario = self.scenario.get();
        let pool = pool(0)?;
        let saved = interruptible(py, &pool, |stop| {
            let of = (scenario.experiment(), scenario.world());
            play::save(&out, (&policies, &point), of, (made_by, decisions), (&Silent, stop))
        })?;
        saved.map(drop).map_err(|error| refused(&error))
    }
}

/// Columns by name, each with what a row has in it.
type Columns<'a, Row, Number> = &'a [(&'static str, fn(&Row) -> Number)];

/// One column: eight bytes a row, in the machine's order.
fn column<'py, T>(py: Python<'py>, rows: &[T], value: impl Fn(&T) -> [u8; 8]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, rows.iter().map(value).collect::<Vec<[u8; 8]>>().as_flattened())
}

fn columns<'py>(py: Python<'py>, rows: &[Played]) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    let reals: Columns<'_, Played, f64> = &[
        ("attainment", |row| row.attainment),
        ("returns", |row| row.returns),
        ("load", |row| row.load),
        ("output_tok_s", |row| row.output_tok_s),
        ("hit_ratio", |row| row.hit_ratio),
        ("kv_usage", |row| row.kv_usage),
        ("wait_p50_ms", |row| row.wait_p50_ms),
        ("wait_p99_ms", |row| row.wait_p99_ms),
        ("longest_wait_ms", |row| row.longest_wait_ms),
        ("seconds", |row| row.seconds),
    ];
    for (name, value) in reals {
        columns.set_item(name, column(py, rows, |row| value(row).to_ne_bytes()))?;
    }
    let numbers: Columns<'_, Played, u64> = &[
        ("requests", |row| row.requests),
        ("on_time", |row| row.on_time),
        ("preemptions", |row| row.preemptions),
        ("decisions", |row| row.decisions),
        ("steps", |row| row.steps),
        ("hash", |row| row.hash),
    ];
    for (name, value) in numbers {
        columns.set_item(name, column(py, rows, |row| value(row).to_ne_bytes()))?;
    }
    Ok(columns)
}

fn of_requests<'py>(py: Python<'py>, rows: &[RequestRow]) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    let reals: Columns<'_, RequestRow, f64> = &[
        ("arrival_s", |row| row.arrival_s),
        ("first_token_s", |row| row.first_token_s),
        ("last_token_s", |row| row.last_token_s),
        ("wait_s", |row| row.wait_s),
        ("per_token_s", |row| row.per_token_s),
        ("longest_stall_s", |row| row.longest_stall_s),
    ];
    for (name, value) in reals {
        columns.set_item(name, column(py, rows, |row| value(row).to_ne_bytes()))?;
    }
    let numbers: Columns<'_, RequestRow, u64> = &[
        ("prompt_tokens", |row| row.prompt_tokens.into()),
        ("output_tokens", |row| row.output_tokens.into()),
        ("finished", |row| row.finished.into()),
        ("rejected", |row| row.rejected.into()),
        ("attained", |row| row.attained.into()),
    ];
    for (name, value) in numbers {
        columns.set_item(name, column(py, rows, |row| value(row).to_ne_bytes()))?;
    }
    Ok(columns)
}

fn of_steps<'py>(py: Python<'py>, rows: &[StepRow]) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    let reals: Columns<'_, StepRow, f64> = &[("time_s", |row| row.time_s), ("watermark", |row| row.watermark)];
    for (name, value) in reals {
        columns.set_item(name, column(py, rows, |row| value(row).to_ne_bytes()))?;
    }
    let numbers: Columns<'_, StepRow, u64> = &[
        ("prefill_tokens", |row| row.prefill_tokens.into()),
        ("decodes", |row| row.decodes.into()),
        ("preempted", |row| row.preempted.into()),
        ("running", |row| row.running.into()),
        ("waiting", |row| row.waiting.into()),
        ("swapped", |row| row.swapped.into()),
        ("used_blocks", |row| row.used_blocks.into()),
        ("evictable_blocks", |row| row.evictable_blocks.into()),
        ("num_blocks", |row| row.num_blocks.into()),
        ("decision", |row| row.decision),
    ];
    for (name, value) in numbers {
        columns.set_item(name, column(py, rows, |row| value(row).to_ne_bytes()))?;
    }
    Ok(columns)
}
