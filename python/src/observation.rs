//! Observations, and the observer that makes them.

use kvtide_rules::{Pricing, windows};
use kvtide_runtime::observer::Totals;
use kvtide_runtime::{FEATURES, Observation, Observer, RunningRequest, Snapshot, WaitingRequest};
use pyo3::exceptions::{PyIndexError, PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::ledger::PyLedger;
use crate::pricing::PyPricing;
use crate::queue::PyWaitingQueue;
use crate::requests::{IntegerRows, count, unsigned};

/// Names of the features, in order.
pub fn names(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, FEATURES.iter().map(|spec| spec.name))
}

/// What a policy sees: a fixed sequence of named floats.
#[pyclass(name = "Observation", module = "kvtide", frozen, eq)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PyObservation(pub Observation);

#[pymethods]
impl PyObservation {
    /// From as many values as there are features. They are taken as they are, as a guard must see them.
    #[new]
    fn new(values: Vec<f32>) -> PyResult<PyObservation> {
        let found = values.len();
        match values.try_into() {
            Ok(values) => Ok(PyObservation(Observation { values })),
            Err(_) => Err(PyValueError::new_err(format!("expected {} values, found {found}", FEATURES.len()))),
        }
    }

    /// Names of the features, in order.
    #[classattr]
    fn names(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        names(py)
    }

    fn __len__(&self) -> usize {
        self.0.values.len()
    }

    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<f32> {
        if let Ok(name) = key.extract::<&str>() {
            let index = FEATURES.iter().position(|spec| spec.name == name);
            return index.map(|index| self.0.values[index]).ok_or_else(|| PyKeyError::new_err(name.to_owned()));
        }
        let index: isize = key.extract()?;
        let index = if index < 0 { index.saturating_add_unsigned(self.0.values.len()) } else { index };
        let value = usize::try_from(index).ok().and_then(|index| self.0.values.get(index));
        value.copied().ok_or_else(|| PyIndexError::new_err("no such feature"))
    }

    /// Name to value.
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (spec, value) in FEATURES.iter().zip(self.0.values) {
            dict.set_item(spec.name, value)?;
        }
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let pairs: Vec<_> =
            FEATURES.iter().zip(self.0.values).map(|(spec, value)| format!("{}={value}", spec.name)).collect();
        format!("Observation({})", pairs.join(", "))
    }
}

/// Turns what a scheduler knows into observations; remembers counters and running averages.
#[pyclass(name = "Observer", module = "kvtide")]
#[derive(Debug, Default)]
pub struct PyObserver(pub Observer);

#[pymethods]
impl PyObserver {
    #[new]
    fn new() -> PyObserver {
        PyObserver::default()
    }

