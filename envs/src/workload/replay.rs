//! Replay of a recorded workload: a window of it, at another load, with its clock's steps smoothed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::synthetic::MAX_REQUESTS;
use super::{Duration, LengthScale, Window, Workload, WorkloadError, burstiness, duration};
use crate::seed;
use crate::time::Micros;
use crate::trace::Request;

/// Largest load factor.
pub const MAX_LOAD: f64 = 1_000.0;

/// How to replay a trace. In this order: the window is cut out, jitter is added on the trace's own clock (that is the
/// one with steps), the load is scaled, arrivals are drawn anew, lengths are scaled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Replay {
    /// Requests per second, as a factor of the recorded rate: above 0, at most [`MAX_LOAD`].
    pub load: f64,
    /// How that factor is reached.
    pub scaling: Scaling,
    /// The part of the trace; all of it if `None`.
    pub window: Option<Window>,
    /// Each arrival is moved later by a uniform draw from `[0, jitter)`; order among equals is kept.
    #[serde(with = "duration::as_text")]
    pub jitter: Option<Micros>,
    /// Draws arrivals anew, in the same order and at the rate of each minute, with gaps of this coefficient of variation, from
    /// 0 to [`MAX_CV`](super::synthetic::MAX_CV): gamma-distributed, as those of generators. `None`: as recorded. How a thinned
    /// or overlaid trace bursts is then no matter. Turns of a session follow each other, at other times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cv: Option<f64>,
    /// What lengths are multiplied by.
    #[serde(skip_serializing_if = "is_one")]
    pub lengths: LengthScale,
    /// Root of the streams `replay.jitter`, `replay.thin`, `replay.rotate`, each by copy, and `replay.cv`.
    pub seed: u64,
}

impl Default for Replay {
    fn default() -> Replay {
        Replay {
            load: 1.0,
            scaling: Scaling::Thin,
            window: None,
            jitter: None,
            cv: None,
            lengths: LengthScale::ONE,
            seed: 0,
        }
    }
}

fn is_one(lengths: &LengthScale) -> bool {
    *lengths == LengthScale::ONE
}

/// How a load is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scaling {
    /// A load of `k + f` is `k` whole copies of the stream and one in which each session (each request, where it has
    /// none) is kept with probability `f`: what a load balancer in front of fewer or more nodes would send here. Bursts
    /// keep their shape in real time, and they add up as those of independent streams do.
    ///
    /// The first copy is as recorded; each further one is rotated in time by an offset of its own, uniform within the
    /// span, and is made of other conversations: its sessions get `#1`, `#2`, …, and so do the cache salts of its
    /// requests with prefix hashes, so that no copy finds another's prefixes cached. (If it did, every copy but one
    /// would be served out of the cache, and hits would grow with the load.) A system prompt common to all sessions
    /// then counts once a copy: hits are understated by its tokens, once each copy, because a trace does not say which
    /// blocks those are. A session that is rotated across the end has its last requests first. With one seed, the
    /// requests of a load are among those of every higher load.
    #[default]
    Thin,
    /// Arrival times are divided by the load. Nothing is drawn; a burst of ten seconds at load 2 takes five.
    Stretch,
}

impl FromStr for Scaling {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Scaling, WorkloadError> {
        match text {
            "thin" => Ok(Scaling::Thin),
            "stretch" => Ok(Scaling::Stretch),
            _ => Err(WorkloadError::spec(text, "is no way to scale a load: expected thin or stretch")),
        }
    }
}

impl Replay {
    /// Whether different seeds give different workloads.
    pub fn depends_on_seed(&self) -> bool {
        // A draw from `[0, 1 µs)` is always 0.
        let jitters = self.jitter.is_some_and(|jitter| jitter > Micros(1));
        let redraws = self.cv.is_some_and(|cv| cv > 0.0);
        jitters || redraws || (self.scaling == Scaling::Thin && self.load != 1.0)
    }

    /// Replays a trace.
    ///
    /// # Errors
    /// If the load is out of range, the window is empty, idle or beyond the trace, or no request or too many are left.
    pub fn apply(&self, trace: &Workload) -> Result<Workload, WorkloadError> {
        // Written so that NaN is refused as well.
        if !(self.load > 0.0 && self.load <= MAX_LOAD) {
            return Err(WorkloadError::Load(self.load));
        }
        burstiness::check(self.cv)?;
        self.lengths.check()?;
        let part = self.window.map_or_else(|| Ok(trace.clone()), |window| trace.window(window))?;
        let expected = part.requests().len() as f64 * self.load.max(1.0);
        if expected > MAX_REQUESTS as f64 {
            return Err(WorkloadError::TooManyRequests { requests: expected as u64 });
        }
        let loaded = match self.scaling {
            _ if self.load == 1.0 && self.jitter.is_none() => part,
            Scaling::Stretch => self.stretch(&part)?,
            Scaling::Thin => self.thin(&part)?,
        };
        let timed = self.cv.map_or(Ok(loaded.clone()), |cv| burstiness::redraw(&loaded, cv, self.seed))?;
        Ok(timed.with_lengths(self.lengths))
    }

