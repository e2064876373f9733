//! What a worker of a cluster does with a setting and its tasks.

use std::path::PathBuf;

use kvtide::crew::{BUILD, CrewError, digest};
use kvtide::workshop::{Workshop, files};
use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

create_exception!(
    kvtide._sim,
    WorkError,
    PyRuntimeError,
    "A setting that cannot be set up, or a task that has no result: done again it would fail again."
);

/// A setting that was set up: `Workshop(text, folder)`, with the files it names beneath the folder.
#[pyclass(name = "Workshop", module = "kvtide._sim", frozen)]
pub struct PyWorkshop(Workshop);

#[pymethods]
impl PyWorkshop {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "Python's paths and lists are converted, not borrowed")]
    fn new(py: Python<'_>, text: &str, folder: PathBuf) -> PyResult<PyWorkshop> {
        py.detach(|| Workshop::open(text, &folder)).map(PyWorkshop).map_err(failed)
    }

    /// Does a task, JSON in and out, on the thread it is called on and without the interpreter's lock.
    fn work(&self, py: Python<'_>, task: &str) -> PyResult<String> {
        py.detach(|| self.0.work(task)).map_err(failed)
    }

    /// The files a setting names: `(name beneath the folder, BLAKE3, bytes)` of each.
    #[staticmethod]
    #[pyo3(name = "files")]
    fn named_files(text: &str) -> PyResult<Vec<(PathBuf, String, u64)>> {
        let files = files(text).map_err(failed)?;
        Ok(files.into_iter().map(|file| (file.name, file.blake3, file.bytes)).collect())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "map_err passes a value")]
fn failed(error: CrewError) -> PyErr {
    WorkError::new_err(error.to_string())
}

/// The digest of what a file holds.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python's paths and lists are converted, not borrowed")]
fn file_digest(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    Ok(py.detach(|| digest(&path))?)
}

/// Adds all of it to `m`.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("BUILD", BUILD)?;
    m.add("WorkError", m.py().get_type::<WorkError>())?;
    m.add_function(wrap_pyfunction!(file_digest, m)?)?;
    m.add_class::<PyWorkshop>()
}
