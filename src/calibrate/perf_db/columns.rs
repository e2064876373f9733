//! Columns of a Parquet file, whole.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Once;

use bytes::Bytes;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::PerfDbError;

/// Most rows read.
const MAX_ROWS: usize = 10_000_000;

enum Column {
    /// Numbers of texts, and the texts: a column has few different ones.
    Text(Vec<u32>, Vec<String>),
    Whole(Vec<i64>),
    Real(Vec<f64>),
}

/// The columns of a file that were asked for.
pub(super) struct Columns {
    path: PathBuf,
    by_name: BTreeMap<String, Column>,
    pub(super) rows: usize,
}

impl Columns {
    /// Those of `wanted` that the file has.
    pub(super) fn read(path: &Path, bytes: Vec<u8>, wanted: &[&str]) -> Result<Columns, PerfDbError> {
        caught(|| Columns::parse(path, bytes, wanted)).unwrap_or_else(|| {
            Err(PerfDbError::new(path, "no Parquet file that can be read: its parts do not fit together"))
        })
    }

    fn parse(path: &Path, bytes: Vec<u8>, wanted: &[&str]) -> Result<Columns, PerfDbError> {
        let broken = |error: ParquetError| PerfDbError::new(path, format!("no Parquet file that can be read: {error}"));
        let reader = SerializedFileReader::new(Bytes::from(bytes)).map_err(broken)?;
        let metadata = reader.metadata();
        let rows = usize::try_from(metadata.file_metadata().num_rows()).unwrap_or(usize::MAX);
        if rows > MAX_ROWS {
            return Err(PerfDbError::new(path, format!("{rows} rows: at most {MAX_ROWS} are read")));
        }
        let schema = metadata.file_metadata().schema_descr_ptr();
        let mut columns = BTreeMap::new();
        for (index, column) in schema.columns().iter().enumerate() {
            let name = column.path().string();
            if !wanted.contains(&name.as_str()) {
                continue;
            }
            let mut whole = Empty::default();
            for group in 0..reader.num_row_groups() {
                let group = reader.get_row_group(group).map_err(broken)?;
                whole.take(group.get_column_reader(index).map_err(broken)?, rows).map_err(broken)?;
            }
            let column =
                whole.column(rows).map_err(|reason| PerfDbError::new(path, format!("column {name}: {reason}")))?;
            columns.insert(name, column);
        }
        Ok(Columns { path: path.to_owned(), by_name: columns, rows })
    }

    pub(super) fn error(&self, reason: impl Into<String>) -> PerfDbError {
        PerfDbError::new(&self.path, reason)
    }

    fn find(&self, name: &str) -> Result<&Column, PerfDbError> {
        self.by_name.get(name).ok_or_else(|| self.error(format!("column {name} is missing")))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// A column of texts.
    pub(super) fn text<'a>(&'a self, name: &str) -> Result<impl Fn(usize) -> &'a str + use<'a>, PerfDbError> {
        match self.find(name)? {
            Column::Text(rows, texts) => Ok(|row: usize| texts[rows[row] as usize].as_str()),
            _ => Err(self.error(format!("column {name}: expected texts"))),
        }
    }

    /// A column of sizes, each of which fits 32 bits.
    pub(super) fn sizes(&self, name: &str) -> Result<Vec<u32>, PerfDbError> {
        let Column::Whole(values) = self.find(name)? else {
            return Err(self.error(format!("column {name}: expected whole numbers")));
        };
        let size = |value: &i64| {
            let bad = || self.error(format!("column {name} has {value}: expected a size from 0 to 2147483647"));
            u32::try_from(*value).ok().filter(|size| i32::try_from(*size).is_ok()).ok_or_else(bad)
        };
        values.iter().map(size).collect()
    }

    /// The column `latency`, in microseconds; it is kept in milliseconds.
    pub(super) fn microseconds(&self) -> Result<Vec<f64>, PerfDbError> {
        let Column::Real(values) = self.find("latency")? else {
            return Err(self.error("column latency: expected numbers"));
        };
        match values.iter().find(|ms| !(1e-6..=1e6).contains(*ms)) {
            Some(ms) => Err(self.error(format!("column latency has {ms}: expected milliseconds, from 1e-6 to 1e6"))),
            None => Ok(values.iter().map(|ms| ms * 1000.0).collect()),
        }
    }
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// What `read` comes to; `None` where it panics, of which nothing is shown: the reader of Parquet takes a file whose footer
/// and pages contradict each other for a mistake of its own.
fn caught<T>(read: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                usual(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    let read = panic::catch_unwind(AssertUnwindSafe(read));
    IS_QUIET.set(false);
    read.ok()
}

/// A column as it is put together from its row groups.
#[derive(Default)]
struct Empty {
    texts: Vec<ByteArray>,
    wholes: Vec<i64>,
    reals: Vec<f64>,
    other: Option<&'static str>,
}

impl Empty {
    fn take(&mut self, reader: ColumnReader, rows: usize) -> Result<(), ParquetError> {
        match reader {
            ColumnReader::ByteArrayColumnReader(reader) => all(reader, &mut self.texts, rows),
            ColumnReader::Int64ColumnReader(reader) => all(reader, &mut self.wholes, rows),
            ColumnReader::Int32ColumnReader(reader) => {
                let mut narrow = Vec::new();
                all(reader, &mut narrow, rows)?;
                self.wholes.extend(narrow.into_iter().map(i64::from));
                Ok(())
            }
            ColumnReader::DoubleColumnReader(reader) => all(reader, &mut self.reals, rows),
            ColumnReader::FloatColumnReader(reader) => {
                let mut narrow = Vec::new();
                all(reader, &mut narrow, rows)?;
                self.reals.extend(narrow.into_iter().map(f64::from));
                Ok(())
            }
            _ => {
                self.other = Some("of a kind that is not read: texts, 32 and 64 bit numbers are");
                Ok(())
            }
        }
    }

    fn column(self, rows: usize) -> Result<Column, String> {
        if let Some(other) = self.other {
            return Err(other.to_owned());
        }
        let counts = [self.texts.len(), self.wholes.len(), self.reals.len()];
        if !counts.contains(&rows) {
            return Err(format!("{} of {rows} rows have a value", counts.iter().sum::<usize>()));
        }
        if counts[1] == rows {
            return Ok(Column::Whole(self.wholes));
        }
        if counts[2] == rows {
            return Ok(Column::Real(self.reals));
        }
        let mut numbers: BTreeMap<String, u32> = BTreeMap::new();
        let mut texts = Vec::new();
        let mut number = |text: &ByteArray| -> Result<u32, String> {
            let text = text.as_utf8().map_err(|error| error.to_string())?;
            Ok(*numbers.entry(text.to_owned()).or_insert_with(|| {
                texts.push(text.to_owned());
                texts.len() as u32 - 1
            }))
        };
        let rows: Result<Vec<u32>, String> = self.texts.iter().map(&mut number).collect();
        Ok(Column::Text(rows?, texts))
    }
}

/// The rest of a column's values; those that are null have none. No more than the file has rows and one lot: a page of a few bytes may
/// claim billions.
fn all<T: DataType>(mut reader: ColumnReaderImpl<T>, values: &mut Vec<T::T>, rows: usize) -> Result<(), ParquetError> {
    let (mut levels, mut repeats) = (Vec::new(), Vec::new());
    loop {
        let (records, _, _) = reader.read_records(1 << 16, Some(&mut levels), Some(&mut repeats), values)?;
        levels.clear();
        repeats.clear();
        if records == 0 || values.len() > rows {
            return Ok(());
        }
    }
}
