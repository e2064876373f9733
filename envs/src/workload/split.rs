//! The one cut of traffic by time into what is learned from, what is chosen on, and what nobody looks at before the end.

use super::{Window, WorkloadError};
use crate::time::Micros;

/// Microseconds.
const SECOND: u64 = 1_000_000;

/// Traffic cut by time. Learning never looks at what comes after [`fit`](Self::fit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// What may be looked at while learning: [`train`](Self::train) and [`validation`](Self::validation).
    pub fit: Window,
    /// What is learned from: the first part of it.
    pub train: Window,
    /// What is chosen on: the last part of it; may be empty.
    pub validation: Window,
    /// What is judged on in the end: all that comes after; may be empty.
    pub test: Window,
}

impl Split {
    /// Cuts `[0, span)`: its first `fit`, to the whole second where that leaves any, may be looked at, and the last
    /// `validation` of that is chosen on. Of traffic that arrives at once nothing may: a microsecond has no parts.
    ///
    /// # Errors
    /// `fit` is not above 0 and at most 1, or `validation` not at least 0 and below 1.
    pub fn of(span: Micros, fit: f64, validation: f64) -> Result<Split, WorkloadError> {
        if !(fit > 0.0 && fit <= 1.0) {
            return Err(WorkloadError::Split(format!("fit {fit}: must be above 0, at most 1")));
        }
        if !(0.0..1.0).contains(&validation) {
            return Err(WorkloadError::Split(format!("validation {validation}: must be at least 0, below 1")));
        }
        let exact = Micros((span.0 as f64 * fit) as u64);
        let whole = Micros(exact.0 - exact.0 % SECOND);
        let end = if whole == Micros::ZERO { exact } else { whole };
        let cut = Micros(end.0 - (end.0 as f64 * validation) as u64);
        let window = |start, end| Window { start, end };
        Ok(Split {
            fit: window(Micros::ZERO, end),
            train: window(Micros::ZERO, cut),
            validation: window(cut, end),
            test: window(end, span),
        })
    }
}

/// The next whole second, if a moment is not one: so windows are told to people. A window may end that much after a trace.
pub fn to_whole_second(moment: Micros) -> Micros {
    Micros(moment.0.next_multiple_of(SECOND))
}
