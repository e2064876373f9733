//! What a node has served, as a kvtide trace: one row a request, written by a thread that holds no lock of Python's.
//!
//! The scheduler's thread copies a request's numbers into a queue and goes on: it never waits, for a disk or for anything.
//! What the queue has no room for is dropped and counted. Rows stand in the order in which requests end.

mod files;
mod row;
mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use files::Files;
use row::{Prefix, Row};
use writer::Writer;

/// Rows that wait to be written, at most.
const QUEUE_ROWS: usize = 1 << 14;

/// Bytes of them, at most.
const QUEUE_BYTES: usize = 64 << 20;

/// Longest list of hashes that a trace takes.
const MAX_HASHES: usize = 1 << 16;

/// How long whoever shuts down waits for a disk.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What has become of requests, told by the deciding thread and the writing one.
#[derive(Debug, Default)]
struct Shared {
    /// In a file, or in the buffer of one.
    written: AtomicU64,
    /// There was no room in the queue.
    dropped: AtomicU64,
    /// The disk had failed before.
    lost: AtomicU64,
    /// Written with what they had when they were aborted.
    aborted: AtomicU64,
    /// Ended without a token, and not written.
    without_output: AtomicU64,
    queued_bytes: AtomicUsize,
    has_failed: AtomicBool,
    failure: OnceLock<String>,
}

/// Writes a kvtide trace of what a node serves.
#[pyclass(name = "Recorder", module = "kvtide", frozen)]
pub struct PyRecorder {
    queue: Mutex<Option<SyncSender<Row>>>,
    closed: Mutex<Receiver<()>>,
    shared: Arc<Shared>,
}

#[pymethods]
impl PyRecorder {
    /// Records to numbered files beside `path`, each of about `file_bytes` and at most `files` of them, of which the oldest is
    /// removed. `secret` is 32 random bytes, kept nowhere: names and prefixes are hashed with a key made from it for each
    /// file. `header` is JSON that is put beside each file's counts. Raises `OSError` if the first file cannot be made.
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "Python's paths are converted, not borrowed")]
    fn new(path: PathBuf, file_bytes: u64, files: usize, secret: &[u8], header: String) -> PyResult<PyRecorder> {
        let secret: [u8; 32] = secret
            .try_into()
            .map_err(|_| PyValueError::new_err(format!("{} bytes of secret, not 32", secret.len())))?;
        let shared = Arc::new(Shared::default());
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let files = Files::new(&path, file_bytes, files).map_err(named)?;
        let writer = Writer::start(files, secret, header, Arc::clone(&shared)).map_err(named)?;
        let (queue, rows) = sync_channel(QUEUE_ROWS);
        let (done, closed) = sync_channel(1);
        thread::Builder::new().name("kvtide-record".to_owned()).spawn(move || {
            writer.run(&rows);
            let _ = done.send(());
        })?;
        Ok(PyRecorder { queue: Mutex::new(Some(queue)), closed: Mutex::new(closed), shared })
    }

    /// A request has ended. `hashes` are those of its full blocks of `block_tokens` tokens, each binding all before it, as the
    /// engine has them; where it has none, `tokens` are hashed. Says whether the row will be written.
    #[pyo3(signature = (
        arrival_us, prompt_tokens, output_tokens, *, block_tokens = 0, hashes = None, tokens = None, priority = None,
        tenant = None, cache_salt = None, aborted = false,
    ))]
    #[expect(clippy::too_many_arguments, reason = "what a row is made of")]
    fn ended(
        &self,
        arrival_us: u64,
        prompt_tokens: u32,
        output_tokens: u32,
        block_tokens: u32,
        hashes: Option<&Bound<'_, PyList>>,
        tokens: Option<&Bound<'_, PyList>>,
        priority: Option<i32>,
        tenant: Option<&Bound<'_, PyString>>,
        cache_salt: Option<&Bound<'_, PyString>>,
        aborted: bool,
    ) -> PyResult<bool> {
        if output_tokens == 0 || prompt_tokens == 0 {
            self.shared.without_output.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        if self.shared.has_failed.load(Ordering::Relaxed) {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        // What is no UTF-8, half of a pair of surrogates, is a name all the same.
        let [tenant, cache_salt] =
            [tenant, cache_salt].map(|name| name.map(|name| name.to_string_lossy().into_owned()));
        let prefix = prefix(prompt_tokens, block_tokens, hashes, tokens)?;
        let row = Row { arrival_us, prompt_tokens, output_tokens, prefix, block_tokens, priority, tenant, cache_salt };
        let is_queued = self.offer(row);
        let counter = if is_queued { &self.shared.aborted } else { &self.shared.dropped };
        counter.fetch_add(u64::from(aborted || !is_queued), Ordering::Relaxed);
        Ok(is_queued)
    }

    /// Writes what waits and ends; at most five seconds. What comes later is dropped.
    fn close(&self, py: Python<'_>) {
        let queue = self.queue.lock().ok().and_then(|mut queue| queue.take());
        if queue.is_some() {
            drop(queue);
            py.detach(|| self.closed.lock().map(|closed| closed.recv_timeout(CLOSE_TIMEOUT)).is_ok());
        }
    }

    /// Rows written.
    #[getter]
    fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }

    /// Requests that are not in the trace, by why: there was no room to queue them, the disk had failed, or they ended without
    /// a token.
    #[getter]
    fn dropped(&self) -> [(&'static str, u64); 3] {
        let Shared { dropped, lost, without_output, .. } = &*self.shared;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [("queue", count(dropped)), ("disk", count(lost)), ("no_output", count(without_output))]
    }

    /// Rows of requests that were aborted, with the tokens they had.
    #[getter]
    fn aborted(&self) -> u64 {
        self.shared.aborted.load(Ordering::Relaxed)
    }

    /// Why nothing more is recorded; None while it is.
    #[getter]
    fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }
}

