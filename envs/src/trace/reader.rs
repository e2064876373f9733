//! Opening a trace, and reading it from start to end.

use std::path::{Path, PathBuf};

use super::error::{Fault, TraceError};
use super::forms::{self, Form, OpenRows, Reads, Start};
use super::order::{ROOM, Sorted};
use super::reading::{Reading, Skipped};
use super::source::Opened;
use super::{Compression, Format, MAX_SPAN, RateProfile, Request, RowSource, ServeGen};
use crate::time::Micros;

/// What a path holds.
pub enum Trace {
    /// Requests, each with its time.
    Requests(Box<TraceReader>),
    /// Statistics of clients.
    Clients(ServeGen),
    /// Rates and lengths over time.
    Profile(RateProfile),
}

impl Trace {
    /// Opens a file, a folder or, as `-`, standard input, and recognises it; statistics are read to their end.
    ///
    /// # Errors
    /// Those of [`TraceReader::open_with`] and [`ServeGen::read_folder`].
    pub fn open(path: impl AsRef<Path>, reading: impl Into<Reading>) -> Result<Trace, TraceError> {
        let (path, reading) = (path.as_ref(), reading.into());
        if path.is_dir() {
            return ServeGen::read_folder(path).map(Trace::Clients);
        }
        let (start, opened) = Start::of(Opened::open(path)?)?;
        let form = forms::recognise(&start, &opened)?;
        match form.reads {
            Reads::Clients(read) => read(opened).map(Trace::Clients),
            Reads::Profile(read) => read(opened).map(Trace::Profile),
            Reads::Rows(open) => {
                let compression = opened.compression;
                let rows = open(opened, &start, &reading)?;
                let rows = if form.sorts_itself { rows } else { in_order(path, rows, open, &reading)? };
                Ok(Trace::Requests(Box::new(TraceReader::new(path, compression, form, rows))))
            }
        }
    }
}

/// A source's rows as they are if they are in order, else sorted. Whether they are is seen by reading a file to its end before it
/// is read for good; what can be read only once is sorted in any case.
fn in_order(
    path: &Path,
    rows: Box<dyn RowSource>,
    open: OpenRows,
    reading: &Reading,
) -> Result<Box<dyn RowSource>, TraceError> {
    let can_look = !reading.is_unsorted && path.metadata().is_ok_and(|metadata| metadata.is_file());
    if can_look {
        let (start, opened) = Start::of(Opened::open(path)?)?;
        let mut ahead = open(opened, &start, reading)?;
        let mut last_ns = i128::MIN;
        // An error is met again, and told, where it stands.
        while let Ok(Some(row)) = ahead.next_row() {
            if row.time_ns < last_ns {
                return Ok(Box::new(Sorted::of(rows, ROOM)?));
            }
            last_ns = row.time_ns;
        }
        return Ok(rows);
    }
    Ok(Box::new(Sorted::of(rows, ROOM)?))
}

/// A trace read from start to end: an iterator that ends after the first error.
pub struct TraceReader {
    path: PathBuf,
    compression: Compression,
    form: &'static Form,
    rows: Box<dyn RowSource>,
    first_ns: Option<i128>,
    last_ns: i128,
    requests: u64,
    zero_output_rows: u64,
    ended: bool,
}

impl TraceReader {
    /// Opens a trace and recognises it. Sessions start as [`super::SessionArrivals`] does by default.
    ///
    /// # Errors
    /// If the file cannot be read, is empty, is an archive of anything but sessions, or its first row is of no known form; and
    /// whatever is wrong with a file that has to be read to its end first.
    pub fn open(path: impl AsRef<Path>) -> Result<TraceReader, TraceError> {
        TraceReader::open_with(path, Reading::default())
    }

    /// Opens a trace and recognises it; what the file leaves open, `reading` says.
    ///
    /// # Errors
    /// Those of [`open`](TraceReader::open), if it holds statistics and no requests, and if `reading` says what cannot be.
    pub fn open_with(path: impl AsRef<Path>, reading: impl Into<Reading>) -> Result<TraceReader, TraceError> {
        match Trace::open(path, reading)? {
            Trace::Requests(reader) => Ok(*reader),
            Trace::Clients(clients) => Err(TraceError::of_file(clients.path(), Fault::Statistics)),
            Trace::Profile(profile) => Err(TraceError::of_file(profile.path(), Fault::Rates)),
        }
    }

    fn new(path: &Path, compression: Compression, form: &'static Form, rows: Box<dyn RowSource>) -> TraceReader {
        TraceReader {
            path: path.to_path_buf(),
            compression,
            form,
            rows,
            first_ns: None,
            last_ns: 0,
            requests: 0,
            zero_output_rows: 0,
            ended: false,
        }
    }

    /// The file; `-` for standard input.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file is written in.
    pub fn format(&self) -> Format {
        self.form.format
    }

    /// How the file is compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Requests read so far.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Rows read so far whose output of 0 tokens was read as 1.
    pub fn zero_output_rows(&self) -> u64 {
        self.zero_output_rows
    }

    /// Rows read so far that are no requests.
    pub fn skipped(&self) -> Skipped {
        self.rows.skipped()
    }

    /// Rows that stood below one that arrives later, and were sorted.
    pub fn late_rows(&self) -> u64 {
        self.rows.late()
    }

    /// How times were read, if that had to be found out.
    pub fn clock(&self) -> Option<String> {
        self.rows.clock()
    }

    /// Requests of sessions that would arrive after the last session has started, and are left out.
    pub fn left_out_rows(&self) -> u64 {
        self.rows.left_out()
    }

    fn read_request(&mut self) -> Result<Option<Request>, TraceError> {
        let Some(row) = self.rows.next_row()? else {
            return if self.requests == 0 { Err(self.nothing()) } else { Ok(None) };
        };
        let arrival = self.rebase(row.time_ns).map_err(|fault| self.rows.error(fault))?;
        self.requests += 1;
        self.zero_output_rows += u64::from(row.zero_output);
        Ok(Some(Request { arrival, ..row.request }))
    }

    fn nothing(&self) -> TraceError {
        let skipped = self.rows.skipped();
        let fault =
            if skipped.is_none() { Fault::Empty } else { Fault::AllSkipped(format!("rows skipped: {skipped}")) };
        TraceError::of_file(&self.path, fault)
    }

    /// The file's own time as time since its first row, cut to whole microseconds.
    fn rebase(&mut self, time_ns: i128) -> Result<Micros, Fault> {
        let first_ns = *self.first_ns.get_or_insert(time_ns);
        // It was in order when it was looked through.
        if self.requests > 0 && time_ns < self.last_ns {
            let earlier_by_ms = format!("{}", (self.last_ns - time_ns) as f64 * 1e-6);
            return Err(Fault::Backwards { earlier_by_ms });
        }
        self.last_ns = time_ns;
        let arrival_us = ((time_ns - first_ns) / 1_000) as u64;
        if arrival_us > MAX_SPAN.0 {
            let value = arrival_us.to_string();
            return Err(Fault::AboveLimit { field: "arrival, µs after the first,", value, limit: MAX_SPAN.0 });
        }
        Ok(Micros(arrival_us))
    }
}

impl Iterator for TraceReader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.read_request().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}
