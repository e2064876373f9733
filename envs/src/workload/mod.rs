//! What a simulation is given: an immutable list of requests, shared between as many runs as like.
//!
//! A [`Workload`] comes from a recorded trace, as it is or through a [`Replay`] (window, load scaling, jitter), from
//! statistics of clients ([`clients`]), from rates and lengths over time ([`rates`]), or from a [`SyntheticSpec`]. A [`WorkloadSource`] is any of these, and gives the
//! workload of a [`Draw`]; a [`Split`] says which part of it is for learning and which for judging.

pub mod agentic;
mod burstiness;
pub mod clients;
pub mod day;
mod draw;
pub mod duration;
mod error;
pub mod lengths;
mod lognormal;
pub mod profile;
pub mod rates;
pub mod replay;
mod spec;
mod split;
mod statistics;
pub mod synthetic;
pub mod windows;

use std::path::Path;
use std::sync::Arc;

pub use day::DayMix;
pub use draw::{Draw, WorkloadSource};
pub use duration::Duration;
pub use error::WorkloadError;
pub use lengths::LengthScale;
pub use lognormal::{LogNormal, MAX_P95_OVER_MEAN};
pub use profile::TrafficProfile;
pub use replay::{Replay, Scaling};
pub use split::{Split, to_whole_second};
pub use synthetic::{Extent, SyntheticSpec};
pub use windows::Window;

use crate::seed::{self, RunHash};
use crate::time::Micros;
use crate::trace::{Request, TraceError, TraceReader};

/// Requests in arrival order; a request's id is its index. Cloning shares them.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    name: Arc<str>,
    requests: Arc<[Request]>,
    span: Micros,
}

impl Workload {
    /// A workload of requests in arrival order, from time 0 to `span`; 0 stands for just after the last arrival.
    ///
    /// # Errors
    /// If there are no requests, they are out of order, or one has no prompt or no output.
    pub fn new(name: &str, requests: Vec<Request>, span: Micros) -> Result<Workload, WorkloadError> {
        let last = requests.last().ok_or_else(|| WorkloadError::NoRequests { name: name.to_owned() })?.arrival;
        let span = span.max(last + Micros(1));
        if let Some(index) =
            requests.iter().position(|request| request.prompt_tokens == 0 || request.output_tokens == 0)
        {
            return Err(WorkloadError::EmptyRequest { name: name.to_owned(), index });
        }
        if !requests.is_sorted_by_key(|request| request.arrival) {
            return Err(WorkloadError::OutOfOrder { name: name.to_owned() });
        }
        Ok(Workload { name: name.into(), requests: requests.into(), span })
    }

    /// A recorded trace as it is, named as its file up to the first dot. Sessions start as
    /// [`SessionArrivals`](crate::trace::SessionArrivals) does by default.
    ///
    /// # Errors
    /// Those of [`TraceReader`].
    pub fn from_trace(path: impl AsRef<Path>) -> Result<Workload, TraceError> {
        Workload::from_reader(TraceReader::open(path)?)
    }

    /// A recorded trace as a reader that was just opened gives it; see [`from_trace`](Workload::from_trace).
    ///
    /// # Errors
    /// Those of [`TraceReader`].
    pub fn from_reader(mut reader: TraceReader) -> Result<Workload, TraceError> {
        Workload::read(&mut reader)
    }

    /// The same, of a reader that can be asked afterwards what it found.
    ///
    /// # Errors
    /// Those of [`TraceReader`].
    pub fn read(reader: &mut TraceReader) -> Result<Workload, TraceError> {
        let requests: Vec<Request> = reader.by_ref().collect::<Result<_, _>>()?;
        let file = reader.path().file_name().unwrap_or_default().to_string_lossy();
        let name = file.split('.').find(|part| !part.is_empty()).unwrap_or("trace").into();
        // A trace that was read is in order and not empty.
        let span = requests.last().map_or(Micros::ZERO, |last| last.arrival + Micros(1));
        Ok(Workload { name, requests: requests.into(), span })
    }

    /// The same requests, longer or shorter.
    #[must_use]
    pub fn with_lengths(self, scale: LengthScale) -> Workload {
        if scale == LengthScale::ONE {
            return self;
        }
        let mut requests = self.requests.to_vec();
        scale.apply(&mut requests);
        Workload { requests: requests.into(), ..self }
    }

    /// What it is called in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The requests, in arrival order, at least one.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The requests, shared.
    pub fn share(&self) -> Arc<[Request]> {
        Arc::clone(&self.requests)
    }

    /// How long requests are offered; every arrival is before it. A microsecond where everything arrives at time 0.
    pub fn span(&self) -> Micros {
        self.span
    }

    /// Requests offered a second, over the span; infinite where everything arrives at time 0.
    pub fn rate_rps(&self) -> f64 {
        if self.is_at_once() { f64::INFINITY } else { self.requests.len() as f64 / self.span.as_secs_f64() }
    }

    /// Whether everything arrives at time 0 and the workload ends there: the pool of a closed loop.
    pub fn is_at_once(&self) -> bool {
        self.span == Micros(1)
    }

    /// A hash of every arrival, length, prefix hash and cache salt: workloads with the same fingerprint pose the same
    /// work.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = RunHash::default();
        for request in self.requests.iter() {
            hash.absorb(request.arrival.0);
            hash.absorb(u64::from(request.prompt_tokens) << 32 | u64::from(request.output_tokens));
            hash.absorb(u64::from(request.hash_block_tokens));
            request.hash_ids.iter().for_each(|hash_id| hash.absorb(*hash_id));
            // Nothing where there is no salt: fingerprints from before there were salts stay.
            if let Some(salt) = &request.cache_salt {
                hash.absorb(seed::derive(0, salt, 0));
            }
        }
        hash.value()
    }
}
