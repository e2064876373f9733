//! The module `kvtide._sim`: worlds as the command line and experiment files describe them, and what is done with them from
//! Python.
//!
//! It is in the same library as what a node runs and apart from it: nothing of `kvtide._kvtide` uses it, and no thread is
//! started and no table of prices read before somebody sets up a world.

mod cost;
pub mod error;
mod evaluate;
mod gym;
pub mod pool;
pub mod scenario;
mod shipped;
mod workshop;

use pyo3::prelude::*;

/// Puts the module where `import kvtide._sim` finds it.
pub fn register(py: Python<'_>) -> PyResult<()> {
    let m = PyModule::new(py, "kvtide._sim")?;
    m.add("ScenarioError", py.get_type::<error::ScenarioError>())?;
    m.add("ResetNeeded", py.get_type::<error::ResetNeeded>())?;
    m.add("SCENARIOS", shipped::names(py)?)?;
    m.add_class::<cost::PyStepCost>()?;
    m.add_class::<scenario::PyScenario>()?;
    workshop::register(&m)?;
    m.add_class::<evaluate::PyGrounds>()?;
    gym::register(&m)?;
    py.import("sys")?.getattr("modules")?.set_item("kvtide._sim", m)
}
