//! The order of a tier by what requests declare of what they leave in it.

use kvtide_rules::intent::{Leaving, Order, PathStanding, RequestIntent, Scoring, Standing};
use kvtide_rules::{Branches, Micros, Reuse};
use kvtide_runtime::Stop;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::pricing::PyPricing;
use crate::retention::{PyVisit, keys_of};
use crate::slo::PySlo;

/// The chunks of a tier, by the number of their place in it, in the order in which they are given up. Every chunk is in it, also
/// one that is being read: who evicts says which may go.
#[pyclass(name = "IntentOrder", module = "kvtide")]
pub struct PyIntentOrder {
    capacity: u32,
    order: Order,
    branches: Branches,
    reuse: Reuse,
}

#[pymethods]
impl PyIntentOrder {
    /// Of a tier of so many chunks, by the score of that name: `intent-aware` or `deadline-aware`. Raises `ValueError`.
    #[new]
    fn new(capacity: u32, scoring: &str) -> PyResult<PyIntentOrder> {
        let scoring = match scoring {
            "intent-aware" => Scoring::IntentAware,
            "deadline-aware" => Scoring::DeadlineAware,
            _ => {
                let message = format!("unknown order {scoring:?}: expected intent-aware or deadline-aware");
                return Err(PyValueError::new_err(message));
            }
        };
        Ok(PyIntentOrder {
            capacity,
            order: Order::new(capacity, scoring),
            branches: Branches::new(capacity),
            reuse: Reuse::new(capacity),
        })
    }

    /// A chunk comes, of which nothing is declared yet. Raises `ValueError` for a place that the tier does not have.
    fn insert(&mut self, slot: u32) -> PyResult<()> {
        if slot >= self.capacity {
            return Err(PyValueError::new_err(format!("place {slot} of a tier of {} chunks", self.capacity)));
        }
        self.branches.emptied(slot);
        self.order.forget(slot);
        self.order.push(slot);
        Ok(())
    }

    /// A chunk goes that was not evicted.
    fn remove(&mut self, slot: u32) {
        self.order.remove(slot);
        self.order.forget(slot);
        self.branches.emptied(slot);
    }

    /// Chunks are used, each as if after those before it.
    fn use_all(&mut self, slots: Vec<u32>) {
        for slot in slots {
            self.order.remove(slot);
            self.order.push(slot);
        }
    }

    /// A request has finished that asked for chunks with these `hashes`, first at `seen_us`, of which it found the first `head`.
    /// `kind` is any number that stands for its tenant or class.
    fn finished(
        &mut self,
        hashes: &Bound<'_, PyList>,
        head: u32,
        kind: u64,
        seen_us: u64,
        now_us: u64,
    ) -> PyResult<PyVisit> {
        let keys = keys_of(hashes, usize::MAX)?;
        let asked = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        // Evictions date nothing here.
        let visit = self.reuse.admitted(&keys, asked, head, kind, Micros(seen_us), 0);
        self.reuse.released(&visit, Stop::Unknown, Micros(now_us), 0);
        Ok(PyVisit { visit, head })
    }

    /// What that request declares of its chunks, of `chunk_tokens` tokens each, 0 where nobody knows: `path` names place and
    /// number of those that are there, in the order of its text.
    fn declare(
        &mut self,
        visit: &Bound<'_, PyVisit>,
        path: Vec<(u32, u32)>,
        chunk_tokens: u32,
        slo: &Bound<'_, PySlo>,
        pricing: &Bound<'_, PyPricing>,
    ) {
        let PyVisit { visit, head } = *visit.get();
        let last = path.last().map_or(0, |(place, _)| place.saturating_add(1));
        let intent = RequestIntent::of(Leaving {
            slo: slo.get().0,
            stop: Stop::Unknown,
            has_begun: true,
            until_late: Micros::ZERO,
            tokens: last.saturating_mul(chunk_tokens),
            block_tokens: chunk_tokens,
            head_blocks: head,
            visit: Some(visit),
            comeback: self.reuse.comeback(&visit, Stop::Unknown),
            pricing: pricing.borrow().pricing(),
        });
        for pair in path.windows(2) {
            if pair[0].0.checked_add(1) == Some(pair[1].0) {
                self.branches.continues(pair[1].1, pair[0].1);
            }
        }
        let (mut standing, mut behind) = (PathStanding::default(), None);
        for (place, slot) in path.into_iter().rev() {
            let given = Standing::of(&intent.block(place), self.order.scoring());
            let is_branch = self.branches.has_others(slot, behind);
            self.order.declare(slot, standing.next(given, self.order.declared(slot), is_branch));
            behind = Some(slot);
        }
    }

    /// Gives up exactly `count` of those of which `may_go` is true; None, and nothing has changed, if there are fewer.
    fn evict(&mut self, count: usize, may_go: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u32>>> {
        let mut failed = None;
        let gone = self.order.pop_of(count, |slot| {
            let answer = may_go.call1((slot,)).and_then(|answer| answer.extract::<bool>());
            answer.unwrap_or_else(|error| {
                failed.get_or_insert(error);
                false
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        for &slot in gone.iter().flatten() {
            self.branches.emptied(slot);
        }
        Ok(gone)
    }

    /// Chunks evicted so far.
    #[getter]
    fn evicted(&self) -> u64 {
        self.order.evicted()
    }
}
