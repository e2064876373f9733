//! stdout: JSON Lines, or text for people.

use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;

use crate::record::Envelope;

/// Buffered stdout. Every write can fail, and the caller is told.
pub(in crate::cli) struct Output {
    stdout: BufWriter<StdoutLock<'static>>,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stdout.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }
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
