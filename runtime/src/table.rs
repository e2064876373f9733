//! The policy that ships: a decision tree over the observation.

use crate::action::{ACTION_SET_HASH, Action, ActionMask, ActionProfile, Head, NUM_HEADS};
use crate::feature_set::FeatureSet;
use crate::format::{FeatureRange, FormatError, Leaf, Metadata, PathStep, TableFile};
use crate::guard::Fallback;
use crate::observation::{Feature, NUM_FEATURES, Observation, SCHEMA_HASH};
use crate::policy::Policy;
use crate::retention::RetentionTable;

pub use crate::format::TreeNode;

/// A validated decision table over borrowed bytes, made for this build's schema and action set.
///
/// A decision takes at most [`MAX_DEPTH`](crate::format::MAX_DEPTH) comparisons. Parsing is a `const fn`, so a table
/// can be a `static` that the compiler has verified:
///
/// ```ignore
/// pub static POLICY: Table<'static> = match Table::parse(&BYTES) {
///     Ok(table) => table,
///     Err(_) => panic!("not a table for this build"),
/// };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table<'a> {
    file: TableFile<'a>,
    uses: FeatureSet,
}

impl<'a> Table<'a> {
    /// The table in `bytes`.
    ///
    /// # Errors
    /// [`FormatError::Schema`] and [`FormatError::ActionSet`] if the file is sound but made for another build;
    /// [`TableFile::parse`] still reads it.
    pub const fn parse(bytes: &'a [u8]) -> Result<Table<'a>, FormatError> {
        match TableFile::parse(bytes) {
            Ok(file) => Table::from_file(file),
            Err(error) => Err(error),
        }
    }

    /// The table in `file`, if it was made for this build's schema and action set.
    pub const fn from_file(file: TableFile<'a>) -> Result<Table<'a>, FormatError> {
        if file.schema_hash() != SCHEMA_HASH {
            return Err(FormatError::Schema { found: file.schema_hash(), expected: SCHEMA_HASH });
        }
        if file.action_set_hash() != ACTION_SET_HASH {
            return Err(FormatError::ActionSet { found: file.action_set_hash(), expected: ACTION_SET_HASH });
        }
        if file.features() as usize != NUM_FEATURES {
            return Err(FormatError::SchemaFeatures { found: file.features() });
        }
        let mut rest = file.raw_nodes();
        let mut node = 0;
        let mut uses = FeatureSet::EMPTY;
        while let Some((bytes, tail)) = rest.split_first() {
            match TreeNode::from_bytes(*bytes) {
                TreeNode::Split { feature, .. } => uses = uses.with_index(feature),
                TreeNode::Leaf { choices } => {
                    if let Some(head) = wrong_head(choices) {
                        return Err(FormatError::LeafChoice { node, head, found: choices[head as usize] });
                    }
                }
            }
            node += 1;
            rest = tail;
        }
        Ok(Table { file, uses })
    }

    /// A table whose file [`from_file`](Self::from_file) has accepted before, and found to use these features.
    pub(crate) const fn trusted(file: TableFile<'a>, uses: FeatureSet) -> Table<'a> {
        Table { file, uses }
    }

    /// The file behind the table.
    pub const fn file(&self) -> TableFile<'a> {
        self.file
    }

    /// The heads the table decides.
    pub const fn profile(&self) -> ActionProfile {
        self.file.profile()
    }

    /// Comparisons on the longest way to a leaf.
    pub const fn depth(&self) -> u8 {
        self.file.depth()
    }

    /// Number of leaves.
    pub const fn leaves(&self) -> u16 {
        self.file.leaves()
    }

    /// What the teacher saw of each feature, in [`Feature`] order.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = FeatureRange> + Clone + use<'a> {
        self.file.ranges()
    }

    /// What the teacher saw of one feature.
    pub fn range(&self, feature: Feature) -> FeatureRange {
        // There is one for each; nothing stands for one that does not exist.
        self.file.range(feature as usize).unwrap_or(FeatureRange { min: 0.0, max: 0.0 })
    }

    /// The features it decides by.
    pub const fn uses(&self) -> FeatureSet {
        self.uses
    }

    /// The watermark that did best, constant, on the traffic the table was trained on: what a node does where the table cannot
    /// be trusted and nobody set another. From the metadata `fallback`; `None` where it says nothing, or nothing in 0..=1.
    pub fn fallback_watermark(&self) -> Option<f64> {
        let watermark = self.metadata().get("fallback")?.parse().ok()?;
        (0.0..=1.0).contains(&watermark).then_some(watermark)
    }

    /// The nodes in breadth-first order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = TreeNode> + Clone + use<'a> {
        self.file.nodes()
    }

    /// The tree that says how long blocks that are given back stay cached, if there is one made for this build.
    pub fn retention(&self) -> Option<RetentionTable<'a>> {
        self.trusted_retention().ok()
    }

    /// The same, or why a guard answers without it: [`Fallback::NoTable`] where there is none, [`Fallback::UnknownSchema`]
    /// where it was made for another build.
    ///
    /// # Errors
    /// As said.
    pub fn trusted_retention(&self) -> Result<RetentionTable<'a>, Fallback> {
        let section = self.file.retention().ok_or(Fallback::NoTable)?;
        RetentionTable::from_section(section).map_err(Fallback::from)
    }

    /// What the table says about itself.
    pub const fn metadata(&self) -> Metadata<'a> {
        self.file.metadata()
    }

    /// The leaf `observation` leads to, and what it says before any mask.
    pub fn leaf(&self, observation: &Observation) -> (u16, Action) {
        let Leaf { node, choices } = self.file.leaf(&observation.values);
        // `from_file` has checked every leaf; the default stands for a way that does not exist.
        (node, Action::new(choices).unwrap_or(Action::ENGINE_DEFAULT))
    }

    /// Why: the comparisons on the way to the leaf.
    pub fn path(&self, observation: &Observation) -> impl Iterator<Item = (Feature, PathStep)> {
        let named = |comparison: PathStep| Some((*Feature::ALL.get(usize::from(comparison.feature))?, comparison));
        self.file.path(&observation.values).filter_map(named)
    }
}

impl Policy for Table<'_> {
    fn decide(&self, observation: &Observation, mask: ActionMask) -> Action {
        mask.repair(self.leaf(observation).1)
    }
}

/// The first head whose choice is out of range.
const fn wrong_head(choices: [u8; NUM_HEADS]) -> Option<Head> {
    let mut head = 0;
    while head < NUM_HEADS {
        if choices[head] as usize >= Head::ALL[head].size() {
            return Some(Head::ALL[head]);
        }
        head += 1;
    }
    None
}
