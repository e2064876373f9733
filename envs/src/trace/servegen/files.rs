//! The files of clients: a folder, or a tar archive of it.
//!
//! Nothing in an archive is believed: sizes are limited before memory is taken, names are looked at and shown but never
//! opened, links are passed over, and an archive that stops before its end is an error. Files of other names are passed over.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tar::Archive;

use super::super::error::{Fault, TraceError, excerpt};
use super::super::source::{Opened, read_fault};
use super::super::{Compression, MAX_ARCHIVE_BYTES};
use super::chunk::{self, ChunkFault, RateRow};
use super::{LeftOut, LengthDistribution, Period, ServeGen};

/// Largest file of a client, bytes; the largest here has 3 MB.
pub const MAX_CHUNK_BYTES: u64 = 64 << 20;

/// Most clients.
pub const MAX_CLIENTS: usize = 1 << 16;

/// Most rows of all clients.
pub const MAX_ROWS: usize = 1 << 23;

/// Most lengths of all distributions, 12 bytes each: 200 MB. Ten days of the published ones have 2.6 million.
pub const MAX_POINTS: usize = 1 << 24;

/// Which of a client's files one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientFile {
    Rates,
    Lengths,
}

/// The name of a client's file: `…/chunk-7-trace.csv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChunkName {
    number: u64,
    kind: ClientFile,
}

impl ChunkName {
    /// Of a path in an archive or a folder; `None` if it is something else's.
    pub(super) fn of(path: &str) -> Option<ChunkName> {
        let rest = path.rsplit('/').next()?.strip_prefix("chunk-")?;
        let (number, kind) = rest
            .strip_suffix("-trace.csv")
            .map(|number| (number, ClientFile::Rates))
            .or_else(|| rest.strip_suffix("-dataset.json").map(|number| (number, ClientFile::Lengths)))?;
        let is_number = number.len() <= 9 && number.bytes().all(|byte| byte.is_ascii_digit());
        Some(ChunkName { number: number.parse().ok().filter(|_| is_number)?, kind })
    }
}

/// Whether a client's file begins within the start of an archive.
pub(super) fn is_archive_of_clients(start: &[u8]) -> bool {
    let mut archive = Archive::new(start);
    let Ok(entries) = archive.entries() else { return false };
    let mut files = entries.raw(true).map_while(Result::ok).filter(|entry| entry.header().entry_type().is_file());
    files.any(|entry| ChunkName::of(&String::from_utf8_lossy(&entry.path_bytes())).is_some())
}

pub(super) fn folder(path: &Path) -> Result<ServeGen, TraceError> {
    let wrong = |path: &Path, error: &io::Error| TraceError::of_file(path, Fault::Open(error.to_string()));
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| wrong(path, &error))? {
        files.push(entry.map_err(|error| wrong(path, &error))?.path());
    }
    files.sort();
    let mut reading = ClientsRead::default();
    for file in files {
        let Some(name) = file.file_name().and_then(|name| ChunkName::of(&name.to_string_lossy())) else { continue };
        let reader = File::open(&file).map_err(|error| wrong(&file, &error))?;
        let located = Located { path: &file, entry: None };
        let bytes = limited(reader).map_err(|fault| located.error(ChunkFault::Whole(fault)))?;
        reading.take(&name, &bytes).map_err(|wrong| located.error(wrong))?;
    }
    reading.finish(path, Compression::Plain)
}

pub(super) fn archive(opened: Opened) -> Result<ServeGen, TraceError> {
    let Opened { path, compression, reader, .. } = opened;
    let failed = |error: &io::Error| match read_fault(compression, error) {
        Fault::Read(reason) if reason.contains("unexpected EOF") => Fault::ArchiveEndsEarly,
        Fault::Read(reason) => Fault::Read(excerpt(&reason)),
        other => other,
    };
    let wrong = |fault| TraceError::of_file(&path, fault);
    let mut reading = ClientsRead::default();
    let mut archive = Archive::new(reader.take(MAX_ARCHIVE_BYTES));
    for entry in archive.entries().map_err(|error| wrong(failed(&error)))?.raw(true) {
        let mut entry = entry.map_err(|error| wrong(failed(&error)))?;
        let file = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let Some(name) = ChunkName::of(&file).filter(|_| entry.header().entry_type().is_file()) else { continue };
        let located = Located { path: &path, entry: Some(excerpt(&file)) };
        let size = entry.size();
        let mut bytes = Vec::new();
        let read = (&mut entry).take(MAX_CHUNK_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| located.error(ChunkFault::Whole(failed(&error))))?;
        if size > MAX_CHUNK_BYTES {
            return Err(located.error(ChunkFault::Whole(Fault::ChunkTooLong(MAX_CHUNK_BYTES))));
        }
        if (bytes.len() as u64) < size {
            return Err(wrong(Fault::ArchiveEndsEarly));
        }
        reading.take(&name, &bytes).map_err(|wrong| located.error(wrong))?;
    }
    // A compressed stream has its checksum at the end.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(|error| wrong(failed(&error)))?;
    reading.finish(&path, compression)
}

