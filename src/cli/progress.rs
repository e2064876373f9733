//! Progress of many runs, on stderr.

use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

use crate::evaluate::Watch;

/// A bar over runs; invisible unless stderr is a terminal.
pub(super) struct Runs {
    bar: ProgressBar,
    planned: AtomicUsize,
}

impl Runs {
    pub(super) fn new() -> Runs {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs  {elapsed} elapsed, {eta} left");
        bar.set_style(style.expect("a constant template is valid"));
        Runs { bar, planned: AtomicUsize::new(0) }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watch for Runs {
    fn planned(&self, runs: usize) {
        let planned = self.planned.fetch_add(runs, Ordering::Relaxed) + runs;
        self.bar.set_length(planned as u64);
    }

    fn done(&self) {
        self.bar.inc(1);
    }
}
