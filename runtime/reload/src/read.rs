//! A file's bytes, as many as a table can have.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use kvtide_runtime::FormatError;
use kvtide_runtime::format::MAX_FILE_BYTES;

use crate::error::LoadError;

/// The bytes of the file at `path`, if it is a file of at most [`MAX_FILE_BYTES`].
///
/// A file that is renamed over meanwhile is read as it was when it was opened. One that is being written in place may
/// come half; its length or its CRC says so.
pub(crate) fn read_table(path: &Path) -> Result<Box<[u8]>, LoadError> {
    let io = |error: io::Error| LoadError::Io { path: path.to_owned(), error };
    // Before it is opened: opening a pipe waits for a writer.
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(LoadError::NotAFile { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(FormatError::TooLarge { found: bytes.len() }.into());
    }
    Ok(bytes.into_boxed_slice())
}
