//! What the simulator refuses, as exceptions.

use std::error::Error;
use std::io;

use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    kvtide._sim,
    ScenarioError,
    PyValueError,
    "A world, a policy or a range that cannot be; it says which."
);

create_exception!(
    kvtide._sim,
    ResetNeeded,
    PyRuntimeError,
    "An environment that cannot be stepped before it is reset."
);

/// The exception for `error`: an `OSError` where the system refused a file, otherwise a [`ScenarioError`]. Both say what the
/// command line would.
pub fn refused(error: &(dyn Error + 'static)) -> PyErr {
    let mut errno = None;
    let mut cause = Some(error);
    while let Some(error) = cause {
        errno = errno.or_else(|| error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error));
        cause = error.source();
    }
    match errno {
        // With two arguments Python chooses the subclass: FileNotFoundError, PermissionError, ….
        Some(errno) => PyOSError::new_err((errno, error.to_string())),
        None => ScenarioError::new_err(error.to_string()),
    }
}

/// The exception for what is wrong in words.
pub fn wrong(message: impl Into<String>) -> PyErr {
    ScenarioError::new_err(message.into())
}
