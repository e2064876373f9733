//! Files of agentic sessions, and when the sessions start.
//!
//! A session is recorded on a clock of its own, so a file of sessions is not a workload until something starts them:
//! here a Poisson process, as independent users do. When is decided once, as the file is read, in the order of the file,
//! and not anew with the seed of a replay: a window of the trace must hold the same sessions whatever the seed, or what
//! is learned from would be met again in what is judged on. The load of a replay scales the rate
//! ([`crate::workload::Scaling::Thin`] leaves the pace within sessions as it is).
//!
//! The trace ends when the last session starts, like a recording that is stopped: what sessions send later is left out
//! and counted, because a tail in which users only leave is no traffic to be judged on. It begins without any user; with
//! published sessions it takes some hours until as many leave as come. A file of one session is that session, whole.
//!
//! Times within a session are as recorded: an open loop. Where the node answers later than the recorded one did, the
//! next turn does not wait for it, and may be under way at the same time as the turn it quotes.

use std::path::PathBuf;

use rand_distr::{Distribution, Exp1};
use serde::{Deserialize, Serialize};

use super::error::{Fault, TraceError};
use super::source::Opened;
use super::{MAX_SPAN, Row, RowSource, archive};
use crate::seed;

/// Highest session rate, per hour.
pub const MAX_SESSIONS_PER_HOUR: f64 = 1e6;

/// When the sessions of a file start, and how many of them are read.
///
/// Sessions start by a Poisson process, in the order of the file; their turns follow at the recorded times, whether the
/// turn before has been answered or not (an open loop). The trace ends when the last session starts. When is decided as
/// the file is read and not by the seed of a replay, so that a window has the same sessions under every seed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionArrivals {
    /// Mean rate at which sessions start: above 0, at most [`MAX_SESSIONS_PER_HOUR`].
    ///
    /// The default of 20 is chosen: of the published sessions, which last 8,800 s on average with a request every
    /// 150 s, it keeps 49 alive and makes a third of a request a second, of 125,000 tokens. At ten seconds a request
    /// those are 55 GB of keys and values of an 8B model, the pool of an 80 GB card.
    pub per_hour: f64,
    /// Only the first so many sessions; all if `None`.
    pub limit: Option<usize>,
    /// Root of the stream `trace.sessions`.
    pub seed: u64,
}

impl Default for SessionArrivals {
    fn default() -> SessionArrivals {
        SessionArrivals { per_hour: 20.0, limit: None, seed: 0 }
    }
}

/// The requests of a file of sessions, in arrival order.
pub(super) struct Sessions {
    path: PathBuf,
    rows: std::vec::IntoIter<Row>,
    left_out: u64,
}

impl RowSource for Sessions {
    fn next_row(&mut self) -> Result<Option<Row>, TraceError> {
        Ok(self.rows.next())
    }

    fn error(&self, fault: Fault) -> TraceError {
        TraceError::of_file(&self.path, fault)
    }

    fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl Sessions {
    /// Reads a file of sessions to its end.
    pub(super) fn read(opened: Opened, arrivals: &SessionArrivals) -> Result<Sessions, TraceError> {
        // Written so that NaN is refused as well.
        if !(arrivals.per_hour > 0.0 && arrivals.per_hour <= MAX_SESSIONS_PER_HOUR) {
            return Err(TraceError::of_file(&opened.path, Fault::SessionRate(arrivals.per_hour)));
        }
        let path = opened.path.clone();
        let (rows, left_out) = merge(archive::read(opened, arrivals.limit.unwrap_or(usize::MAX))?, arrivals);
        Ok(Sessions { path, rows: rows.into_iter(), left_out })
    }
}

/// Starts the sessions, and puts their requests in order of arrival; and how many would arrive too late.
fn merge(sessions: Vec<Vec<Row>>, arrivals: &SessionArrivals) -> (Vec<Row>, u64) {
    let mut stream = seed::stream(arrivals.seed, "trace.sessions", 0);
    let mean_gap_us = 3_600e6 / arrivals.per_hour;
    let (mut start_us, mut last_start_ns) = (0.0, 0);
    let single = sessions.len() == 1;
    let mut rows = Vec::new();
    for session in sessions {
        last_start_ns = start_us as i128 * 1_000;
        rows.extend(session.into_iter().map(|row| Row { time_ns: row.time_ns + last_start_ns, ..row }));
        let gap: f64 = Exp1.sample(&mut stream);
        start_us = (start_us + gap * mean_gap_us).min(MAX_SPAN.0 as f64);
    }
    // Requests that arrive together stay in the order of their sessions.
    rows.sort_by_key(|row| row.time_ns);
    let all = rows.len();
    if !single {
        rows.truncate(rows.partition_point(|row| row.time_ns <= last_start_ns));
    }
    let left_out = (all - rows.len()) as u64;
    (rows, left_out)
}
