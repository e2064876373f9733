//! How training goes, on stderr.

use indicatif::{ProgressBar, ProgressStyle};

use crate::say;

/// Seconds between lines where there is no terminal.
const LINE_SECONDS: f64 = 10.0;

/// A bar over decisions, or generations, where stderr is a terminal, else a line now and then.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    unit: &'static str,
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
        Progress { bar, unit, total, next_line: 0.0 }
    }

    /// Shows that `position` was reached `seconds` after the start.
    pub fn show(&mut self, position: u64, message: String, seconds: f64) {
        if !self.bar.is_hidden() {
            self.bar.set_message(message);
            self.bar.set_position(position);
        } else if seconds >= self.next_line {
            self.next_line = seconds + LINE_SECONDS;
            say!("{position}/{} {}  {message}", self.total, self.unit);
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
