//! What a prompt costs.

use kvtide_rules::{Micros, PrefillPrice, Pricing};
use pyo3::prelude::*;

/// What computing a prompt costs: as it is told, or as it is learnt from full steps.
#[pyclass(name = "Pricing", module = "kvtide")]
#[derive(Debug)]
pub struct PyPricing {
    told: Option<f64>,
    learnt: PrefillPrice,
    attention_ns_per_token_pair: f64,
}

#[pymethods]
impl PyPricing {
    /// Without `prefill_ns_per_token` that is learnt.
    #[new]
    #[pyo3(signature = (prefill_ns_per_token = None, attention_ns_per_token_pair = 0.0))]
    fn new(prefill_ns_per_token: Option<f64>, attention_ns_per_token_pair: f64) -> PyPricing {
        PyPricing { told: prefill_ns_per_token, learnt: PrefillPrice::default(), attention_ns_per_token_pair }
    }

    /// A step of `tokens` tokens, of at most `budget`, is planned.
    pub fn planned(&mut self, now_us: u64, tokens: u32, budget: u32) {
        if self.told.is_none() {
            self.learnt.planned(Micros(now_us), tokens, budget);
        }
    }

    /// Nanoseconds; 0 before anything is known.
    #[getter]
    fn prefill_ns_per_token(&self) -> f64 {
        self.told.unwrap_or(self.learnt.ns_per_token())
    }

    /// How long computing a prompt of so many tokens takes.
    fn prefill_us(&self, tokens: u32) -> u64 {
        self.pricing().prefill(tokens).0
    }
}

impl PyPricing {
    pub fn pricing(&self) -> Pricing {
        Pricing {
            prefill_ns_per_token: self.prefill_ns_per_token(),
            attention_ns_per_token_pair: self.attention_ns_per_token_pair,
            ..Pricing::default()
        }
    }
}
