//! Rates and lengths of a server that is asked for its own counters, where nothing of kvtide is installed: Prometheus text as
//! vLLM and SGLang serve it, looked at again and again, becomes a profile ([`kvtide_envs::trace::rates`]).
//!
//! What is between two looks is one row. Requests that arrived are those that ended and by how much those that wait or run have
//! become more: no engine counts arrivals, and under overload those that end are not those that come. A counter that is lower
//! than before has begun again, and with it all of them. A look that fails is tried again at once, a few times; then the row
//! becomes longer, and says so. Every row is in the file before the next look.

mod client;
mod counters;
mod exposition;
mod output;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvtide_envs::trace::MAX_RATE_RPS;
use kvtide_envs::trace::rates::{Header, LOST, LengthCounts, Row, VERSION};
use thiserror::Error;

pub use client::{Source, SourceError};
use counters::{Counters, Difference};
use output::Output;

/// Looks at one moment, before it counts as failed.
const TRIES: u32 = 3;

/// How long a look may take at most, and how long to wait between two tries.
const TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);

/// How often it is looked whether to stop.
const NAP: Duration = Duration::from_millis(50);

/// What is recorded, and where to.
#[derive(Debug, Clone)]
pub struct Recording {
    /// Whom to ask.
    pub source: Source,
    /// Labels that a counter must have, if it has them at all: `model_name=…`, `engine=0`.
    pub labels: Vec<(String, String)>,
    /// Time between looks.
    pub every: Duration,
    /// Time from the first look to the last.
    pub lasting: Duration,
    /// The file.
    pub out: PathBuf,
    /// Go on in a file that is there.
    pub resume: bool,
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Rows written.
    pub rows: u64,
    /// Requests in them.
    pub requests: u64,
    /// Requests that ended.
    pub completed: u64,
    /// Looks that failed.
    pub missed: u64,
    /// Counters that began again.
    pub resets: u64,
    /// Lines and histograms that made no sense.
    pub skipped: u64,
    /// Whether it was stopped before its time.
    pub was_interrupted: bool,
}

/// Why nothing can be recorded.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The server does not answer, or not as it should.
    #[error("{url}: {fault}")]
    Source {
        /// Where.
        url: String,
        /// What is wrong.
        fault: SourceError,
    },
    /// No counters that are known.
    #[error(
        "{0}: no counters of vLLM (vllm:request_success_total) or SGLang (sglang:num_requests_total, with --enable-metrics), \
         or none with the labels asked for"
    )]
    Unknown(String),
    /// Not the counters that were begun with.
    #[error("{url}: counters of {now}, and this is a recording of {was}")]
    Changed {
        /// Where.
        url: String,
        /// What is served there.
        now: String,
        /// What was.
        was: String,
    },
    /// A label that no counter has.
    #[error("{url}: no counter has a label {label:?}")]
    Label {
        /// Where.
        url: String,
        /// Its name.
        label: String,
    },
    /// Counters of several models at once.
    #[error("{url}: counters of {}: one must be chosen, with --label model_name={}", models.join(", "), models[0])]
    Models {
        /// Where.
        url: String,
        /// What is served there.
        models: Vec<String>,
    },
    /// The file.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Somebody who is told how it goes.
pub trait Listener {
    /// The first look was good: this is recorded, under this header.
    fn begins(&mut self, header: &Header);
    /// A row is in the file.
    fn row(&mut self, row: &Row);
    /// A look failed, the so-manieth one after the other.
    fn missed(&mut self, in_a_row: u32, why: &str);
}

