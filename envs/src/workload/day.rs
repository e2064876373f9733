//! A day of a service, compressed: load on a daily curve, a mix that moves, bursts.
//!
//! Requests are of four kinds: chat, code and reasoning as their own profiles draw them, and sessions of agents as the agentic
//! profile does. Each kind comes at a rate of its own, which is the product of four things:
//!
//! - its share of the requests of the day;
//! - the daily curve: the mean of each hour in `BurstGPT`'s first trace (CC-BY-4.0; Wang et al. 2024, arXiv 2401.17644), straight
//!   between the middles of hours, raised to the power that makes its highest hour `peak` times the mean;
//! - how much of this kind is wanted at the moment: the exponential of an Ornstein-Uhlenbeck process with a standard deviation
//!   of 0.7 that forgets in 3.5 hours. Both are of `ServeGen`'s `m-large` clients (Apache-2.0; Xiang et al. 2025, arXiv
//!   2505.09999), summed by whether their mean answer is below 100, below 500 or more tokens: within a day the logarithm of a
//!   group's rate in 10 minutes varies by 0.29, 0.72 and 1.08, and its autocorrelation after 1, 2 and 4 hours is 0.7, 0.55 and 0.35;
//! - bursts: 12 % of the time, for 76 s on average, three times what there is otherwise. In `BurstGPT` 12 % of minutes have
//!   more than twice the tokens of the hour around them, 1.26 of them in a row; 3 is chosen, less than the 3.9 that these have, some of which
//!   is long prompts. Bursts of the kinds have nothing to do with each other, as `ServeGen` finds of clients.
//!
//! All are 1 in the mean, so the mean rate over many days is the one asked for. Within that, times between arrivals of a
//! kind (of agents, between starts of sessions) vary as its profile says. The curve and what is wanted run `24 h / duration` times as fast as on the day
//! they are of; bursts, sessions and everything within a request keep their seconds. What came before time 0, of
//! which only agents' sessions are still there, was the same hours of the day before.

use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};

use super::profile::{MIXED, TrafficProfile};
use super::synthetic::{Extent, Gaps, MAX_REQUESTS, SyntheticSpec};
use super::{WorkloadError, agentic};
use crate::seed::{self, Stream};
use crate::time::Micros;
use crate::trace::Request;

/// Name of the profile.
pub(super) const NAME: &str = "day";

/// How long a day is unless told otherwise, seconds.
pub(super) const USUAL_S: u64 = 7_200;

/// Requests an hour of `BurstGPT`'s first trace by hour of the day, over their mean.
pub const HOURS: [f64; 24] = [
    0.96, 0.91, 0.59, 0.53, 0.38, 0.35, 0.20, 0.16, 0.18, 0.43, 0.90, 1.32, 1.79, 1.54, 1.84, 1.43, 1.51, 1.39, 1.21,
    1.61, 1.39, 1.20, 1.16, 1.05,
];

/// The highest of [`HOURS`].
pub const RECORDED_PEAK: f64 = 1.84;

/// Peaks accepted: highest hour over the mean.
pub const PEAKS: std::ops::RangeInclusive<f64> = 1.0..=8.0;

/// Pieces of a day within which the daily curve and what is wanted do not change.
const PIECES: usize = 96;

/// Standard deviation of the logarithm of how much of a kind is wanted.
const MOVE_SIGMA: f64 = 0.7;
/// How long it is remembered, as a share of the day: 3.5 hours.
const MOVE_MEMORY: f64 = 3.5 / 24.0;

/// Share of the time in which there is a burst.
const BURST_SHARE: f64 = 0.12;
/// Mean length of a burst, seconds.
const BURST_S: f64 = 76.0;
/// Rate within a burst over that outside.
const BURST_FACTOR: f64 = 3.0;

/// Shares of the requests of a day: chat, code, reasoning, agents. Written `50:20:20:10`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DayMix(pub [f64; 4]);

impl DayMix {
    /// What a day is made of unless told otherwise. Chosen.
    pub const USUAL: DayMix = DayMix([50.0, 20.0, 20.0, 10.0]);

    /// The shares, 1 in all.
    pub fn shares(self) -> [f64; 4] {
        let sum: f64 = self.0.iter().sum();
        self.0.map(|part| part / sum)
    }

    /// Whether these are parts of something.
    pub(super) fn is_possible(self) -> bool {
        self.0.iter().all(|part| (0.0..=1e6).contains(part)) && self.0.iter().any(|part| *part > 0.0)
    }
}

impl fmt::Display for DayMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [chat, code, reasoning, agents] = self.0;
        write!(f, "{chat}:{code}:{reasoning}:{agents}")
    }
}

impl FromStr for DayMix {
    type Err = ();

    fn from_str(text: &str) -> Result<DayMix, ()> {
        let parts: Vec<f64> = text.split(':').map(str::parse).collect::<Result<_, _>>().map_err(drop)?;
        let mix = DayMix(parts.try_into().map_err(drop)?);
        if mix.is_possible() { Ok(mix) } else { Err(()) }
    }
}

