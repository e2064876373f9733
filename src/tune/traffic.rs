//! What the traffic is, and how it is cut by time.

use std::{fmt, fs};

use kvtide_envs::time::Micros;
use kvtide_envs::trace::TraceStats;
use kvtide_envs::workload::{
    Duration, Extent, Split, SyntheticSpec, Window, Workload, WorkloadError, WorkloadSource, to_whole_second,
};
use serde::{Deserialize, Serialize};

use super::TuneError;
use super::effort::SHARE;
use crate::world::{Draw, World, WorldSpec};

/// Refuses traffic that cannot be drawn from again and again, each time a part of it.
///
/// # Errors
/// It is a pipe, or it is so many requests instead of so long.
pub(super) fn check(spec: &WorldSpec, world: &World) -> Result<(), TuneError> {
    check_file(spec)?;
    match &world.source {
        WorkloadSource::Synthetic(SyntheticSpec { extent: Extent::Requests(_), .. }) => {
            Err(TuneError::Counted { spec: world.trace.clone() })
        }
        _ => Ok(()),
    }
}

/// Refuses a pipe or a device before it is read, and stdin.
///
/// # Errors
/// [`TuneError::Once`]
pub fn check_file(spec: &WorldSpec) -> Result<(), TuneError> {
    let Some(path) = &spec.trace else { return Ok(()) };
    // What is not there is told by who reads it.
    let is_kept = fs::metadata(path).map_or(true, |there| there.is_file() || there.is_dir());
    if path.as_os_str() == "-" || !is_kept { Err(TuneError::Once { path: path.clone() }) } else { Ok(()) }
}

/// Shortest traffic, seconds, and fewest requests: each of its parts must show something.
pub const LEAST_S: u64 = 60;
/// Fewest requests of all of it.
const LEAST_REQUESTS: usize = 60;
/// Fewest requests of a part.
const LEAST_IN_PART: usize = 5;
/// Shares of the traffic that may be looked at before the end, the first that leaves requests in every part.
const FITS: [f64; 8] = [0.7, 0.65, 0.75, 0.6, 0.8, 0.55, 0.85, 0.5];
/// A pause between two arrivals that is called idle.
const IDLE: Micros = Micros(30_000_000);
/// Of statistics of clients, so much is drawn to be described.
const DESCRIBED: Micros = Micros(3_600_000_000);

/// What the traffic looks like at load 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrafficLook {
    /// Its name in results.
    pub name: String,
    /// How long it lasts, seconds.
    pub span_s: f64,
    /// Requests, of statistics of clients those of the first hour.
    pub requests: usize,
    /// Requests a second.
    pub rate_rps: f64,
    /// Those of its busiest minute.
    pub peak_rps: f64,
    /// Prompt lengths in tokens: median and 99th percentile.
    pub prompt_tokens: (u32, u32),
    /// Output lengths, likewise.
    pub output_tokens: (u32, u32),
    /// Share of prompt tokens that stood in an earlier prompt; `None` where nothing is known of it.
    pub prefix_reuse: Option<f64>,
    /// Share of the time in pauses of more than half a minute.
    pub idle_share: f64,
    /// Share of requests whose prompt alone is longer than the engine takes.
    #[serde(default)]
    pub refused_share: f64,
}

impl TrafficLook {
    /// Looks at the traffic of `world`, which `spec` describes.
    ///
    /// # Errors
    /// It is too short, or has too few requests.
    pub fn of(spec: &WorldSpec, world: &World) -> Result<TrafficLook, TuneError> {
        let span = world.span()?;
        let too_little =
            |requests| TuneError::Little { name: world.trace.clone(), span_s: span.as_secs_f64(), requests };
        if span < Micros(LEAST_S * 1_000_000) {
            return Err(too_little(None));
        }
        let window = match &world.source {
            WorkloadSource::Clients { .. } => Some(Window { start: Micros::ZERO, end: span.min(DESCRIBED) }),
            _ => None,
        };
        let drawn = world.draw(&Draw { window, load: 1.0, seed: 1 })?;
        if drawn.requests().len() < LEAST_REQUESTS {
            return Err(too_little(Some(drawn.requests().len())));
        }
        Ok(TrafficLook {
            name: world.trace.clone(),
            span_s: span.as_secs_f64(),
            requests: drawn.requests().len(),
            rate_rps: drawn.rate_rps(),
            peak_rps: busiest(&drawn, Micros(60_000_000)).1 as f64 / 60.0,
            prompt_tokens: quantiles(&drawn, |request| request.prompt_tokens),
            output_tokens: quantiles(&drawn, |request| request.output_tokens),
            prefix_reuse: prefix_reuse(spec, world),
            idle_share: idle_share(&drawn),
            refused_share: refused_share(&drawn, world.node.engine.max_model_len),
        })
    }
}

impl fmt::Display for TrafficLook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TrafficLook { name, span_s, requests, rate_rps, peak_rps, prompt_tokens, output_tokens, .. } = self;
        write!(
            f,
            "{name}: {requests} requests in {span_s:.0} s, {rate_rps:.2} a second ({peak_rps:.2} in the busiest minute); "
        )?;
        write!(f, "prompts of {} tokens (99 % under {}), ", prompt_tokens.0, prompt_tokens.1)?;
        write!(f, "answers of {} (99 % under {})", output_tokens.0, output_tokens.1)?;
        if let Some(reuse) = self.prefix_reuse {
            write!(f, "; {:.0} % of prompt tokens stood in an earlier prompt", reuse * 100.0)?;
        }
        if self.idle_share > 0.0 {
            write!(f, "; idle for {:.0} % of the time", self.idle_share * 100.0)?;
        }
        if self.refused_share > 0.0 {
            write!(f, "; {:.1} % are refused, whoever decides: longer than max_model_len", self.refused_share * 100.0)?;
        }
        Ok(())
    }
}

