//! Traffic drawn from statistics: what holds whatever they are of, clients or rates.

use super::replay::MAX_LOAD;
use super::synthetic::MAX_REQUESTS;
use super::windows::WINDOW_SLACK;
use super::{Replay, Scaling, Window, Workload, WorkloadError, burstiness};
use crate::time::Micros;
use crate::trace::Request;

/// What requests are drawn from.
pub(super) trait Statistics {
    /// What the traffic is called in reports.
    fn name(&self) -> String;

    /// How long it lasts.
    fn span(&self) -> Micros;

    /// Requests to be expected of a window at load 1.
    fn expected(&self, window: Window) -> f64;

    /// Requests of a window at the load and with the seed of `replay`, on the window's clock.
    fn requests(&self, window: Window, replay: &Replay) -> Result<Vec<Request>, WorkloadError>;
}

/// Draws a window, at the load, burstiness and lengths that `replay` says.
pub(super) fn draw(statistics: &impl Statistics, replay: &Replay) -> Result<Workload, WorkloadError> {
    // Written so that NaN is refused as well.
    if !(replay.load > 0.0 && replay.load <= MAX_LOAD) {
        return Err(WorkloadError::Load(replay.load));
    }
    if replay.scaling == Scaling::Stretch || replay.jitter.is_some() {
        return Err(WorkloadError::NotRecorded { name: statistics.name() });
    }
    burstiness::check(replay.cv)?;
    replay.lengths.check()?;
    let window = check_window(replay.window, statistics.span())?;
    let expected = statistics.expected(window) * replay.load;
    if expected > MAX_REQUESTS as f64 {
        return Err(WorkloadError::TooBusy { window, requests: expected as u64 });
    }
    let requests = statistics.requests(window, replay)?;
    if requests.is_empty() {
        return Err(WorkloadError::IdleWindow(window));
    }
    let drawn = Workload::new(&statistics.name(), requests, window.length())?;
    let timed = replay.cv.map_or(Ok(drawn.clone()), |cv| burstiness::redraw(&drawn, cv, replay.seed))?;
    Ok(timed.with_lengths(replay.lengths))
}

/// The window, or all of `span`; refused if it is empty or reaches beyond it.
pub(super) fn check_window(window: Option<Window>, span: Micros) -> Result<Window, WorkloadError> {
    let window = window.unwrap_or(Window { start: Micros::ZERO, end: span });
    if window.start >= window.end {
        return Err(WorkloadError::EmptyWindow(window));
    }
    if window.end > span + WINDOW_SLACK {
        return Err(WorkloadError::WindowBeyondTrace { window, end: span });
    }
    Ok(window)
}
