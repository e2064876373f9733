//! Progress of many runs, on stderr.

use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressStyle};

use crate::evaluate::Watch;
use crate::record::{LINE_SECONDS, RateMeter, progress_line};
use crate::say;

/// A bar over the runs of a phase where stderr is a terminal, else a line now and then: how many are done, of how many, and how long
/// the rest will take. The total is known from the start; it shrinks where a search turns out to be short.
pub(in crate::cli) struct Runs {
    bar: ProgressBar,
    phase: Mutex<Phase>,
}

/// What is being done.
struct Phase {
    name: &'static str,
    planned: usize,
    done: usize,
    clock: RateMeter,
    next_line: f64,
}

impl Phase {
    fn begun(name: &'static str) -> Phase {
        Phase { name, planned: 0, done: 0, clock: RateMeter::start(0), next_line: LINE_SECONDS }
    }

    /// For whoever asked for more than progress.
    fn end(&self) {
        if self.done > 0 {
            detail!("{}: {} runs in {:.1} s", self.name, self.done, self.clock.seconds());
        }
    }
}

impl Runs {
    pub(in crate::cli) fn new() -> Runs {
        let bar = ProgressBar::with_draw_target(Some(0), say::bars());
        let style = ProgressStyle::with_template("{msg} {bar:20} {pos}/{len} runs  {elapsed} elapsed, {eta} left");
        bar.set_style(style.expect("a constant template is valid"));
        Runs { bar, phase: Mutex::new(Phase::begun("runs")) }
    }

    /// What follows is counted anew, under this name.
    pub(in crate::cli) fn phase(&self, name: &'static str) {
        self.with(|phase| {
            phase.end();
            *phase = Phase::begun(name);
        });
        self.bar.set_length(0);
        self.bar.set_message(name);
        self.bar.reset();
    }

    /// Nobody panics while this is held; if somebody did, the count is as good as before.
    fn with(&self, change: impl FnOnce(&mut Phase)) {
        let mut phase = self.phase.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        change(&mut phase);
    }

    fn show(&self, change: impl FnOnce(&mut Phase)) {
        self.with(|phase| {
            change(phase);
            self.bar.set_length(phase.planned as u64);
            self.bar.set_position(phase.done as u64);
            let seconds = phase.clock.seconds();
            if self.bar.is_hidden() && seconds >= phase.next_line {
                phase.next_line = seconds + LINE_SECONDS;
                let (done, planned) = (phase.done as u64, phase.planned as u64);
                say!("{}: {}", phase.name, progress_line("runs", done, planned, 0, seconds));
            }
        });
    }

    pub(in crate::cli) fn finish(&self) {
        self.with(|phase| {
            phase.end();
            phase.done = 0;
        });
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
        self.show(|phase| phase.planned += runs);
    }

    fn spared(&self, runs: usize) {
        self.show(|phase| phase.planned = phase.planned.saturating_sub(runs));
    }

    fn done(&self) {
        self.show(|phase| phase.done += 1);
    }
}
