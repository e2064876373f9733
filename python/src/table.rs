//! Tables.

use std::path::PathBuf;

use kvtide_runtime::format::MAX_FILE_BYTES;
use kvtide_runtime::{Action, FEATURES, Host, Policy, Table};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::action::{PyControls, mask};
use crate::bytes;
use crate::error::{host_error, table_error};
use crate::observation::PyObservation;

/// A validated decision table made for this build's observations and actions.
#[pyclass(name = "Table", module = "kvtide", frozen)]
#[derive(Debug, Clone, Copy)]
pub struct PyTable {
    pub table: Table<'static>,
    data: &'static [u8],
}

#[pymethods]
impl PyTable {
    /// The table in the file at `path`. Raises `OSError` if it cannot be read,
    /// `TableError` if it is no table for this build.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<PyTable> {
        use std::io::Read;
        let mut found = Vec::new();
        // Opening a pipe would wait for somebody to write.
        if !std::fs::metadata(&path)?.is_file() {
            return Err(PyOSError::new_err(format!("{}: not a regular file", path.display())));
        }
        // One byte more than a table may have, so that a file of any size is refused for its size.
        std::fs::File::open(path)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut found)?;
        PyTable::from_bytes(py, &found)
    }

    /// The table in `data`. Raises `TableError` if it is no table for this build.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<PyTable> {
        Table::parse(data).map_err(|error| table_error(py, error))?;
        let data = bytes::keep(data);
        let table = Table::parse(data).map_err(|error| table_error(py, error))?;
        Ok(PyTable { table, data })
    }

    /// The heads it decides: watermark, core, full or cache.
    #[getter]
    fn profile(&self) -> &'static str {
        self.table.profile().name()
    }

    /// Names of the heads it decides.
    #[getter]
    fn heads(&self) -> Vec<&'static str> {
        self.table.heads().iter().map(|head| head.name()).collect()
    }

    /// Whether it says which blocks stay cached as well.
    #[getter]
    fn retains(&self) -> bool {
        self.table.retention().is_some()
    }

    /// Number of leaves.
    #[getter]
    fn leaves(&self) -> u16 {
        self.table.leaves()
    }

    /// Comparisons on the longest way to a leaf.
    #[getter]
    fn depth(&self) -> u8 {
        self.table.depth()
    }

    /// Bytes of the file.
    #[getter]
    fn size(&self) -> usize {
        self.data.len()
    }

    /// The file.
    #[getter]
    fn data(&self) -> &'static [u8] {
        self.data
    }

    /// What the table says about itself.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (key, value) in self.table.metadata() {
            dict.set_item(key, value)?;
        }
        Ok(dict)
    }

    /// Trained range of each feature, by name.
    #[getter]
    fn ranges<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (spec, range) in FEATURES.iter().zip(self.table.ranges()) {
            dict.set_item(spec.name, (range.min, range.max))?;
        }
        Ok(dict)
    }

    /// The features it decides by.
    #[getter]
    fn features(&self) -> Vec<&'static str> {
        self.table.uses().iter().map(|feature| FEATURES[feature as usize].name).collect()
    }

    /// The watermark that did best, constant, where the table was trained; None if it does not say.
    #[getter]
    fn fallback_watermark(&self) -> Option<f64> {
        self.table.fallback_watermark()
    }

    /// Raises `TableError` if the table can never do its work on `host` (`vllm-0.33`, `sglang-0.5`, `kvtide`): `reason` is
    /// `profile` if it decides what it may not decide there, `host` if it decides by what is never in its trained range.
    #[pyo3(signature = (host, *, prefix_cache = true, range_tolerance = 0.1))]
    fn check_host(&self, py: Python<'_>, host: &str, prefix_cache: bool, range_tolerance: f32) -> PyResult<()> {
        let host = Host::from_name(host).ok_or_else(|| PyValueError::new_err(format!("no host {host:?}")))?;
        host.check(&self.table, prefix_cache, range_tolerance).map_err(|unfit| host_error(py, unfit))
    }

    /// Decides without a guard. Heads outside the profile are vLLM's own; without `swap`, every preemption recomputes.
    #[pyo3(signature = (observation, *, swap = false))]
    fn decide(&self, observation: &Bound<'_, PyObservation>, swap: bool) -> PyControls {
        let mask = self.table.profile().restrict(mask(swap), Action::V1_DEFAULT);
        PyControls(self.table.decide(&observation.get().0, mask).controls())
    }

    /// Why: the comparisons on the way to the leaf, as dicts of feature, value, threshold and `greater`.
    fn explain<'py>(&self, py: Python<'py>, observation: &Bound<'_, PyObservation>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for (feature, comparison) in self.table.path(&observation.get().0) {
            let step = PyDict::new(py);
            step.set_item("feature", FEATURES[feature as usize].name)?;
            step.set_item("value", comparison.value)?;
            step.set_item("threshold", comparison.threshold)?;
            step.set_item("greater", comparison.went_right)?;
            list.append(step)?;
        }
        Ok(list)
    }

    fn __repr__(&self) -> String {
        format!("<Table {}, {} leaves, depth {}>", self.profile(), self.leaves(), self.depth())
    }
}
