//! CSVs with usual headers: columns in any order, found by their names ([`super::fields`]), comma, semicolon, tab or bar between
//! them, quoted as RFC 4180 has it.
//!
//! A row ends where its quotes are closed, and lines keep their numbers. What columns mean is decided once, by the header: two
//! that could be the same length or time are an error that names both.

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use super::clock::TimeUnit;
use super::entry::{Entries, Field, Fields, says_failed};
use super::error::{Fault, TraceError, excerpt, excerpt_of_end};
use super::fields::{self, Role};
use super::reading::{Reading, Skipped};
use super::source::{LineSource, MAX_LINE_BYTES, Opened};
use super::{Row, RowSource};

/// Most columns of a row.
const MAX_COLUMNS: usize = 4_096;

/// What may stand between columns; of several that do, the one that does most often.
const DELIMITERS: [u8; 4] = *b",;\t|";

/// Rows of a CSV.
pub(super) struct Table {
    records: Records,
    header: Vec<String>,
    columns: Columns,
    entries: Entries,
}

/// The names in a header, and what stands between them.
pub(super) fn header(line: &str) -> (Vec<String>, u8) {
    let line = line.trim_start_matches('\u{feff}');
    let mut counts = [0_usize; DELIMITERS.len()];
    let mut is_quoted = false;
    for byte in line.bytes() {
        is_quoted ^= byte == b'"';
        if let Some(found) = DELIMITERS.iter().position(|delimiter| *delimiter == byte && !is_quoted) {
            counts[found] += 1;
        }
    }
    let most = counts.iter().max().copied().unwrap_or(0);
    let delimiter = DELIMITERS[counts.iter().position(|count| *count == most).unwrap_or(0)];
    let mut record = Record::new(delimiter);
    let names = match record.feed(line.as_bytes()).map(|()| record.feed(b"\n")) {
        Ok(_) => record.cells().map(|cell| String::from_utf8_lossy(cell).trim().to_owned()).collect(),
        Err(_) => Vec::new(),
    };
    (names, delimiter)
}

impl Table {
    /// Reads the header; `unit` is that of times where the form says so.
    pub(super) fn open(opened: Opened, reading: &Reading, unit: Option<TimeUnit>) -> Result<Table, TraceError> {
        let mut source = LineSource::new(opened);
        let mut line = String::new();
        if !source.next_untrimmed(&mut line)? {
            return Err(source.file_error(Fault::Empty));
        }
        let (header, delimiter) = header(&line);
        let wrong = |fault| source.error(fault);
        let columns = Columns::of(&header).map_err(wrong)?;
        if columns.time.is_none() && reading.arrival_rate.is_none() {
            return Err(wrong(Fault::NoTime(fields::wanted(Role::Time))));
        }
        let entries = Entries::new(reading, unit).map_err(|fault| source.file_error(fault))?;
        Ok(Table {
            records: Records { source, record: Record::new(delimiter), line, row: 0 },
            header,
            columns,
            entries,
        })
    }

    /// Whether the record that was just read is the header once more.
    fn is_header(&self) -> bool {
        let cells = self.records.record.cells().map(|cell| std::str::from_utf8(cell).unwrap_or_default().trim());
        self.records.record.len() == self.header.len()
            && cells.zip(&self.header).all(|(cell, name)| cell.trim_start_matches('\u{feff}') == name)
    }