fn limited(reader: impl Read) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    reader.take(MAX_CHUNK_BYTES + 1).read_to_end(&mut bytes).map_err(|error| Fault::Read(error.to_string()))?;
    if bytes.len() as u64 > MAX_CHUNK_BYTES { Err(Fault::ChunkTooLong(MAX_CHUNK_BYTES)) } else { Ok(bytes) }
}

/// Where something is wrong: a file, or a file in an archive.
struct Located<'a> {
    path: &'a Path,
    entry: Option<String>,
}

impl Located<'_> {
    fn error(&self, wrong: ChunkFault) -> TraceError {
        let (line, place, fault) = match wrong {
            ChunkFault::Line(line, fault) => (Some(line), None, fault),
            ChunkFault::Place(place, fault) => (None, Some(place), fault),
            ChunkFault::Whole(fault) => (None, None, fault),
        };
        // The line is one of the file in the archive, not of the archive.
        let (line, place) = match &self.entry {
            Some(_) => (None, line.map(|line| format!("line {line}")).or(place)),
            None => (line, place),
        };
        let entry = [self.entry.clone(), place].into_iter().flatten().reduce(|a, b| format!("{a}: {b}"));
        TraceError { path: self.path.to_path_buf(), line, entry, fault }
    }
}

/// What was read so far, by client.
#[derive(Default)]
struct ClientsRead {
    rates: BTreeMap<u64, Vec<RateRow>>,
    periods: BTreeMap<u64, Vec<Period>>,
    rows: usize,
    points: usize,
}

impl ClientsRead {
    fn take(&mut self, name: &ChunkName, bytes: &[u8]) -> Result<(), ChunkFault> {
        let is_known = match name.kind {
            ClientFile::Rates => self.rates.contains_key(&name.number),
            ClientFile::Lengths => self.periods.contains_key(&name.number),
        };
        if is_known {
            return Err(ChunkFault::Whole(Fault::ChunkTwice(name.number)));
        }
        match name.kind {
            ClientFile::Rates => {
                let rows = chunk::rows(bytes)?;
                self.rows += rows.len();
                self.rates.insert(name.number, rows);
            }
            ClientFile::Lengths => {
                let periods = chunk::periods(bytes)?;
                self.points += periods.iter().map(num_points).sum::<usize>();
                self.periods.insert(name.number, periods);
            }
        }
        let clients = self.rates.len().max(self.periods.len());
        for (field, found, limit) in [
            ("number of clients", clients, MAX_CLIENTS),
            ("number of rows", self.rows, MAX_ROWS),
            ("number of lengths", self.points, MAX_POINTS),
        ] {
            if found > limit {
                return Err(ChunkFault::Whole(Fault::AboveLimit {
                    field,
                    value: found.to_string(),
                    limit: limit as u64,
                }));
            }
        }
        Ok(())
    }

    fn finish(mut self, path: &Path, compression: Compression) -> Result<ServeGen, TraceError> {
        let mut left_out = LeftOut::default();
        let is_empty = self.rates.is_empty() && self.periods.is_empty();
        let mut clients = Vec::new();
        for (number, rows) in self.rates {
            let periods = self.periods.remove(&number).unwrap_or_default();
            let (client, requests) = chunk::client(format!("chunk-{number}"), number, &rows, periods);
            left_out.requests += requests;
            left_out.clients += u64::from(client.rates.is_empty() && requests > 0.0);
            clients.extend(Some(client).filter(|client| !client.rates.is_empty()));
        }
        left_out.clients += self.periods.len() as u64;
        if clients.is_empty() {
            let fault = if path.is_dir() && is_empty { Fault::Folder } else { Fault::NoClients };
            return Err(TraceError::of_file(path, fault));
        }
        Ok(ServeGen { path: path.to_path_buf(), compression, clients, left_out })
    }
}

fn num_points(period: &Period) -> usize {
    let of_part = |part: &super::PromptPart| {
        part.count.as_ref().map_or(0, LengthDistribution::num_points) + part.tokens.num_points()
    };
    period.output.num_points() + period.prompt.iter().map(of_part).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_clients_files() {
        let name = |number, kind| Some(ChunkName { number, kind });
        assert_eq!(ChunkName::of("language/m-mid/chunk-12-trace.csv"), name(12, ClientFile::Rates));
        assert_eq!(ChunkName::of("../../chunk-0-dataset.json"), name(0, ClientFile::Lengths));
        for other in
            ["chunk-x-trace.csv", "chunk--1-trace.csv", "chunk-1-trace.json", "chunk-12345678901-trace.csv", "a", ""]
        {
            assert_eq!(ChunkName::of(other), None, "{other}");
        }
    }
}
