//! Numbered files of one name, of which there are never more than so many.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What names of recordings end in.
const SUFFIXES: [&str; 2] = [".jsonl.gz", ".jsonl"];

/// What stands after the number of a file's description.
const DESCRIPTION: &str = ".meta.json";

/// Numbers tried before one is free: somebody else may record to the same name.
const MAX_TRIES: u64 = 1_000;

/// Where rows go: `traffic.jsonl` is `traffic-00001.jsonl`, `traffic-00002.jsonl`, … Their numbers go on where those that are
/// there end, so that nothing is overwritten.
pub(super) struct Files {
    folder: PathBuf,
    /// What stands before the number, and after it.
    stem: String,
    suffix: String,
    /// A file ends once it has so many bytes.
    pub(super) file_bytes: u64,
    most: usize,
    next: u64,
}

/// A file that is being written.
pub(super) struct Numbered {
    pub(super) file: File,
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) bytes: u64,
}

impl Numbered {
    /// Whether it is nowhere any more: somebody has removed it.
    pub(super) fn is_gone(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() == 0)
    }

    /// Appends whole rows, or nothing: not what a full disk takes of them.
    pub(super) fn append(&mut self, rows: &[u8]) -> io::Result<()> {
        // By the file itself, which somebody may have emptied.
        let before = self.file.metadata()?.len();
        if let Err(error) = self.file.write_all(rows) {
            let _ = self.file.set_len(before);
            return Err(error);
        }
        self.bytes += rows.len() as u64;
        Ok(())
    }

    /// Nothing more is written to it, and it may be removed.
    pub(super) fn let_go(&self) {
        // Not by closing it: whoever was forked meanwhile has it open too.
        let _ = self.file.unlock();
    }
}

impl Files {
    pub(super) fn new(path: &Path, file_bytes: u64, most: usize) -> io::Result<Files> {
        // Whoever goes to another folder later does not take the recording along.
        let path = std::path::absolute(path)?;
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidFilename)?;
        let cut = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)).map_or(name.len(), str::len);
        let folder = path.parent().unwrap_or(Path::new("/"));
        let (stem, suffix) = (name[..cut].to_owned(), name[cut..].to_owned());
        let mut files = Files { folder: folder.to_owned(), stem, suffix, file_bytes, most: most.max(1), next: 1 };
        // A description may be that of a file of the other suffix, or of one that was taken away.
        let last = files.numbers(&files.suffix)?.last().copied().max(files.numbers(DESCRIPTION)?.last().copied());
        files.next = last.map_or(1, |last| last.saturating_add(1));
        Ok(files)
    }

    /// Whether rows are compressed: by the name.
    pub(super) fn are_compressed(&self) -> bool {
        Path::new(&self.suffix).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
    }

    /// The next file; the oldest are removed for it.
    pub(super) fn open_next(&mut self) -> io::Result<Numbered> {
        for _ in 0..MAX_TRIES {
            let (number, name) = (self.next, self.name(self.next));
            self.next = self.next.saturating_add(1);
            // What a node was asked is for its owner.
            let opened = OpenOptions::new().append(true).create_new(true).mode(0o600).open(self.folder.join(&name));
            match opened {
                Ok(file) => {
                    // Where files cannot be locked, as on some network's, whoever else records here may remove it.
                    let _ = file.try_lock();
                    self.remove_oldest()?;
                    return Ok(Numbered { file, name, number, bytes: 0 });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} and {MAX_TRIES} before it", self.name(self.next))))
    }

    /// What is known of a file, beside it: counts, and none of its rows.
    pub(super) fn describe(&self, number: u64, text: &str) -> io::Result<()> {
        let path = self.folder.join(self.description(number));
        let mut beside = OsString::from(&path);
        beside.push(".tmp");
        fs::write(&beside, text)?;
        fs::rename(&beside, &path)
    }

    /// Removes what was said of a file.
    pub(super) fn remove_description(&self, number: u64) -> io::Result<()> {
        remove(&self.folder.join(self.description(number)))
    }

    fn name(&self, number: u64) -> String {
        format!("{}-{number:05}{}", self.stem, self.suffix)
    }

    fn description(&self, number: u64) -> String {
        format!("{}-{number:05}{DESCRIPTION}", self.stem)
    }

    /// Numbers of the files with this suffix that are there, rising.
    fn numbers(&self, suffix: &str) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_prefix(&self.stem)?.strip_prefix('-')?.strip_suffix(suffix))
                .filter(|number| number.len() >= 5 && number.bytes().all(|byte| byte.is_ascii_digit()));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let numbers = self.numbers(&self.suffix)?;
        for number in &numbers[..numbers.len().saturating_sub(self.most)] {
            if is_being_written(&self.folder.join(self.name(*number))) {
                continue;
            }
            remove(&self.folder.join(self.name(*number)))?;
            self.remove_description(*number)?;
        }
        Ok(())
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether a process that lives has it locked: two may record under one name.
fn is_being_written(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}
