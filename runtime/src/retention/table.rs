//! The retention policy that ships: a second decision tree in a table's file.

use super::{
    NUM_RELEASE_FEATURES, RELEASE_FEATURES, RELEASE_SCHEMA_HASH, ReleaseObservation, Retention, RetentionPolicy,
};
use crate::format::{FeatureRange, FormatError, PathStep, RetentionSection, TreeNode};

/// A validated retention tree over borrowed bytes, made for this build's [`RELEASE_SCHEMA_HASH`].
///
/// A decision takes at most [`MAX_DEPTH`](crate::format::MAX_DEPTH) comparisons, and never panics, allocates or blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionTable<'a> {
    section: RetentionSection<'a>,
}

impl<'a> RetentionTable<'a> {
    /// The tree in `section`.
    ///
    /// # Errors
    /// [`FormatError::Schema`] if it was made for another schema, [`FormatError::SchemaFeatures`] if it has another number
    /// of ranges.
    pub const fn from_section(section: RetentionSection<'a>) -> Result<RetentionTable<'a>, FormatError> {
        if section.schema_hash() != RELEASE_SCHEMA_HASH {
            return Err(FormatError::Schema { found: section.schema_hash(), expected: RELEASE_SCHEMA_HASH });
        }
        if section.features() as usize != NUM_RELEASE_FEATURES {
            return Err(FormatError::SchemaFeatures { found: section.features() });
        }
        Ok(RetentionTable { section })
    }

    /// The class of what `observation` describes.
    pub fn decide(&self, observation: &ReleaseObservation) -> Retention {
        self.leaf(observation).1
    }

    /// The leaf `observation` leads to, and what it says.
    pub fn leaf(&self, observation: &ReleaseObservation) -> (u16, Retention) {
        self.section.leaf(&observation.values)
    }

    /// Why: the comparisons on the way to the leaf, each with the name of its feature.
    pub fn path(&self, observation: &ReleaseObservation) -> impl Iterator<Item = (&'static str, PathStep)> {
        let named = |step: PathStep| Some((RELEASE_FEATURES.get(usize::from(step.feature))?.name, step));
        self.section.path(&observation.values).filter_map(named)
    }

    /// The part of the file it is in.
    pub const fn section(&self) -> RetentionSection<'a> {
        self.section
    }

    /// Indices of the features it decides by, one bit each.
    pub const fn uses(&self) -> u64 {
        self.section.uses()
    }

    /// What training saw of the feature of that index.
    pub fn range(&self, feature: usize) -> Option<FeatureRange> {
        self.section.range(feature)
    }

    /// The nodes in breadth-first order; a leaf's first choice is the index of its class.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = TreeNode> + Clone + use<'a> {
        self.section.nodes()
    }
}

impl RetentionPolicy for RetentionTable<'_> {
    fn retain(&self, observation: &ReleaseObservation) -> Retention {
        self.decide(observation)
    }
}
