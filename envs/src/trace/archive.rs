//! Agentic sessions as files: one alone, or a tar archive of them.
//!
//! Nothing in an archive is believed: sizes are limited before memory is taken, names are only shown, and an archive that
//! stops anywhere before its end is an error.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::Path;

use tar::{Archive, Entry};

use super::error::{Fault, TraceError, excerpt, excerpt_of_end};
use super::kvct::{self, Session};
use super::source::{Opened, RECOGNISED_BYTES, read_fault};
use super::{Compression, MAX_NAME_BYTES, Row};

/// Largest session file read, bytes; the largest published one has 4 MB.
pub const MAX_SESSION_BYTES: u64 = 32 << 20;

/// Largest archive read, bytes unpacked.
pub const MAX_ARCHIVE_BYTES: u64 = 64 << 30;

/// Most sessions of one file.
pub const MAX_SESSIONS: usize = 1 << 16;

/// Most requests of all sessions of one file.
pub const MAX_SESSION_REQUESTS: usize = 1 << 22;

/// Most prefix hashes of all sessions of one file, counted as they are kept in memory: 1 GiB. The published sessions
/// have 63 million, of which 6 million are kept.
pub const MAX_HASHES: usize = 1 << 27;

/// Bytes of a header in an archive, to which everything else is padded.
const BLOCK_BYTES: u64 = 512;

/// Whether the start of a file is that of a tar archive (POSIX.1-1988, ustar, and GNU's).
pub(super) fn recognise(start: &[u8]) -> bool {
    start.len() as u64 >= BLOCK_BYTES && start[257..262] == *b"ustar"
}

/// Reads the first `limit` sessions of a file, which have at least one request, each in the order of its own time.
pub(super) fn read(opened: Opened, limit: usize) -> Result<Vec<Vec<Row>>, TraceError> {
    let Opened { path, compression, start, reader } = opened;
    let mut reading = SessionsRead {
        path: &path,
        compression,
        limit,
        sessions: Vec::new(),
        names: BTreeSet::new(),
        requests: 0,
        hashes: 0,
    };
    if recognise(&start) {
        reading.archive(reader)?;
    } else {
        reading.file(reader)?;
    }
    if reading.requests == 0 {
        return Err(reading.error(Fault::Empty));
    }
    Ok(reading.sessions)
}

/// Sessions read so far, and what they add up to.
struct SessionsRead<'a> {
    path: &'a Path,
    compression: Compression,
    limit: usize,
    sessions: Vec<Vec<Row>>,
    names: BTreeSet<String>,
    requests: usize,
    hashes: usize,
}

