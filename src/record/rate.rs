//! Decisions per second of wall-clock time.

use std::time::Instant;

/// Measures from its start, as cleanrl's `charts/SPS` does.
#[derive(Debug, Clone, Copy)]
pub struct RateMeter {
    start: Instant,
    before: u64,
}

impl RateMeter {
    /// Starts with `before` decisions already taken.
    #[expect(clippy::disallowed_methods, reason = "speed is measured in wall-clock time, and only reported")]
    pub fn start(before: u64) -> RateMeter {
        RateMeter { start: Instant::now(), before }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Decisions per second since the start, now that `decisions` were taken.
    pub fn per_second(&self, decisions: u64) -> f64 {
        decisions.saturating_sub(self.before) as f64 / self.seconds().max(1e-9)
    }
}