    /// The request of the record that was just read.
    fn request(&mut self) -> Result<Option<Row>, Fault> {
        let Table { records, header, columns, entries } = self;
        let record = &records.record;
        let got = record.len();
        // Some writers end every row in a delimiter.
        let extra = (header.len()..got).all(|column| record.cell(column).is_empty());
        if got < header.len() || !extra {
            return Err(Fault::Columns { expected: header.len(), got, row: excerpt(&record.text()) });
        }
        let text = |column: usize| {
            let cell = record.cell(column);
            std::str::from_utf8(cell).map_err(|_| Fault::NotText(excerpt(&String::from_utf8_lossy(cell))))
        };
        let field = |column: Option<usize>| -> Result<Option<Field>, Fault> {
            column.map(|column| Ok(Field::of_text(&header[column], text(column)?))).transpose()
        };
        let chars = |column: Option<usize>| -> Result<Option<u64>, Fault> {
            column.map(|column| Ok(text(column)?.chars().count() as u64)).transpose()
        };
        let mut fields = Fields {
            time: field(columns.time.map(|(column, _)| column))?.zip(columns.time.map(|(_, unit)| unit)),
            prompt: field(columns.prompt)?,
            output: field(columns.output)?,
            prompt_chars: chars(columns.prompt_text)?,
            output_chars: chars(columns.output_text)?,
            session: field(columns.session)?,
            tenant: field(columns.tenant)?,
            priority: field(columns.priority)?,
            slo_class: field(columns.slo_class)?,
            cache_salt: field(columns.cache_salt)?,
            ..Fields::default()
        };
        for column in &columns.cached {
            fields.cached.extend(field(Some(*column))?);
        }
        for (role, column) in &columns.outcome {
            fields.is_failed |= says_failed(*role, text(*column)?);
        }
        entries.row(&fields)
    }
}

