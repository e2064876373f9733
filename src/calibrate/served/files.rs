//! The three files of a measured run, out of a folder or an archive.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use kvtide_envs::files::Unpacked;
use tar::Archive;

use super::error::{MeasuredError, MeasuredFault};

/// Largest file read, bytes: two million requests.
const MAX_FILE_BYTES: u64 = 1 << 29;
/// Most entries of an archive looked at.
const MAX_ENTRIES: usize = 10_000;
/// Most subfolders looked into.
const MAX_FOLDERS: usize = 1000;

/// A file as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::calibrate) struct TextFile {
    /// Its path; within an archive `archive: path`.
    pub(in crate::calibrate) name: String,
    pub(in crate::calibrate) text: String,
}

impl TextFile {
    /// Reads a file, plain, gzip or zstd.
    pub(in crate::calibrate) fn read(path: &Path) -> Result<TextFile, MeasuredError> {
        let wrong = |error: io::Error| MeasuredError::file(path.display(), MeasuredFault::Open(error.to_string()));
        text(path.display().to_string(), Unpacked::open(path).map_err(wrong)?.reader)
    }
}

/// What a server recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) requests: TextFile,
    pub(super) series: TextFile,
    pub(super) meta: TextFile,
}

const NAMES: [&str; 3] = ["requests.jsonl", "timeseries.csv", "meta.json"];

impl Files {
    /// Reads the files of `path`: a folder that holds them, itself or in one subfolder, or a tar archive of such a
    /// folder, plain, gzip or zstd.
    pub(super) fn read(path: &Path) -> Result<Files, MeasuredError> {
        let wrong = |fault| MeasuredError::file(path.display(), fault);
        let metadata = path.metadata().map_err(|error| wrong(MeasuredFault::Open(error.to_string())))?;
        let found = if metadata.is_dir() { folder(path)? } else { archive(path)? };
        let mut files =
            found.into_iter().zip(NAMES).map(|(file, name)| file.ok_or_else(|| wrong(MeasuredFault::Missing(name))));
        let mut next = || files.next().expect("there are three");
        Ok(Files { requests: next()?, series: next()?, meta: next()? })
    }
}

type FoundFiles = [Option<TextFile>; 3];

fn folder(path: &Path) -> Result<FoundFiles, MeasuredError> {
    let holds = |folder: &Path| NAMES.iter().any(|name| folder.join(name).is_file());
    let home = if holds(path) {
        path.to_owned()
    } else {
        let read = |error: io::Error| MeasuredError::file(path.display(), MeasuredFault::Read(error.to_string()));
        let entries = path.read_dir().map_err(read)?.take(MAX_FOLDERS);
        let entries: Vec<PathBuf> = entries.map(|entry| Ok(entry.map_err(read)?.path())).collect::<Result<_, _>>()?;
        let mut homes = entries.into_iter().filter(|entry| holds(entry));
        let home = homes.next().ok_or_else(|| MeasuredError::file(path.display(), MeasuredFault::Missing(NAMES[0])))?;
        if homes.next().is_some() {
            return Err(MeasuredError::file(path.display(), MeasuredFault::SeveralRuns));
        }
        home
    };
    let mut found = FoundFiles::default();
    for (file, name) in found.iter_mut().zip(NAMES) {
        let path = home.join(name);
        if path.is_file() {
            let open = |error: io::Error| MeasuredError::file(path.display(), MeasuredFault::Open(error.to_string()));
            *file = Some(text(path.display().to_string(), File::open(&path).map_err(open)?)?);
        }
    }
    Ok(found)
}

fn archive(path: &Path) -> Result<FoundFiles, MeasuredError> {
    let wrong = |fault| MeasuredError::file(path.display(), fault);
    let broken = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => wrong(MeasuredFault::EndsEarly),
        // It quotes what it took for a header.
        _ => wrong(MeasuredFault::Archive(error.to_string().chars().take(80).flat_map(char::escape_debug).collect())),
    };
    let unpacked = Unpacked::open(path).map_err(|error| wrong(MeasuredFault::Open(error.to_string())))?;
    let mut archive = Archive::new(unpacked.reader);
    let mut found = FoundFiles::default();
    for entry in archive.entries().map_err(broken)?.take(MAX_ENTRIES) {
        let entry = entry.map_err(broken)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let inner = entry.path().map_err(broken)?.into_owned();
        let Some(index) = NAMES.iter().position(|name| inner.file_name().is_some_and(|file| file == *name)) else {
            continue;
        };
        if found[index].is_some() {
            return Err(wrong(MeasuredFault::SeveralRuns));
        }
        let size = entry.size();
        let file = text(format!("{}: {}", path.display(), inner.display()), entry)?;
        if (file.text.len() as u64) < size {
            return Err(wrong(MeasuredFault::CutOff(NAMES[index])));
        }
        found[index] = Some(file);
    }
    Ok(found)
}

fn text(name: String, reader: impl Read) -> Result<TextFile, MeasuredError> {
    let mut bytes = Vec::new();
    let read = reader.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => MeasuredError::file(&name, MeasuredFault::EndsEarly),
        _ => MeasuredError::file(&name, MeasuredFault::Read(error.to_string())),
    })?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(MeasuredError::file(&name, MeasuredFault::TooLong(MAX_FILE_BYTES)));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(TextFile { name, text }),
        Err(error) => {
            let valid = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
            let line = valid.matches('\n').count() + 1;
            Err(MeasuredError::line(&name, line, MeasuredFault::NotText))
        }
    }
}
