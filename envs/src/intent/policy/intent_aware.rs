//! All that is declared of a block, as one score.

use kvtide_rules::intent::score::intent_aware_terms;
use kvtide_rules::intent::{MemoryIntent, Moment};

use super::{PolicyName, TierPolicy};

/// The block that least depends on being there: cold, of an unimportant request, cheap to compute again, not soon read, long not
/// read. Blocks that are asked to stay are no candidates.
#[derive(Debug, Clone)]
pub struct IntentAware;

impl TierPolicy for IntentAware {
    const NAME: PolicyName = PolicyName::IntentAware;
    const SPARES_PINNED: bool = true;
    const LATER_NAME_FIRST: bool = true;
    const RISE_BY_FADING: f64 = (60.0 + 1.0) * 0.03;
    const RISE_BY_AGE: f64 = 0.25;
    const AGES_FOR: u64 = 140;

    #[inline]
    fn terms(intent: &MemoryIntent, at: Moment, add: &mut impl FnMut(&'static str, f64)) {
        intent_aware_terms(intent, at, add);
    }
}