/// The mean of each hour over that of the day, with `peak` for the highest.
pub fn hourly(peak: f64) -> [f64; 24] {
    let raised = |power: f64| {
        let hours = HOURS.map(|hour| hour.powf(power));
        let mean = hours.iter().sum::<f64>() / hours.len() as f64;
        hours.map(|hour| hour / mean)
    };
    let highest = |power: f64| raised(power).into_iter().fold(0.0, f64::max);
    // The highest hour rises with the power, from 1 at 0.
    let (mut low, mut high) = (0.0, 64.0);
    for _ in 0..64 {
        let middle = f64::midpoint(low, high);
        if highest(middle) < peak { low = middle } else { high = middle }
    }
    raised(low)
}

/// The daily curve in the middle of a piece of the day; over all pieces 1 in the mean.
fn curve(hours: &[f64; 24], piece: usize) -> f64 {
    let hour = (piece as f64 + 0.5) * hours.len() as f64 / PIECES as f64 - 0.5;
    let before = hour.floor();
    let weight = hour - before;
    let at = |hour: f64| hours[hour.rem_euclid(hours.len() as f64) as usize];
    at(before) * (1.0 - weight) + at(before + 1.0) * weight
}

/// Requests of a whole day that are to be expected, those of sessions before it included.
pub(super) fn expected(spec: &SyntheticSpec, mix: DayMix, requests: u64) -> u64 {
    let before = spec.rate_rps * mix.shares()[MIXED.len()] * agentic::WARM_UP_S;
    requests + before as u64
}

/// Draws the requests of a day, in order of arrival.
///
/// # Errors
/// If there are too many.
pub(super) fn requests(spec: &SyntheticSpec, peak: f64, mix: DayMix) -> Result<Vec<Request>, WorkloadError> {
    // Refused by whoever checks it.
    let Extent::Duration(end) = spec.extent else { return Ok(Vec::new()) };
    let (hours, day_s) = (hourly(peak), end.as_secs_f64());
    let rates = mix.shares().map(|share| share * spec.rate_rps);
    let [.., agents] = rates;
    let mut requests = Vec::new();
    for (kind, (shape, rate)) in MIXED.iter().zip(rates).enumerate().filter(|(_, (_, rate))| *rate > 0.0) {
        let gaps = Gaps::new(rate, spec.cv.unwrap_or(shape.inter_arrival_cv));
        let mut starts = Starts::new(spec.seed, kind as u64, gaps, (0.0, day_s), &hours);
        let mut lengths = seed::stream(spec.seed, "day.lengths", kind as u64);
        while let Some(arrival) = starts.next_before(end) {
            let mut request = Request::new(arrival, shape.prompt.draw(&mut lengths), shape.output.draw(&mut lengths));
            request.tenant = Some(shape.name.to_owned());
            requests.push(request);
            if requests.len() as u64 > MAX_REQUESTS {
                return Err(WorkloadError::TooManyRequests { requests: requests.len() as u64 });
            }
        }
    }
    if agents > 0.0 {
        let gaps = Gaps::new(agents / agentic::MEAN_TURNS, spec.cv.unwrap_or(1.0));
        let span = (-agentic::WARM_UP_S, day_s);
        let mut starts = Starts::new(spec.seed, MIXED.len() as u64, gaps, span, &hours);
        let starts = std::iter::from_fn(|| Some(starts.next_s()).filter(|start_s| *start_s < day_s));
        let sessions = agentic::sessions(spec.seed, starts, end)?;
        requests
            .extend(sessions.into_iter().map(|request| Request { tenant: Some(agentic::NAME.to_owned()), ..request }));
    }
    // Those that arrive together stay in the order of their kinds.
    requests.sort_by_key(|request| request.arrival);
    Ok(requests)
}

/// Arrivals of one kind: a renewal process on a clock that runs as fast as the kind's rate.
struct Starts<'h> {
    gaps: Gaps,
    arrivals: Stream,
    moves: Stream,
    bursts: Stream,
    hours: &'h [f64; 24],
    day_s: f64,
    now_s: f64,
    /// Which piece of the day it is, counted from time 0.
    piece: i64,
    /// Logarithm of how much is wanted, without its mean, in standard deviations.
    wanted: f64,
    is_burst: bool,
    toggles_s: f64,
}

