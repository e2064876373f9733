//! The extension module `kvtide._kvtide`: the runtime as Python sees it.
//!
//! Nothing is decided here. Observations, tables and the guard are those of `kvtide-runtime`, and what a node does by the
//! same rules as the simulator is `kvtide-rules`; this crate turns Python's numbers into a
//! [`Snapshot`](kvtide_runtime::Snapshot) and errors into exceptions with a named reason. Beside it is `kvtide._sim`, the
//! simulator: [`sim`].

mod action;
mod bytes;
mod cached;
mod error;
mod guard;
mod intent;
mod ledger;
mod observation;
mod pricing;
mod queue;
mod recorder;
mod requests;
mod retention;
mod sim;
mod slo;
mod table;
mod vllm;

use pyo3::prelude::*;

/// Decision tables for paged KV caches.
#[pymodule]
#[pyo3(name = "_kvtide")]
fn kvtide_module(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("SCHEMA_HASH", kvtide_runtime::SCHEMA_HASH)?;
    m.add("ACTION_SET_HASH", kvtide_runtime::ACTION_SET_HASH)?;
    m.add("FEATURE_NAMES", observation::names(m.py())?)?;
    m.add("HEADS", action::heads(m.py())?)?;
    m.add("WATERMARK_LEVELS", kvtide_runtime::action::WATERMARK_LEVELS)?;
    m.add("FALLBACK_REASONS", guard::reasons(m.py())?)?;
    m.add("RETENTION", retention::classes())?;
    m.add("RELEASE_FEATURE_NAMES", retention::names(m.py())?)?;
    m.add("RELEASE_SCHEMA_HASH", kvtide_runtime::RELEASE_SCHEMA_HASH)?;
    m.add("TableError", m.py().get_type::<error::TableError>())?;
    m.add_class::<action::PyControls>()?;
    m.add_class::<guard::PyGuard>()?;
    m.add_class::<intent::PyIntentOrder>()?;
    m.add_class::<ledger::PyLedger>()?;
    m.add_class::<observation::PyObservation>()?;
    m.add_class::<observation::PyObserver>()?;
    m.add_class::<pricing::PyPricing>()?;
    m.add_class::<queue::PyWaitingQueue>()?;
    m.add_class::<recorder::PyRecorder>()?;
    m.add_class::<retention::PyRetainer>()?;
    m.add_class::<retention::PyVisit>()?;
    m.add_class::<slo::PySlo>()?;
    m.add_class::<vllm::PyVllmView>()?;
    m.add_class::<table::PyTable>()?;
    sim::register(m.py())
}
