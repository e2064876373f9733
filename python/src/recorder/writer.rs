//! The thread that hashes and writes.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::Shared;
use super::files::{Files, Numbered};
use super::row::Row;

/// Longest time that a row is in memory only.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Compressed in whole members, which cost something each.
const FLUSH_COMPRESSED_EVERY: Duration = Duration::from_secs(5);

/// Text that is written at once: whole rows, so that a file ends with one whenever the process does.
const BUFFER_BYTES: usize = 256 << 10;

/// What has become of requests while one file was written.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    written: u64,
    dropped: u64,
    aborted: u64,
    without_output: u64,
}

pub(super) struct Writer {
    files: Files,
    current: Numbered,
    /// Of the current file, from `secret`.
    key: [u8; 32],
    secret: [u8; 32],
    header: String,
    shared: Arc<Shared>,
    /// Rows that are not in the file yet.
    text: String,
    /// When the file began.
    before: Counts,
    /// When `text` was empty last.
    flushed: Counts,
}

impl Writer {
    /// Makes the first file.
    pub(super) fn start(mut files: Files, secret: [u8; 32], header: String, shared: Arc<Shared>) -> io::Result<Writer> {
        let current = files.open_next()?;
        let key = key(&secret, current.number);
        let before = Counts::default();
        let (text, flushed) = (String::new(), before);
        let writer = Writer { files, current, key, secret, header, shared, text, before, flushed };
        writer.describe(false)?;
        Ok(writer)
    }

    /// Writes rows until there will be no more.
    pub(super) fn run(mut self, rows: &Receiver<Row>) {
        if let Err(error) = self.write_all(rows) {
            let failure = format!("{}: {error}", self.current.name);
            self.shared.has_failed.store(true, Ordering::Relaxed);
            let _ = self.shared.failure.set(failure);
            // What waited is lost with what will come.
            let Counts { written, .. } = self.flushed;
            self.shared.lost.fetch_add(self.counts().written - written, Ordering::Relaxed);
            self.shared.written.store(written, Ordering::Relaxed);
            for row in rows {
                self.shared.queued_bytes.fetch_sub(row.bytes(), Ordering::Relaxed);
                self.shared.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "when a row reaches the disk decides nothing")]
    fn write_all(&mut self, rows: &Receiver<Row>) -> io::Result<()> {
        let every = if self.files.are_compressed() { FLUSH_COMPRESSED_EVERY } else { FLUSH_EVERY };
        let mut flushed = Instant::now();
        loop {
            let got = rows.recv_timeout(every);
            if let Ok(row) = &got {
                self.shared.queued_bytes.fetch_sub(row.bytes(), Ordering::Relaxed);
                self.add(row)?;
            }
            if got.is_err() || self.text.len() >= BUFFER_BYTES || flushed.elapsed() >= every {
                flushed = Instant::now();
                self.flush()?;
            }
            if let Err(RecvTimeoutError::Disconnected) = got {
                self.current.file.sync_data()?;
                return self.describe(true);
            }
        }
    }

    fn add(&mut self, row: &Row) -> io::Result<()> {
        if self.current.bytes >= self.files.file_bytes {
            self.turn()?;
        }
        row.write(&self.key, &mut self.text);
        self.shared.written.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Goes on in another file, under another key.
    fn turn(&mut self) -> io::Result<()> {
        self.flush()?;
        self.describe(true)?;
        self.before = self.counts();
        self.current.let_go();
        self.current = self.files.open_next()?;
        self.key = key(&self.secret, self.current.number);
        self.describe(false)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.text.is_empty() {
            return Ok(());
        }
        if self.current.is_gone()? {
            self.go_on_elsewhere()?;
        }
        if self.files.are_compressed() {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(self.text.as_bytes())?;
            self.current.append(&encoder.finish()?)?;
        } else {
            self.current.append(self.text.as_bytes())?;
        }
        self.text.clear();
        self.flushed = self.counts();
        self.describe(false)
    }

    /// Somebody has removed the file: what was in it is gone, what is not yet goes into the next. The key stays, under which
    /// that has been hashed.
    fn go_on_elsewhere(&mut self) -> io::Result<()> {
        self.files.remove_description(self.current.number)?;
        self.before = self.flushed;
        self.current = self.files.open_next()?;
        self.describe(false)
    }

    fn counts(&self) -> Counts {
        let Shared { written, dropped, aborted, without_output, .. } = &*self.shared;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            written: count(written),
            dropped: count(dropped),
            aborted: count(aborted),
            without_output: count(without_output),
        }
    }

    /// Says beside the file what it holds, and what it does not.
    fn describe(&self, is_complete: bool) -> io::Result<()> {
        let (now, before, Numbered { name, number, .. }) = (self.counts(), self.before, &self.current);
        let text = format!(
            "{{\"kvtide_record\":1,\"file\":\"{}\",\"complete\":{is_complete},\"rows\":{},\"aborted\":{},\
             \"dropped\":{},\"without_output\":{},\"recording\":{}}}\n",
            name.escape_default(),
            now.written - before.written,
            now.aborted - before.aborted,
            now.dropped - before.dropped,
            now.without_output - before.without_output,
            self.header,
        );
        self.files.describe(*number, &text)
    }
}

/// The key of a file: of another file's, nothing follows from it.
fn key(secret: &[u8; 32], number: u64) -> [u8; 32] {
    *blake3::keyed_hash(secret, &number.to_le_bytes()).as_bytes()
}
