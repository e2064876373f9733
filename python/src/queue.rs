//! A waiting queue whose next request is chosen by kvtide's order of admission.

use std::collections::BTreeMap;

use kvtide_rules::{AdmissionQueue, Entry, Micros, Patience, Seat};
use kvtide_runtime::Admission;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Tokens, arrival, by when to be admitted, and by when the first token is on time (None if it has come).
type Facts = (u32, u64, u64, Option<u64>);

/// vLLM's queue of waiting requests (`RequestQueue`), in Rust: first come, first served, and preempted requests in front,
/// except that `order` says who is next.
///
/// What an order needs of a request is asked for once, as it joins: `entry_of(request)` gives tokens, arrival, by when to be
/// admitted, by when its first token is on time. Where that fails, `failed()` is told and the request is one of those on
/// time. Whoever iterates sees queue order.
#[pyclass(name = "WaitingQueue", module = "kvtide")]
pub struct PyWaitingQueue {
    pub queue: AdmissionQueue<Address>,
    /// Those who wait, by where they are: they are kept alive here, so nobody else can be there.
    held: BTreeMap<Address, (Seat, Py<PyAny>)>,
    order: Admission,
    now: Micros,
    was_asked: bool,
    entry_of: Py<PyAny>,
    failed: Py<PyAny>,
}

/// Of a Python object.
pub type Address = usize;

fn address(request: &Bound<'_, PyAny>) -> Address {
    request.as_ptr() as Address
}

#[pymethods]
impl PyWaitingQueue {
    #[new]
    fn new(entry_of: Py<PyAny>, failed: Py<PyAny>) -> PyWaitingQueue {
        PyWaitingQueue {
            queue: AdmissionQueue::new(),
            held: BTreeMap::new(),
            order: Admission::Fcfs,
            now: Micros::ZERO,
            was_asked: false,
            entry_of,
            failed,
        }
    }

    /// A request arrives.
    fn add_request(slf: &Bound<'_, Self>, request: &Bound<'_, PyAny>) {
        join(slf, request, AdmissionQueue::push_back);
    }

    /// A request that was admitted before returns, as the first.
    fn prepend_request(slf: &Bound<'_, Self>, request: &Bound<'_, PyAny>) {
        join(slf, request, AdmissionQueue::push_front);
    }

    /// Requests that were popped and not admitted return, one after the other, so that the last is the first; as vLLM does.
    fn prepend_requests(slf: &Bound<'_, Self>, requests: &Bound<'_, PyAny>) -> PyResult<()> {
        for request in requests.try_iter()? {
            join(slf, &request?, AdmissionQueue::put_back);
        }
        Ok(())
    }

    /// The request to admit next. Raises `IndexError` where nobody waits.
    fn peek_request(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.was_asked = true;
        let (_, address) = self.next().ok_or_else(|| PyIndexError::new_err("peek from an empty queue"))?;
        Ok(self.held[&address].1.clone_ref(py))
    }

    /// Takes the request to admit next. Raises `IndexError` where nobody waits.
    fn pop_request(&mut self) -> PyResult<Py<PyAny>> {
        self.was_asked = false;
        let next = self.next().and_then(|(seat, address)| {
            self.queue.admit(seat, self.now)?;
            self.held.remove(&address)
        });
        next.map(|(_, request)| request).ok_or_else(|| PyIndexError::new_err("pop from an empty queue"))
    }

    /// Takes a request out. Raises `ValueError` if it does not wait.
    fn remove_request(&mut self, request: &Bound<'_, PyAny>) -> PyResult<()> {
        match self.held.remove(&address(request)) {
            Some((seat, _)) => {
                self.queue.remove(seat);
                Ok(())
            }
            None => Err(PyValueError::new_err("the request does not wait here")),
        }
    }

    /// Takes out those of `requests` that wait.
    fn remove_requests(&mut self, requests: &Bound<'_, PyAny>) -> PyResult<()> {
        for request in requests.try_iter()? {
            if let Some((seat, _)) = self.held.remove(&address(&request?)) {
                self.queue.remove(seat);
            }
        }
        Ok(())
    }

    /// A waiting request has had another token, which was on its way when it was preempted. Whoever does not wait is let be.
    fn lengthen(&mut self, request: &Bound<'_, PyAny>, tokens: u32) {
        if let Some(&(seat, _)) = self.held.get(&address(request))
            && self.queue.get(seat).is_some_and(|entry| entry.tokens < tokens)
        {
            self.queue.lengthen(seat, tokens);
        }
    }

    /// Whether the request to admit next was looked at, and not taken, since this was asked last: it was refused.
    fn take_refusal(&mut self) -> bool {
        std::mem::take(&mut self.was_asked)
    }

    /// fcfs, on-time-first or shortest-on-time-first.
    #[getter]
    fn get_order(&self) -> &'static str {
        self.order.name()
    }

    #[setter]
    fn set_order(&mut self, name: &str) -> PyResult<()> {
        self.order = Admission::from_name(name)
            .ok_or_else(|| PyValueError::new_err(format!("no order of admission {name:?}")))?;
        Ok(())
    }

    #[getter]
    fn get_now_us(&self) -> u64 {
        self.now.0
    }

    /// The moment at which the next request is chosen; a clock that goes back stands still.
    #[setter]
    fn set_now_us(&mut self, now_us: u64) {
        self.now = self.now.max(Micros(now_us));
    }

    /// Whoever is asked about requests holds the queue.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.entry_of)?;
        visit.call(&self.failed)?;
        self.held.values().try_for_each(|(_, request)| visit.call(request))
    }

    fn __len__(&self) -> usize {
        self.queue.len()
    }

    fn __contains__(&self, request: &Bound<'_, PyAny>) -> bool {
        self.held.contains_key(&address(request))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let requests = self.queue.iter().map(|entry| self.held[&entry.id].1.clone_ref(py));
        Ok(PyList::new(py, requests.collect::<Vec<_>>())?.try_iter()?.into_any())
    }
}

impl PyWaitingQueue {
    fn next(&mut self) -> Option<(Seat, Address)> {
        self.queue.next(self.order, self.now, Patience::default()).map(|(seat, entry)| (seat, entry.id))
    }
}

/// Puts `request` into the queue by `push`.
fn join(
    queue: &Bound<'_, PyWaitingQueue>,
    request: &Bound<'_, PyAny>,
    push: impl FnOnce(&mut AdmissionQueue<Address>, Entry<Address>) -> Seat,
) {
    let entry = entry(queue, request);
    let queue = &mut *queue.borrow_mut();
    let seat = push(&mut queue.queue, entry);
    queue.held.insert(entry.id, (seat, request.clone().unbind()));
}

/// What the order needs of `request`. Whatever fails in asking, the request is queued.
fn entry(queue: &Bound<'_, PyWaitingQueue>, request: &Bound<'_, PyAny>) -> Entry<Address> {
    let py = queue.py();
    let (entry_of, failed, now) = {
        let queue = queue.borrow();
        (queue.entry_of.clone_ref(py), queue.failed.clone_ref(py), queue.now)
    };
    let facts = entry_of.call1(py, (request,)).and_then(|facts| facts.extract::<Facts>(py));
    let (tokens, arrival, late_at, first_token_by) = facts.unwrap_or_else(|error| {
        // A failure to count a failure is nothing the engine could do anything about.
        let _ = failed.call1(py, (error,));
        (0, now.0, u64::MAX, None)
    });
    Entry {
        id: address(request),
        tokens,
        arrival: Micros(arrival),
        late_at: Micros(late_at),
        first_token_by: first_token_by.map(Micros),
    }
}
