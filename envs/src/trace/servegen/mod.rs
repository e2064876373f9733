//! Statistics of production traffic, client by client, as `ServeGen` publishes them: `alibaba/ServeGen` (Apache-2.0; Xiang et
//! al. 2025, arXiv 2505.09999).
//!
//! There are no requests in it but what they are drawn from. Each client is two files, in a folder or a tar archive:
//!
//! - `chunk-N-trace.csv`, no header, a row for each ten minutes: start (s), requests per second, coefficient of variation of
//!   the time between arrivals, the family that fitted (`Gamma`, `Weibull` or nothing) and its two parameters. Of these the
//!   first three are used.
//! - `chunk-N-dataset.json`, an object with an object for each six hours, named by its start (s), which has a distribution
//!   for each length, written as text: `"output_tokens": "{165: 0.0003, 211: 0.9997}"`. A prompt is `input_tokens`; or
//!   `text_tokens` and as many `image_tokens`, `audio_tokens` and `video_tokens` as `image_count` and its like say, for the
//!   images of a prompt are tokens like others once they are encoded. Other fields are not looked at.
//!
//! Probabilities may add up to anything within [`PROBABILITY_TOLERANCE`] of 1, and are normalised; further off is an error. A
//! client without its second file, or a period of it without lengths, cannot be drawn from: what it would have sent is left
//! out, and counted in [`ServeGen::left_out`]. The first second of the files is time 0. Nothing is thinned or drawn here: that
//! is [`crate::workload::clients`].

mod chunk;
mod files;
mod lengths;
mod parts;
mod stats;

use std::path::{Path, PathBuf};

pub use files::{MAX_CHUNK_BYTES, MAX_CLIENTS, MAX_POINTS, MAX_ROWS};
pub use lengths::{LengthDistribution, MAX_PARTS, PROBABILITY_TOLERANCE, PromptPart};
pub use stats::{CvStats, LengthStats, RateStats, ServeGenStats};

use super::source::Opened;
use super::{Compression, MAX_SPAN, TraceError};
use crate::seed::RunHash;
use crate::time::Micros;

/// How long the rate of a row lasts.
pub const ROW: Micros = Micros::from_millis(600_000);

/// How long lengths last.
pub const PERIOD: Micros = Micros::from_millis(6 * 3_600_000);

/// Statistics of all clients of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeGen {
    path: PathBuf,
    compression: Compression,
    clients: Vec<Client>,
    left_out: LeftOut,
}

/// What cannot be drawn, because its lengths are not known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LeftOut {
    /// Clients of whom nothing is left.
    pub clients: u64,
    /// Requests that rates promise, of these and in periods of others.
    pub requests: f64,
}

/// One client.
#[derive(Debug, Clone, PartialEq)]
pub struct Client {
    /// Its name, `chunk-N`: the tenant of its requests.
    pub name: String,
    /// Its number.
    pub number: u64,
    /// The times in which it sends anything, in order.
    pub rates: Vec<Rate>,
    /// What it sends, by period.
    pub periods: Vec<Period>,
}

/// How often a client sends, from `start` on for [`ROW`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// From when on, in the statistics' own time.
    pub start: Micros,
    /// Requests per second, above 0.
    pub rate_rps: f64,
    /// Coefficient of variation of the time between arrivals, as measured. Over [`crate::workload::synthetic::MAX_CV`] it is
    /// drawn as that.
    pub cv: f64,
    /// Index into the client's periods.
    pub period: usize,
}

/// What a client sends, from `start` on for [`PERIOD`].
#[derive(Debug, Clone, PartialEq)]
pub struct Period {
    /// From when on, in the statistics' own time.
    pub start: Micros,
    /// The prompt: text, and what comes with it.
    pub prompt: Vec<PromptPart>,
    /// The answer.
    pub output: LengthDistribution,
}

impl ServeGen {
    /// Reads a folder of clients.
    ///
    /// # Errors
    /// What is wrong, with file, line and value; see [`TraceError`].
    pub fn read_folder(path: &Path) -> Result<ServeGen, TraceError> {
        files::folder(path)
    }

    /// Reads an archive of clients.
    pub(super) fn read_archive(opened: Opened) -> Result<ServeGen, TraceError> {
        files::archive(opened)
    }

    /// The file or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it is compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// What it is called in reports: its file or folder, up to the first dot.
    pub fn name(&self) -> String {
        let file = self.path.file_name().unwrap_or_default().to_string_lossy();
        file.split('.').find(|part| !part.is_empty()).unwrap_or("servegen").to_owned()
    }

    /// Those who send anything, by number.
    pub fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// What is left out.
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// From time 0 to the end of the last row in which anybody sends anything.
    pub fn span(&self) -> Micros {
        let last = |client: &Client| client.rates.last().map_or(Micros::ZERO, |rate| rate.start + ROW);
        self.clients.iter().map(last).max().unwrap_or(Micros::ZERO).min(MAX_SPAN)
    }

    /// A hash of every rate, burstiness and mean length: equal for equal statistics.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = RunHash::default();
        for client in &self.clients {
            hash.absorb(client.number);
            for rate in &client.rates {
                let period = &client.periods[rate.period];
                hash.absorb(rate.start.0);
                for value in [rate.rate_rps, rate.cv, period.prompt_mean(), period.output.mean()] {
                    hash.absorb(value.to_bits());
                }
            }
        }
        hash.value()
    }
}

impl Period {
    /// Mean prompt, tokens.
    pub fn prompt_mean(&self) -> f64 {
        self.prompt.iter().map(PromptPart::mean).sum()
    }
}

/// Whether the start of a tar archive has a client's file in it.
pub(super) fn recognise(start: &[u8]) -> bool {
    files::is_archive_of_clients(start)
}
