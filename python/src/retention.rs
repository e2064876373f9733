//! Classes of given-back blocks: by a table's retention tree, behind its guard.

use kvtide_rules::retention::{KEEP_LONG_TURNOVERS, KEEP_TURNOVERS};
use kvtide_rules::{Micros, Reuse, Shadow, Visit};
use kvtide_runtime::{
    Fallback, GuardConfig, Observation, Part, RELEASE_FEATURES, Release, Retention, RetentionFallback, RetentionGuard,
    RetentionTable, Stop,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::observation::PyObservation;
use crate::table::PyTable;

/// Names of the classes, from what is evicted first, and how many turnovers of the pool `keep` and `keep-long` last.
pub fn classes() -> ([&'static str; 4], u64, u64) {
    (Retention::NAMES, KEEP_TURNOVERS, KEEP_LONG_TURNOVERS)
}

/// Names of what a retention tree looks at, in order: the node's features first.
pub fn names(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, RELEASE_FEATURES.iter().map(|spec| spec.name))
}

/// What is known of a request from its first admission on.
#[pyclass(name = "Visit", module = "kvtide", frozen)]
#[derive(Debug, Clone, Copy)]
pub struct PyVisit {
    pub visit: Visit,
    /// Blocks it found cached.
    pub head: u32,
}

#[pymethods]
impl PyVisit {
    /// Blocks that it found in the cache.
    #[getter]
    fn head(&self) -> u32 {
        self.head
    }

    /// Turn of its session, from 1.
    #[getter]
    fn turn(&self) -> u32 {
        self.visit.turn
    }
}

/// Chooses the classes of what requests give back, and remembers what that is chosen by.
#[pyclass(name = "Retainer", module = "kvtide")]
pub struct PyRetainer {
    table: Result<RetentionTable<'static>, Fallback>,
    guard: RetentionGuard,
    reuse: Reuse,
    shadow: Shadow,
    /// The node as it was last observed, and when.
    node: (Observation, Micros),
    block_size: u32,
    num_gpu_blocks: u32,
}

#[pymethods]
impl PyRetainer {
    /// Of a pool of so many blocks, without a tree yet: everything is normal.
    #[new]
    #[pyo3(signature = (
        num_gpu_blocks, block_size, *, max_age_us = 1_000_000, range_tolerance = 0.1, out_of_range_decisions = 8,
        recovery_decisions = 32
    ))]
    fn new(
        num_gpu_blocks: u32,
        block_size: u32,
        max_age_us: u64,
        range_tolerance: f32,
        out_of_range_decisions: u32,
        recovery_decisions: u32,
    ) -> PyRetainer {
        let config = GuardConfig {
            max_age_us,
            range_tolerance,
            out_of_range_decisions,
            recovery_decisions,
            ..GuardConfig::default()
        };
        PyRetainer {
            table: Err(Fallback::NoTable),
            guard: RetentionGuard::new(config),
            reuse: Reuse::new(num_gpu_blocks),
            shadow: Shadow::new(num_gpu_blocks),
            node: (Observation::ZERO, Micros::ZERO),
            block_size: block_size.max(1),
            num_gpu_blocks,
        }
    }

    /// Goes on with the retention tree of another table, or without one. What was remembered stays.
    #[pyo3(signature = (table))]
    fn replace(&mut self, table: Option<&Bound<'_, PyTable>>) {
        self.table = table.map_or(Err(Fallback::NoTable), |table| table.get().table.trusted_retention());
    }

    /// The node was observed.
    fn observed(&mut self, observation: &Bound<'_, PyObservation>, now_us: u64) {
        self.node = (observation.get().0, Micros(now_us));
    }

    /// A request is admitted for the first time: `hashes` are those of its blocks, of which it found `head` cached, when `free`
    /// blocks were free. `kind` is any number that stands for its tenant.
    #[expect(clippy::too_many_arguments, reason = "what an admission is told by")]
    fn admitted(
        &mut self,
        hashes: &Bound<'_, PyList>,
        prompt_tokens: u32,
        head: u32,
        free: u32,
        kind: u64,
        now_us: u64,
        evicted: u64,
    ) -> PyResult<PyVisit> {
        // The last token is never taken from the cache.
        let asked = prompt_tokens.saturating_sub(1) / self.block_size;
        let keys = keys_of(hashes, asked as usize)?;
        let visit = self.reuse.admitted(&keys, asked, head, kind, Micros(now_us), evicted);
        self.shadow.admitted(&keys, asked, head, free);
        self.guard.set_behind(self.shadow.is_behind());
        Ok(PyVisit { visit, head })
    }

    /// A request that was preempted is admitted again.
    fn resumed(&mut self, visit: &Bound<'_, PyVisit>, hashes: &Bound<'_, PyList>, now_us: u64) -> PyResult<()> {
        self.reuse.resumed(&visit.get().visit, Micros(now_us));
        self.shadow.held(&keys_of(hashes, usize::MAX)?);
        Ok(())
    }

    /// The classes, by number, of the blocks that a request found and of those that it computed. `blocks` are vLLM's; `stop` is
    /// why it gives them back, by number, `evicted` counts blocks evicted so far, `kept` those idle in classes above normal.
    #[expect(clippy::too_many_arguments, reason = "what a release is told by")]
    fn release(
        &mut self,
        py: Python<'_>,
        visit: &Bound<'_, PyVisit>,
        hashes: &Bound<'_, PyList>,
        blocks: &Bound<'_, PyList>,
        tokens: (u32, u32),
        stop: &str,
        now_us: u64,
        evicted: u64,
        kept: u32,
        ttft_target_us: u64,
    ) -> PyResult<(u8, u8)> {
        let (now, PyVisit { visit, head }) = (Micros(now_us), *visit.get());
        let stop = stop_of(stop);
        self.reuse.released(&visit, stop, now, evicted);
        let keys = keys_of(hashes, usize::MAX)?;
        let held = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        self.shadow.released(&keys, held.min(u32::try_from(keys.len()).unwrap_or(u32::MAX)));
        let head = head.min(held);
        let (prompt_tokens, generated_tokens) = tokens;
        let release = Release {
            block_size: self.block_size,
            num_gpu_blocks: self.num_gpu_blocks,
            prompt_tokens,
            hit_tokens: head * self.block_size,
            generated_tokens,
            kept_blocks: kept,
            ttft_target_us,
            ..Release::default()
        };
        let mut decide = |part, before: u32, count: u32| -> PyResult<u8> {
            if count == 0 {
                return Ok(Retention::Normal as u8);
            }
            let mut release = Release { part, depth_blocks: before, part_blocks: count, ..release };
            for block in blocks.iter().skip(before as usize).take(count as usize) {
                let holders: u32 = block.getattr(intern!(py, "ref_cnt"))?.extract()?;
                release.shared_blocks += u32::from(holders > 1);
            }
            self.reuse.describe(&visit, stop, evicted, &mut release);
            let table = self.table.as_ref().map_err(|reason| *reason);
            let age_us = now.since(self.node.1).0;
            Ok(self.guard.decide(table, &release.observe(&self.node.0), age_us) as u8)
        };
        Ok((decide(Part::Head, 0, head)?, decide(Part::Tail, head, held - head)?))
    }

    /// Whether the pool hits less than LRU would, by more than may be lost: as long as it does, everything is normal.
    #[getter]
    fn is_behind(&self) -> bool {
        self.shadow.is_behind()
    }

    /// Why the last class was not the tree's; None if it was.
    #[getter]
    fn last_fallback(&self) -> Option<&'static str> {
        self.guard.last_fallback().map(RetentionFallback::name)
    }

    /// Decisions, those the tree took, how often it chose each class, and fallbacks by reason.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.guard.counters();
        let dict = PyDict::new(py);
        dict.set_item("decisions", counters.decisions)?;
        dict.set_item("table_decisions", counters.table_decisions)?;
        for class in Retention::ALL {
            dict.set_item(class.name(), counters.chosen[class as usize])?;
        }
        for reason in Fallback::ALL {
            dict.set_item(reason.name(), counters.fallbacks[reason as usize])?;
        }
        dict.set_item(RetentionFallback::Behind.name(), counters.behind)?;
        Ok(dict)
    }
}

/// The first eight bytes of each of the first `most` hashes.
pub fn keys_of(hashes: &Bound<'_, PyList>, most: usize) -> PyResult<Vec<u64>> {
    let key = |hash: Bound<'_, PyAny>| {
        let hash = hash.cast::<PyBytes>()?.as_bytes();
        let mut key = [0; 8];
        let length = hash.len().min(key.len());
        key[..length].copy_from_slice(&hash[..length]);
        Ok(u64::from_le_bytes(key))
    };
    hashes.iter().take(most).map(key).collect()
}

/// Why blocks are given back. Whether an answer ended in a tool call an engine does not know; that is unknown, as where it was
/// trained.
fn stop_of(name: &str) -> Stop {
    match name {
        "preempted" => Stop::Preempted,
        "length" => Stop::Length,
        _ => Stop::Unknown,
    }
}
