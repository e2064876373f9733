//! Progress of many runs, on stderr.

use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

use crate::evaluate::Watch;
use crate::say;

/// A bar over runs; invisible unless stderr is a terminal.
pub(in crate::cli) struct Runs {
    bar: ProgressBar,
    planned: AtomicUsize,
}

impl Runs {
    pub(in crate::cli) fn new() -> Runs {
        let bar = ProgressBar::with_draw_target(Some(0), say::bars());
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs  {elapsed} elapsed, {eta} left");
        bar.set_style(style.expect("a constant template is valid"));
        Runs { bar, planned: AtomicUsize::new(0) }
    }

    /// So many more runs are planned, and so many more are done.
    fn show(&self, planned: usize, done: usize) {
        let planned = self.planned.fetch_add(planned, Ordering::Relaxed) + planned;
        self.bar.set_length(planned as u64);
        self.bar.inc(done as u64);
    }

    pub(in crate::cli) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Watch for Runs {
    fn planned(&self, runs: usize) {
        self.show(runs, 0);
    }

    fn done(&self) {
        self.show(0, 1);
    }
}
