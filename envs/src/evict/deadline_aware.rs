//! What is declared of a block, and more weight on what has a deadline.

use kvtide_rules::intent::Scoring;

use super::declared::{Declared, Scored};
use crate::intent::policy;

/// [`IntentAware`](super::IntentAware), and more weight on what a missed deadline would cost: on blocks of requests that wait or are
/// expected back, most on those without which the next token would be late.
///
/// Source: the policy of that name of the deadline-aware KV scheduler `kvmi` 0.6.0, whose score this is
/// ([`policy::DeadlineAware`]). What is declared, and for how long, is ours.
pub type DeadlineAware = Declared<policy::DeadlineAware>;

impl Scored for policy::DeadlineAware {
    const SCORING: Scoring = Scoring::DeadlineAware;
}

#[cfg(test)]
super::kit::tells! { DeadlineAware:
    a_table_is_given_back [3, 2, 1],
    another_is [3, 2, 1, 6, 5, 4],
    a_lookup_hits_the_first_two [3, 2, 1, 6, 5, 4],
    a_request_takes_them [3, 6, 5, 4],
    it_goes_on_and_gives_them_back [3, 6, 5, 4, 7, 2, 1],
    three_are_evicted [4, 7, 2, 1],
    a_lookup_hits_what_is_left_of_the_second [4, 7, 2, 1],
    the_content_of_one_is_gone [4, 2, 1],
    all_are_evicted [],
}