impl SessionsRead<'_> {
    /// The whole file is one session.
    fn file(&mut self, reader: impl Read) -> Result<(), TraceError> {
        let bytes = self.limited(reader).map_err(|fault| self.error(fault))?;
        self.session(&bytes, None, self.path)
    }

    /// Each file in the archive that is a JSON object is a session; others are passed over.
    fn archive(&mut self, reader: impl Read) -> Result<(), TraceError> {
        let mut archive = Archive::new(Counted { reader, bytes: 0 });
        let mut end = 0;
        // Raw: a long name is not put together, so nobody can make it long enough to fill the memory.
        let entries = archive.entries().map_err(|error| self.error(self.fault(&error)))?.raw(true);
        for entry in entries {
            if self.sessions.len() >= self.limit {
                return Ok(());
            }
            let entry = entry.map_err(|error| self.error(self.fault(&error)))?;
            end = entry.raw_file_position() + entry.size().next_multiple_of(BLOCK_BYTES);
            if end > MAX_ARCHIVE_BYTES {
                let (field, value) = ("bytes of archive", end.to_string());
                return Err(self.error(Fault::AboveLimit { field, value, limit: MAX_ARCHIVE_BYTES }));
            }
            if entry.header().entry_type().is_file() {
                self.entry(entry)?;
            }
        }
        if self.sessions.is_empty() {
            return Err(self.error(Fault::Archive));
        }
        // An archive ends with blocks of zeros, of which one was read; without them it stops between two files.
        let Counted { reader, bytes } = archive.into_inner();
        if bytes <= end {
            return Err(self.error(Fault::ArchiveEndsEarly));
        }
        // A compressed stream has its checksum at the end.
        let rest = io::copy(&mut reader.take(MAX_ARCHIVE_BYTES), &mut io::sink());
        rest.map(drop).map_err(|error| self.error(self.fault(&error)))
    }

    /// A file in an archive.
    fn entry(&mut self, mut entry: Entry<'_, impl Read>) -> Result<(), TraceError> {
        let (size, name) = (entry.size(), String::from_utf8_lossy(&entry.path_bytes()).into_owned());
        let located = |fault| TraceError { entry: Some(excerpt(&name)), ..TraceError::of_file(self.path, fault) };
        let mut start = Vec::new();
        let read = (&mut entry).take(RECOGNISED_BYTES as u64).read_to_end(&mut start);
        read.map_err(|error| located(self.fault(&error)))?;
        let text = String::from_utf8_lossy(&start);
        if !kvct::is_object(&text) {
            return Ok(());
        }
        if !kvct::recognise(&start) {
            return Err(located(Fault::NotASession(excerpt(&text))));
        }
        let bytes = self.limited(start.as_slice().chain(entry)).map_err(located)?;
        if (bytes.len() as u64) < size {
            return Err(located(Fault::CutOff(excerpt_of_end(&String::from_utf8_lossy(&bytes)))));
        }
        self.session(&bytes, Some(&excerpt(&name)), Path::new(&name))
    }

    /// Takes in one session; it is called by its id, or else as its file.
    fn session(&mut self, bytes: &[u8], entry: Option<&str>, file: &Path) -> Result<(), TraceError> {
        let number = self.sessions.len() as u32 + 1;
        let located = |request: Option<String>, fault| {
            let entry = [entry.map(str::to_owned), request].into_iter().flatten().reduce(|a, b| format!("{a}: {b}"));
            TraceError { entry, ..TraceError::of_file(self.path, fault) }
        };
        let Session { id, mut rows, hashes } =
            kvct::parse(bytes, number).map_err(|wrong| located(wrong.request, wrong.fault))?;
        let name = id.unwrap_or_else(|| file.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        if !self.names.insert(name.clone()) {
            return Err(located(None, Fault::SessionTwice(excerpt(&name))));
        }
        self.requests += rows.len();
        self.hashes += hashes;
        for (field, found, limit) in [
            ("bytes of session name", name.len(), MAX_NAME_BYTES),
            ("number of sessions", number as usize, MAX_SESSIONS),
            ("number of requests", self.requests, MAX_SESSION_REQUESTS),
            ("number of hash_ids in memory", self.hashes, MAX_HASHES),
        ] {
            if found > limit {
                return Err(located(None, Fault::AboveLimit { field, value: found.to_string(), limit: limit as u64 }));
            }
        }
        for row in &mut rows {
            row.request.session = Some(name.clone());
        }
        self.sessions.push(rows);
        Ok(())
    }

    /// A session to its end, unless it is too long.
    fn limited(&self, reader: impl Read) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        reader.take(MAX_SESSION_BYTES + 1).read_to_end(&mut bytes).map_err(|error| self.fault(&error))?;
        if bytes.len() as u64 > MAX_SESSION_BYTES {
            return Err(Fault::SessionTooLong(MAX_SESSION_BYTES));
        }
        Ok(bytes)
    }

    fn error(&self, fault: Fault) -> TraceError {
        TraceError::of_file(self.path, fault)
    }

    /// The `tar` crate says what is wrong in words of its own, with names out of the file.
    fn fault(&self, error: &io::Error) -> Fault {
        match read_fault(self.compression, error) {
            Fault::Read(reason) if reason.contains("unexpected EOF") => Fault::ArchiveEndsEarly,
            Fault::Read(reason) => Fault::Read(excerpt(&reason)),
            other => other,
        }
    }
}

/// How many bytes were read.
struct Counted<R> {
    reader: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(bytes)?;
        self.bytes += read as u64;
        Ok(read)
    }
}
