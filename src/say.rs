//! What is said to people, on stderr. Who reads it may stop reading, or the disk it goes to be full: the work goes on either way.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use indicatif::ProgressDrawTarget;

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Level {
    /// Errors and warnings.
    Quiet,
    /// What is being done, and how far it is.
    Normal,
    /// And with what, in detail.
    Verbose,
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Normal as u8);

/// From now on so much.
pub(crate) fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Whether what is of `level` is said.
pub(crate) fn says(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// A line, if what is of `level` is said. That it cannot be written is nothing that could be said.
pub(crate) fn line(level: Level, text: Arguments) {
    if says(level) {
        let mut line = text.to_string();
        line.push('\n');
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// Where bars are drawn.
pub(crate) fn bars() -> ProgressDrawTarget {
    if says(Level::Normal) { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

/// A line on stderr about what is done, as `eprintln!` but for its panics.
macro_rules! say {
    ($($text:tt)*) => { $crate::say::line($crate::say::Level::Normal, format_args!($($text)*)) };
}

/// A line for those who asked for `--verbose`.
macro_rules! detail {
    ($($text:tt)*) => { $crate::say::line($crate::say::Level::Verbose, format_args!($($text)*)) };
}

/// A line that begins with `warning:` and is said to those who asked for quiet, too.
macro_rules! warn {
    ($($text:tt)*) => {
        $crate::say::line($crate::say::Level::Quiet, format_args!("warning: {}", format_args!($($text)*)))
    };
}
