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

/// Takes the results of an earlier demo out of its folder, or makes one.
///
/// # Errors
/// The folder is not empty and no demo's, or cannot be written to.
pub fn make_folder(out: &Path) -> Result<(), DemoError> {
    let cannot = |source| DemoError::Folder { path: out.to_owned(), source };
    let mark = out.join(MARK);
    if out.exists() {
        let empty = fs::read_dir(out).map_err(cannot)?.next().is_none();
        let ours = fs::read_to_string(&mark).is_ok_and(|text| text == MARK_TEXT);
        if !(empty || ours) {
            return Err(DemoError::Foreign { path: out.to_owned() });
        }
    }
    fs::create_dir_all(out).map_err(cannot)?;
    for name in LEFT {
        let path = out.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            _ => {}
        }
    }
    fs::write(mark, MARK_TEXT).map_err(cannot)
}
