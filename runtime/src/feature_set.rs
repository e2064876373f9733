//! A set of features: what a table looks at, what was out of range.

use crate::observation::{Feature, NUM_FEATURES};

const _: () = assert!(NUM_FEATURES <= u64::BITS as usize, "a set is one word");

/// A set of [`Feature`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FeatureSet(u64);

impl FeatureSet {
    /// No feature.
    pub const EMPTY: FeatureSet = FeatureSet(0);

    /// The set with the feature of that index as well; an index that no feature has changes nothing.
    #[must_use]
    pub const fn with_index(self, index: u8) -> FeatureSet {
        if (index as usize) < NUM_FEATURES { FeatureSet(self.0 | 1 << index) } else { self }
    }

    /// The set with `feature` as well.
    #[must_use]
    pub const fn with(self, feature: Feature) -> FeatureSet {
        self.with_index(feature as u8)
    }

    /// Whether `feature` is in it.
    pub const fn contains(self, feature: Feature) -> bool {
        self.0 >> (feature as u8) & 1 == 1
    }

    /// Whether there is none in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// One bit each, by index.
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// How many are in it.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Those in it, in index order. One step a member, not one a feature: a guard walks it at every decision.
    pub fn iter(self) -> impl Iterator<Item = Feature> + Clone {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let feature = Feature::ALL.get(left.trailing_zeros() as usize).copied()?;
            left &= left - 1;
            Some(feature)
        })
    }
}

impl FromIterator<Feature> for FeatureSet {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> FeatureSet {
        features.into_iter().fold(FeatureSet::EMPTY, FeatureSet::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_back_in_order_and_once() {
        let set: FeatureSet = [Feature::RefusalRate, Feature::FreeFraction, Feature::RefusalRate].into_iter().collect();
        assert!(set.iter().eq([Feature::FreeFraction, Feature::RefusalRate]));
        assert!(set.contains(Feature::RefusalRate) && !set.contains(Feature::Swapped));
        assert_eq!((set.len(), set.is_empty(), FeatureSet::EMPTY.is_empty()), (2, false, true));
        assert!(Feature::ALL.into_iter().collect::<FeatureSet>().iter().eq(Feature::ALL));
    }

    #[test]
    fn what_no_feature_has_is_no_member() {
        assert_eq!(FeatureSet::EMPTY.with_index(NUM_FEATURES as u8).with_index(255), FeatureSet::EMPTY);
    }
}
