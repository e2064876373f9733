//! The retention section of version 2: a second tree, over the features of a release, whose leaves are classes.

use super::file::{all_hold, check_ranges};
use super::node::{self, Path, TreeNode};
use super::read::{ByteReader, ok};
use super::{FeatureRange, FormatError, MAX_FEATURES, MAX_NODES, NODE_BYTES, RANGE_BYTES};
use crate::retention::Retention;

/// Bytes before the section's trained ranges.
pub(super) const SECTION_HEADER_BYTES: usize = 16;

/// Where a leaf has its class.
const CLASS_AT: usize = 4;

/// A view of a sound retention section, for whichever schema it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionSection<'a> {
    outline: SectionOutline,
    ranges: &'a [[u8; RANGE_BYTES]],
    nodes: &'a [[u8; NODE_BYTES]],
}

/// A [`RetentionSection`] without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SectionOutline {
    schema_hash: u64,
    features: u8,
    num_nodes: u32,
    depth: u8,
    leaves: u16,
    uses: u64,
}

/// What is read of a section before the CRC is looked at.
pub(super) struct RawSection<'a> {
    schema_hash: u64,
    features: u8,
    ranges: &'a [u8],
    nodes: &'a [u8],
}

impl<'a> RawSection<'a> {
    /// Reads the counts, and finds where the parts are.
    pub(super) const fn read(reader: &mut ByteReader<'a>) -> Result<RawSection<'a>, FormatError> {
        let schema_hash = ok!(reader.u64());
        let features = ok!(reader.u8());
        if features > MAX_FEATURES {
            return Err(FormatError::RetentionFeatures { found: features });
        }
        let classes = ok!(reader.u8());
        if classes as usize != Retention::ALL.len() {
            return Err(FormatError::RetentionClasses { found: classes });
        }
        let offset = reader.offset();
        if ok!(reader.u16()) != 0 {
            return Err(FormatError::RetentionReserved { offset });
        }
        let num_nodes = ok!(reader.u32());
        if num_nodes == 0 || num_nodes > MAX_NODES {
            return Err(FormatError::RetentionNodes { found: num_nodes });
        }
        let ranges = ok!(reader.bytes(features as usize * RANGE_BYTES));
        let nodes = ok!(reader.bytes(num_nodes as usize * NODE_BYTES));
        Ok(RawSection { schema_hash, features, ranges, nodes })
    }

    /// Checks the content.
    pub(super) const fn check(self) -> Result<RetentionSection<'a>, FormatError> {
        let (ranges, _) = self.ranges.as_chunks();
        if let Err(FormatError::Range { feature }) = check_ranges(ranges) {
            return Err(FormatError::RetentionRange { feature });
        }
        let (nodes, _) = self.nodes.as_chunks();
        let shape = match node::check_tree(nodes, self.features, 1) {
            Ok(shape) => shape,
            Err(error) => return Err(FormatError::RetentionTree { rule: error.name() }),
        };
        let uses = ok!(check_classes(nodes));
        let (schema_hash, features, num_nodes) = (self.schema_hash, self.features, nodes.len() as u32);
        let outline =
            SectionOutline { schema_hash, features, num_nodes, depth: shape.depth, leaves: shape.leaves, uses };
        Ok(RetentionSection { outline, ranges, nodes })
    }
}

/// Checks that every leaf has a class, and finds which features are compared.
const fn check_classes(nodes: &[[u8; NODE_BYTES]]) -> Result<u64, FormatError> {
    let mut rest = nodes;
    let (mut node, mut uses) = (0, 0);
    while let Some((bytes, tail)) = rest.split_first() {
        match TreeNode::from_bytes(*bytes) {
            TreeNode::Split { feature, .. } => uses |= 1 << feature,
            TreeNode::Leaf { .. } => {
                let found = bytes[CLASS_AT];
                if Retention::from_index(found).is_none() {
                    return Err(FormatError::RetentionClass { node, found });
                }
            }
        }
        node += 1;
        rest = tail;
    }
    Ok(uses)
}

impl<'a> RetentionSection<'a> {
    /// Which observation of releases it was made for.
    pub const fn schema_hash(&self) -> u64 {
        self.outline.schema_hash
    }

    /// Number of trained ranges.
    pub const fn features(&self) -> u8 {
        self.outline.features
    }

    /// Comparisons on the longest way to a leaf.
    pub const fn depth(&self) -> u8 {
        self.outline.depth
    }

    /// Number of leaves.
    pub const fn leaves(&self) -> u16 {
        self.outline.leaves
    }

    /// Indices of the features that are compared, one bit each.
    pub const fn uses(&self) -> u64 {
        self.outline.uses
    }

    /// What training saw of each feature, in index order.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = FeatureRange> + Clone + use<'a> {
        self.ranges.iter().copied().map(FeatureRange::from_bytes)
    }

    /// What training saw of the feature of that index; `None` if there is none.
    pub fn range(&self, feature: usize) -> Option<FeatureRange> {
        self.ranges.get(feature).copied().map(FeatureRange::from_bytes)
    }

    /// Whether each of `values` that is compared is within its range.
    pub(crate) fn holds(&self, values: &[f32]) -> bool {
        all_hold(self.ranges, self.outline.uses, values)
    }

    /// The nodes in breadth-first order; a leaf's first choice is the index of its class.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = TreeNode> + Clone + use<'a> {
        self.nodes.iter().copied().map(TreeNode::from_bytes)
    }

    /// The comparisons `values` meet. A missing value is NaN.
    pub fn path<'v>(&self, values: &'v [f32]) -> Path<'a, 'v> {
        Path::new(self.nodes, values)
    }

    /// The leaf `values` lead to, and its class. A missing value is NaN.
    pub fn leaf(&self, values: &[f32]) -> (u16, Retention) {
        // `check_classes` has looked at every leaf; normal stands for a way that does not exist.
        match self.path(values).end() {
            Some((node, bytes)) => (node, Retention::from_index(bytes[CLASS_AT]).unwrap_or_default()),
            None => (0, Retention::Normal),
        }
    }

    pub(super) const fn outline(&self) -> SectionOutline {
        self.outline
    }
}

impl SectionOutline {
    /// The section at the start of `bytes`, and what follows it; `None` if they are too few.
    pub(super) fn view(self, bytes: &[u8]) -> Option<(RetentionSection<'_>, &[u8])> {
        let (_, rest) = bytes.split_at_checked(SECTION_HEADER_BYTES)?;
        let (ranges, rest) = rest.split_at_checked(usize::from(self.features) * RANGE_BYTES)?;
        let (nodes, rest) = rest.split_at_checked(self.num_nodes as usize * NODE_BYTES)?;
        Some((RetentionSection { outline: self, ranges: ranges.as_chunks().0, nodes: nodes.as_chunks().0 }, rest))
    }
}
