//! vLLM's scheduler, read from its own objects: several hundred requests, every few steps.

use kvtide_rules::{Micros, victim};
use kvtide_runtime::{RunningRequest, Snapshot, Victim};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::cached::evictable_blocks;
use crate::ledger::PyLedger;
use crate::observation::{PyObservation, PyObserver, Waiting, look_at_waiting};
use crate::pricing::PyPricing;
use crate::requests::{IntegerRows, count};
use crate::slo::PySlo;

/// A scheduler of vLLM's, with one kind of blocks.
#[pyclass(name = "VllmView", module = "kvtide", frozen)]
pub struct PyVllmView {
    scheduler: Py<PyAny>,
    pool: Py<PyAny>,
    /// Whose blocks are whose.
    blocks: Py<PyAny>,
    arrived_us: Py<PyDict>,
    /// What does not change: sizes and limits.
    limits: Snapshot,
}

#[pymethods]
impl PyVllmView {
    /// Of `scheduler`, whose requests arrived at `arrived_us` by their ids. Who is not there arrives now.
    #[new]
    fn new(scheduler: &Bound<'_, PyAny>, arrived_us: Py<PyDict>) -> PyResult<PyVllmView> {
        let manager = scheduler.getattr("kv_cache_manager")?;
        let pool = manager.getattr("block_pool")?;
        let number = |object: &Bound<'_, PyAny>, name| object.getattr(name)?.extract::<u32>();
        let limits = Snapshot {
            block_size: number(scheduler, "block_size")?,
            // Without the null block, which is never given out.
            num_gpu_blocks: number(&pool, "num_gpu_blocks")?.saturating_sub(1),
            max_num_seqs: number(scheduler, "max_num_running_reqs")?,
            max_num_batched_tokens: number(scheduler, "max_num_scheduled_tokens")?,
            ..Snapshot::default()
        };
        let blocks = manager.getattr("coordinator")?.getattr("single_type_managers")?.get_item(0)?;
        let (scheduler, pool, blocks) = (scheduler.clone().unbind(), pool.unbind(), blocks.unbind());
        Ok(PyVllmView { scheduler, pool, blocks, arrived_us, limits })
    }

    /// What the scheduler knows at this moment. `waiting` is a `WaitingQueue`, or rows as `Observer.observe` has them.
    #[pyo3(signature = (observer, now_us, slo, ledger, pricing, waiting, newest = None, num_waiting = None))]
    #[expect(clippy::too_many_arguments, reason = "what an observation is made of")]
    fn observe(
        &self,
        py: Python<'_>,
        observer: &mut PyObserver,
        now_us: u64,
        slo: &PySlo,
        ledger: &PyLedger,
        pricing: &PyPricing,
        waiting: Waiting<'_>,
        newest: Option<IntegerRows<4>>,
        num_waiting: Option<u32>,
    ) -> PyResult<PyObservation> {
        let pool = self.pool.bind(py);
        let free = pool.call_method0(intern!(py, "get_num_free_blocks"))?.extract()?;
        let cached = self.blocks.bind(py).getattr(intern!(py, "num_cached_block"))?;
        let mut shot = Snapshot {
            now_us,
            free_gpu_blocks: free,
            evictable_blocks: evictable_blocks(pool, free, &self.held(py)?, cached.cast()?)?,
            ttft_target_us: slo.0.ttft.0,
            tpot_target_us: slo.0.tpot.0,
            totals: ledger.totals,
            ..self.limits
        };
        shot.add_all_running(self.rows(py, slo, now_us, 0)?.into_iter());
        look_at_waiting(waiting, newest, num_waiting, &pricing.pricing(), &mut shot);
        Ok(PyObservation(observer.0.observe(&shot)))
    }

    /// Position of whom `rule` preempts of those who run from `first` on; None if nobody is there.
    fn victim(&self, py: Python<'_>, rule: &str, slo: &PySlo, now_us: u64, first: usize) -> PyResult<Option<usize>> {
        let rule = Victim::from_name(rule).ok_or_else(|| PyValueError::new_err(format!("no victim rule {rule:?}")))?;
        let found = victim::choose_among(rule, &self.rows(py, slo, now_us, first)?);
        Ok(found.map(|position| first + position))
    }

    /// The scheduler holds what holds this.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.scheduler)?;
        visit.call(&self.pool)?;
        visit.call(&self.blocks)?;
        visit.call(&self.arrived_us)
    }
}

impl PyVllmView {
    /// Blocks by request id.
    fn held<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        Ok(self.blocks.bind(py).getattr(intern!(py, "req_to_blocks"))?.cast_into()?)
    }

    /// Those who run, in running order, from `first` on.
    fn rows(&self, py: Python<'_>, slo: &PySlo, now_us: u64, first: usize) -> PyResult<Vec<RunningRequest>> {
        let running = self.scheduler.bind(py).getattr(intern!(py, "running"))?;
        let running = running.cast::<PyList>()?;
        let (held, arrived_us) = (self.held(py)?, self.arrived_us.bind(py));
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
        Ok(rows)
    }
}