impl<'h> Starts<'h> {
    fn new(seed: u64, kind: u64, gaps: Gaps, (start_s, day_s): (f64, f64), hours: &'h [f64; 24]) -> Starts<'h> {
        let mut moves = seed::stream(seed, "day.moves", kind);
        let mut bursts = seed::stream(seed, "day.bursts", kind);
        let wanted = StandardNormal.sample(&mut moves);
        let is_burst = bursts.random::<f64>() < BURST_SHARE;
        let arrivals = seed::stream(seed, "day.arrivals", kind);
        let piece = (start_s / (day_s / PIECES as f64)).floor() as i64;
        let mut starts = Starts {
            gaps,
            arrivals,
            moves,
            bursts,
            hours,
            day_s,
            now_s: start_s,
            piece,
            wanted,
            is_burst,
            toggles_s: start_s,
        };
        // Times in a state are exponential, so what is left of the first one is drawn like any other.
        starts.toggles_s += starts.draw_burst_s();
        starts
    }

    /// How long the state it is in lasts: bursts, and what is between them.
    fn draw_burst_s(&mut self) -> f64 {
        let mean_s = if self.is_burst { BURST_S } else { BURST_S * (1.0 - BURST_SHARE) / BURST_SHARE };
        -mean_s * (1.0 - self.bursts.random::<f64>()).ln()
    }

    /// The rate now, over its mean.
    fn factor(&self) -> f64 {
        let burst = if self.is_burst { BURST_FACTOR } else { 1.0 } / (1.0 + BURST_SHARE * (BURST_FACTOR - 1.0));
        let moved = (MOVE_SIGMA * self.wanted - MOVE_SIGMA * MOVE_SIGMA / 2.0).exp();
        curve(self.hours, self.piece.rem_euclid(PIECES as i64) as usize) * burst * moved
    }

    /// When the next one comes, in seconds; rising without end.
    fn next_s(&mut self) -> f64 {
        let mut left_s = self.gaps.draw(&mut self.arrivals);
        loop {
            let piece_end_s = (self.piece + 1) as f64 * (self.day_s / PIECES as f64);
            let until_s = piece_end_s.min(self.toggles_s);
            let factor = self.factor();
            if self.now_s + left_s / factor < until_s {
                self.now_s += left_s / factor;
                return self.now_s;
            }
            left_s = (left_s - (until_s - self.now_s) * factor).max(0.0);
            self.now_s = until_s;
            if until_s == piece_end_s {
                self.piece += 1;
                let kept = (-1.0 / (PIECES as f64 * MOVE_MEMORY)).exp();
                let normal: f64 = StandardNormal.sample(&mut self.moves);
                self.wanted = kept * self.wanted + (1.0 - kept * kept).sqrt() * normal;
            }
            if until_s == self.toggles_s {
                self.is_burst = !self.is_burst;
                self.toggles_s += self.draw_burst_s();
            }
        }
    }

    fn next_before(&mut self, end: Micros) -> Option<Micros> {
        Some(Micros::from_secs_f64(self.next_s())).filter(|arrival| *arrival < end)
    }
}

/// What is wrong with a day that was asked for.
pub(super) fn check(spec: &SyntheticSpec, peak: f64, mix: DayMix) -> Result<(), String> {
    if matches!(spec.extent, Extent::Requests(_)) {
        return Err("a day has a duration, which is its length, not n".to_owned());
    }
    if !PEAKS.contains(&peak) {
        return Err(format!("peak must be from {} to {}", PEAKS.start(), PEAKS.end()));
    }
    if !mix.is_possible() {
        return Err("mix must be four parts from 0, not all 0".to_owned());
    }
    Ok(())
}

impl TrafficProfile {
    /// Whether it says what comes at which hour of a day, so that a part of it is unlike another.
    pub fn is_day(self) -> bool {
        matches!(self, TrafficProfile::Day { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_has_the_peak_asked_for_and_a_mean_of_1() {
        for peak in [1.0, 1.2, RECORDED_PEAK, 3.0, 8.0] {
            let hours = hourly(peak);
            let highest = hours.into_iter().fold(0.0, f64::max);
            assert!((highest - peak).abs() < 1e-6, "{peak}: {highest}");
            let mean = (0..PIECES).map(|piece| curve(&hours, piece)).sum::<f64>() / PIECES as f64;
            assert!((mean - 1.0).abs() < 1e-9, "{peak}: {mean}");
        }
        // As recorded, at the recorded peak.
        let sum: f64 = HOURS.iter().sum();
        let recorded = RECORDED_PEAK / (sum / 24.0);
        assert!(hourly(recorded).iter().zip(HOURS).all(|(hour, was)| (hour - was * 24.0 / sum).abs() < 1e-6));
    }

    #[test]
    fn shares_are_parts_of_a_whole() {
        assert_eq!("50:20:20:10".parse(), Ok(DayMix::USUAL));
        assert_eq!(DayMix::USUAL.to_string(), "50:20:20:10");
        assert_eq!(DayMix([3.0, 0.0, 0.0, 1.0]).shares(), [0.75, 0.0, 0.0, 0.25]);
        for text in ["", "1:1:1", "1:1:1:1:1", "0:0:0:0", "-1:1:1:1", "nan:1:1:1", "1:1:1:inf", "a:1:1:1"] {
            assert_eq!(text.parse::<DayMix>(), Err(()), "{text}");
        }
    }
}