impl PyRecorder {
    /// Queues a row, if there is room.
    fn offer(&self, row: Row) -> bool {
        let Ok(queue) = self.queue.lock() else { return false };
        let Some(queue) = queue.as_ref() else { return false };
        let bytes = row.bytes();
        let queued = &self.shared.queued_bytes;
        if queued.fetch_add(bytes, Ordering::Relaxed) + bytes > QUEUE_BYTES {
            queued.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        match queue.try_send(row) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                queued.fetch_sub(bytes, Ordering::Relaxed);
                false
            }
        }
    }
}

/// What the blocks of a prompt are hashed from: the engine's own hashes, or its tokens.
fn prefix(
    prompt_tokens: u32,
    block_tokens: u32,
    hashes: Option<&Bound<'_, PyList>>,
    tokens: Option<&Bound<'_, PyList>>,
) -> PyResult<Prefix> {
    let blocks = prompt_tokens.checked_div(block_tokens).map_or(0, |blocks| (blocks as usize).min(MAX_HASHES));
    if blocks == 0 {
        return Ok(Prefix::Unknown);
    }
    if let Some(hashes) = hashes.filter(|hashes| hashes.len() >= blocks) {
        let mut bytes = Vec::new();
        let mut width = 0;
        for hash in hashes.iter().take(blocks) {
            let hash = hash.cast_into::<PyBytes>()?;
            width = hash.as_bytes().len();
            if bytes.is_empty() {
                bytes.reserve_exact(width * blocks);
            }
            bytes.extend_from_slice(hash.as_bytes());
        }
        if width == 0 || bytes.len() != width * blocks {
            return Err(PyValueError::new_err("hashes of blocks differ in length"));
        }
        return Ok(Prefix::Hashes { bytes, width });
    }
    let Some(tokens) = tokens.filter(|tokens| tokens.len() >= blocks * block_tokens as usize) else {
        return Ok(Prefix::Unknown);
    };
    let tokens = tokens.iter().take(blocks * block_tokens as usize).map(|token| token.extract());
    Ok(Prefix::Tokens(tokens.collect::<PyResult<_>>()?))
}
