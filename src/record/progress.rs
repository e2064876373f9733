//! How training goes, on stderr.

use indicatif::{ProgressBar, ProgressStyle};

use super::IterationRecord;

/// Seconds between lines where there is no terminal.
const LINE_SECONDS: f64 = 10.0;

/// A bar over decisions where stderr is a terminal, else a line now and then.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    total: u64,
    next_line: f64,
}

impl Progress {
    /// Of a run that has taken `done` of `total` decisions.
    pub fn new(done: u64, total: u64) -> Progress {
        // Hidden by itself unless stderr is a terminal.
        let bar = ProgressBar::new(total).with_position(done);
        let template = "{bar:30} {human_pos}/{human_len} decisions  {elapsed} elapsed, {eta} left  {msg}";
        bar.set_style(ProgressStyle::with_template(template).expect("a constant template is valid"));
        // So that what was done before a resumed run began does not count as its speed.
        bar.reset_eta();
        Progress { bar, total, next_line: 0.0 }
    }

    /// Shows an iteration that ended `seconds` after the start.
    pub fn show(&mut self, record: &IterationRecord, seconds: f64) {
        let message = message(record);
        if !self.bar.is_hidden() {
            self.bar.set_message(message);
            self.bar.set_position(record.decisions);
        } else if seconds >= self.next_line {
            self.next_line = seconds + LINE_SECONDS;
            eprintln!("{}/{} decisions  {message}", record.decisions, self.total);
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

fn message(record: &IterationRecord) -> String {
    let Some(episodes) = &record.episodes else { return format!("{:.0}/s", record.sps) };
    let attainment = episodes.metrics.get("slo_attainment").map(|value| format!("  attainment {value:.3}"));
    format!("{:.0}/s  return {:.3}{}", record.sps, episodes.episodic_return, attainment.unwrap_or_default())
}
