//! Traffic drawn from rates and lengths over time ([`RateProfile`]).
//!
//! In every window come as many requests as were recorded, each at a moment of its own, uniform in it: a Poisson process of
//! which the number in each window is known. At a load `l`, `floor(l n + u)` of them with one uniform `u` a window, so that the
//! expected number is exactly `l n`. Prompt and answer are drawn independently of each other and of the moment.
//!
//! Every window has streams of its own. So a part of the traffic has the same requests whether it is drawn alone or as part of
//! a longer one, and with one seed the requests of a load are among those of every higher load.

use rand::RngExt;

use super::replay::MAX_LOAD;
use super::synthetic::MAX_REQUESTS;
use super::windows::WINDOW_SLACK;
use super::{Replay, Scaling, Window, Workload, WorkloadError, burstiness};
use crate::seed;
use crate::time::Micros;
use crate::trace::{RateProfile, Request};

impl RateProfile {
    /// Draws a window, at the load, burstiness and lengths that `replay` says. Its seed is the root of the streams
    /// `rates.arrivals` and `rates.lengths`, of each of the profile's windows. Load scales rates whatever the scaling.
    ///
    /// # Errors
    /// If a value is out of range or belongs to recorded arrivals (stretching, jitter), the window is beyond the file, or
    /// nothing or too much arrives in it.
    pub fn draw(&self, replay: &Replay) -> Result<Workload, WorkloadError> {
        // Written so that NaN is refused as well.
        if !(replay.load > 0.0 && replay.load <= MAX_LOAD) {
            return Err(WorkloadError::Load(replay.load));
        }
        if replay.scaling == Scaling::Stretch || replay.jitter.is_some() {
            return Err(WorkloadError::NotRecorded { name: self.name() });
        }
        burstiness::check(replay.cv)?;
        replay.lengths.check()?;
        let window = self.check_window(replay.window)?;
        let expected = self.within(window).map(|(_, part)| part.requests as f64).sum::<f64>() * replay.load;
        if expected > MAX_REQUESTS as f64 {
            return Err(WorkloadError::TooBusy { window, requests: expected as u64 });
        }
        let requests = self.requests(window, replay);
        if requests.is_empty() {
            return Err(WorkloadError::IdleWindow(window));
        }
        let drawn = Workload::new(&self.name(), requests, window.length())?;
        let timed = replay.cv.map_or(Ok(drawn.clone()), |cv| burstiness::redraw(&drawn, cv, replay.seed))?;
        Ok(timed.with_lengths(replay.lengths))
    }

    /// The window, or all there is; refused if it is empty or reaches beyond the file.
    ///
    /// # Errors
    /// As said.
    pub fn check_window(&self, window: Option<Window>) -> Result<Window, WorkloadError> {
        let window = window.unwrap_or(Window { start: Micros::ZERO, end: self.span() });
        if window.start >= window.end {
            return Err(WorkloadError::EmptyWindow(window));
        }
        if window.end > self.span() + WINDOW_SLACK {
            return Err(WorkloadError::WindowBeyondTrace { window, end: self.span() });
        }
        Ok(window)
    }

    /// Mean answer of the requests of a window, tokens; 0 where none arrive.
    pub fn mean_output(&self, window: Window) -> f64 {
        let (mut requests, mut tokens) = (0.0, 0.0);
        for (_, part) in self.within(window) {
            let covered = part.end.min(window.end).since(part.start.max(window.start)).as_secs_f64();
            let count = part.requests as f64 * covered / part.end.since(part.start).as_secs_f64();
            requests += count;
            tokens += count * self.lengths(part).output.mean();
        }
        tokens / requests.max(f64::MIN_POSITIVE)
    }

    /// The profile's windows that a window has a part of, and their numbers.
    fn within(&self, window: Window) -> impl Iterator<Item = (usize, &crate::trace::rates::Window)> {
        let first = self.windows().partition_point(|part| part.end <= window.start);
        let parts = self.windows().iter().enumerate().skip(first);
        parts.take_while(move |(_, part)| part.start < window.end)
    }

    fn requests(&self, window: Window, replay: &Replay) -> Vec<Request> {
        let mut requests = Vec::new();
        for (index, part) in self.within(window) {
            let mut arrivals = seed::stream(replay.seed, "rates.arrivals", index as u64);
            let mut tokens = seed::stream(replay.seed, "rates.lengths", index as u64);
            let lengths = self.lengths(part);
            let count = (part.requests as f64 * replay.load + arrivals.random::<f64>()) as u64;
            for _ in 0..count {
                let arrival = Micros(arrivals.random_range(part.start.0..part.end.0));
                let (prompt, output) = (lengths.prompt.draw(&mut tokens), lengths.output.draw(&mut tokens));
                if window.contains(arrival) {
                    requests.push(Request::new(arrival - window.start, prompt, output));
                }
            }
        }
        requests.sort_by_key(|request| request.arrival);
        requests
    }
}
