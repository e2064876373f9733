//! Synthetic workloads, drawn from a [`TrafficProfile`] by seed.
//!
//! Arrivals are a renewal process whose gaps are gamma-distributed with the profile's coefficient of variation
//! (`ServeGen` and `BurstGPT` fit the same family). Lengths are independent of arrivals and of each other, and come
//! from a stream of their own: with one seed, the requests of two rates are the same, sooner or later (but in the
//! mix, whose phases keep to real time). There are no prefix hashes and no sessions but in the agentic profile, which is
//! made otherwise: see [`super::agentic`], and on a day: see [`super::day`].
//!
//! The mix is not stationary. Time is cut into phases: calm ones of 30 to 180 s, whose rate is the mean times a
//! log-normal factor (sigma 0.5, mean 1), and with probability 0.2 bursts of 10 to 30 s at three times the calm mean.
//! In each phase one of the three profiles, drawn evenly, makes 60 % of requests and the others 20 % each. The gaps are
//! drawn on a clock that runs as fast as the rate of the phase, so the mean rate over many phases is the one asked for.
//! The figures are chosen, not fitted: the mix is there to change faster than a fixed setting can follow. Requests of
//! the mix carry their profile's name as tenant.

use rand::RngExt;
use rand_distr::{Distribution, Gamma, StandardNormal};
use serde::{Deserialize, Serialize};

use super::profile::{MIXED, TrafficProfile};
use super::{LengthScale, LogNormal, MAX_P95_OVER_MEAN, Workload, WorkloadError, agentic, day};
use crate::seed::{self, Stream};
use crate::time::Micros;
use crate::trace::{MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, MAX_RATE_RPS, MAX_SPAN, Request};

/// Most requests of a workload that is generated or scaled: 1 to 2 GB.
pub const MAX_REQUESTS: u64 = 10_000_000;

/// Rates accepted, requests per second.
pub const RATE_RPS: std::ops::RangeInclusive<f64> = 1e-4..=MAX_RATE_RPS;

/// Largest coefficient of variation of the time between arrivals.
pub const MAX_CV: f64 = 20.0;

/// Smallest coefficient of variation that is drawn: below, gaps are constant, and a gamma distribution of them is no number.
pub(super) const MIN_CV: f64 = 1e-6;

/// Length of a calm phase of the mix, seconds.
const CALM_S: std::ops::Range<f64> = 30.0..180.0;
/// Length of a burst of the mix, seconds.
const BURST_S: std::ops::Range<f64> = 10.0..30.0;
/// Share of phases that are bursts.
const BURST_SHARE: f64 = 0.2;
/// Rate of a burst over the mean of calm phases.
const BURST_FACTOR: f64 = 3.0;
/// Standard deviation of the logarithm of a calm phase's rate.
const CALM_SIGMA: f64 = 0.5;
/// Share of a phase's requests that are of its main profile.
const MAIN_SHARE: f64 = 0.6;

/// What to draw. Written `PROFILE:key=value,…`, as in `chat:rate=5,duration=600`; see its `FromStr`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SyntheticSpec {
    /// The kind of traffic.
    pub profile: TrafficProfile,
    /// Mean rate in requests per second, within [`RATE_RPS`]; or infinite: everything arrives at time 0. Of the agentic
    /// profile, sessions that start per second.
    pub rate_rps: f64,
    /// Where it ends.
    pub extent: Extent,
    /// Coefficient of variation of the time between arrivals instead of the profile's: from 0 (a metronome) through 1
    /// (Poisson) to [`MAX_CV`].
    pub cv: Option<f64>,
    /// What lengths are multiplied by after they are drawn.
    pub lengths: LengthScale,
    /// Root of the streams `synthetic.arrivals`, `synthetic.phases`, `synthetic.kinds`, `synthetic.lengths` and, one a
    /// session, `synthetic.sessions`; of a day, of `day.arrivals`, `day.moves`, `day.bursts` and `day.lengths`, one a kind.
    pub seed: u64,
}

