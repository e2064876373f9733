//! Lines of a file, whatever it is compressed with, each with its number.

use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use super::error::{IntentError, IntentFault};
use crate::files::{Compression, Unpacked, read_line};

/// Longest line.
const LONGEST: usize = 1 << 20;

pub(super) struct Lines {
    path: PathBuf,
    compression: Compression,
    reader: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    number: u64,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Lines, IntentError> {
        let failed = |error: io::Error| IntentError::new(path, None, IntentFault::Open(error.to_string()));
        // - is standard input, as everywhere.
        let unpacked =
            if path == Path::new("-") { Unpacked::of(io::stdin()) } else { Unpacked::open(path) }.map_err(failed)?;
        let Unpacked { compression, reader } = unpacked;
        let path = if path == Path::new("-") { PathBuf::from("standard input") } else { path.to_owned() };
        Ok(Lines { path, compression, reader, line: Vec::new(), number: 0 })
    }

    /// The next line that has something on it; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<&str>, IntentError> {
        loop {
            self.line.clear();
            let read = read_line(&mut *self.reader, &mut self.line, LONGEST).map_err(|error| {
                let fault = if self.compression.is_cut_off(&error) {
                    IntentFault::EndsEarly(self.compression)
                } else {
                    IntentFault::Read(error.to_string())
                };
                self.error(fault)
            })?;
            self.number += 1;
            if read == 0 {
                return Ok(None);
            }
            if self.line.len() > LONGEST {
                return Err(self.error(IntentFault::TooLong(LONGEST)));
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        match std::str::from_utf8(self.line.trim_ascii()) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(self.error(IntentFault::NotText)),
        }
    }

    /// An error of the line that was read last.
    pub(super) fn error(&self, fault: IntentFault) -> IntentError {
        IntentError::new(&self.path, Some(self.number.max(1)), fault)
    }

    /// An error of the file as a whole.
    pub(super) fn error_of_file(&self, fault: IntentFault) -> IntentError {
        IntentError::new(&self.path, None, fault)
    }
}
