//! The guard.

use kvtide_runtime::{Controls, FEATURES, Fallback, GuardConfig, GuardState, Table};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::action::{PyControls, engine_default, mask};
use crate::observation::PyObservation;
use crate::table::PyTable;

/// Names of the reasons to fall back.
pub fn reasons(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, Fallback::ALL.map(Fallback::name))
}

/// A table where it can be trusted, the fallback where it cannot.
#[pyclass(name = "Guard", module = "kvtide")]
#[derive(Debug)]
pub struct PyGuard {
    state: GuardState,
    table: Option<Table<'static>>,
    /// What the engine does by itself.
    engine: Controls,
    /// Whether a table may know a better fallback than an engine without a watermark.
    asks_table: bool,
}

#[pymethods]
impl PyGuard {
    /// A guard of `table`; of None, one that always falls back to `fallback_watermark` and vLLM's own choices. With
    /// `asks_table` a table that knows which watermark is best where it was trained is asked, unless the one given is above 0.
    #[new]
    #[pyo3(signature = (
        table = None, *, fallback_watermark = 0.0, max_age_us = 1_000_000, range_tolerance = 0.1,
        out_of_range_decisions = 8, recovery_decisions = 32, hold_decisions = 0, asks_table = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments, as Python passes them")]
    fn new(
        table: Option<&Bound<'_, PyTable>>,
        fallback_watermark: f64,
        max_age_us: u64,
        range_tolerance: f32,
        out_of_range_decisions: u32,
        recovery_decisions: u32,
        hold_decisions: u32,
        asks_table: bool,
    ) -> PyGuard {
        let engine = engine_default(fallback_watermark);
        let config = GuardConfig {
            fallback: engine,
            max_age_us,
            range_tolerance,
            out_of_range_decisions,
            recovery_decisions,
            hold_decisions,
        };
        let mut guard = PyGuard { state: GuardState::new(config), table: None, engine, asks_table };
        if let Some(table) = table {
            guard.replace(table);
        }
        guard
    }

    /// Goes on with another table. Counters stay, and so does the memory of an excursion: whoever has left the trained range
    /// has to come back into the new table's range first.
    fn replace(&mut self, table: &Bound<'_, PyTable>) {
        let table = table.get().table;
        self.table = Some(table);
        if self.asks_table {
            self.state.set_fallback(GuardConfig::fallback_for(self.engine, &table));
        }
    }

    /// Decides from an observation taken `age_us` ago. Without `swap`, every preemption recomputes.
    #[pyo3(signature = (observation, *, age_us = 0, swap = false))]
    fn decide(&mut self, observation: &Bound<'_, PyObservation>, age_us: u64, swap: bool) -> PyControls {
        let table = self.table.as_ref().ok_or(Fallback::NoTable);
        PyControls(self.state.decide(table, &observation.get().0, age_us, mask(swap)))
    }

    /// Why the last decision was the fallback; None if the table took it.
    #[getter]
    fn last_fallback(&self) -> Option<&'static str> {
        self.state.last_fallback().map(Fallback::name)
    }

    /// What is fallen back to.
    #[getter]
    fn fallback_watermark(&self) -> f64 {
        self.state.fallback().watermark
    }

    /// The features the table decides by that were out of range at the last decision that looked.
    #[getter]
    fn outside(&self) -> Vec<&'static str> {
        self.state.outside().iter().map(|feature| FEATURES[feature as usize].name).collect()
    }

    /// Decisions, decisions the table took, and fallbacks by reason.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.state.counters();
        let dict = PyDict::new(py);
        dict.set_item("decisions", counters.decisions)?;
        dict.set_item("table_decisions", counters.table_decisions)?;
        dict.set_item("held", counters.held)?;
        for reason in Fallback::ALL {
            dict.set_item(reason.name(), counters.fallbacks(reason))?;
        }
        Ok(dict)
    }
}
