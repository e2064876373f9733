//! Ctrl-C: the first asks politely, the second ends the process.

use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Installs the handler, once a process, and gives the flag it sets. Long work looks at the flag, keeps what is
/// finished and returns.
pub(in crate::cli) fn on_interrupt() -> &'static AtomicBool {
    static STOP: AtomicBool = AtomicBool::new(false);
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let handler = || {
            if STOP.swap(true, Ordering::Relaxed) {
                process::exit(130);
            }
            say!("\ninterrupted: keeping what is finished (again to stop at once)");
        };
        if let Err(error) = ctrlc::set_handler(handler) {
            warn!("Ctrl-C will stop at once: {error}");
        }
    });
    &STOP
}