    /// The observation of this moment. Times are microseconds on one clock, blocks and tokens are counts, `total_*` are
    /// counters since the scheduler started.
    ///
    /// `running` has a row for each running request: tokens, computed tokens, generated tokens, held blocks, deadline of
    /// the next token. `waiting` has one for each waiting request from the front: tokens, arrival, deadline of the first
    /// token (None or -1 if it has had it), prefill time. Where that is long, `newest` may hold the last of them, from
    /// the back, and `num_waiting` how many there are. Rows are tuples, or 64-bit integers in one buffer. Instead of
    /// rows there may be a `WaitingQueue`, with the `pricing` of its prompts; instead of counters, a `ledger`.
    #[pyo3(signature = (
        *, now_us, block_size, num_gpu_blocks, free_gpu_blocks, max_num_seqs, max_num_batched_tokens, ttft_target_us,
        tpot_target_us, evictable_blocks = 0, num_cpu_blocks = 0, free_cpu_blocks = 0, num_swapped = 0,
        running = None, waiting = None, newest = None, num_waiting = None,
        total_steps = 0, total_refused_steps = 0, total_arrivals = 0, total_arrived_prompt_tokens = 0,
        total_completions = 0, total_completed_output_tokens = 0, total_preemptions = 0, total_swapped_blocks = 0, total_tokens = 0,
        pricing = None, ledger = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments, as Python passes them")]
    fn observe(
        &mut self,
        now_us: u64,
        block_size: u32,
        num_gpu_blocks: u32,
        free_gpu_blocks: u32,
        max_num_seqs: u32,
        max_num_batched_tokens: u32,
        ttft_target_us: u64,
        tpot_target_us: u64,
        evictable_blocks: u32,
        num_cpu_blocks: u32,
        free_cpu_blocks: u32,
        num_swapped: u32,
        running: Option<IntegerRows<5>>,
        waiting: Option<Waiting<'_>>,
        newest: Option<IntegerRows<4>>,
        num_waiting: Option<u32>,
        total_steps: u64,
        total_refused_steps: u64,
        total_arrivals: u64,
        total_arrived_prompt_tokens: u64,
        total_completions: u64,
        total_completed_output_tokens: u64,
        total_preemptions: u64,
        total_swapped_blocks: u64,
        total_tokens: u64,
        pricing: Option<PyRef<'_, PyPricing>>,
        ledger: Option<PyRef<'_, PyLedger>>,
    ) -> PyObservation {
        let counted = Totals {
            steps: total_steps,
            refused_steps: total_refused_steps,
            arrivals: total_arrivals,
            arrived_prompt_tokens: total_arrived_prompt_tokens,
            completions: total_completions,
            completed_output_tokens: total_completed_output_tokens,
            preemptions: total_preemptions,
            swapped_blocks: total_swapped_blocks,
            tokens: total_tokens,
        };
        let mut shot = Snapshot {
            now_us,
            block_size,
            num_gpu_blocks,
            free_gpu_blocks,
            evictable_blocks,
            num_cpu_blocks,
            free_cpu_blocks,
            swapped: num_swapped,
            max_num_seqs,
            max_num_batched_tokens,
            ttft_target_us,
            tpot_target_us,
            totals: ledger.map_or(counted, |ledger| ledger.totals),
            ..Snapshot::default()
        };
        shot.add_all_running(running.into_iter().flatten().map(running_request));
        let waiting = waiting.unwrap_or_else(|| Waiting::Rows(IntegerRows::none()));
        let pricing = pricing.map(|pricing| pricing.pricing()).unwrap_or_default();
        look_at_waiting(waiting, newest, num_waiting, &pricing, &mut shot);
        PyObservation(self.0.observe(&shot))
    }
}

/// Waiting requests, in a queue or as rows.
#[derive(FromPyObject)]
pub enum Waiting<'py> {
    Queue(PyRef<'py, PyWaitingQueue>),
    Rows(IntegerRows<4>),
}

/// Looks at both ends. Of rows the last may be in `newest`, from the back, and how many there are in `num_waiting`; those of
/// a queue are priced by `pricing`.
pub fn look_at_waiting(
    waiting: Waiting<'_>,
    newest: Option<IntegerRows<4>>,
    num_waiting: Option<u32>,
    pricing: &Pricing,
    shot: &mut Snapshot,
) {
    let rows = match waiting {
        Waiting::Queue(waiting) => return windows::look_at_waiting(&waiting.queue, pricing, shot),
        Waiting::Rows(rows) => rows,
    };
    shot.waiting = num_waiting.unwrap_or(rows.len() as u32);
    let front = rows.iter().map(waiting_request);
    match newest {
        None => shot.look_at_waiting(front, rows.iter().rev().map(waiting_request)),
        Some(newest) => shot.look_at_waiting(front, newest.iter().map(waiting_request)),
    }
}

fn running_request([tokens, computed, generated, held, deadline]: [i64; 5]) -> RunningRequest {
    RunningRequest {
        tokens: count(tokens),
        computed_tokens: count(computed),
        generated_tokens: count(generated),
        held_blocks: count(held),
        deadline_us: unsigned(deadline),
    }
}

fn waiting_request(&[tokens, arrival, deadline, prefill]: &[i64; 4]) -> WaitingRequest {
    WaitingRequest {
        tokens: count(tokens),
        arrival_us: unsigned(arrival),
        first_token_deadline_us: u64::try_from(deadline).ok(),
        prefill_us: unsigned(prefill),
    }
}
