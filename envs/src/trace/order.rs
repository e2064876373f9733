//! Rows that are not in order of arrival, put in order in bounded memory.
//!
//! Rows are read to their end. As many as fit are sorted in memory; beyond that, sorted parts go to files that have no name
//! (`TMPDIR`), and are merged as they are asked for. Rows that arrive together stay in the order of the file. A file that is in
//! order is never sorted: it is looked through once, and read as it is ([`super::reader`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Seek, Write};
use std::vec;

use super::error::{Fault, TraceError};
use super::reading::Skipped;
use super::{MAX_SPAN, Request, Row, RowSource};

/// How much is sorted in memory at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) rows: usize,
    pub(super) bytes: usize,
    /// Most parts that are merged at once; each is a file.
    pub(super) parts: usize,
}

/// Some 128 MiB, of hashes above all.
pub(super) const ROOM: Room = Room { rows: 1 << 18, bytes: 128 << 20, parts: 64 };

/// Bytes of a row without what it points to.
const ROW_BYTES: usize = 256;

/// Rows of a source, in order.
pub(super) struct Sorted {
    source: Box<dyn RowSource>,
    late: u64,
    rows: Merged,
}

enum Merged {
    InMemory(vec::IntoIter<Row>),
    Parts(Merge),
}

impl Sorted {
    /// Reads a source to its end.
    pub(super) fn of(mut source: Box<dyn RowSource>, room: Room) -> Result<Sorted, TraceError> {
        let mut sorting = Sorting { room, rows: Vec::new(), bytes: 0, parts: Vec::new() };
        let (mut first_ns, mut latest_ns, mut late) = (None, i128::MIN, 0);
        while let Some(mut row) = source.next_row()? {
            late += u64::from(row.time_ns < latest_ns);
            latest_ns = latest_ns.max(row.time_ns);
            row.time_ns -= *first_ns.get_or_insert(row.time_ns);
            if row.time_ns.unsigned_abs() > u128::from(MAX_SPAN.0) * 1_000 {
                let value = (row.time_ns / 1_000).to_string();
                let field = "arrival, µs after the first row,";
                return Err(source.error(Fault::AboveLimit { field, value, limit: MAX_SPAN.0 }));
            }
            sorting.add(row).map_err(|error| source.error(sort_fault(&error)))?;
        }
        let rows = sorting.finish().map_err(|error| source.error(sort_fault(&error)))?;
        Ok(Sorted { source, late, rows })
    }
}

impl RowSource for Sorted {
    fn next_row(&mut self) -> Result<Option<Row>, TraceError> {
        match &mut self.rows {
            Merged::InMemory(rows) => Ok(rows.next()),
            Merged::Parts(merge) => merge.next().map_err(|error| self.error(sort_fault(&error))),
        }
    }

    fn error(&self, fault: Fault) -> TraceError {
        TraceError { line: None, ..self.source.error(fault) }
    }

    fn skipped(&self) -> Skipped {
        self.source.skipped()
    }

    fn clock(&self) -> Option<String> {
        self.source.clock()
    }

    fn late(&self) -> u64 {
        self.late
    }
}

fn sort_fault(error: &io::Error) -> Fault {
    Fault::Sort(error.to_string())
}

/// Rows that are being sorted.
struct Sorting {
    room: Room,
    rows: Vec<Row>,
    bytes: usize,
    /// Each in order, and all of its rows before those of the next one in the file.
    parts: Vec<File>,
}

impl Sorting {
    fn add(&mut self, row: Row) -> io::Result<()> {
        self.bytes += bytes(&row.request);
        self.rows.push(row);
        if self.rows.len() >= self.room.rows || self.bytes >= self.room.bytes {
            self.put_away()?;
        }
        Ok(())
    }

