//! Runs kept in a file as they finish, and gone on from.
//!
//! A file of JSON Lines, each `{"type": …, "data": …}` as on stdout, in an order that depends on neither threads nor interruptions:
//!
//! | line | says |
//! |---|---|
//! | `evaluation` | what is evaluated, by name, and how loads were found |
//! | `load`, `run`, `comparison`, `clock_gain` | what `--json` writes to stdout |
//! | `tried` | what hindsight saw of a constant on one draw |
//! | `capacity` | the load that a bisection found for a policy |
//! | `finished` | that this is all |
//!
//! Each is written in one piece: whatever ends the process, at most the last is torn, and that one is dropped when the evaluation
//! goes on.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use kvtide_runtime::Controls;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::capacity::Bound;
use super::clock::ClockGain;
use super::compare::Comparison;
use super::knee::FoundLoad;
use super::row::{RunRow, Tried, TriedRow};
use crate::policy::{PolicyName, PolicySpec};
use crate::record::Envelope;

/// Why runs cannot be kept, or not be gone on from.
#[derive(Debug, Error)]
pub enum KeptError {
    /// The file cannot be read or written.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// `read` or `write`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A line that is none of an evaluation's.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Its runs are of something else.
    #[error("{}: its runs are of {key} {there}, and asked for is {here}; take another --out", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs.
        key: String,
        /// In the file.
        there: String,
        /// Here.
        here: String,
    },
    /// It would be begun anew, and what it holds lost.
    #[error(
        "{}: holds an evaluation that was not finished; go on with --resume, take another --out, or remove it",
        path.display()
    )]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
}

/// The first line: what the others are of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Header {
    /// By name, whatever a run depends on.
    of: BTreeMap<String, String>,
    /// How loads were found that were not named.
    found: Vec<FoundLoad>,
}

/// The capacity of a policy, found by bisection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CapacityRow {
    policy: PolicyName,
    load: f64,
    bound: Bound,
}

/// The last line.
#[derive(Debug, Serialize)]
struct End {
    runs: usize,
}

/// A draw of the traffic by its seed, and that of the clock.
type DrawnBy = (u64, Option<u32>);

/// A policy or constant as text, the window, the bits of the load, the draws.
type Key = (String, String, u64, DrawnBy);

/// What is done of an evaluation.
#[derive(Debug, Default)]
pub struct Kept {
    runs: BTreeMap<Key, RunRow>,
    tried: BTreeMap<Key, Tried>,
    capacities: Vec<CapacityRow>,
    /// Lines that only repeat what others say.
    loads: usize,
    comparisons: usize,
    clock_gains: usize,
    found: Option<Vec<FoundLoad>>,
    is_finished: bool,
}

impl Kept {
    /// How many runs there are.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// The loads that were found; `None` if nothing is kept.
    pub fn found(&self) -> Option<&[FoundLoad]> {
        self.found.as_deref()
    }

    pub(super) fn run(&self, policy: &PolicyName, window: &str, load: f64, by: DrawnBy) -> Option<&RunRow> {
        self.runs.get(&key(policy.to_string(), window, load, by))
    }

    pub(super) fn tried(&self, controls: &Controls, window: &str, load: f64, by: DrawnBy) -> Option<Tried> {
        self.tried.get(&key(PolicySpec::Fixed(*controls).to_string(), window, load, by)).copied()
    }

    /// The constant that was chosen under a policy's name, in the first of its runs.
    pub fn choice(&self, policy: &PolicyName) -> Option<Controls> {
        self.runs.values().find(|row| row.policy == *policy)?.chosen.as_ref()?.constant()
    }

    /// The capacity found of a policy.
    pub(super) fn capacity(&self, policy: &PolicyName) -> Option<(f64, Bound)> {
        self.capacities.iter().find(|row| row.policy == *policy).map(|row| (row.load, row.bound))
    }

    /// Takes in a line after the first.
    fn take(&mut self, kind: &str, data: Value) -> Result<(), String> {
        match kind {
            "run" => {
                let row: RunRow = parse(data)?;
                let key = key(row.policy.to_string(), &row.window, row.load, (row.seed, row.clock_draw));
                self.runs.insert(key, row);
            }
            "tried" => {
                let row: TriedRow = parse(data)?;
                let key = key(row.constant.to_string(), &row.window, row.load, (row.seed, row.clock_draw));
                self.tried.insert(key, row.tried);
            }
            "load" => self.loads += 1,
            "comparison" => self.comparisons += 1,
            "clock_gain" => self.clock_gains += 1,
            "capacity" => self.capacities.push(parse(data)?),
            "finished" => self.is_finished = true,
            other => return Err(format!("{other:?} is no line of an evaluation")),
        }
        Ok(())
    }
}

fn key(text: String, window: &str, load: f64, by: DrawnBy) -> Key {
    (text, window.to_owned(), load.to_bits(), by)
}

