//! How long recent answers were, and what that says of one that goes on.

use std::collections::VecDeque;

/// Lengths of recent answers.
#[derive(Debug, Clone)]
pub(super) struct History {
    recent: VecDeque<u32>,
    /// The same in ascending order.
    sorted: Vec<u32>,
    /// How many answers have been seen.
    seen: u64,
}

/// Answers remembered.
const WINDOW: usize = 200;
/// Until answers have been seen, so many of this length are assumed (`router_max_new_token_len`).
const ASSUMED: (usize, u32) = (WINDOW / 2, 1024);

impl History {
    pub(super) fn new() -> History {
        let assumed = vec![ASSUMED.1; ASSUMED.0];
        History { recent: assumed.clone().into(), sorted: assumed, seen: 0 }
    }

    /// A history in which nothing is assumed.
    pub(super) fn empty() -> History {
        History { recent: VecDeque::new(), sorted: Vec::new(), seen: 0 }
    }

    pub(super) fn push(&mut self, length: u32) {
        self.seen += 1;
        if self.recent.len() == WINDOW
            && let Some(oldest) = self.recent.pop_front()
        {
            self.sorted.remove(self.sorted.partition_point(|&known| known < oldest));
        }
        self.recent.push_back(length);
        self.sorted.insert(self.sorted.partition_point(|&known| known < length), length);
    }

    /// How many answers have been seen, those forgotten included.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// The quantile of what an answer of more than `generated` tokens comes to: of the recent ones that long, between
    /// `generated` itself and the `longest` possible, interpolated. At least one token more.
    pub(super) fn length(&self, generated: u32, longest: u32, quantile: f64) -> u32 {
        let longer = &self.sorted[self.sorted.partition_point(|&known| known <= generated)..];
        let at = |index: usize| match index {
            0 => generated,
            index => longer.get(index - 1).copied().unwrap_or(longest),
        };
        let position = quantile * (longer.len() + 1) as f64;
        let below = (position as usize).min(longer.len());
        let (from, to) = (f64::from(at(below)), f64::from(at(below + 1)));
        let length = (from + (to - from) * (position - below as f64)).round() as u32;
        length.clamp(generated + 1, longest.max(generated + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_is_the_last_two_hundred() {
        let mut history = History::new();
        for length in 1..=300 {
            history.push(length);
        }
        assert_eq!(history.sorted, (101..=300).collect::<Vec<u32>>());
        assert_eq!(history.recent.len(), WINDOW);
    }

    #[test]
    fn predictions_are_conditioned_on_what_is_generated() {
        let mut history = History::new();
        for index in 0..WINDOW {
            history.push([10, 20, 30, 40][index % 4]);
        }
        let length = |generated, quantile| history.length(generated, 1000, quantile);
        assert_eq!([0.0, 1.0].map(|quantile| length(0, quantile)), [1, 1000]);
        // Fifty of each: the first half of an answer's chances end at 20 or before.
        assert_eq!([0.2, 0.4, 0.6, 0.9].map(|quantile| length(0, quantile)), [10, 20, 30, 40]);
        assert_eq!([0.2, 0.6].map(|quantile| length(20, quantile)), [30, 40]);
        // Longer than anything seen: somewhere up to the longest possible.
        assert_eq!([0.0, 0.5, 1.0].map(|quantile| length(40, quantile)), [41, 520, 1000]);
        assert_eq!(length(1000, 0.5), 1001);
    }
}
