//! What is declared of a block, as one score.

use kvtide_rules::intent::Scoring;

use super::declared::{Declared, Scored};
use crate::intent::policy;

/// The block that least depends on being there: of a request that is over and not expected back, of a class with little urgency, cheap to
/// compute again, long not used. What a request declares of its blocks is [`RequestIntent`](kvtide_rules::intent::RequestIntent).
///
/// Source: the policy of that name of the deadline-aware KV scheduler `kvmi` 0.6.0, whose score this is
/// ([`policy::IntentAware`]). What is declared, and for how long, is ours.
pub type IntentAware = Declared<policy::IntentAware>;

impl Scored for policy::IntentAware {
    const SCORING: Scoring = Scoring::IntentAware;
}

#[cfg(test)]
super::kit::tells! { IntentAware:
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
