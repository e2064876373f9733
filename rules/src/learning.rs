//! What a prompt token costs, learnt from a node's own steps.

use crate::Micros;

/// A step with at least this share of its token budget tells what a prompt token costs; emptier ones tell what a step
/// costs.
const FULL_SHARE: f64 = 0.5;

/// Weight of the newest step.
const GAIN: f64 = 0.1;

/// The price of a prompt token, an average over steps that were nearly full.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PrefillPrice {
    ns_per_token: f64,
    /// When the step planned last was planned, and its tokens.
    last: Option<(Micros, u32)>,
}

impl PrefillPrice {
    /// A step of `tokens` tokens, of at most `budget`, is planned. One step right after another: the time between them is
    /// what the first took. A step without tokens is followed by a pause, which tells nothing.
    pub fn planned(&mut self, now: Micros, tokens: u32, budget: u32) {
        if let Some((before, done)) = self.last.replace((now, tokens))
            && done > 0
            && f64::from(done) >= FULL_SHARE * f64::from(budget)
            && tokens > 0
        {
            let price = now.since(before).0 as f64 * 1000.0 / f64::from(done);
            let gain = if self.ns_per_token == 0.0 { 1.0 } else { GAIN };
            self.ns_per_token += gain * (price - self.ns_per_token);
        }
    }

    /// Nanoseconds; 0 before the first full step.
    pub fn ns_per_token(&self) -> f64 {
        self.ns_per_token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_full_steps_followed_by_another_are_counted() {
        let mut price = PrefillPrice::default();
        let mut plan = |now: u64, tokens: u32, expected: f64| {
            price.planned(Micros(now), tokens, 1000);
            assert_eq!(price.ns_per_token(), expected, "at {now}");
        };
        plan(0, 1000, 0.0);
        plan(50_000, 400, 50_000.0);
        // 400 of 1,000 tokens took 40 ms: too few to tell.
        plan(90_000, 500, 50_000.0);
        // 500 tokens took 30 ms, which is 60,000 ns each, and a tenth of the average.
        plan(120_000, 1000, 51_000.0);
        // Nothing is planned, so the node was perhaps idle since.
        plan(900_000, 0, 51_000.0);
        plan(950_000, 1000, 51_000.0);
    }
}
