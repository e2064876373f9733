//! Traffic of many clients, drawn from their statistics ([`ServeGen`]).
//!
//! Each client is a renewal process of its own, with gamma gaps of its rate and coefficient of variation, ten minutes at a
//! time. (`ServeGen` fits a gamma or a Weibull distribution to each; here all are gamma, with the same two moments.) Each ten
//! minutes starts as a process does that has been running for ever: the time to its first arrival is a uniform share of a gap
//! drawn in proportion to its length, which for gamma gaps of shape `k` is one of shape `k + 1` (Cox 1962, "Renewal theory",
//! section 2.4 and 5.2). So the expected number of requests is exactly rate times time. Over [`MAX_CV`], which a ten-minute
//! measurement passes where a client sends all it has at once, `MAX_CV` is drawn.
//!
//! Lengths are those of the six hours, drawn independently of each other and of arrivals. (`ServeGen`'s own sampler draws
//! prompt and answer by one number, which makes the longest prompts have the longest answers.) They are independent from
//! request to request too: bursts of like requests are not modelled, nor prefixes, nor sessions.
//!
//! Every client and ten minutes has streams of its own. So a window has the same requests whether it is drawn alone or as part
//! of a longer one, and only the window asked for costs anything; and with one seed, the requests of two loads are the same,
//! sooner or later. A load scales rates and leaves each client's burstiness: fewer or more of its users, as bursty as all.

use std::ops::Range;

use rand::RngExt;
use rand_distr::{Distribution, Gamma};

use super::statistics::{self, Statistics};
use super::synthetic::{Gaps, MAX_CV, MAX_REQUESTS, MIN_CV};
use super::{Replay, Window, Workload, WorkloadError};
use crate::seed::{self, Stream};
use crate::time::Micros;
use crate::trace::servegen::{Client, Period, ROW, Rate, ServeGen};
use crate::trace::{MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, Request};

/// A rate at which nothing arrives in ten years; lower ones would make gaps that are no numbers.
const NEVER_RPS: f64 = 1e-12;

impl Statistics for ServeGen {
    fn name(&self) -> String {
        ServeGen::name(self)
    }

    fn span(&self) -> Micros {
        ServeGen::span(self)
    }

    fn expected(&self, window: Window) -> f64 {
        self.expected_requests(whole_rows(window))
    }

    fn requests(&self, window: Window, replay: &Replay) -> Result<Vec<Request>, WorkloadError> {
        self.drawn(window, replay.load, replay.seed)
    }
}

impl ServeGen {
    /// Draws a window, at the load, burstiness and lengths that `replay` says. Its seed is the root of the streams
    /// `clients.arrivals` and `clients.lengths`, of each client and ten minutes. Load scales rates whatever the scaling. A `cv`
    /// is that of all clients together: see [`Replay::cv`].
    ///
    /// # Errors
    /// If a value is out of range or belongs to recorded arrivals (stretching, jitter), the window is beyond the files, or
    /// nothing or too much arrives in it.
    pub fn draw(&self, replay: &Replay) -> Result<Workload, WorkloadError> {
        statistics::draw(self, replay)
    }

    /// The window, or all there is; refused if it is empty or reaches beyond the files.
    ///
    /// # Errors
    /// As said.
    pub fn check_window(&self, window: Option<Window>) -> Result<Window, WorkloadError> {
        statistics::check_window(window, self.span())
    }

    fn drawn(&self, window: Window, load: f64, seed: u64) -> Result<Vec<Request>, WorkloadError> {
        let mut requests = Vec::new();
        for (client, rate, _) in self.parts(window.start..window.end) {
            let mut minutes = TenMinutes::new(client, rate, load, seed);
            while let Some(arrival) = minutes.next_arrival().filter(|arrival| *arrival < window.end) {
                let lengths = minutes.lengths();
                if !window.contains(arrival) {
                    continue;
                }
                if requests.len() as u64 == MAX_REQUESTS {
                    return Err(WorkloadError::TooBusy { window, requests: MAX_REQUESTS + 1 });
                }
                requests.push(Request {
                    tenant: Some(client.name.clone()),
                    ..Request::new(arrival - window.start, lengths.0, lengths.1)
                });
            }
        }
        // Those that arrive together stay in the order of their clients.
        requests.sort_by_key(|request| request.arrival);
        Ok(requests)
    }
}

/// The ten minutes that a window has a part of, whole: what is drawn to know what arrives in it.
fn whole_rows(window: Window) -> Range<Micros> {
    Micros(window.start.0 - window.start.0 % ROW.0)..Micros(window.end.0.next_multiple_of(ROW.0))
}

/// Ten minutes of one client.
struct TenMinutes<'a> {
    start: Micros,
    gaps: Gaps,
    /// Seconds since the start.
    now_s: f64,
    /// Drawn so far.
    arrivals: u64,
    arrival_stream: Stream,
    length_stream: Stream,
    period: &'a Period,
}

impl<'a> TenMinutes<'a> {
    fn new(client: &'a Client, rate: &Rate, load: f64, seed: u64) -> TenMinutes<'a> {
        let seed = seed::derive(seed, "clients", client.number);
        let index = rate.start.0 / ROW.0;
        let (rate_rps, cv) = ((rate.rate_rps * load).max(NEVER_RPS), rate.cv.min(MAX_CV));
        let mut arrival_stream = seed::stream(seed, "clients.arrivals", index);
        let share = arrival_stream.random::<f64>();
        TenMinutes {
            start: rate.start,
            gaps: Gaps::new(rate_rps, cv),
            now_s: share * long_gap(rate_rps, cv, &mut arrival_stream),
            arrivals: 0,
            arrival_stream,
            length_stream: seed::stream(seed, "clients.lengths", index),
            period: &client.periods[rate.period],
        }
    }

    fn next_arrival(&mut self) -> Option<Micros> {
        if self.arrivals > 0 {
            self.now_s += self.gaps.draw(&mut self.arrival_stream);
        }
        self.arrivals += 1;
        let arrival = self.start + Micros::from_secs_f64(self.now_s);
        (arrival < self.start + ROW && self.arrivals <= MAX_REQUESTS).then_some(arrival)
    }

    /// Prompt and answer of the arrival drawn last.
    fn lengths(&mut self) -> (u32, u32) {
        let prompt: u64 = self.period.prompt.iter().map(|part| part.draw(&mut self.length_stream)).sum();
        let output = self.period.output.draw(&mut self.length_stream);
        (prompt.clamp(1, u64::from(MAX_PROMPT_TOKENS)) as u32, output.clamp(1, MAX_OUTPUT_TOKENS))
    }
}

/// A gap drawn in proportion to its length, in seconds.
fn long_gap(rate_rps: f64, cv: f64, stream: &mut Stream) -> f64 {
    match Gamma::new(1.0 / (cv * cv) + 1.0, cv * cv / rate_rps) {
        Ok(gamma) if cv >= MIN_CV => gamma.sample(stream),
        // All gaps are alike.
        _ => 1.0 / rate_rps,
    }
}
