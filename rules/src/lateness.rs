//! From when on a waiting request cannot meet its targets any more, so that those who still can go first.

use crate::{Micros, Pricing, Slo};

/// How far the answer to a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// No token yet.
    Awaited,
    /// Its first token came too late: its targets are missed whatever happens.
    Late,
    /// Its first token was on time, its latest appeared then.
    Begun {
        /// When its latest token appeared.
        last_token: Micros,
    },
}

impl Answer {
    /// From when the first and the latest token appeared.
    pub fn of(slo: Slo, arrival: Micros, first_token: Option<Micros>, last_token: Option<Micros>) -> Answer {
        match (first_token, last_token) {
            (Some(first), _) if first > slo.deadline(arrival, 0) => Answer::Late,
            (Some(_), Some(last_token)) => Answer::Begun { last_token },
            _ => Answer::Awaited,
        }
    }
}

/// By when a waiting request must have its next token: its TTFT target before the first, its stall target after; the
/// beginning of time if the first token was late.
pub fn late_at(slo: Slo, arrival: Micros, answer: Answer) -> Micros {
    match answer {
        Answer::Awaited => slo.deadline(arrival, 0),
        Answer::Late => Micros::ZERO,
        Answer::Begun { last_token } => last_token + slo.stall,
    }
}

/// By when it must be admitted to have that token in time: [`late_at`] less what computing its tokens takes.
pub fn admit_by(slo: Slo, arrival: Micros, answer: Answer, tokens: u32, pricing: &Pricing) -> Micros {
    late_at(slo, arrival, answer).since(pricing.prefill(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: Slo = Slo::from_millis(2000, 100, 3000);

    /// In milliseconds, of a request that arrived at 1,000 and whose 10 tokens take 500 to compute.
    fn check(first_token: Option<u64>, last_token: Option<u64>, late: u64, admit: u64) {
        let pricing = Pricing { prefill_ns_per_token: 5e7, ..Pricing::default() };
        let arrival = Micros::from_millis(1000);
        let answer =
            Answer::of(SLO, arrival, first_token.map(Micros::from_millis), last_token.map(Micros::from_millis));
        assert_eq!(late_at(SLO, arrival, answer), Micros::from_millis(late));
        assert_eq!(admit_by(SLO, arrival, answer, 10, &pricing), Micros::from_millis(admit));
    }

    #[test]
    fn the_first_token_has_its_target_and_the_next_its_gap() {
        check(None, None, 3000, 2500);
        check(Some(3000), Some(9000), 12_000, 11_500);
    }

    #[test]
    fn whose_first_token_was_late_is_late_for_good() {
        check(Some(3001), Some(9000), 0, 0);
    }
}
