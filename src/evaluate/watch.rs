//! Plans of searches, which do not know beforehand how often they look.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::matrix::Watch;

/// Runs planned at once for a search, that its looks are taken from one by one: whoever watches knows a total from the start, which
/// shrinks when the search turns out to be shorter.
pub(super) struct Budget<'a> {
    watch: &'a dyn Watch,
    left: AtomicUsize,
}

impl<'a> Budget<'a> {
    /// Plans `runs`.
    pub(super) fn new(watch: &'a dyn Watch, runs: usize) -> Budget<'a> {
        watch.planned(runs);
        Budget { watch, left: AtomicUsize::new(runs) }
    }
}

impl Watch for Budget<'_> {
    fn planned(&self, runs: usize) {
        let take = |left: usize| Some(left.saturating_sub(runs));
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        self.watch.planned(runs.saturating_sub(left));
    }

    fn spared(&self, runs: usize) {
        self.left.fetch_add(runs, Ordering::Relaxed);
    }

    fn done(&self) {
        self.watch.done();
    }
}

/// What is left over was not needed.
impl Drop for Budget<'_> {
    fn drop(&mut self) {
        self.watch.spared(*self.left.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Total(AtomicUsize);

    impl Watch for Total {
        fn planned(&self, runs: usize) {
            self.0.fetch_add(runs, Ordering::Relaxed);
        }

        fn spared(&self, runs: usize) {
            self.0.fetch_sub(runs, Ordering::Relaxed);
        }

        fn done(&self) {}
    }

    #[test]
    fn a_total_stands_from_the_start_and_ends_as_what_was_run() {
        let total = Total::default();
        let now = || total.0.load(Ordering::Relaxed);
        let budget = Budget::new(&total, 10);
        assert_eq!(now(), 10);
        budget.planned(4);
        budget.spared(1);
        assert_eq!(now(), 10);
        drop(budget);
        assert_eq!(now(), 3);
        let short = Budget::new(&total, 2);
        short.planned(5);
        drop(short);
        assert_eq!(now(), 3 + 5);
    }
}
