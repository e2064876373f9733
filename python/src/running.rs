//! Running requests, read from an engine's own objects: several hundred of them, every few steps.

use kvtide_rules::{Micros, victim};
use kvtide_runtime::{RunningRequest, Victim};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::requests::count;
use crate::slo::PySlo;

/// What an observation and the choice of a victim need of the running requests, in running order.
#[pyclass(name = "Running", module = "kvtide", frozen)]
#[derive(Debug)]
pub struct PyRunning(pub Vec<RunningRequest>);

#[pymethods]
impl PyRunning {
    /// vLLM's: `running` are its requests from `first` on, `held` its blocks by request id, `arrived_us` when they arrived.
    /// Who is not in the latter arrives now.
    #[staticmethod]
    #[pyo3(signature = (running, held, arrived_us, slo, now_us, first = 0))]
    fn of_vllm(
        running: &Bound<'_, PyList>,
        held: &Bound<'_, PyDict>,
        arrived_us: &Bound<'_, PyDict>,
        slo: &PySlo,
        now_us: u64,
        first: usize,
    ) -> PyResult<PyRunning> {
        let py = running.py();
        let (id, tokens) = (intern!(py, "request_id"), intern!(py, "num_tokens"));
        let (prompt, computed) = (intern!(py, "num_prompt_tokens"), intern!(py, "num_computed_tokens"));
        let mut rows = Vec::with_capacity(running.len().saturating_sub(first));
        for request in running.iter().skip(first) {
            let id = request.getattr(id)?;
            let tokens: i64 = request.getattr(tokens)?.extract()?;
            let generated = tokens - request.getattr(prompt)?.extract::<i64>()?;
            let held_blocks = held.get_item(&id)?.map_or(Ok(0), |blocks| blocks.len())?;
            let arrival = arrived_us.get_item(&id)?.map_or(Ok(now_us), |arrival| arrival.extract())?;
            rows.push(RunningRequest {
                tokens: count(tokens),
                computed_tokens: count(request.getattr(computed)?.extract()?),
                generated_tokens: count(generated),
                held_blocks: u32::try_from(held_blocks).unwrap_or(u32::MAX),
                deadline_us: slo.0.deadline(Micros(arrival), count(generated)).0,
            });
        }
        Ok(PyRunning(rows))
    }

    /// Position of whom `rule` preempts; None if nobody is here.
    fn victim(&self, rule: &str) -> PyResult<Option<usize>> {
        let rule = Victim::from_name(rule).ok_or_else(|| PyValueError::new_err(format!("no victim rule {rule:?}")))?;
        Ok(victim::choose_among(rule, &self.0))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}
