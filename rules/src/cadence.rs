//! When a decision is due: every few steps, and as soon as memory runs short.

/// Counts a node's steps between decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cadence {
    steps: u32,
    was_refused: bool,
    /// The last step was the first in which something was refused.
    is_news: bool,
}

impl Cadence {
    /// A step was planned; `refused` says whether in it an admission, a swap-in or a running request's growth was refused.
    pub fn stepped(&mut self, refused: bool) {
        self.steps = self.steps.saturating_add(1);
        self.is_news = refused && !self.was_refused;
        self.was_refused = refused;
    }

    /// Whether to decide now: `interval` steps (at least one) after the last decision, or after the first step with a
    /// refusal that follows one without.
    pub fn is_due(&self, interval: u32) -> bool {
        self.is_news || self.steps >= interval.max(1)
    }

    /// A decision was made.
    pub fn decided(&mut self) {
        self.steps = 0;
        self.is_news = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps as `.` or `x` for a refusal; `|` wherever a decision is due after one.
    fn check(interval: u32, expected: &str) {
        let (mut cadence, mut found) = (Cadence::default(), alloc::string::String::new());
        for step in expected.chars().filter(|&step| step != '|') {
            cadence.stepped(step == 'x');
            found.push(step);
            if cadence.is_due(interval) {
                cadence.decided();
                found.push('|');
            }
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn every_few_steps() {
        check(3, "...|...|..");
        check(1, ".|.|.|");
        check(0, ".|.|.|");
    }

    #[test]
    fn at_the_first_refusal_and_not_at_those_that_follow() {
        check(4, ".x|xxxx|x.x|");
    }
}
