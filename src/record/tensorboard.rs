//! TensorBoard event files.
//!
//! tensorboard-rs writes from a thread of its own and panics where it should return an error; its file name has a
//! resolution of one second and an existing file is truncated. All of that ends here: the folder is tried first, the
//! second is waited for, and a panic that is left becomes an `io::Error`.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tensorboard_rs::summary_writer::SummaryWriter;

/// A writer of scalars.
pub struct TensorBoard {
    /// `None` once it failed: another attempt would fail alike.
    writer: Option<SummaryWriter>,
}

impl TensorBoard {
    /// Opens a new event file in `folder`, creating the folder where needed. TensorBoard shows all files of a folder as
    /// one run.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn create(folder: &Path) -> io::Result<TensorBoard> {
        fs::create_dir_all(folder)?;
        let probe = folder.join(".writable.tmp");
        fs::write(&probe, b"")?;
        fs::remove_file(&probe)?;
        while is_taken(folder)? {
            thread::sleep(Duration::from_millis(20));
        }
        let writer = guarded(|| SummaryWriter::new(folder))?;
        Ok(TensorBoard { writer: Some(writer) })
    }

    /// Adds scalars at a number of decisions, and flushes. Values are stored as `f32`.
    ///
    /// # Errors
    /// The file can no longer be written; from then on every call fails.
    pub fn scalars(&mut self, scalars: &[(String, f64)], decisions: u64) -> io::Result<()> {
        let Some(mut writer) = self.writer.take() else { return Err(failed()) };
        self.writer = Some(guarded(move || {
            for (tag, value) in scalars {
                writer.add_scalar(tag, *value as f32, decisions as usize);
            }
            writer.flush();
            writer
        })?);
        Ok(())
    }
}

impl Drop for TensorBoard {
    fn drop(&mut self) {
        // Joins the thread, and panics if that died.
        let writer = self.writer.take();
        let _ = guarded(move || drop(writer));
    }
}

/// Whether a file opened now would have the name of one that is there.
#[expect(clippy::disallowed_methods, reason = "tensorboard-rs names its files after the second they are opened in")]
fn is_taken(folder: &Path) -> io::Result<bool> {
    let second = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (start, end) = (format!("events.out.tfevents.{second:010}."), format!(".{}.0", process::id()));
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(&start) && name.ends_with(&end) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn guarded<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| failed())
}

fn failed() -> io::Error {
    io::Error::other("the TensorBoard event file cannot be written (disk full, or the folder is gone?)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_writers_in_one_second_keep_both_files() {
        let folder = tempfile::tempdir().unwrap();
        for value in [1.0, 2.0] {
            let mut writer = TensorBoard::create(folder.path()).unwrap();
            writer.scalars(&[("charts/x".to_owned(), value)], 1).unwrap();
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_folder_that_cannot_be_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(TensorBoard::create(&file.join("below")).is_err());
        assert!(TensorBoard::create(&file).is_err());
    }
}