impl RowSource for Table {
    fn next_row(&mut self) -> Result<Option<Row>, TraceError> {
        while self.records.read()? {
            // Files that were put together, each with its header.
            if self.is_header() {
                continue;
            }
            if let Some(row) = self.request().map_err(|fault| self.records.error(fault))? {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    fn error(&self, fault: Fault) -> TraceError {
        self.records.error(fault)
    }

    fn skipped(&self) -> Skipped {
        self.entries.skipped
    }

    fn clock(&self) -> Option<String> {
        self.entries.told()
    }
}

/// Where columns are.
#[derive(Debug, Default)]
struct Columns {
    time: Option<(usize, Option<TimeUnit>)>,
    prompt: Option<usize>,
    output: Option<usize>,
    cached: Vec<usize>,
    prompt_text: Option<usize>,
    output_text: Option<usize>,
    session: Option<usize>,
    tenant: Option<usize>,
    priority: Option<usize>,
    slo_class: Option<usize>,
    cache_salt: Option<usize>,
    outcome: Vec<(Role, usize)>,
}

impl Columns {
    fn of(header: &[String]) -> Result<Columns, Fault> {
        let every = |wanted: Role| {
            let columns = header.iter().enumerate();
            columns.flat_map(move |(column, name)| {
                let found = fields::meanings(name).into_iter().filter(move |found| found.role == wanted);
                // Of columns whose names have dots, those that lie less deep are preferred.
                found.map(move |found| ((found.rank, name.matches('.').count()), column, found.unit))
            })
        };
        let one = |wanted: Role| -> Result<Option<(usize, Option<TimeUnit>)>, Fault> {
            let Some((best, column, unit)) = every(wanted).min_by_key(|(rank, ..)| *rank) else { return Ok(None) };
            match every(wanted).find(|(rank, other, _)| *rank == best && *other != column) {
                None => Ok(Some((column, unit))),
                Some((_, other, _)) => Err(Fault::Ambiguous {
                    first: excerpt(&header[column]).into(),
                    second: excerpt(&header[other]).into(),
                    meaning: fields::meaning(wanted),
                }),
            }
        };
        let column = |wanted: Role| one(wanted).map(|found| found.map(|(column, _)| column));
        let outcome = [Role::Failure, Role::Status, Role::Success];
        let outcome = outcome.into_iter().flat_map(|role| every(role).map(move |(_, column, _)| (role, column)));
        Ok(Columns {
            time: one(Role::Time)?,
            prompt: column(Role::Prompt)?,
            output: column(Role::Output)?,
            cached: every(Role::CachedPrompt).map(|(_, column, _)| column).collect(),
            prompt_text: column(Role::PromptText)?,
            output_text: column(Role::OutputText)?,
            session: column(Role::Session)?,
            tenant: column(Role::Tenant)?,
            priority: column(Role::Priority)?,
            slo_class: column(Role::SloClass)?,
            cache_salt: column(Role::CacheSalt)?,
            outcome: outcome.collect(),
        })
    }
}

/// Records of a file, each of one line or more.
struct Records {
    source: LineSource,
    record: Record,
    line: String,
    /// Line on which the record starts.
    row: u64,
}

impl Records {
    /// Reads the next record; false after the last.
    fn read(&mut self) -> Result<bool, TraceError> {
        self.record.clear();
        if !self.source.next_untrimmed(&mut self.line)? {
            return Ok(false);
        }
        self.row = self.source.line();
        loop {
            let fed = self.record.feed(self.line.as_bytes()).and_then(|()| self.record.feed(b"\n"));
            fed.map_err(|fault| self.error(fault))?;
            if self.record.is_whole {
                return Ok(true);
            }
            if !self.source.next_line_as_it_is(&mut self.line)? {
                return Err(self.error(Fault::CutOff(excerpt_of_end(&self.record.text()))));
            }
        }
    }

    fn error(&self, fault: Fault) -> TraceError {
        TraceError { line: Some(self.row), ..self.source.error(fault) }
    }
}

/// One record, as far as it has been read.
struct Record {
    reader: Reader,
    bytes: Vec<u8>,
    num_bytes: usize,
    ends: Vec<usize>,
    num_ends: usize,
    is_whole: bool,
}

impl Record {
    fn new(delimiter: u8) -> Record {
        let reader = ReaderBuilder::new().delimiter(delimiter).build();
        Record { reader, bytes: Vec::new(), num_bytes: 0, ends: vec![0; 64], num_ends: 0, is_whole: false }
    }

    fn clear(&mut self) {
        self.reader.reset();
        (self.num_bytes, self.num_ends, self.is_whole) = (0, 0, false);
    }

    /// Takes in a part of the record; what follows its end is left out.
    fn feed(&mut self, mut input: &[u8]) -> Result<(), Fault> {
        let needed = self.num_bytes + input.len();
        if needed > MAX_LINE_BYTES {
            return Err(Fault::LineTooLong(MAX_LINE_BYTES));
        }
        if self.bytes.len() < needed {
            self.bytes.resize(needed, 0);
        }
        while !self.is_whole && !input.is_empty() {
            let (result, read, written, ended) =
                self.reader.read_record(input, &mut self.bytes[self.num_bytes..], &mut self.ends[self.num_ends..]);
            input = &input[read..];
            self.num_bytes += written;
            self.num_ends += ended;
            match result {
                ReadRecordResult::Record => self.is_whole = true,
                ReadRecordResult::OutputEndsFull if self.ends.len() < MAX_COLUMNS => self.ends.resize(MAX_COLUMNS, 0),
                ReadRecordResult::OutputEndsFull => {
                    let value = format!("more than {MAX_COLUMNS}");
                    return Err(Fault::AboveLimit { field: "number of columns", value, limit: MAX_COLUMNS as u64 });
                }
                // Never: there is room for all that is fed.
                ReadRecordResult::OutputFull => self.bytes.resize(self.bytes.len() * 2 + 1, 0),
                ReadRecordResult::InputEmpty | ReadRecordResult::End => break,
            }
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.num_ends
    }

    fn cell(&self, column: usize) -> &[u8] {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.bytes[start..self.ends[column]]
    }

    fn cells(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|column| self.cell(column))
    }

    /// The cells in one line, for an error.
    fn text(&self) -> String {
        let ended = self.ends[..self.num_ends].last().copied().unwrap_or(0);
        let mut cells: Vec<_> = self.cells().map(String::from_utf8_lossy).collect();
        cells.extend((ended < self.num_bytes).then(|| String::from_utf8_lossy(&self.bytes[ended..self.num_bytes])));
        cells.join(",")
    }
}