    fn stretch(&self, part: &Workload) -> Result<Workload, WorkloadError> {
        let scaled = |time: Micros| Micros((time.0 as f64 / self.load).round() as u64);
        let mut requests = self.jittered(part, 0);
        for request in &mut requests {
            request.arrival = scaled(request.arrival);
        }
        in_order(part.name(), requests, scaled(part.span()))
    }

    fn thin(&self, part: &Workload) -> Result<Workload, WorkloadError> {
        let whole_copies = self.load.floor() as u64;
        let kept_share = self.load.fract();
        let mut requests = Vec::new();
        for copy in 0..whole_copies {
            requests.extend(self.copy(part, copy));
        }
        if kept_share > 0.0 {
            let mut keeper = Thinning::new(self.seed, whole_copies, kept_share);
            let kept: Vec<bool> = part.requests().iter().map(|request| keeper.keeps(request)).collect();
            let copy = self.copy(part, whole_copies);
            requests.extend(copy.into_iter().zip(kept).filter_map(|(request, kept)| kept.then_some(request)));
        }
        if requests.is_empty() {
            let (load, requests, seed) = (self.load, part.requests().len(), self.seed);
            return Err(WorkloadError::ThinnedToNothing { load, requests, seed });
        }
        in_order(part.name(), requests, part.span())
    }

    /// One copy of the stream, in the order of the trace.
    fn copy(&self, part: &Workload, copy: u64) -> Vec<Request> {
        let mut requests = self.jittered(part, copy);
        if copy == 0 {
            return requests;
        }
        let span = part.span().0;
        let offset = seed::stream(self.seed, "replay.rotate", copy).random_range(0..span);
        for request in &mut requests {
            request.arrival = Micros((request.arrival.0 + offset) % span);
            request.session = request.session.as_ref().map(|session| format!("{session}#{copy}"));
            if !request.hash_ids.is_empty() {
                // Hashes stay, and are shared in memory: the salt is what tells them apart.
                request.cache_salt = Some(format!("{}#{copy}", request.cache_salt.as_deref().unwrap_or_default()));
            }
        }
        requests
    }

    fn jittered(&self, part: &Workload, copy: u64) -> Vec<Request> {
        let mut requests = part.requests().to_vec();
        if let Some(Micros(jitter @ 1..)) = self.jitter {
            let mut stream = seed::stream(self.seed, "replay.jitter", copy);
            for request in &mut requests {
                request.arrival += Micros(stream.random_range(0..jitter));
            }
        }
        requests
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scaling = if self.scaling == Scaling::Thin { "thin" } else { "stretch" };
        write!(f, "load {} ({scaling})", self.load)?;
        if let Some(window) = self.window {
            write!(f, ", window {window}")?;
        }
        if let Some(jitter) = self.jitter {
            write!(f, ", jitter {}", Duration(jitter))?;
        }
        if let Some(cv) = self.cv {
            write!(f, ", cv {cv}")?;
        }
        if self.lengths != LengthScale::ONE {
            write!(f, ", lengths {}", self.lengths)?;
        }
        write!(f, ", seed {}", self.seed)
    }
}

/// Decides what a thinned copy keeps: one draw for each session when it is first seen, one for each request without.
struct Thinning {
    stream: seed::Stream,
    share: f64,
    sessions: BTreeMap<String, bool>,
}

impl Thinning {
    fn new(seed: u64, copy: u64, share: f64) -> Thinning {
        Thinning { stream: seed::stream(seed, "replay.thin", copy), share, sessions: BTreeMap::new() }
    }

    fn keeps(&mut self, request: &Request) -> bool {
        let Some(session) = &request.session else { return self.stream.random::<f64>() < self.share };
        if let Some(kept) = self.sessions.get(session) {
            return *kept;
        }
        let kept = self.stream.random::<f64>() < self.share;
        self.sessions.insert(session.clone(), kept);
        kept
    }
}

/// Requests sorted by arrival, those that arrive together in the order given.
fn in_order(name: &str, mut requests: Vec<Request>, span: Micros) -> Result<Workload, WorkloadError> {
    requests.sort_by_key(|request| request.arrival);
    Workload::new(name, requests, span)
}