/// Where a synthetic workload ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// After so many requests; of the agentic profile, sessions.
    Requests(u64),
    /// After so long; how many requests that makes depends on the seed.
    Duration(Micros),
}

impl SyntheticSpec {
    /// Draws the workload, which is named after its profile.
    ///
    /// # Errors
    /// If a value is out of range, there would be too many requests, or the duration ends before the first.
    pub fn generate(&self) -> Result<Workload, WorkloadError> {
        self.check()?;
        let mut requests = match self.profile {
            TrafficProfile::Agentic => agentic::requests(self)?,
            TrafficProfile::Day { peak, mix } => day::requests(self, peak, mix)?,
            _ => self.requests()?,
        };
        self.lengths.apply(&mut requests);
        Workload::new(&self.profile.to_string(), requests, self.span())
    }

    /// Draws requests that have nothing to do with each other.
    fn requests(&self) -> Result<Vec<Request>, WorkloadError> {
        let mut arrivals = Arrivals::new(self);
        let mut lengths = seed::stream(self.seed, "synthetic.lengths", 0);
        let mut requests = Vec::new();
        loop {
            let (arrival_s, kind) = arrivals.next();
            let arrival = Micros::from_secs_f64(arrival_s);
            let ended = match self.extent {
                Extent::Requests(count) => requests.len() as u64 == count,
                Extent::Duration(duration) => arrival >= duration,
            };
            if ended {
                break;
            }
            if requests.len() as u64 == MAX_REQUESTS {
                return Err(WorkloadError::TooManyRequests { requests: MAX_REQUESTS + 1 });
            }
            requests.push(self.request(arrival, kind, &mut lengths));
        }
        Ok(requests)
    }

    /// Coefficient of variation of the time between arrivals.
    pub(super) fn inter_arrival_cv(&self) -> f64 {
        self.cv.unwrap_or_else(|| self.profile.inter_arrival_cv())
    }

    /// Whether different seeds give different workloads: all do, but for constant gaps and constant lengths.
    pub fn depends_on_seed(&self) -> bool {
        let TrafficProfile::Uniform { prompt_mean, output_mean, spread } = self.profile else { return true };
        let lengths_vary =
            [prompt_mean, output_mean].map(|mean| bounds(mean, spread)).iter().any(|range| range.0 < range.1);
        let gaps_vary = self.rate_rps.is_finite() && self.cv != Some(0.0);
        lengths_vary || gaps_vary
    }

    fn request(&self, arrival: Micros, kind: usize, lengths: &mut Stream) -> Request {
        if let TrafficProfile::Uniform { prompt_mean, output_mean, spread } = self.profile {
            let [prompt, output] = [prompt_mean, output_mean].map(|mean| {
                let (shortest, longest) = bounds(mean, spread);
                lengths.random_range(shortest..=longest)
            });
            return Request::new(arrival, prompt, output);
        }
        if let TrafficProfile::LogNormal { prompt, output } = self.profile {
            let prompt = prompt.draw(lengths, MAX_PROMPT_TOKENS);
            return Request::new(arrival, prompt, output.draw(lengths, MAX_OUTPUT_TOKENS));
        }
        let shape = self.profile.shape().unwrap_or(&MIXED[kind]);
        let mut request = Request::new(arrival, shape.prompt.draw(lengths), shape.output.draw(lengths));
        if self.profile == TrafficProfile::Mix {
            request.tenant = Some(shape.name.to_owned());
        }
        request
    }

    /// How long the workload is meant to last.
    fn span(&self) -> Micros {
        match self.extent {
            Extent::Requests(count) => Micros::from_secs_f64(count as f64 / self.rate_rps),
            Extent::Duration(duration) => duration,
        }
    }

