//! A file, whatever it is compressed with, and its numbered lines of text.

use std::fs::File;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use super::Compression;
use super::error::{Fault, TraceError, excerpt};
use crate::files::{Unpacked, peek, read_line};

/// Longest line read, bytes: 65,536 hashes of 20 digits, twice over.
pub const MAX_LINE_BYTES: usize = 4 << 20;

/// Most lines read from one file: the longest public trace (a week of Azure conversations, 2024) has 27 million.
pub const MAX_LINES: u64 = 100_000_000;

/// Bytes looked at to tell an archive, or an agentic session, whose first fields come before its requests.
pub(super) const RECOGNISED_BYTES: usize = 1_024;

/// Bytes of a file looked at to tell what it is: an archive may have folders before its first file, a header each.
pub(super) const START_BYTES: usize = 16 << 10;

/// What stands for standard input where a file is asked for.
pub const STDIN: &str = "-";

/// A file that was opened: its first bytes, and a reader of all of them.
pub(super) struct Opened {
    pub(super) path: PathBuf,
    pub(super) compression: Compression,
    /// The first [`START_BYTES`], fewer if there are no more.
    pub(super) start: Vec<u8>,
    pub(super) reader: Box<dyn BufRead + Send>,
}

impl Opened {
    /// Opens a file and looks at its first bytes. Reads on from there, never back: a pipe will do.
    pub(super) fn open(path: &Path) -> Result<Opened, TraceError> {
        let wrong = |fault| TraceError::of_file(path, fault);
        let unpacked = if path == Path::new(STDIN) {
            Unpacked::of(io::stdin())
        } else {
            Unpacked::of(File::open(path).map_err(|error| wrong(Fault::Open(error.to_string())))?)
        };
        let unpacked = unpacked.map_err(|error| wrong(Fault::Read(error.to_string())))?;
        let Unpacked { compression, reader } = unpacked;
        let (start, reader) = peek(reader, START_BYTES).map_err(|error| wrong(read_fault(compression, &error)))?;
        if start.is_empty() && compression == Compression::Plain {
            return Err(wrong(Fault::Empty));
        }
        Ok(Opened { path: path.to_path_buf(), compression, start, reader: Box::new(reader) })
    }

    /// Looks at more of the file: as much as a row may have.
    pub(super) fn look_further(self) -> Result<Opened, TraceError> {
        let Opened { path, compression, reader, .. } = self;
        let read = peek(reader, MAX_LINE_BYTES);
        let (start, reader) = read.map_err(|error| TraceError::of_file(&path, read_fault(compression, &error)))?;
        Ok(Opened { path, compression, start, reader: Box::new(reader) })
    }

    /// The first bytes as text, without a byte-order mark and blanks before it.
    pub(super) fn text(&self) -> std::borrow::Cow<'_, str> {
        let blank = |byte: &u8| !byte.is_ascii_whitespace();
        let start = self.start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.start);
        let from = start.iter().position(blank).unwrap_or(start.len());
        String::from_utf8_lossy(&start[from..])
    }
}

/// The lines of a file that are not blank.
pub(super) struct LineSource {
    path: PathBuf,
    compression: Compression,
    reader: Box<dyn BufRead + Send>,
    line: u64,
    raw: Vec<u8>,
}

impl LineSource {
    /// The lines of a file from its first.
    pub(super) fn new(opened: Opened) -> LineSource {
        let Opened { path, compression, reader, .. } = opened;
        LineSource { path, compression, reader, line: 0, raw: Vec::new() }
    }

    /// An error of the line read last.
    pub(super) fn error(&self, fault: Fault) -> TraceError {
        TraceError::of_line(&self.path, self.line, fault)
    }

    /// An error of the file as a whole.
    pub(super) fn file_error(&self, fault: Fault) -> TraceError {
        TraceError::of_file(&self.path, fault)
    }

    /// The number of the line read last.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// Reads the next line that is not blank, without its end and blanks around it; false after the last.
    pub(super) fn next_line(&mut self, text: &mut String) -> Result<bool, TraceError> {
        let found = self.next_untrimmed(text)?;
        text.truncate(text.trim_end().len());
        text.drain(..text.len() - text.trim_start().len());
        Ok(found)
    }

    /// Reads the next line that is not blank, without its end; false after the last.
    pub(super) fn next_untrimmed(&mut self, text: &mut String) -> Result<bool, TraceError> {
        while self.next_line_as_it_is(text)? {
            if !text.trim().is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the next line, blank or not, without its end; false after the last.
    pub(super) fn next_line_as_it_is(&mut self, text: &mut String) -> Result<bool, TraceError> {
        text.clear();
        if !self.read_raw()? {
            return Ok(false);
        }
        let line = std::str::from_utf8(&self.raw)
            .map_err(|_| self.error(Fault::NotText(excerpt(&String::from_utf8_lossy(&self.raw)))))?;
        let line = if self.line == 1 { line.trim_start_matches('\u{feff}') } else { line };
        text.push_str(line.trim_end_matches(['\n', '\r']));
        Ok(true)
    }

    fn read_raw(&mut self) -> Result<bool, TraceError> {
        self.raw.clear();
        self.line += 1;
        match read_line(&mut *self.reader, &mut self.raw, MAX_LINE_BYTES) {
            Err(error) => Err(self.error(read_fault(self.compression, &error))),
            Ok(0) => Ok(false),
            Ok(_) if self.raw.len() > MAX_LINE_BYTES => Err(self.error(Fault::LineTooLong(MAX_LINE_BYTES))),
            Ok(_) if self.line > MAX_LINES => Err(self.error(Fault::TooManyLines(MAX_LINES))),
            Ok(_) => Ok(true),
        }
    }
}

/// What a failed read means.
pub(super) fn read_fault(compression: Compression, error: &io::Error) -> Fault {
    if compression.is_cut_off(error) { Fault::EndsEarly(compression) } else { Fault::Read(error.to_string()) }
}
