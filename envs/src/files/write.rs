//! Files that are whole or not there.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

/// A file that is being written beside its place, and takes it when it is finished. Dropped before, it leaves nothing.
#[derive(Debug)]
pub struct NewFile {
    beside: NamedTempFile,
    path: PathBuf,
}

impl NewFile {
    /// A file for `path`, under a hidden name of its own in the same folder.
    ///
    /// # Errors
    /// The folder does not exist or cannot be written to.
    pub fn create(path: &Path) -> io::Result<NewFile> {
        let mut prefix = OsString::from(".");
        prefix.push(path.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
        prefix.push(".");
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Opened by ourselves: with the permissions of any other file, and errors that do not name the file beside.
        let open = |beside: &Path| OpenOptions::new().write(true).create_new(true).open(beside);
        let beside = Builder::new().prefix(&prefix).suffix(".tmp").make_in(folder, open)?;
        Ok(NewFile { beside, path: path.to_owned() })
    }

    /// Puts the file in its place, in one step: whoever looks sees the old file or the new one, after a power cut as well.
    ///
    /// # Errors
    /// It cannot be synced, or the place is a folder; what was there stays.
    pub fn finish(self) -> io::Result<()> {
        self.beside.as_file().sync_all()?;
        self.beside.persist(&self.path).map(drop).map_err(|error| error.error)
    }

    fn file(&mut self) -> &mut File {
        self.beside.as_file_mut()
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

/// Makes `path` a file of exactly `bytes`, as [`NewFile`] does.
///
/// # Errors
/// Those of [`NewFile`], and of writing: `path` is then as it was. They do not name it: the caller's error does.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = NewFile::create(path)?;
    file.write_all(bytes)?;
    file.finish()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::tempdir;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_is_the_old_one_until_it_is_the_new_one() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("a");
        replace(&path, b"old").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"old".to_vec(), 2));
        file.finish().unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"new".to_vec(), vec!["a".to_owned()]));
    }

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let folder = tempdir().unwrap();
        drop(NewFile::create(&folder.path().join("a")).unwrap());
        fs::create_dir(folder.path().join("b")).unwrap();
        assert!(replace(&folder.path().join("b"), b"not a folder").is_err());
        assert_eq!(names(folder.path()), ["b"]);
        assert!(replace(Path::new("/"), b"").is_err());
    }

    #[test]
    fn errors_are_those_of_the_system() {
        let folder = tempdir().unwrap();
        let error = replace(&folder.path().join("no/such"), b"").unwrap_err();
        assert_eq!((error.kind(), error.to_string().contains("tmp")), (io::ErrorKind::NotFound, false), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_those_of_any_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempdir().unwrap();
        let (ours, any) = (folder.path().join("ours"), folder.path().join("any"));
        replace(&ours, b"").unwrap();
        fs::write(&any, b"").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&any));
    }
}
