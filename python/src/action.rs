//! What a decision says.

use kvtide_runtime::{Action, ActionMask, Controls, Head, Preemption};
use pyo3::prelude::*;

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

    fn __repr__(&self) -> String {
        format!(
            "Controls(watermark={}, victim='{}', preemption='{}', admission='{}')",
            self.watermark(),
            self.victim(),
            self.preemption(),
            self.admission()
        )
    }
}

/// What vLLM does by itself, at `watermark`.
pub fn engine_default(watermark: f64) -> Controls {
    Controls { watermark, ..Action::V1_DEFAULT.controls() }
}

/// What the host can do: everything, or all but swap.
pub fn mask(swap: bool) -> ActionMask {
    if swap { ActionMask::ALL } else { ActionMask::ALL.pin(Head::Preemption, Preemption::Recompute as u8) }
}
