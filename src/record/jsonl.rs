//! JSON Lines: one `{"type": …, "data": …}` a line, visible as soon as it is written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What every line is in, a log's and stdout's under `--json` alike.
#[derive(Serialize)]
pub(crate) struct Envelope<'a, T> {
    pub(crate) r#type: &'a str,
    pub(crate) data: &'a T,
}

/// A line that was read, if it has that form.
#[derive(Deserialize)]
pub(crate) struct OwnedEnvelope {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) data: Option<Value>,
}

/// Writes lines. Numbers that JSON cannot hold (NaN, infinities) become `null`.
#[derive(Debug)]
pub struct JsonLines<W> {
    writer: W,
}

impl JsonLines<File> {
    /// Goes on after what `path` holds, creating it and its folder where needed. A line that was cut off when the last
    /// writer died is closed, so that it spoils no other.
    ///
    /// # Errors
    /// The file cannot be opened or written.
    pub fn append(path: &Path) -> io::Result<JsonLines<File>> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        if file.seek(SeekFrom::End(0))? > 0 {
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(JsonLines { writer: file })
    }
}

impl<W: Write> JsonLines<W> {
    /// Onto any writer.
    pub fn new(writer: W) -> JsonLines<W> {
        JsonLines { writer }
    }

    /// Writes one line, whole or not at all as far as the operating system allows, and flushes it.
    ///
    /// # Errors
    /// The line cannot be written; or `data` is no JSON (a map whose keys are not strings).
    pub fn write<T: Serialize>(&mut self, kind: &str, data: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Envelope { r#type: kind, data })?;
        line.push(b'\n');
        self.writer.write_all(&line)?;
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_cut_off_spoils_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/log.jsonl");
        JsonLines::append(&path).unwrap().write("a", &1).unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"type\":\"b").unwrap();
        JsonLines::append(&path).unwrap().write("c", &f64::NAN).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"type\":\"a\",\"data\":1}\n{\"type\":\"b\n{\"type\":\"c\",\"data\":null}\n");
    }
}
