//! One writer at a time.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process;

use thiserror::Error;

/// Why a place cannot be written to now.
#[derive(Debug, Error)]
pub enum LockError {
    /// Somebody else is writing there.
    #[error("{} is being written by {holder}: wait for it, or write to another place", place.display())]
    Held {
        /// What is locked.
        place: PathBuf,
        /// Who has it, for people.
        holder: String,
    },
    /// Nothing can be written there.
    #[error("cannot write {}: {source}", place.display())]
    Io {
        /// What was to be locked.
        place: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// The right to write to a file or into a folder, until it is dropped. The system itself takes it back from a process that died,
/// however it died, so that no lock is ever stale; the file it stands in says who has it, for people, and goes with it.
///
/// The lock is advisory, and as good as the file system's: processes on several machines see each other's over NFS only where the
/// server keeps locks. Where there are none at all, everybody gets one.
#[derive(Debug)]
pub struct Lock {
    /// Held open: closed, it is given back.
    _file: File,
    path: PathBuf,
    /// A folder that was made to hold it, and goes with it if nothing else has come into it.
    made: Option<PathBuf>,
}

impl Lock {
    /// For the file at `path`, by a hidden file beside it.
    ///
    /// # Errors
    /// [`LockError`]
    pub fn of_file(path: &Path) -> Result<Lock, LockError> {
        let failed = |source| LockError::Io { place: path.to_owned(), source };
        let target = resolved(path).map_err(failed)?;
        let mut name = OsString::from(".");
        name.push(target.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?);
        name.push(".lock");
        Lock::hold(path, target.with_file_name(name), None)
    }

    /// For everything in the folder at `path`, which is made if it is not there, by a hidden file in it.
    ///
    /// # Errors
    /// [`LockError`]
    pub fn of_folder(path: &Path) -> Result<Lock, LockError> {
        let is_new = !path.exists();
        fs::create_dir_all(path).map_err(|source| LockError::Io { place: path.to_owned(), source })?;
        Lock::hold(path, path.join(".lock"), is_new.then(|| path.to_owned()))
    }

    fn hold(place: &Path, path: PathBuf, made: Option<PathBuf>) -> Result<Lock, LockError> {
        let failed = |source| LockError::Io { place: place.to_owned(), source };
        loop {
            let mut file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    return Err(LockError::Held { place: place.to_owned(), holder: holder(&mut file) });
                }
                Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => {
                    return Err(failed(error));
                }
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            // Whoever had it may have taken its file away between opening and locking: then this is a lock on nothing.
            if is_at(&file, &path) {
                let named = file.set_len(0).and_then(|()| writeln!(file, "process {} on {}", process::id(), machine()));
                named.map_err(failed)?;
                return Ok(Lock { _file: file, path, made });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        if let Some(folder) = &self.made {
            // Not if anything is in it.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Where `path` leads, links followed, whether there is something yet or not.
///
/// # Errors
/// Its folder does not exist.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    if path.exists() {
        return path.canonicalize();
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(folder.canonicalize()?.join(name))
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().map(id).ok().is_some_and(|file| fs::metadata(path).map(id).is_ok_and(|path| path == file))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // It says so a moment after it has it.
    let _ = file.take(256).read_to_string(&mut text);
    match text.trim() {
        "" => "another process".to_owned(),
        holder => holder.to_owned(),
    }
}

fn machine() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "this machine".to_owned() } else { name.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;

    #[test]
    fn the_second_is_told_who_has_it() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let first = Lock::of_file(&path).unwrap();
        let said = Lock::of_file(&folder.path().join("../").join(folder.path().file_name().unwrap()).join("a.jsonl"));
        let said = said.unwrap_err().to_string();
        assert!(said.contains("a.jsonl") && said.contains(&format!("process {} on ", process::id())), "{said}");
        assert!(Lock::of_file(&folder.path().join("b.jsonl")).is_ok());
        drop(first);
        drop(Lock::of_file(&path).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn what_a_dead_process_left_is_no_lock() {
        let folder = tempdir().unwrap();
        fs::write(folder.path().join(".lock"), "process 1 on another machine\nand more").unwrap();
        let lock = Lock::of_folder(folder.path()).unwrap();
        assert!(
            fs::read_to_string(folder.path().join(".lock")).unwrap().starts_with(&format!("process {}", process::id()))
        );
        drop(lock);
        assert!(folder.path().exists());
    }

    #[test]
    fn a_folder_goes_with_its_lock_if_nothing_came_of_it() {
        let folder = tempdir().unwrap();
        let (empty, full) = (folder.path().join("deep/empty"), folder.path().join("full"));
        drop(Lock::of_folder(&empty).unwrap());
        let lock = Lock::of_folder(&full).unwrap();
        fs::write(full.join("a"), "").unwrap();
        drop(lock);
        assert!(!empty.exists() && full.join("a").exists());
    }
}
