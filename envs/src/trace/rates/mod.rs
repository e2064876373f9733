//! Rates and lengths over time, as a server's own counters tell them: `kvtide record`.
//!
//! JSON Lines. The first line is a [`Header`], every other a [`Row`]: a stretch of time, how many requests arrived in it, and
//! histograms of the lengths of those that ended in it. Nothing of a request is there, so that much is lost, which the header
//! says in words ([`LOST`]): how prompt and answer of one request go together, sessions, common prefixes, tenants, and how
//! arrivals lie within a stretch.
//!
//! Rows are in order and do not overlap. Time that no row covers (a recording that was resumed) is left out, as if the clock
//! had stood still; [`RateProfile::uncovered_s`] is how much. Requests are drawn from it by [`crate::workload::rates`].
//!
//! Lengths are taken over periods: rows one after the other until [`MIN_COMPLETED`] requests have ended in them. A row in
//! which requests arrive and none ends has no lengths of its own, and a handful of them is no distribution.

mod lengths;
mod read;
mod stats;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use lengths::{LengthCounts, MAX_BUCKETS, Sampler};
pub use read::MAX_WINDOWS;
pub use stats::{RateProfileStats, RateSpread};

use super::source::Opened;
use super::{Compression, TraceError};
use crate::seed::RunHash;
use crate::time::Micros;

/// Version of the form.
pub const VERSION: u32 = 1;

/// Requests that must have ended for their lengths to be a distribution of their own.
pub const MIN_COMPLETED: u64 = 200;

/// What is not in such a file, in words for its header.
pub const LOST: &str = "which prompt had which answer, sessions, common prefixes, tenants, bursts shorter than a row";

/// The first line of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`VERSION`].
    pub kvtide_profile: u32,
    /// Whose counters they are: vllm or sglang.
    pub engine: String,
    /// Models served, by the names that the server has for them.
    pub models: Vec<String>,
    /// Engines of the server, whose counters are added up.
    pub engines: u32,
    /// What [`Row::requests`] counts.
    pub counts: Counted,
    /// How lengths are known.
    pub lengths: LengthsKnown,
    /// Time between two looks at the counters, seconds.
    pub every_s: f64,
    /// When the first row begins, seconds since 1970, UTC.
    pub began_unix_s: u64,
    /// What is not known, in words.
    pub lost: String,
}

/// What the requests of a row are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Counted {
    /// Requests that ended, and by how much those that wait or run have become more: those that arrived.
    Arrivals,
    /// Requests that ended, where the server does not say how many wait and run. Under overload these are not those that
    /// arrived.
    Completions,
}

/// How lengths are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LengthsKnown {
    /// A histogram, and the sum.
    Histograms,
    /// The mean alone: lengths are drawn from the geometric distribution of that mean, which assumes least.
    Means,
}

/// A stretch of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Since the recording began, seconds.
    pub start_s: f64,
    /// How long it is, seconds.
    pub seconds: f64,
    /// Requests in it: see [`Counted`].
    pub requests: u64,
    /// Requests that ended in it.
    pub completed: u64,
    /// Prompts of those, tokens.
    pub prompt: LengthCounts,
    /// Answers of those, tokens.
    pub output: LengthCounts,
    /// Looks at the counters in between that failed: the row is as much longer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missed: u32,
    /// Counters that began again: what they had counted since the look before is lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resets: u32,
}

// serde's `skip_serializing_if` passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// A profile that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct RateProfile {
    path: PathBuf,
    compression: Compression,
    header: Header,
    windows: Vec<Window>,
    periods: Vec<Lengths>,
    totals: Totals,
}

/// A row on the profile's own clock, which stands still where nothing is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// First moment.
    pub start: Micros,
    /// First moment after.
    pub end: Micros,
    /// Requests in it.
    pub requests: u64,
    /// Index of its lengths.
    pub period: usize,
}

/// Lengths of the requests of some windows.
#[derive(Debug, Clone, PartialEq)]
pub struct Lengths {
    /// Of prompts.
    pub prompt: Sampler,
    /// Of answers.
    pub output: Sampler,
    /// Requests that ended in these windows.
    pub completed: u64,
}

/// Sums over all rows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    /// Requests: see [`Counted`].
    pub requests: u64,
    /// Requests that ended.
    pub completed: u64,
    /// Looks at the counters that failed.
    pub missed: u64,
    /// Counters that began again.
    pub resets: u64,
    /// Time between rows, seconds.
    pub uncovered_s: f64,
}

impl RateProfile {
    /// Reads a profile to its end.
    pub(super) fn read(opened: Opened) -> Result<RateProfile, TraceError> {
        read::profile(opened)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it is compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// What it is called in reports: its file, up to the first dot.
    pub fn name(&self) -> String {
        let file = self.path.file_name().unwrap_or_default().to_string_lossy();
        file.split('.').find(|part| !part.is_empty()).unwrap_or("profile").to_owned()
    }

    /// Its first line.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Its rows, in order and end to end from time 0, at least one of them with requests.
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    /// The lengths of a window's requests.
    pub fn lengths(&self, window: &Window) -> &Lengths {
        &self.periods[window.period]
    }

    /// Sums over all rows.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Time that no row covers, seconds.
    pub fn uncovered_s(&self) -> f64 {
        self.totals.uncovered_s
    }

    /// The end of the last window.
    pub fn span(&self) -> Micros {
        self.windows.last().map_or(Micros::ZERO, |window| window.end)
    }

    /// A hash of every window and mean length: equal for equal profiles.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = RunHash::default();
        for window in &self.windows {
            let Lengths { prompt, output, .. } = self.lengths(window);
            for word in
                [window.start.0, window.end.0, window.requests, prompt.mean().to_bits(), output.mean().to_bits()]
            {
                hash.absorb(word);
            }
        }
        hash.value()
    }
}

/// What is wrong with a first line, if anything: for whoever goes on writing a file.
///
/// # Errors
/// It is not a header of this version, in words.
pub fn parse_header(line: &str) -> Result<Header, String> {
    read::header(line).map_err(|fault| fault.to_string())
}
