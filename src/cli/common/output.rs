//! stdout: JSON Lines, or text for people.

use std::fs::File;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::record::{Envelope, JsonLines};

/// Buffered stdout. Every write can fail, and the caller is told.
pub(in crate::cli) struct Output {
    stdout: BufWriter<StdoutLock<'static>>,
}

impl Output {
    pub(in crate::cli) fn new() -> Output {
        Output { stdout: BufWriter::new(io::stdout().lock()) }
    }

    /// `{"type": kind, "data": data}` and a flush: lines are seen as they come.
    pub(in crate::cli) fn json<T: Serialize>(&mut self, kind: &str, data: &T) -> anyhow::Result<()> {
        serde_json::to_writer(&mut self.stdout, &Envelope { r#type: kind, data }).map_err(io::Error::from)?;
        self.stdout.write_all(b"\n")?;
        Ok(self.stdout.flush()?)
    }

    /// Text as it is.
    pub(in crate::cli) fn text(&mut self, text: &str) -> anyhow::Result<()> {
        self.stdout.write_all(text.as_bytes())?;
        Ok(self.stdout.flush()?)
    }

    /// A line of text.
    pub(in crate::cli) fn line(&mut self, text: &str) -> anyhow::Result<()> {
        self.text(text)?;
        self.text("\n")
    }
}

/// JSON Lines that go to a file, to stdout, to both or to neither: the same ones.
pub(in crate::cli) struct Lines {
    stdout: bool,
    file: Option<JsonLines<File>>,
}

impl Lines {
    /// To stdout if so, and to a new file at `path`, if one is given.
    pub(in crate::cli) fn new(stdout: bool, path: Option<&Path>) -> anyhow::Result<Lines> {
        let create = |path: &Path| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        Ok(Lines { stdout, file: path.map(create).transpose()?.map(JsonLines::new) })
    }

    /// One line of type `kind`, which is there when this returns.
    pub(in crate::cli) fn write<T: Serialize>(&mut self, kind: &str, data: &T) -> anyhow::Result<()> {
        if let Some(file) = &mut self.file {
            file.write(kind, data)?;
        }
        if self.stdout { Output::new().json(kind, data) } else { Ok(()) }
    }
}
