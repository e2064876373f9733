//! Exceptions.

use kvtide_runtime::{FormatError, HostMismatch};
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

create_exception!(kvtide, TableError, PyValueError, "Bytes that are not a table for this build; `reason` names why.");

/// The exception for `error`, its `reason` the error's name: `crc`, `truncated`, `schema`, ….
pub fn table_error(py: Python<'_>, error: FormatError) -> PyErr {
    named(py, error.to_string(), &reason(error))
}

/// The exception for a table that is not for a host, its `reason` either `profile` or `host`.
pub fn host_error(py: Python<'_>, unfit: HostMismatch) -> PyErr {
    named(py, unfit.to_string(), if matches!(unfit, HostMismatch::Head { .. }) { "profile" } else { "host" })
}

fn named(py: Python<'_>, message: String, reason: &str) -> PyErr {
    let exception = TableError::new_err(message);
    // An exception that cannot take an attribute is still the exception.
    let _ = exception.value(py).setattr("reason", reason);
    exception
}

/// The variant's name in snake case.
fn reason(error: FormatError) -> String {
    let debug = format!("{error:?}");
    let name = debug.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    let mut reason = String::new();
    for (index, c) in name.chars().enumerate() {
        if c.is_ascii_uppercase() && index > 0 {
            reason.push('_');
        }
        reason.push(c.to_ascii_lowercase());
    }
    reason
}