fn parse<T: DeserializeOwned>(data: Value) -> Result<T, String> {
    serde_json::from_value(data).map_err(|error| error.to_string())
}

/// The file runs are kept in.
#[derive(Debug)]
pub struct RunFile {
    file: File,
    path: PathBuf,
    of: BTreeMap<String, String>,
    is_begun: bool,
}

impl RunFile {
    /// A file for the runs of an evaluation of `of`. What is there is replaced when the first line is written, unless it is an
    /// evaluation that was not finished.
    ///
    /// # Errors
    /// [`KeptError`]
    pub fn create(path: &Path, of: BTreeMap<String, String>) -> Result<RunFile, KeptError> {
        if path.is_file() && matches!(read(path), Ok((kept, _, _)) if kept.found.is_some() && !kept.is_finished) {
            return Err(KeptError::Unfinished { path: path.to_owned() });
        }
        let file = File::options().create(true).append(true).open(path);
        let file = file.map_err(|source| KeptError::Io { doing: "write", path: path.to_owned(), source })?;
        Ok(RunFile { file, path: path.to_owned(), of, is_begun: false })
    }

    /// The same file again, with what it holds; nothing if it is not there yet.
    ///
    /// # Errors
    /// [`KeptError`], [`KeptError::Other`] if it is of anything but `of`.
    pub fn resume(path: &Path, of: BTreeMap<String, String>) -> Result<(RunFile, Kept), KeptError> {
        if !path.is_file() {
            return Ok((RunFile::create(path, of)?, Kept::default()));
        }
        let (kept, there, whole) = read(path)?;
        if kept.found.is_some() {
            let keys = of.keys().chain(there.keys().filter(|key| !of.contains_key(*key)));
            for key in keys {
                let said = |map: &BTreeMap<String, String>| map.get(key).cloned().unwrap_or_else(|| "none".to_owned());
                if said(&there) != said(&of) {
                    let (path, key) = (path.to_owned(), key.clone());
                    return Err(KeptError::Other { path, there: said(&there), here: said(&of), key });
                }
            }
        }
        let open = || {
            let file = File::options().append(true).open(path)?;
            // A line that was cut off.
            file.set_len(whole)?;
            Ok(file)
        };
        let file = open().map_err(|source| KeptError::Io { doing: "write", path: path.to_owned(), source })?;
        let is_begun = kept.found.is_some();
        Ok((RunFile { file, path: path.to_owned(), of, is_begun }, kept))
    }

    /// Writes the first lines, as far as they are not `kept`.
    ///
    /// # Errors
    /// [`KeptError::Io`]
    pub fn begin(&mut self, kept: &Kept, found: &[FoundLoad]) -> Result<(), KeptError> {
        if !self.is_begun {
            // Not of a pipe or a device, which have no length.
            if self.path.is_file() {
                let cut = self.file.set_len(0);
                cut.map_err(|source| KeptError::Io { doing: "write", path: self.path.clone(), source })?;
            }
            self.is_begun = true;
            let header = Header { of: self.of.clone(), found: found.to_vec() };
            self.line("evaluation", &header)?;
        }
        found.iter().skip(kept.loads).try_for_each(|found| self.line("load", found))
    }

    /// A run that is finished.
    ///
    /// # Errors
    /// [`KeptError::Io`]
    pub fn run(&mut self, row: &RunRow) -> Result<(), KeptError> {
        self.line("run", row)
    }

    /// A constant that was looked at.
    ///
    /// # Errors
    /// [`KeptError::Io`]
    pub fn tried(&mut self, row: &TriedRow) -> Result<(), KeptError> {
        self.line("tried", row)
    }

    /// The capacity of a policy that was looked for.
    ///
    /// # Errors
    /// [`KeptError::Io`]
    pub(super) fn capacity(&mut self, policy: &PolicyName, load: f64, bound: Bound) -> Result<(), KeptError> {
        self.line("capacity", &CapacityRow { policy: policy.clone(), load, bound })
    }

    /// Says what comes of all `runs`, and that these are all, as far as the file does not say so already.
    ///
    /// # Errors
    /// [`KeptError::Io`]
    pub fn finish(
        &mut self,
        kept: &Kept,
        runs: usize,
        comparisons: &[Comparison],
        gains: &[ClockGain],
    ) -> Result<(), KeptError> {
        if kept.is_finished {
            return Ok(());
        }
        comparisons.iter().skip(kept.comparisons).try_for_each(|comparison| self.line("comparison", comparison))?;
        gains.iter().skip(kept.clock_gains).try_for_each(|gain| self.line("clock_gain", gain))?;
        self.line("finished", &End { runs })
    }

