//! What a scheduler's steps come to.

use std::collections::VecDeque;

use kvtide_rules::Cadence;
use kvtide_runtime::observer::Totals;
use pyo3::prelude::*;

/// Counts what an observation counts, and says when a decision is due.
#[pyclass(name = "Ledger", module = "kvtide")]
#[derive(Debug, Default)]
pub struct PyLedger {
    pub totals: Totals,
    cadence: Cadence,
    /// Steps that are planned and not done.
    planned: VecDeque<PlannedStep>,
}

/// A step that is planned.
#[derive(Debug)]
struct PlannedStep {
    /// 0 where the engine does not tell.
    tokens: u32,
    refused: bool,
    preempted: u32,
}

/// Steps that are planned and not done. An engine has a handful; whoever never says that one is done is not remembered.
const MAX_PLANNED: usize = 64;

#[pymethods]
impl PyLedger {
    #[new]
    fn new() -> PyLedger {
        PyLedger::default()
    }

    /// Whether to decide before the next step is planned: every `interval` steps, and after the first step with a refusal
    /// that follows one without.
    fn is_due(&self, interval: u32) -> bool {
        self.cadence.is_due(interval)
    }

    /// A decision was made.
    fn decided(&mut self) {
        self.cadence.decided();
    }

    /// A step of so many tokens (None where the engine does not tell) is planned in which so many requests were preempted, and
    /// an admission was refused or not. It counts once it is `done`, which one without tokens never is.
    #[pyo3(signature = (tokens, refused_admission, preempted))]
    fn planned(&mut self, tokens: Option<u32>, refused_admission: bool, preempted: u32) {
        self.cadence.stepped(refused_admission || preempted > 0);
        if tokens != Some(0) {
            if self.planned.len() == MAX_PLANNED {
                self.planned.pop_front();
            }
            let tokens = tokens.unwrap_or(0);
            self.planned.push_back(PlannedStep { tokens, refused: refused_admission, preempted });
        }
    }

    /// The earliest step that is not done is.
    fn done(&mut self) {
        if let Some(PlannedStep { tokens, refused, preempted }) = self.planned.pop_front() {
            self.totals.steps += 1;
            self.totals.refused_steps += u64::from(refused);
            self.totals.preemptions += u64::from(preempted);
            self.totals.tokens += u64::from(tokens);
        }
    }

    /// Steps that are planned and not done.
    #[getter]
    fn in_flight(&self) -> usize {
        self.planned.len()
    }

    /// A request arrived.
    fn arrived(&mut self, prompt_tokens: u32) {
        self.totals.arrivals += 1;
        self.totals.arrived_prompt_tokens += u64::from(prompt_tokens);
    }

    /// A request was answered.
    fn completed(&mut self, output_tokens: u32) {
        self.totals.completions += 1;
        self.totals.completed_output_tokens += u64::from(output_tokens);
    }

    #[getter]
    fn steps(&self) -> u64 {
        self.totals.steps
    }

    /// Tokens of those, as far as the engine tells.
    #[getter]
    fn tokens(&self) -> u64 {
        self.totals.tokens
    }

    #[getter]
    fn refused_steps(&self) -> u64 {
        self.totals.refused_steps
    }

    #[getter]
    fn preemptions(&self) -> u64 {
        self.totals.preemptions
    }

    #[getter]
    fn arrivals(&self) -> u64 {
        self.totals.arrivals
    }

    #[getter]
    fn arrived_prompt_tokens(&self) -> u64 {
        self.totals.arrived_prompt_tokens
    }

    #[getter]
    fn completions(&self) -> u64 {
        self.totals.completions
    }

    #[getter]
    fn completed_output_tokens(&self) -> u64 {
        self.totals.completed_output_tokens
    }
}
