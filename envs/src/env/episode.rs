//! Where episodes come from: a window, a load and a seed, drawn anew at each reset.

use std::sync::Arc;

use rand::RngExt;

use crate::seed;
use crate::time::Micros;
use crate::trace::Request;
use crate::workload::{Draw, Extent, SyntheticSpec, Window, Workload, WorkloadError, WorkloadSource};

/// What an episode is drawn from.
#[derive(Debug, Clone)]
pub struct EpisodeSource {
    /// Trace, statistics of clients or generator; its load or rate is what load 1 means.
    pub source: WorkloadSource,
    /// The part of the trace or the statistics that may be used; ignored by profiles.
    pub range: Window,
    /// Length of an episode.
    pub length: Micros,
    /// Loads, lowest and highest; drawn log-uniformly.
    pub load: (f64, f64),
}

/// Overrides of what a reset would draw.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ResetOptions {
    /// This load instead of a drawn one.
    pub load: Option<f64>,
    /// The episode starts here in the trace.
    pub start: Option<Micros>,
    /// The world of that number, modulo how many there are.
    pub world: Option<usize>,
}

/// An episode's workload.
#[derive(Debug, Clone)]
pub struct Drawn {
    /// Its requests, in arrival order.
    pub requests: Arc<[Request]>,
    /// When it is cut short.
    pub end: Micros,
    /// Its load.
    pub load: f64,
}

/// Windows in which nothing arrives are drawn again this often; then the episode is an empty one.
const TRIES: u64 = 64;

impl EpisodeSource {
    /// Checks what every draw depends on, by drawing once at the highest load.
    ///
    /// # Errors
    /// A load or window out of range, too many requests, or no request at all.
    pub fn validate(&self, is_closed: bool) -> Result<(), WorkloadError> {
        let (low, high) = self.load;
        if !(low > 0.0 && low <= high) {
            return Err(WorkloadError::Load(if low > 0.0 { high } else { low }));
        }
        if self.length == Micros::ZERO || self.range.length() == Micros::ZERO {
            return Err(WorkloadError::EmptyWindow(self.range));
        }
        // A draw looks at one window only; any other must be within the trace as well.
        match &self.source {
            WorkloadSource::Replay { trace, .. } => drop(trace.window(self.range)?),
            WorkloadSource::Clients { clients, .. } => drop(clients.check_window(Some(self.range))?),
            WorkloadSource::Rates { profile, .. } => drop(profile.check_window(Some(self.range))?),
            WorkloadSource::Synthetic(_) => {}
        }
        let options = ResetOptions { load: Some(high), ..ResetOptions::default() };
        self.draw(0, &options, is_closed).map(drop)
    }

    /// Draws the episode of `seed`. In a closed loop the load is drawn, but the traffic is that of load 1. A window in which no request arrives is drawn again.
    ///
    /// # Errors
    /// Those of [`validate`](Self::validate); none once that has passed, unless `options` ask for the impossible.
    pub fn draw(&self, seed: u64, options: &ResetOptions, is_closed: bool) -> Result<Drawn, WorkloadError> {
        for attempt in 0..TRIES {
            match self.attempt(seed::derive(seed, "episode", attempt), options, is_closed) {
                Err(
                    WorkloadError::IdleWindow(_)
                    | WorkloadError::ThinnedToNothing { .. }
                    | WorkloadError::NoRequests { .. },
                ) => {}
                other => return other,
            }
        }
        Ok(Drawn { requests: Arc::new([]), end: self.length, load: options.load.unwrap_or(self.load.0) })
    }

    fn attempt(&self, seed: u64, options: &ResetOptions, is_closed: bool) -> Result<Drawn, WorkloadError> {
        let mut stream = seed::stream(seed, "episode.draw", 0);
        let (low, high) = self.load;
        let drawn_load = low * (high / low).powf(stream.random::<f64>());
        let latest = self.range.length().since(self.length);
        let offset = Micros((stream.random::<f64>() * (latest.0 + 1) as f64) as u64);
        let load = options.load.unwrap_or(drawn_load);
        let traffic = if is_closed { 1.0 } else { load };
        let start = options.start.unwrap_or(self.range.start + offset);
        let window = Some(Window { start, end: (start + self.length).min(self.range.end) });
        let draw = Draw { window, load: traffic, seed };
        let workload = match &self.source {
            WorkloadSource::Synthetic(spec) if !spec.profile.is_day() => {
                // A generator makes as much as is asked for, so no window is cut out of it. A closed loop takes requests as
                // clients become free, however long that takes.
                let extent = if is_closed { spec.extent } else { Extent::Duration(self.length) };
                let lasting = WorkloadSource::Synthetic(SyntheticSpec { extent, ..*spec });
                lasting.draw(&Draw { window: None, ..draw })?
            }
            // Of a day it makes a difference which part of it an episode is.
            other => other.draw(&draw)?,
        };
        Ok(Drawn { requests: workload.share(), end: self.length, load })
    }

    /// Mean answer over the part of the source that may be used, in tokens: the scale of rewards.
    ///
    /// # Errors
    /// The source has no request to offer.
    pub fn mean_output(&self) -> Result<f64, WorkloadError> {
        let mean = |workload: &Workload| {
            let requests = workload.requests();
            requests.iter().map(|request| f64::from(request.output_tokens)).sum::<f64>() / requests.len() as f64
        };
        match &self.source {
            WorkloadSource::Replay { trace, replay } => {
                Ok(mean(&trace.window(self.range)?.with_lengths(replay.lengths)))
            }
            WorkloadSource::Clients { clients, replay } => {
                Ok(clients.mean_output(self.range.start..self.range.end) * replay.lengths.output)
            }
            WorkloadSource::Rates { profile, replay } => Ok(profile.mean_output(self.range) * replay.lengths.output),
            WorkloadSource::Synthetic(spec) if spec.profile.is_day() => Ok(mean(&spec.generate()?)),
            WorkloadSource::Synthetic(spec) => {
                Ok(mean(&SyntheticSpec { extent: Extent::Requests(4096), ..*spec }.generate()?))
            }
        }
    }
}
