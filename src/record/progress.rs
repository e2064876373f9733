//! How training goes, on stderr.

use indicatif::{ProgressBar, ProgressStyle};

use crate::say;

/// Seconds between lines where there is no terminal.
pub const LINE_SECONDS: f64 = 10.0;

/// `40/400 runs, 1 min 3 s elapsed, about 9 min 27 s left`: of a run that had done `before` when its clock began, `seconds` ago.
pub fn progress_line(unit: &str, done: u64, total: u64, before: u64, seconds: f64) -> String {
    let fresh = done.saturating_sub(before);
    let left = total.saturating_sub(done) as f64;
    let eta = match fresh {
        0 => String::new(),
        fresh => format!(", about {} left", duration(seconds / fresh as f64 * left)),
    };
    format!("{done}/{total} {unit}, {} elapsed{eta}", duration(seconds))
}

/// `42 s`, `9 min 27 s`, `3 h 5 min`.
fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// A bar over decisions, or generations, where stderr is a terminal, else a line now and then.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    unit: &'static str,
    before: u64,
    total: u64,
    next_line: f64,
}

impl Progress {
    /// Of a run that has done `done` of `total`, counted in `unit`.
    pub fn new(unit: &'static str, done: u64, total: u64) -> Progress {
        // Hidden by itself unless stderr is a terminal.
        let bar = ProgressBar::with_draw_target(Some(total), say::bars()).with_position(done);
        let template =
            format!("{{bar:30}} {{human_pos}}/{{human_len}} {unit}  {{elapsed}} elapsed, {{eta}} left  {{msg}}");
        bar.set_style(ProgressStyle::with_template(&template).expect("a constant template is valid"));
        // So that what was done before a resumed run began does not count as its speed.
        bar.reset_eta();
        Progress { bar, unit, before: done, total, next_line: 0.0 }
    }

    /// Shows that `position` was reached `seconds` after the start.
    pub fn show(&mut self, position: u64, message: String, seconds: f64) {
        if !self.bar.is_hidden() {
            self.bar.set_message(message);
            self.bar.set_position(position);
        } else if seconds >= self.next_line {
            self.next_line = seconds + LINE_SECONDS;
            say!("{}  {message}", progress_line(self.unit, position, self.total, self.before, seconds));
        }
    }

    /// Runs `talk`, which may write to stderr, without the bar in its way.
    pub fn suspend<T>(&self, talk: impl FnOnce() -> T) -> T {
        self.bar.suspend(talk)
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_much_is_left() {
        assert_eq!(progress_line("runs", 40, 400, 0, 63.0), "40/400 runs, 1 min 3 s elapsed, about 9 min 27 s left");
        assert_eq!(progress_line("runs", 0, 400, 0, 3.2), "0/400 runs, 3 s elapsed");
        // Of a run that went on from 90, ten are its own.
        assert_eq!(progress_line("x", 100, 200, 90, 10.0), "100/200 x, 10 s elapsed, about 1 min 40 s left");
        assert_eq!(progress_line("x", 1, 2, 0, 11_100.0), "1/2 x, 3 h 5 min elapsed, about 3 h 5 min left");
    }
}
