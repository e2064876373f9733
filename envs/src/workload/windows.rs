//! Parts of a workload by time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Duration, Workload, WorkloadError};
use crate::time::Micros;

/// How far a window may reach beyond the end of a trace: a trace of 2,399.3 s may be called one of 2,400 s.
pub const WINDOW_SLACK: Micros = Micros::from_millis(1_000);

/// Most windows of one trace.
pub const MAX_WINDOWS: u32 = 10_000;

/// Arrivals from `start` on and before `end`, on the clock of the trace. Written `START..END`, as in `600s..1200s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Window {
    /// First moment inside.
    pub start: Micros,
    /// First moment after.
    pub end: Micros,
}

impl Window {
    /// Whether a moment is inside.
    pub fn contains(self, moment: Micros) -> bool {
        self.start <= moment && moment < self.end
    }

    /// From start to end.
    pub fn length(self) -> Micros {
        self.end.since(self.start)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", Duration(self.start), Duration(self.end))
    }
}

impl FromStr for Window {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Window, WorkloadError> {
        let (start, end) =
            text.split_once("..").ok_or_else(|| WorkloadError::spec(text, "is not a window: expected 600s..1200s"))?;
        let (Duration(start), Duration(end)) = (start.parse()?, end.parse()?);
        let window = Window { start, end };
        if window.start >= window.end { Err(WorkloadError::EmptyWindow(window)) } else { Ok(window) }
    }
}

impl TryFrom<String> for Window {
    type Error = WorkloadError;

    fn try_from(text: String) -> Result<Window, WorkloadError> {
        text.parse()
    }
}

impl From<Window> for String {
    fn from(window: Window) -> String {
        window.to_string()
    }
}

impl Workload {
    /// The requests that arrive in a window, on a clock that starts with it. The span is the window's length.
    ///
    /// # Errors
    /// If the window is empty, nothing arrives in it, or it ends more than [`WINDOW_SLACK`] after the workload.
    pub fn window(&self, window: Window) -> Result<Workload, WorkloadError> {
        if window.start >= window.end {
            return Err(WorkloadError::EmptyWindow(window));
        }
        if window.end > self.span() + WINDOW_SLACK {
            return Err(WorkloadError::WindowBeyondTrace { window, end: self.span() });
        }
        let before = |moment| self.requests().partition_point(|request| request.arrival < moment);
        let mut requests = self.requests()[before(window.start)..before(window.end)].to_vec();
        if requests.is_empty() {
            return Err(WorkloadError::IdleWindow(window));
        }
        for request in &mut requests {
            request.arrival = request.arrival - window.start;
        }
        Workload::new(self.name(), requests, window.length())
    }
}

/// Cuts `[0, span)` into `count` windows of equal length, to the microsecond; together they are the whole.
///
/// # Errors
/// If there are to be no windows, more than [`MAX_WINDOWS`], or more than there are microseconds.
pub fn equal(span: Micros, count: u32) -> Result<Vec<Window>, WorkloadError> {
    if count == 0 || count > MAX_WINDOWS || u64::from(count) > span.0 {
        return Err(WorkloadError::Split(format!("{count} windows of {span}: must be from 1 to {MAX_WINDOWS}")));
    }
    let edge = |index: u32| Micros((u128::from(span.0) * u128::from(index) / u128::from(count)) as u64);
    Ok((0..count).map(|index| Window { start: edge(index), end: edge(index + 1) }).collect())
}
