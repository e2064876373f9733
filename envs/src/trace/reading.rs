//! How a file is read where it leaves that open, and what was found in it.

use std::fmt;

use serde::Serialize;

use super::clock::TimeUnit;
use super::sessions::SessionArrivals;

/// Fewest and most characters a token may be taken to have.
pub const CHARS_PER_TOKEN: std::ops::RangeInclusive<f64> = 0.25..=100.0;

/// What a reader is told that the file does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reading {
    /// When the sessions of a file that does not say so start.
    pub sessions: SessionArrivals,
    /// Rows are read once and sorted in bounded memory, without looking first whether they are in order.
    pub is_unsorted: bool,
    /// Characters a token is taken to have where there is text and no count of tokens; without it, such text is an error.
    pub chars_per_token: Option<f64>,
    /// Requests a second, by a Poisson process, for a file without times; without it, such a file is an error.
    pub arrival_rate: Option<f64>,
    /// What times count that are numbers; by their name or size if `None`.
    pub time_unit: Option<TimeUnit>,
}

impl From<SessionArrivals> for Reading {
    fn from(sessions: SessionArrivals) -> Reading {
        Reading { sessions, ..Reading::default() }
    }
}

impl From<&SessionArrivals> for Reading {
    fn from(sessions: &SessionArrivals) -> Reading {
        Reading::from(*sessions)
    }
}

impl From<&Reading> for Reading {
    fn from(reading: &Reading) -> Reading {
        *reading
    }
}

/// Rows that are no requests, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Requests that failed.
    pub failed: u64,
    /// A prompt or an answer of no tokens.
    pub empty: u64,
    /// No lengths are given.
    pub without_lengths: u64,
    /// Later turns of a conversation of which only the start is known.
    pub without_time: u64,
}

impl Skipped {
    /// All of them.
    pub fn total(&self) -> u64 {
        let Skipped { failed, empty, without_lengths, without_time } = *self;
        failed + empty + without_lengths + without_time
    }

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.total() == 0
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = [
            (self.failed, "failed"),
            (self.empty, "with 0 tokens of prompt or answer"),
            (self.without_lengths, "without lengths"),
            (self.without_time, "later turns without a time"),
        ];
        let reasons: Vec<String> =
            reasons.iter().filter(|(count, _)| *count > 0).map(|(count, reason)| format!("{count} {reason}")).collect();
        f.write_str(&if reasons.is_empty() { "none".to_owned() } else { reasons.join(", ") })
    }
}