/// Median and 99th percentile of a length.
fn quantiles(drawn: &Workload, length: fn(&kvtide_envs::trace::Request) -> u32) -> (u32, u32) {
    let mut lengths: Vec<u32> = drawn.requests().iter().map(length).collect();
    lengths.sort_unstable();
    let at = |share: f64| lengths[((lengths.len() - 1) as f64 * share).round() as usize];
    (at(0.5), at(0.99))
}

/// Only a file says what prompts have in common.
fn prefix_reuse(spec: &WorldSpec, world: &World) -> Option<f64> {
    let path = spec.trace.as_ref().filter(|_| world.is_recorded())?;
    TraceStats::read(path).ok().and_then(|stats| stats.prefix_reuse)
}

fn idle_share(drawn: &Workload) -> f64 {
    let arrivals = drawn.requests().iter().map(|request| request.arrival).chain([drawn.span()]);
    let mut before = Micros::ZERO;
    let pauses = arrivals.map(|arrival| {
        let pause = arrival.since(before);
        before = arrival;
        pause
    });
    pauses.filter(|pause| *pause > IDLE).map(Micros::as_secs_f64).sum::<f64>() / drawn.span().as_secs_f64()
}

fn refused_share(drawn: &Workload, max_model_len: u32) -> f64 {
    let refused = drawn.requests().iter().filter(|request| request.prompt_tokens > max_model_len).count();
    refused as f64 / drawn.requests().len() as f64
}

/// When the stretch of `length` with the most arrivals starts, which is with one of them, and how many those are.
pub(super) fn busiest(drawn: &Workload, length: Micros) -> (Micros, usize) {
    let requests = drawn.requests();
    let mut most = (Micros::ZERO, 0);
    let mut end = 0;
    for (index, first) in requests.iter().enumerate() {
        while end < requests.len() && requests[end].arrival < first.arrival + length {
            end += 1;
        }
        if end - index > most.1 {
            most = (first.arrival, end - index);
        }
    }
    most
}

/// The traffic, cut by time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// The share that may be looked at.
    pub fit: f64,
    /// Length of an episode, whole seconds.
    pub episode_s: u64,
    /// What is learned from.
    pub train: Window,
    /// What is chosen on.
    pub validation: Window,
    /// What is looked at once, at the end.
    pub judged: Window,
}

impl Cut {
    /// Cuts the traffic of `world` into episodes of at most `episode_s`.
    ///
    /// # Errors
    /// Wherever it is cut, a part has hardly a request.
    pub fn of(world: &World, episode_s: u64) -> Result<Cut, TuneError> {
        let span = world.span()?;
        let mut fewest = None;
        for fit in FITS {
            let Split { train, validation, test, fit: looked_at } = Split::of(span, fit, SHARE)?;
            // A generator never draws the same again: of it any part is as good as another.
            let part = if world.source.is_generated() { looked_at } else { validation };
            let judged = Window { start: test.start, end: to_whole_second(span) };
            let episode_s = episode_s.min(part.length().0 / 1_000_000).min(train.length().0 / 1_000_000);
            let cut = Cut { fit, episode_s, train, validation, judged };
            let parts = [("train on", train), ("choose on", validation), ("judge on", judged)];
            let few = parts.into_iter().find(|(_, window)| requests_in(world, *window) < LEAST_IN_PART);
            let Some((purpose, window)) = few else { return Ok(cut) };
            fewest.get_or_insert((purpose, window));
        }
        let (purpose, window) = fewest.expect("there are shares to try, and none was returned");
        Err(TuneError::Gap { name: world.trace.clone(), purpose, window, requests: requests_in(world, window) })
    }

    /// Windows of the judged part that are at most `longest_s` together: all of it, or three that are spread over it.
    pub fn judged_windows(&self, longest_s: u64) -> Vec<Window> {
        let length_s = self.judged.length().0 / 1_000_000;
        if length_s <= longest_s {
            return vec![self.judged];
        }
        let (part_s, second) = (longest_s / 3, |seconds: u64| Micros(seconds * 1_000_000));
        let window = |index: u64| {
            let start = self.judged.start + second(index * (length_s - part_s) / 2);
            Window { start, end: start + second(part_s) }
        };
        (0..3).map(window).collect()
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let edge = |window: Window| format!("{}..{}", short(window.start), short(window.end));
        write!(
            f,
            "trained on {}, chosen on {}, judged on {}, which is not looked at before the end",
            edge(self.train),
            edge(self.validation),
            edge(self.judged)
        )
    }
}

/// To the second where that is meant.
fn short(moment: Micros) -> String {
    if moment.0.is_multiple_of(1_000_000) {
        Duration(moment).to_string()
    } else {
        format!("{:.0}s", moment.as_secs_f64())
    }
}

/// Requests that arrive in a part of the traffic; of statistics of clients it is not known before they are drawn.
fn requests_in(world: &World, window: Window) -> usize {
    match world.draw(&Draw { window: Some(window), load: 1.0, seed: 1 }) {
        Ok(drawn) => drawn.requests().len(),
        Err(WorkloadError::TooBusy { .. } | WorkloadError::TooManyRequests { .. }) => usize::MAX,
        Err(_) => 0,
    }
}
