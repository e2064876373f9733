//! Which running request is preempted when blocks run out.
//!
//! Candidates are the running requests that have not had their turn in the step, in running order behind the one that
//! asks for blocks; it is its own victim only when nobody is left.

use core::cmp::Reverse;

use kvtide_runtime::{RunningRequest, Victim};

/// The victim among candidates given newest first, the newest of equals; `None` if there are none. `look` says what is
/// known of a candidate; nobody is looked at where the newest goes anyway.
pub fn choose<T>(
    rule: Victim,
    mut newest_first: impl Iterator<Item = T>,
    mut look: impl FnMut(&T) -> RunningRequest,
) -> Option<T> {
    // `min_by_key` keeps the first of equals: the newest.
    match rule {
        Victim::Newest => newest_first.next(),
        Victim::FewestBlocks => newest_first.min_by_key(|candidate| look(candidate).held_blocks),
        Victim::MostBlocks => newest_first.min_by_key(|candidate| Reverse(look(candidate).held_blocks)),
        Victim::LeastProgress => newest_first.min_by_key(|candidate| look(candidate).generated_tokens),
        Victim::MostSlack => newest_first.min_by_key(|candidate| Reverse(look(candidate).deadline_us)),
    }
}

/// Position of the victim in `candidates`, which are in running order.
pub fn choose_among(rule: Victim, candidates: &[RunningRequest]) -> Option<usize> {
    choose(rule, candidates.iter().enumerate().rev(), |candidate| *candidate.1).map(|(position, _)| position)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (blocks, generated, deadline) in running order.
    const RUNNING: [(u32, u32, u64); 4] = [(3, 7, 90), (1, 9, 40), (3, 2, 90), (1, 2, 80)];

    fn check(rule: Victim, expected: usize) {
        let candidates = RUNNING.map(|(held_blocks, generated_tokens, deadline_us)| RunningRequest {
            held_blocks,
            generated_tokens,
            deadline_us,
            ..RunningRequest::default()
        });
        assert_eq!(choose_among(rule, &candidates), Some(expected), "{}", rule.name());
        assert_eq!(choose_among(rule, &[]), None);
    }

    #[test]
    fn each_rule_takes_the_newest_of_equals() {
        check(Victim::Newest, 3);
        check(Victim::FewestBlocks, 3);
        check(Victim::MostBlocks, 2);
        check(Victim::LeastProgress, 3);
        check(Victim::MostSlack, 2);
    }
}
