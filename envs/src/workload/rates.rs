//! Traffic drawn from rates and lengths over time ([`RateProfile`]).
//!
//! In every window come as many requests as were recorded, each at a moment of its own, uniform in it: a Poisson process of
//! which the number in each window is known. At a load `l`, `floor(l n + u)` of them with one uniform `u` a window, so that the
//! expected number is exactly `l n`. Prompt and answer are drawn independently of each other and of the moment.
//!
//! Every window has streams of its own. So a part of the traffic has the same requests whether it is drawn alone or as part of
//! a longer one, and with one seed the requests of a load are among those of every higher load.

use rand::RngExt;

use super::statistics::{self, Statistics};
use super::{Replay, Window, Workload, WorkloadError};
use crate::seed;
use crate::time::Micros;
use crate::trace::{RateProfile, Request};

impl Statistics for RateProfile {
    fn name(&self) -> String {
        RateProfile::name(self)
    }

    fn span(&self) -> Micros {
        RateProfile::span(self)
    }

    fn expected(&self, window: Window) -> f64 {
        self.within(window).map(|(_, part)| part.requests as f64).sum()
    }

    fn requests(&self, window: Window, replay: &Replay) -> Result<Vec<Request>, WorkloadError> {
        Ok(self.drawn(window, replay))
    }
}

impl RateProfile {
    /// Draws a window, at the load, burstiness and lengths that `replay` says. Its seed is the root of the streams
    /// `rates.arrivals` and `rates.lengths`, of each of the profile's windows. Load scales rates whatever the scaling.
    ///
    /// # Errors
    /// If a value is out of range or belongs to recorded arrivals (stretching, jitter), the window is beyond the file, or
    /// nothing or too much arrives in it.
    pub fn draw(&self, replay: &Replay) -> Result<Workload, WorkloadError> {
        statistics::draw(self, replay)
    }

    /// The window, or all there is; refused if it is empty or reaches beyond the file.
    ///
    /// # Errors
    /// As said.
    pub fn check_window(&self, window: Option<Window>) -> Result<Window, WorkloadError> {
        statistics::check_window(window, self.span())
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

    fn drawn(&self, window: Window, replay: &Replay) -> Vec<Request> {
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