    fn line<T: Serialize>(&mut self, kind: &str, data: &T) -> Result<(), KeptError> {
        let mut write = || {
            let mut line = serde_json::to_vec(&Envelope { r#type: kind, data })?;
            line.push(b'\n');
            self.file.write_all(&line)
        };
        write().map_err(|source| KeptError::Io { doing: "write", path: self.path.clone(), source })
    }
}

/// What a file holds, what it is of, and how many of its bytes are whole lines.
fn read(path: &Path) -> Result<(Kept, BTreeMap<String, String>, u64), KeptError> {
    let failed = |source| KeptError::Io { doing: "read", path: path.to_owned(), source };
    let mut reader = BufReader::new(File::open(path).map_err(failed)?);
    let (mut kept, mut of, mut whole, mut bytes) = (Kept::default(), BTreeMap::new(), 0, Vec::new());
    for line in 1.. {
        bytes.clear();
        reader.read_until(b'\n', &mut bytes).map_err(failed)?;
        if bytes.last() != Some(&b'\n') {
            break;
        }
        whole += bytes.len() as u64;
        let taken = take(&mut kept, &mut of, &bytes, line == 1);
        taken.map_err(|reason| KeptError::Line { path: path.to_owned(), line, reason })?;
    }
    Ok((kept, of, whole))
}

fn take(kept: &mut Kept, of: &mut BTreeMap<String, String>, line: &[u8], is_first: bool) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Read {
        r#type: String,
        data: Value,
    }
    let read: Result<Read, String> = serde_json::from_slice(line).map_err(|error| error.to_string());
    if !is_first {
        let Read { r#type, data } = read?;
        return kept.take(&r#type, data);
    }
    let header = read.and_then(|Read { r#type, data }| match r#type.as_str() {
        "evaluation" => parse::<Header>(data),
        other => Err(format!("a line of type {other:?}")),
    });
    let Header { of: there, found } = header.map_err(|reason| format!("not the runs of an evaluation: {reason}"))?;
    *of = there;
    kept.found = Some(found);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::tempdir;

    use super::*;

    fn of(slo: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("slo".to_owned(), slo.to_owned()), ("trace".to_owned(), "t".to_owned())])
    }

    #[test]
    fn a_torn_line_is_dropped_and_the_file_goes_on_as_if_it_had_not_been() {
        let folder = tempdir().unwrap();
        let (whole, torn) = (folder.path().join("whole"), folder.path().join("torn"));
        let found = FoundLoad { target: 0.8, load: Some(1.0), attained: None, offered_rps: None };
        let rows = [RunRow::sample("default", 1.0, 1, 0.5), RunRow::sample("default", 1.0, 2, 0.25)];
        for path in [&whole, &torn] {
            let mut file = RunFile::create(path, of("a")).unwrap();
            file.begin(&Kept::default(), &[found]).unwrap();
            for row in &rows {
                file.run(row).unwrap();
            }
        }
        let bytes = fs::read(&whole).unwrap();
        for length in 0..bytes.len() {
            fs::write(&torn, &bytes[..length]).unwrap();
            let (mut file, kept) = RunFile::resume(&torn, of("a")).unwrap();
            file.begin(&kept, &[found]).unwrap();
            for row in
                rows.iter().filter(|row| kept.run(&row.policy, &row.window, row.load, (row.seed, None)).is_none())
            {
                file.run(row).unwrap();
            }
            assert!(fs::read(&torn).unwrap() == bytes, "cut at {length}");
        }
    }

    #[test]
    fn runs_of_something_else_are_refused_by_what_differs() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        RunFile::create(&path, of("a")).unwrap().begin(&Kept::default(), &[]).unwrap();
        let error = RunFile::resume(&path, of("b")).unwrap_err().to_string();
        assert!(error.ends_with("a.jsonl: its runs are of slo a, and asked for is b; take another --out"), "{error}");
        let error = RunFile::create(&path, of("a")).unwrap_err().to_string();
        assert!(error.contains("--resume"), "{error}");
        fs::write(&path, "{\"policy\":\"default\"}\n").unwrap();
        let error = RunFile::resume(&path, of("a")).unwrap_err().to_string();
        assert!(error.contains("a.jsonl:1: not the runs of an evaluation"), "{error}");
        // Of something else altogether: begun anew, as ever.
        RunFile::create(&path, of("a")).unwrap().begin(&Kept::default(), &[]).unwrap();
        assert!(fs::read_to_string(&path).unwrap().starts_with("{\"type\":\"evaluation\""));
    }

    #[test]
    fn what_is_finished_can_be_done_again() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let mut file = RunFile::create(&path, of("a")).unwrap();
        file.begin(&Kept::default(), &[]).unwrap();
        file.finish(&Kept::default(), 0, &[], &[]).unwrap();
        let (mut again, kept) = RunFile::resume(&path, of("a")).unwrap();
        let before = fs::read(&path).unwrap();
        again.finish(&kept, 0, &[], &[]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), before);
        RunFile::create(&path, of("b")).unwrap().begin(&Kept::default(), &[]).unwrap();
    }
}
