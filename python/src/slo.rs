//! Targets, and who can still meet them.

use kvtide_rules::lateness::admit_by;
use kvtide_rules::{Answer, Micros, Slo};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::pricing::PyPricing;

/// Targets a request must meet all at once; times are microseconds.
#[pyclass(name = "Slo", module = "kvtide", frozen, eq)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PySlo(pub Slo);

#[pymethods]
impl PySlo {
    /// The default targets: `ttft:2000,tpot:100,stall:3000`.
    #[new]
    fn new() -> PySlo {
        PySlo(Slo::default())
    }

    /// `ttft:2000,tpot:100,stall:3000` in milliseconds, of which what is left out keeps its default, or a class. Raises
    /// `ValueError`.
    #[staticmethod]
    fn parse(text: &str) -> PyResult<PySlo> {
        text.parse().map(PySlo).map_err(|error: kvtide_rules::SloError| PyValueError::new_err(error.to_string()))
    }

    #[getter]
    fn ttft_us(&self) -> u64 {
        self.0.ttft.0
    }

    #[getter]
    fn tpot_us(&self) -> u64 {
        self.0.tpot.0
    }

    #[getter]
    fn stall_us(&self) -> u64 {
        self.0.stall.0
    }

    /// By when token `index` (from 0) of a request is on time.
    fn deadline_us(&self, arrival_us: u64, index: u32) -> u64 {
        self.0.deadline(Micros(arrival_us), index).0
    }

    /// By when a waiting request must be admitted to meet its targets still; 0 if it cannot. `was_late` is None before its
    /// first token, and then says whether that was late; its latest token came at `last_token_us`.
    #[pyo3(signature = (arrival_us, tokens, pricing, was_late = None, last_token_us = 0))]
    fn admit_by_us(
        &self,
        arrival_us: u64,
        tokens: u32,
        pricing: &PyPricing,
        was_late: Option<bool>,
        last_token_us: u64,
    ) -> u64 {
        let answer = match was_late {
            None => Answer::Awaited,
            Some(true) => Answer::Late,
            Some(false) => Answer::Begun { last_token: Micros(last_token_us) },
        };
        admit_by(self.0, Micros(arrival_us), answer, tokens, &pricing.pricing()).0
    }

    fn __repr__(&self) -> String {
        format!("Slo.parse('{}')", self.0)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }
}