    pub(super) fn check(&self) -> Result<(), WorkloadError> {
        let wrong = |reason: String| Err(WorkloadError::spec(&self.to_string(), reason));
        if !RATE_RPS.contains(&self.rate_rps) && self.rate_rps != f64::INFINITY {
            let (low, high) = (RATE_RPS.start(), RATE_RPS.end());
            return wrong(format!("rate must be from {low} to {high} requests per second, or inf"));
        }
        if self.cv.is_some_and(|cv| !(0.0..=MAX_CV).contains(&cv)) {
            return wrong(format!("cv must be from 0 to {MAX_CV}"));
        }
        self.lengths.check()?;
        let requests = match self.extent {
            Extent::Requests(0) | Extent::Duration(Micros::ZERO) => return wrong("is empty".to_owned()),
            Extent::Requests(count) => count,
            Extent::Duration(_) if self.rate_rps == f64::INFINITY => {
                return wrong("an infinite rate needs n, not duration".to_owned());
            }
            Extent::Duration(duration) => (duration.as_secs_f64() * self.rate_rps) as u64,
        };
        let requests = match self.profile {
            TrafficProfile::Agentic => agentic::expected(self, requests),
            TrafficProfile::Day { mix, .. } => day::expected(self, mix, requests),
            _ => requests,
        };
        if requests > MAX_REQUESTS {
            return Err(WorkloadError::TooManyRequests { requests });
        }
        if self.span() > MAX_SPAN {
            return wrong("lasts more than ten years".to_owned());
        }
        match self.profile {
            TrafficProfile::Day { peak, mix } => day::check(self, peak, mix).or_else(wrong),
            TrafficProfile::Uniform { spread, .. } if !(0.0..=1.0).contains(&spread) => {
                wrong("spread must be from 0 to 1".to_owned())
            }
            TrafficProfile::Uniform { prompt_mean, output_mean, .. } => {
                check_means(prompt_mean, output_mean).or_else(wrong)
            }
            TrafficProfile::LogNormal { prompt, output } => check_means(prompt.mean, output.mean)
                .and_then(|()| check_tail("in", prompt))
                .and_then(|()| check_tail("out", output))
                .or_else(wrong),
            _ => Ok(()),
        }
    }
}

/// Refuses mean lengths of which twice as much is not accepted in a trace.
fn check_means(prompt: u32, output: u32) -> Result<(), String> {
    for (key, mean, most) in [("in", prompt, MAX_PROMPT_TOKENS / 2), ("out", output, MAX_OUTPUT_TOKENS / 2)] {
        if !(1..=most).contains(&mean) {
            return Err(format!("{key} must be from 1 to {most} tokens"));
        }
    }
    Ok(())
}

/// Refuses a tail that no log-normal distribution of that mean has.
fn check_tail(key: &str, lengths: LogNormal) -> Result<(), String> {
    if lengths.is_possible() {
        return Ok(());
    }
    Err(format!("{key}_p95 must be above {key}, the mean, and at most {MAX_P95_OVER_MEAN} times it"))
}

/// Shortest and longest length within `mean * (1 ± spread)`, at least 1.
fn bounds(mean: u32, spread: f64) -> (u32, u32) {
    let mean = f64::from(mean);
    let shortest = (mean * (1.0 - spread)).round().max(1.0) as u32;
    (shortest, ((mean * (1.0 + spread)).round() as u32).max(shortest))
}

/// Arrival times and, for the mix, the kind of each request.
struct Arrivals {
    gaps: Gaps,
    stream: Stream,
    now_s: f64,
    phases: Option<Phases>,
    kinds: Stream,
}

/// Times between arrivals of a renewal process.
pub(super) enum Gaps {
    /// Every gap is so many seconds.
    Constant(f64),
    Gamma(Gamma<f64>),
}

