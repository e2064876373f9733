//! What is shown on stdout and said on stderr. That nobody reads on ends no measurement.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

/// The first failure to write to stdout.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Text on stdout, which is data: that it cannot be written is kept for [`shown`].
pub(crate) fn show(text: &str) {
    if FAILED.get().is_none() {
        let mut stdout = io::stdout();
        if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            let _ = FAILED.set(error);
        }
    }
}

/// # Errors
/// What came in the way of stdout, unless its reader had seen enough.
pub(crate) fn shown() -> Result<(), String> {
    match FAILED.get() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("stdout: {error}")),
        _ => Ok(()),
    }
}

/// A line on stderr. That it cannot be written is nothing that could be said.
pub(crate) fn say(text: &str) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// A line of progress that the next one overwrites; nothing where nobody looks.
pub(crate) fn progress(text: &str) {
    let mut stderr = io::stderr();
    if stderr.is_terminal() {
        let _ = stderr.write_all(format!("\r\x1b[K{text}").as_bytes());
        let _ = stderr.flush();
    }
}

/// A line that a log keeps too.
pub(crate) fn milestone(text: &str) {
    progress("");
    say(text);
}
