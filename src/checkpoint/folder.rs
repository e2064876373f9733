//! A folder replaced as a whole: written beside, synced, renamed.
//!
//! `NAME.new.tmp` is written; `NAME` becomes `NAME.old.tmp`; `NAME.new.tmp` becomes `NAME`; `NAME.old.tmp` is deleted. A
//! folder cannot replace another in one rename, so there is a moment without `NAME`; both of its neighbours are whole
//! then, and [`find`] takes the newer.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::{CheckpointError, FileContents};

/// Where the newest whole folder meant by `path` is.
pub(super) fn find(path: &Path, is_whole: impl Fn(&Path) -> bool) -> Result<PathBuf, CheckpointError> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    let (new, old) = neighbours(path)?;
    let left = [new, old].into_iter().find(|beside| is_whole(beside));
    left.ok_or_else(|| CheckpointError::NotFound { path: path.to_owned() })
}

/// Makes `path` a folder of exactly `contents`.
pub(super) fn replace(
    path: &Path,
    contents: &FileContents,
    is_whole: impl Fn(&Path) -> bool,
) -> Result<(), CheckpointError> {
    let (new, old) = neighbours(path)?;
    // What an interrupted replacement left is put in place before anything is deleted.
    match find(path, is_whole) {
        Ok(found) if found != path => at(path, fs::rename(&found, path))?,
        _ => {}
    }
    for stale in [&new, &old] {
        if stale.exists() {
            at(stale, fs::remove_dir_all(stale))?;
        }
    }

    at(&new, fs::create_dir_all(&new))?;
    for (name, bytes) in contents {
        let file = new.join(name);
        at(&file, write(&file, bytes))?;
    }
    at(&new, sync(&new))?;
    if path.exists() {
        at(path, fs::rename(path, &old))?;
    }
    at(path, fs::rename(&new, path))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    at(parent, sync(parent))?;
    if old.exists() {
        at(&old, fs::remove_dir_all(&old))?;
    }
    Ok(())
}

/// A file's bytes, if they are at most `limit`.
pub(super) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, CheckpointError> {
    let failed = |source| CheckpointError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    if bytes > limit {
        return Err(CheckpointError::TooLarge { path: path.to_owned(), bytes, limit });
    }
    let mut contents = Vec::with_capacity(bytes as usize);
    file.take(limit).read_to_end(&mut contents).map_err(failed)?;
    Ok(contents)
}

fn neighbours(path: &Path) -> Result<(PathBuf, PathBuf), CheckpointError> {
    let Some(name) = path.file_name() else {
        return Err(CheckpointError::NotFound { path: path.to_owned() });
    };
    let beside = |suffix: &str| {
        let mut name = name.to_owned();
        name.push(suffix);
        path.with_file_name(name)
    };
    Ok((beside(".new.tmp"), beside(".old.tmp")))
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes a folder's entries survive a power cut.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn at(path: &Path, result: io::Result<()>) -> Result<(), CheckpointError> {
    result.map_err(|source| CheckpointError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_whole(folder: &Path) -> bool {
        folder.join("a").exists()
    }

    fn contents(name: &str) -> FileContents {
        FileContents::from([(name.to_owned(), b"bytes".to_vec())])
    }

    #[test]
    fn what_an_interruption_left_outlives_a_save_that_fails() {
        for left in ["run.new.tmp", "run.old.tmp"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("run");
            replace(&path, &contents("a"), is_whole).unwrap();
            fs::rename(&path, folder.path().join(left)).unwrap();
            // No file can have such a name, so writing stops half way.
            let error = replace(&path, &contents("no/such/folder"), is_whole).unwrap_err();
            assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
            assert!(is_whole(&find(&path, is_whole).unwrap()), "{left}");
        }
    }

    #[test]
    fn what_is_replaced_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        replace(&path, &contents("a"), is_whole).unwrap();
        replace(&path, &contents("b"), is_whole).unwrap();
        assert!(!path.join("a").exists() && path.join("b").exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_path_without_a_name_is_no_checkpoint() {
        assert!(matches!(find(Path::new("no-such-folder/.."), is_whole), Err(CheckpointError::NotFound { .. })));
    }
}