impl Gaps {
    /// Gamma with mean `1 / rate` and coefficient of variation `cv`: shape `1 / cv²`, scale `cv² / rate`.
    pub(super) fn new(rate_rps: f64, cv: f64) -> Gaps {
        match Gamma::new(1.0 / (cv * cv), cv * cv / rate_rps) {
            Ok(gamma) if rate_rps.is_finite() && cv >= MIN_CV => Gaps::Gamma(gamma),
            // A CV of 0 or an infinite rate is not a gamma distribution, and needs none.
            _ => Gaps::Constant(1.0 / rate_rps),
        }
    }

    /// Draws a gap, in seconds.
    pub(super) fn draw(&self, stream: &mut Stream) -> f64 {
        match self {
            Gaps::Constant(gap_s) => *gap_s,
            Gaps::Gamma(gamma) => gamma.sample(stream),
        }
    }
}

impl Arrivals {
    fn new(spec: &SyntheticSpec) -> Arrivals {
        let cv = spec.inter_arrival_cv();
        let phases = (spec.profile == TrafficProfile::Mix && spec.rate_rps.is_finite()).then(|| Phases::new(spec.seed));
        Arrivals {
            gaps: Gaps::new(spec.rate_rps, cv),
            stream: seed::stream(spec.seed, "synthetic.arrivals", 0),
            now_s: 0.0,
            phases,
            kinds: seed::stream(spec.seed, "synthetic.kinds", 0),
        }
    }

    /// The next arrival in seconds, and which of [`MIXED`] it is in a mix.
    fn next(&mut self) -> (f64, usize) {
        let gap_s = self.gaps.draw(&mut self.stream);
        let Some(phases) = &mut self.phases else {
            self.now_s += gap_s;
            return (self.now_s, self.kinds.random_range(0..MIXED.len()));
        };
        self.now_s = phases.advance(self.now_s, gap_s);
        let other = self.kinds.random_range(1..MIXED.len());
        let is_main = self.kinds.random::<f64>() < MAIN_SHARE;
        (self.now_s, if is_main { phases.main } else { (phases.main + other) % MIXED.len() })
    }
}

/// The phase of a mix that the clock is in.
struct Phases {
    stream: Stream,
    end_s: f64,
    /// Rate of the phase over the mean rate.
    factor: f64,
    /// Which of [`MIXED`] most requests are.
    main: usize,
}

impl Phases {
    fn new(seed: u64) -> Phases {
        let mut phases = Phases { stream: seed::stream(seed, "synthetic.phases", 0), end_s: 0.0, factor: 1.0, main: 0 };
        phases.enter_next();
        phases
    }

    /// Lets `gap_s` seconds of mean-rate time pass from `now_s`, through as many phases as it takes.
    fn advance(&mut self, mut now_s: f64, mut gap_s: f64) -> f64 {
        while now_s + gap_s / self.factor >= self.end_s {
            gap_s -= (self.end_s - now_s) * self.factor;
            now_s = self.end_s;
            self.enter_next();
        }
        now_s + gap_s.max(0.0) / self.factor
    }

    fn enter_next(&mut self) {
        let is_burst = self.stream.random::<f64>() < BURST_SHARE;
        let length_s = self.stream.random_range(if is_burst { BURST_S } else { CALM_S });
        let normal: f64 = StandardNormal.sample(&mut self.stream);
        let calm_factor = (CALM_SIGMA * normal - CALM_SIGMA * CALM_SIGMA / 2.0).exp();
        self.main = self.stream.random_range(0..MIXED.len());
        self.factor = if is_burst { BURST_FACTOR } else { calm_factor } / mean_factor();
        self.end_s += length_s;
    }
}

/// Mean rate over time of calm phases and bursts, in units of the calm mean.
fn mean_factor() -> f64 {
    let middle = |range: std::ops::Range<f64>| f64::midpoint(range.start, range.end);
    let (burst_s, calm_s) = (BURST_SHARE * middle(BURST_S), (1.0 - BURST_SHARE) * middle(CALM_S));
    (burst_s * BURST_FACTOR + calm_s) / (burst_s + calm_s)
}
