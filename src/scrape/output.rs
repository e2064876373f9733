//! The file that a recording is appended to, row by row.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use kvtide_envs::trace::rates::{Header, Row, parse_header};
use serde::Serialize;

use super::RecordError;

/// An open file, locked against others who would record to it; the system lets go of it when this process ends, however.
pub(super) struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    /// A new file with this header, or one that is there and has one like it; and how many seconds after its beginning it is
    /// now.
    pub(super) fn open(
        path: &Path,
        resume: bool,
        header: &Header,
        now_unix_s: u64,
    ) -> Result<(Output, f64), RecordError> {
        let wrong = |reason: String| RecordError::File { path: path.to_path_buf(), reason };
        let failed = |error: io::Error| wrong(error.to_string());
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let opened =
            if resume { options.create(true).truncate(false).open(path) } else { options.create_new(true).open(path) };
        let file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                wrong("is there already: name another --out, or go on in it with --resume".into())
            }
            _ => failed(error),
        })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(wrong("another kvtide record is writing it".into())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut output = Output { path: path.to_path_buf(), file };
        let Some((found, last_s, whole)) = output.read_back().map_err(failed)? else {
            output.line(header)?;
            return Ok((output, 0.0));
        };
        let found = parse_header(&found).map_err(|reason| wrong(format!("cannot be gone on with: {reason}")))?;
        let same = |header: &Header| {
            let Header { engine, models, engines, counts, lengths, .. } = header;
            (engine.clone(), models.clone(), *engines, *counts, *lengths)
        };
        if same(&found) != same(header) {
            let of = |header: &Header| format!("{} {}", header.engine, header.models.join(", "));
            let (found, now) = (of(&found), of(header));
            return Err(wrong(format!("is a recording of {found}, and this is {now}, or another of its engines")));
        }
        // What a killed process has left of a row.
        output.file.set_len(whole).and_then(|()| output.file.seek(SeekFrom::End(0))).map_err(failed)?;
        let now_s = now_unix_s.saturating_sub(found.began_unix_s) as f64;
        Ok((output, now_s.max(last_s)))
    }

    /// The first line, the end of the last row, s, and how many bytes are whole lines. `None` of an empty file.
    fn read_back(&self) -> io::Result<Option<(String, f64, u64)>> {
        let mut reader = BufReader::new(&self.file);
        let (mut first, mut last_s, mut whole, mut line) = (None, 0.0, 0, Vec::new());
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line)?;
            let is_whole = line.last() == Some(&b'\n');
            if read == 0 || !is_whole && first.is_some() {
                break;
            }
            whole += read as u64;
            if first.is_none() {
                first = Some(String::from_utf8_lossy(&line).trim().to_owned());
            } else if let Ok(row) = serde_json::from_slice::<Row>(&line) {
                last_s = row.start_s + row.seconds;
            }
        }
        Ok(first.map(|first| (first, last_s, whole)))
    }

    /// A row, whole, and on the disk.
    pub(super) fn append(&mut self, row: &Row) -> Result<(), RecordError> {
        self.line(row)
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), RecordError> {
        let failed = |error: io::Error| RecordError::File { path: self.path.clone(), reason: error.to_string() };
        let mut line = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        self.file.write_all(&line).and_then(|()| self.file.sync_data()).map_err(failed)
    }
}
