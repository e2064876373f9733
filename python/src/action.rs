//! What a decision says.

use kvtide_runtime::{Action, ActionMask, Choices, Controls, Eviction, Head, HeadSetting, Preemption};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What a scheduler obeys until the next decision.
#[pyclass(name = "Controls", module = "kvtide", frozen, eq)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PyControls(pub Controls);

#[pymethods]
impl PyControls {
    /// Share of the pool admission must leave free, in 0..=1.
    #[getter]
    fn watermark(&self) -> f64 {
        self.0.watermark
    }

    /// Who is preempted: newest, fewest-blocks, most-blocks, least-progress or most-slack.
    #[getter]
    fn victim(&self) -> &'static str {
        self.0.victim.name()
    }

    /// What happens to the victim's blocks: swap, recompute or cheaper.
    #[getter]
    fn preemption(&self) -> &'static str {
        self.0.preemption.name()
    }

    /// Order of admission: fcfs, on-time-first or shortest-on-time-first.
    #[getter]
    fn admission(&self) -> &'static str {
        self.0.admission.name()
    }

    /// Most tokens of a step; where it is more than the engine's own, that. Never fewer than decodes need.
    #[getter]
    fn budget(&self) -> u32 {
        self.0.budget as u32
    }

    /// Order in which cached blocks go: lru or lfu.
    #[getter]
    fn eviction(&self) -> &'static str {
        self.0.eviction.name()
    }

    fn __repr__(&self) -> String {
        let named = |head: Head| match self.0.get(head) {
            HeadSetting::Level(level) => format!("{}={level}", head.name()),
            HeadSetting::Choice(name) => format!("{}='{name}'", head.name()),
        };
        format!("Controls({})", Head::ALL.map(named).join(", "))
    }
}

/// Each control has a getter: a head that is added stops here until it has one.
const _: fn(Controls) = |Controls { watermark: _, victim: _, preemption: _, admission: _, budget: _, eviction: _ }| {};

/// Every head with its choices: numbers in ascending order, or names.
pub fn heads(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let heads = PyDict::new(py);
    for head in Head::ALL {
        match head.choices() {
            Choices::Levels(levels) => heads.set_item(head.name(), levels)?,
            Choices::Named(names) => heads.set_item(head.name(), names)?,
        }
    }
    Ok(heads)
}

/// What vLLM does by itself, at `watermark`.
pub fn engine_default(watermark: f64) -> Controls {
    Controls { watermark, ..Action::V1_DEFAULT.controls() }
}

/// What the host can do: all but the order of eviction, which neither engine lets a table decide, and swap if it cannot.
pub fn mask(swap: bool) -> ActionMask {
    let mask = ActionMask::ALL.pin(Head::Eviction, Eviction::Lru as u8);
    if swap { mask } else { mask.pin(Head::Preemption, Preemption::Recompute as u8) }
}
