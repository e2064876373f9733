//! Numbered files of one name, of which there are never more than so many.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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

impl Files {
    pub(super) fn new(path: &Path, file_bytes: u64, most: usize) -> io::Result<Files> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidFilename)?;
        let cut = name.find('.').filter(|cut| *cut > 0).unwrap_or(name.len());
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (stem, suffix) = (name[..cut].to_owned(), name[cut..].to_owned());
        let mut files = Files { folder: folder.to_owned(), stem, suffix, file_bytes, most: most.max(1), next: 1 };
        files.next = files.numbers()?.last().map_or(1, |last| last + 1);
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
            self.next += 1;
            // What a node was asked is for its owner.
            let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.folder.join(&name));
            match opened {
                Ok(file) => {
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

    fn name(&self, number: u64) -> String {
        format!("{}-{number:05}{}", self.stem, self.suffix)
    }

    fn description(&self, number: u64) -> String {
        format!("{}-{number:05}.meta.json", self.stem)
    }

    /// Numbers of the files that are there, rising.
    fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_prefix(&self.stem)?.strip_prefix('-')?.strip_suffix(&self.suffix))
                .filter(|number| number.len() >= 5 && number.bytes().all(|byte| byte.is_ascii_digit()));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let numbers = self.numbers()?;
        for number in &numbers[..numbers.len().saturating_sub(self.most)] {
            for name in [self.name(*number), self.description(*number)] {
                match fs::remove_file(self.folder.join(name)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
