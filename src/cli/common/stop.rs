//! Signals that ask for an end: the first politely, the second at once.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

static STOP: AtomicBool = AtomicBool::new(false);
/// The first of them that came; 0 before.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Listens to Ctrl-C, SIGTERM and SIGHUP, once a process, and gives the flag they set. Long work looks at the flag, keeps
/// what is finished and returns. What whoever started this process had it ignore, as `nohup` does, stays ignored.
pub(in crate::cli) fn on_interrupt() -> &'static AtomicBool {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        if let Err(error) = listen() {
            warn!("Ctrl-C and SIGTERM will stop at once: {error}");
        }
    });
    &STOP
}

/// What a process that was asked to end exits with, as shells count: 128 and the number of the signal. 130 for Ctrl-C, 143 for
/// SIGTERM, 129 for SIGHUP.
pub(in crate::cli) fn exit_code() -> u8 {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => code_of(SIGINT),
        signal => code_of(signal),
    }
}

fn code_of(signal: c_int) -> u8 {
    128 + signal as u8
}

fn listen() -> io::Result<()> {
    let ignored = fs::read_to_string("/proc/self/status").map_or(0, |status| ignored(&status));
    let heard = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored & bit(*signal) == 0);
    let mut signals = Signals::new(heard)?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut first = None;
        for signal in signals.forever() {
            let now = now();
            match first {
                None => {
                    first = Some(now);
                    SIGNAL.store(signal, Ordering::Relaxed);
                    STOP.store(true, Ordering::Relaxed);
                    say!("\ninterrupted: keeping what is finished (again to stop at once)");
                }
                Some(first) if now.duration_since(first) < ONE => {}
                Some(_) => low_level::exit(code_of(signal).into()),
            }
        }
    })?;
    Ok(())
}

/// Signals within so much are one: `timeout` sends its own to the process and to its group, systemd SIGHUP after SIGTERM.
const ONE: Duration = Duration::from_millis(250);

#[expect(clippy::disallowed_methods, reason = "when somebody wants the process to end decides nothing it does")]
fn now() -> Instant {
    Instant::now()
}

/// Where a signal stands in the masks of `/proc`.
fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// The signals a process ignores, of its `/proc/PID/status`: the one place that says so to safe code. None where there is no such
/// file.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_mask() {
        let nohup = ignored("Name:\tkvtide\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n");
        assert!(nohup & bit(SIGHUP) != 0 && nohup & bit(SIGTERM) == 0 && nohup & bit(SIGINT) == 0);
        assert_eq!((ignored(""), ignored("SigIgn:\tnone")), (0, 0));
    }

    #[test]
    fn exit_codes_are_those_of_shells() {
        assert_eq!([SIGINT, SIGTERM, SIGHUP].map(code_of), [130, 143, 129]);
    }
}