    /// Writes what is in memory to a file, in order.
    fn put_away(&mut self) -> io::Result<()> {
        let mut rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        rows.sort_by_key(|row| row.time_ns);
        self.parts.push(write(rows.into_iter().map(Ok))?);
        if self.parts.len() >= self.room.parts {
            let merge = Merge::of(std::mem::take(&mut self.parts))?;
            self.parts.push(write(merge)?);
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<Merged> {
        if self.parts.is_empty() {
            self.rows.sort_by_key(|row| row.time_ns);
            return Ok(Merged::InMemory(self.rows.into_iter()));
        }
        self.put_away()?;
        Merge::of(self.parts).map(Merged::Parts)
    }
}

/// Memory of a request, roughly.
fn bytes(request: &Request) -> usize {
    let names = [&request.session, &request.tenant, &request.slo_class, &request.cache_salt];
    ROW_BYTES + request.hash_ids.len() * 8 + names.iter().filter_map(|name| Some(name.as_ref()?.len())).sum::<usize>()
}

/// A row as it is put away: its time, which fits, and the rest.
type Stored = (i64, bool, Request);

fn write(rows: impl Iterator<Item = io::Result<Row>>) -> io::Result<File> {
    let mut file = BufWriter::new(tempfile::tempfile()?);
    for row in rows {
        let Row { time_ns, zero_output, request } = row?;
        serde_json::to_writer(&mut file, &(time_ns as i64, zero_output, request))?;
        file.write_all(b"\n")?;
    }
    let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

/// Parts that are read at once, the earliest row first.
struct Merge {
    parts: Vec<(BufReader<File>, Option<Row>)>,
    /// Time and part of the row that each part has next.
    next: BinaryHeap<Reverse<(i128, usize)>>,
    line: String,
}

impl Merge {
    fn of(files: Vec<File>) -> io::Result<Merge> {
        let parts = files.into_iter().map(|file| (BufReader::new(file), None)).collect();
        let mut merge = Merge { parts, next: BinaryHeap::new(), line: String::new() };
        for part in 0..merge.parts.len() {
            merge.read(part)?;
        }
        Ok(merge)
    }

    /// Reads the next row of a part.
    fn read(&mut self, part: usize) -> io::Result<()> {
        self.line.clear();
        let (reader, row) = &mut self.parts[part];
        if reader.read_line(&mut self.line)? == 0 {
            *row = None;
            return Ok(());
        }
        let (time_ns, zero_output, request): Stored = serde_json::from_str(&self.line)?;
        let time_ns = i128::from(time_ns);
        *row = Some(Row { time_ns, zero_output, request });
        self.next.push(Reverse((time_ns, part)));
        Ok(())
    }

    fn next(&mut self) -> io::Result<Option<Row>> {
        let Some(Reverse((_, part))) = self.next.pop() else { return Ok(None) };
        let row = self.parts[part].1.take();
        self.read(part)?;
        Ok(row)
    }
}

impl Iterator for Merge {
    type Item = io::Result<Row>;

    fn next(&mut self) -> Option<io::Result<Row>> {
        Merge::next(self).transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::time::Micros;

    struct Given(vec::IntoIter<Row>);

    impl RowSource for Given {
        fn next_row(&mut self) -> Result<Option<Row>, TraceError> {
            Ok(self.0.next())
        }

        fn error(&self, fault: Fault) -> TraceError {
            TraceError::of_file(Path::new("given"), fault)
        }
    }

    fn rows(times: &[i64]) -> Vec<Row> {
        let row = |(index, time): (usize, &i64)| {
            let mut request = Request::new(Micros::ZERO, index as u32 + 1, 1);
            request.session = (index % 3 == 0).then(|| "s\n\"é".to_owned());
            request.hash_ids = vec![index as u64; index % 5].into();
            Row { time_ns: i128::from(*time), zero_output: index % 2 == 0, request }
        };
        times.iter().enumerate().map(row).collect()
    }

    proptest! {
        #[test]
        fn what_is_put_away_comes_back_as_if_it_had_stayed(
            times in proptest::collection::vec(0_i64..50, 1..200), rows_at_once in 1_usize..40, parts in 2_usize..6,
        ) {
            let room = Room { rows: rows_at_once, bytes: 4_000, parts };
            let mut sorted = Sorted::of(Box::new(Given(rows(&times).into_iter())), room).unwrap();
            let mut expected = rows(&times);
            expected.sort_by_key(|row| row.time_ns);
            for row in &expected {
                let found = sorted.next_row().unwrap().unwrap();
                prop_assert_eq!(found.time_ns + i128::from(times[0]), row.time_ns);
                prop_assert_eq!((found.zero_output, &found.request), (row.zero_output, &row.request));
            }
            prop_assert!(sorted.next_row().unwrap().is_none());
            let late = (1..times.len()).filter(|at| times[..*at].iter().max() > Some(&times[*at])).count();
            prop_assert_eq!(sorted.late(), late as u64);
        }
    }
}