impl Recording {
    /// Records until the time is over or `stop` is set; what was written by then is kept.
    ///
    /// # Errors
    /// The first look fails, or the file cannot be written. Later looks that fail are counted.
    pub fn run(&self, stop: &AtomicBool, listener: &mut dyn Listener) -> Result<Recorded, RecordError> {
        let first = match self.look() {
            // Whoever was waited for in vain is not who failed.
            Err(_) if stop.load(Ordering::Relaxed) => {
                return Ok(Recorded { was_interrupted: true, ..Recorded::default() });
            }
            first => first?,
        };
        if let Some(label) = first.unknown_label.clone() {
            return Err(RecordError::Label { url: self.source.to_string(), label });
        }
        let header = self.header(&first)?;
        let (mut output, offset_s) = Output::open(&self.out, self.resume, &header, now_unix_s())?;
        listener.begins(&header);
        let clock = Clock::start();
        let (mut before, mut from_s, mut carried) = (first, 0.0, 0);
        let (mut recorded, mut missed, mut looks) = (Recorded::default(), 0, 0_u32);
        while !clock.wait_for(self.every.saturating_mul(looks + 1).min(self.lasting), stop) {
            let answer = self.look_again(stop).and_then(|now| self.same(&before, now));
            // Looks that a slow server has made impossible are not made up for.
            looks = (clock.seconds() / self.every.as_secs_f64()) as u32;
            match answer {
                Ok(now) => {
                    let to_s = clock.seconds();
                    let difference = now.since(&before, carried);
                    carried = difference.carried;
                    let row = row(offset_s + from_s, to_s - from_s, missed, difference);
                    output.append(&row)?;
                    recorded.add(&row, now.skipped);
                    listener.row(&row);
                    (before, from_s, missed) = (now, to_s, 0);
                }
                Err(error) => {
                    missed += 1;
                    recorded.missed += 1;
                    listener.missed(missed, &error.to_string());
                }
            }
            if clock.seconds() >= self.lasting.as_secs_f64() {
                return Ok(recorded);
            }
        }
        Ok(Recorded { was_interrupted: true, ..recorded })
    }

    fn look(&self) -> Result<Counters, RecordError> {
        let text = self.source.fetch(TIMEOUT);
        let text = text.map_err(|fault| RecordError::Source { url: self.source.to_string(), fault })?;
        let counters = Counters::read(&text, &self.labels);
        counters.ok_or_else(|| RecordError::Unknown(self.source.to_string()))
    }

    fn look_again(&self, stop: &AtomicBool) -> Result<Counters, RecordError> {
        let mut tries = 1;
        loop {
            match self.look() {
                Err(_) if tries < TRIES && !stop.load(Ordering::Relaxed) => thread::sleep(PAUSE),
                answer => return answer,
            }
            tries += 1;
        }
    }

    /// What was looked at, if it is still of what was recorded before.
    fn same(&self, before: &Counters, now: Counters) -> Result<Counters, RecordError> {
        let of = |counters: &Counters| {
            let models: Vec<&str> = counters.models.iter().map(String::as_str).collect();
            format!("{} {}", counters.engine(), models.join(", "))
        };
        if of(before) == of(&now) {
            return Ok(now);
        }
        Err(RecordError::Changed { url: self.source.to_string(), now: of(&now), was: of(before) })
    }

    fn header(&self, first: &Counters) -> Result<Header, RecordError> {
        let models: Vec<String> = first.models.iter().cloned().collect();
        if models.len() > 1 {
            return Err(RecordError::Models { url: self.source.to_string(), models });
        }
        Ok(Header {
            kvtide_profile: VERSION,
            engine: first.engine().to_owned(),
            models,
            engines: (first.engines.len() as u32).max(1),
            counts: first.counted(),
            lengths: first.lengths_known(),
            every_s: self.every.as_secs_f64(),
            began_unix_s: now_unix_s(),
            lost: LOST.to_owned(),
        })
    }
}

impl Recorded {
    fn add(&mut self, row: &Row, skipped: u64) {
        self.rows += 1;
        self.requests += row.requests;
        self.completed += row.completed;
        self.resets += u64::from(row.resets);
        self.skipped += skipped;
    }
}

fn row(start_s: f64, seconds: f64, missed: u32, difference: Difference) -> Row {
    let Difference { requests, completed, prompt, output, resets, .. } = difference;
    let millis = |seconds: f64| (seconds * 1e3).round() / 1e3;
    // The end is rounded as the next row's start is, so that there is neither a gap nor an overlap.
    let start = millis(start_s);
    let seconds = millis(millis(start_s + seconds) - start).max(1e-3);
    // No server has served so many: counters of another, or of none.
    if requests.max(completed) as f64 > seconds * MAX_RATE_RPS {
        let (prompt, output) = (LengthCounts::default(), LengthCounts::default());
        return Row { start_s: start, seconds, requests: 0, completed: 0, prompt, output, missed, resets: resets + 1 };
    }
    Row { start_s: start, seconds, requests, completed, prompt, output, missed, resets }
}

/// Time since the first look.
struct Clock {
    start: Instant,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "a server is looked at in its own time")]
    fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Waits for a moment; true if there is no need to, since it is to stop.
    fn wait_for(&self, moment: Duration, stop: &AtomicBool) -> bool {
        loop {
            let left = moment.saturating_sub(self.start.elapsed());
            if stop.load(Ordering::Relaxed) || left.is_zero() {
                return stop.load(Ordering::Relaxed);
            }
            thread::sleep(NAP.min(left));
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "when it was recorded is written down, and decides nothing")]
fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
