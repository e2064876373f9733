//! The folder of a demo: results of an earlier one are replaced, anything else is left alone.

use std::fs;
use std::io;
use std::path::Path;

use super::DemoError;

/// A file that says that the folder is a demo's and may be used again.
const MARK: &str = "demo.txt";
const MARK_TEXT: &str = "Results of kvtide demo; the next one replaces them.\n";
/// What a demo leaves.
const LEFT: [&str; 6] = ["checkpoint", "policy", "tensorboard", "train.jsonl", "policy.kvt", "results.jsonl"];

/// Refuses a folder of anything else.
///
/// # Errors
/// It is not empty and no demo's, or cannot be read.
pub fn check_folder(out: &Path) -> Result<(), DemoError> {
    if out.exists() {
        let read = fs::read_dir(out).map_err(|source| DemoError::Folder { path: out.to_owned(), source });
        let empty = read?.next().is_none();
        let ours = fs::read_to_string(out.join(MARK)).is_ok_and(|text| text == MARK_TEXT);
        if !(empty || ours) {
            return Err(DemoError::Foreign { path: out.to_owned() });
        }
    }
    Ok(())
}

/// Takes the results of an earlier demo out of its folder, or makes one.
///
/// # Errors
/// As [`check_folder`], or it cannot be written to.
pub fn make_folder(out: &Path) -> Result<(), DemoError> {
    check_folder(out)?;
    let cannot = |source| DemoError::Folder { path: out.to_owned(), source };
    fs::create_dir_all(out).map_err(cannot)?;
    for name in LEFT {
        let path = out.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            _ => {}
        }
    }
    fs::write(out.join(MARK), MARK_TEXT).map_err(cannot)
}
