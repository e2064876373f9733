//! The ageing bound against a second queue that is served in order of arrival.

use std::collections::VecDeque;

use kvtide_rules::{Ageing, Micros, Patience};
use proptest::prelude::*;

proptest! {
    /// Of each event, the time since the one before, and who arrives (tokens) or is admitted (a position).
    #[test]
    fn the_longest_wait_is_that_of_a_queue_served_in_order(
        events in proptest::collection::vec((1..1000_u64, prop_oneof![(1..50_u32).prop_map(Ok), any::<usize>().prop_map(Err)]), 0..500),
    ) {
        let (mut ageing, mut shuffled, mut in_order) = (Ageing::default(), Vec::new(), VecDeque::new());
        let (mut now, mut longest, mut served, mut due) = (0, 0, 0_u64, 0_u64);
        for (passed, event) in events {
            now += passed;
            match event {
                Ok(tokens) => {
                    ageing.arrive(Micros(now), tokens);
                    shuffled.push(tokens);
                    due += u64::from(tokens);
                    in_order.push_back((now, due));
                }
                Err(who) if !shuffled.is_empty() => {
                    let tokens = shuffled.swap_remove(who % shuffled.len());
                    ageing.admit(tokens, Micros(now));
                    served += u64::from(tokens);
                    while let Some(&(arrival, due)) = in_order.front() && due <= served {
                        longest = longest.max(now - arrival);
                        in_order.pop_front();
                    }
                }
                Err(_) => {}
            }
            prop_assert_eq!(ageing.bound(Patience { max_wait: Micros::ZERO, factor: 1.0 }), Micros(longest));
        }
    }
}
