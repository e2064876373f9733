//! The policy that ships: a decision tree over the observation.

use crate::action::{ACTION_SET_HASH, Action, ActionMask, ActionProfile, Head, NUM_HEADS};
use crate::edition::Edition;
use crate::feature_set::FeatureSet;
use crate::format::{FeatureRange, FormatError, Leaf, Metadata, PathStep, TableFile};
use crate::guard::Fallback;
use crate::observation::{Feature, Observation, SCHEMA_HASH};
use crate::policy::Policy;
use crate::retention::RetentionTable;

pub use crate::format::TreeNode;

/// A validated decision table over borrowed bytes, made for a schema and an action set that this build knows.
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
    meaning: Meaning,
}

/// What [`Table::from_file`] found out about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meaning {
    uses: FeatureSet,
    heads: &'static [Head],
    /// What it was made for, unless that is today's.
    past: Option<&'static Edition>,
}

impl<'a> Table<'a> {
    /// The table in `bytes`.
    ///
    /// # Errors
    /// [`FormatError::Schema`] and [`FormatError::ActionSet`] if the file is sound but made for something else;
    /// [`TableFile::parse`] still reads it.
    pub const fn parse(bytes: &'a [u8]) -> Result<Table<'a>, FormatError> {
        match TableFile::parse(bytes) {
            Ok(file) => Table::from_file(file),
            Err(error) => Err(error),
        }
    }

    /// The table in `file`, if it was made for this build's schema and action set or for [earlier ones](crate::edition).
    pub const fn from_file(file: TableFile<'a>) -> Result<Table<'a>, FormatError> {
        let Some(edition) = Edition::of(file.schema_hash(), file.action_set_hash()) else {
            return Err(unknown_edition(&file));
        };
        if file.features() != edition.features {
            return Err(FormatError::SchemaFeatures { found: file.features() });
        }
        if file.heads() != edition.heads {
            return Err(FormatError::Heads { found: file.heads() });
        }
        let mut rest = file.raw_nodes();
        let mut node = 0;
        let mut uses = FeatureSet::EMPTY;
        while let Some((bytes, tail)) = rest.split_first() {
            match TreeNode::from_bytes(*bytes) {
                TreeNode::Split { feature, .. } => uses = uses.with_index(feature),
                TreeNode::Leaf { choices } => {
                    if let Some(head) = wrong_head(choices, edition) {
                        return Err(FormatError::LeafChoice { node, head, found: choices[head as usize] });
                    }
                }
            }
            node += 1;
            rest = tail;
        }
        let past = if edition.is_today() { None } else { Some(edition) };
        Ok(Table { file, meaning: Meaning { uses, heads: decided(file.profile(), edition), past } })
    }

    /// A table whose file [`from_file`](Self::from_file) has accepted before, and found to mean this.
    pub(crate) const fn trusted(file: TableFile<'a>, meaning: Meaning) -> Table<'a> {
        Table { file, meaning }
    }

    /// What was found out about its file.
    pub(crate) const fn meaning(&self) -> Meaning {
        self.meaning
    }

    /// The file behind the table.
    pub const fn file(&self) -> TableFile<'a> {
        self.file
    }

    /// The profile it was made for.
    pub const fn profile(&self) -> ActionProfile {
        self.file.profile()
    }

    /// The heads the table decides, in index order: those of its profile, but for any that came after it.
    pub const fn heads(&self) -> &'static [Head] {
        self.meaning.heads
    }

    /// What it was made for.
    pub const fn edition(&self) -> &'static Edition {
        match self.meaning.past {
            Some(edition) => edition,
            None => Edition::today(),
        }
    }

    /// Comparisons on the longest way to a leaf.
    pub const fn depth(&self) -> u8 {
        self.file.depth()
    }

    /// Number of leaves.
    pub const fn leaves(&self) -> u16 {
        self.file.leaves()
    }

    /// What the teacher saw of each feature, in [`Feature`] order; of an earlier table, of those there were.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = FeatureRange> + Clone + use<'a> {
        self.file.ranges()
    }

    /// What the teacher saw of one feature.
    pub fn range(&self, feature: Feature) -> FeatureRange {
        // Nothing stands for one that came after the table.
        self.file.range(feature as usize).unwrap_or(FeatureRange { min: 0.0, max: 0.0 })
    }

    /// The features it decides by.
    pub const fn uses(&self) -> FeatureSet {
        self.meaning.uses
    }

    /// The watermark that did best, constant, on the traffic the table was trained on: what a node does where the table cannot
    /// be trusted and nobody set another. From the metadata `fallback`; `None` where it says nothing, or nothing in 0..=1.
    pub fn fallback_watermark(&self) -> Option<f64> {
        let watermark = self.metadata().get("fallback")?.parse().ok()?;
        (0.0..=1.0).contains(&watermark).then_some(watermark)
    }

    /// The nodes in breadth-first order; choices are today's.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = TreeNode> + Clone + use<'a> {
        let edition = self.edition();
        self.file.nodes().map(|node| match node {
            TreeNode::Leaf { choices } => TreeNode::Leaf { choices: edition.translate(choices) },
            split @ TreeNode::Split { .. } => split,
        })
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
        let Leaf { node, choices } = self.walk(observation);
        // `from_file` has checked every leaf; the default stands for a way that does not exist.
        (node, Action::new(choices).unwrap_or(Action::ENGINE_DEFAULT))
    }

    /// The leaf, with today's choices.
    #[inline]
    fn walk(&self, observation: &Observation) -> Leaf {
        let leaf = self.file.leaf(&observation.values);
        match self.meaning.past {
            None => leaf,
            Some(edition) => Leaf { choices: edition.translate(leaf.choices), ..leaf },
        }
    }

    /// Why: the comparisons on the way to the leaf.
    pub fn path(&self, observation: &Observation) -> impl Iterator<Item = (Feature, PathStep)> {
        let named = |comparison: PathStep| Some((*Feature::ALL.get(usize::from(comparison.feature))?, comparison));
        self.file.path(&observation.values).filter_map(named)
    }
}

impl Policy for Table<'_> {
    fn decide(&self, observation: &Observation, mask: ActionMask) -> Action {
        // A choice that a head does not have is allowed by no mask.
        mask.action(self.walk(observation).choices)
    }
}

/// The first head whose choice is out of range in `edition`.
const fn wrong_head(choices: [u8; NUM_HEADS], edition: &Edition) -> Option<Head> {
    let mut head = 0;
    while head < edition.heads as usize {
        if choices[head] as usize >= edition.size(Head::ALL[head]) {
            return Some(Head::ALL[head]);
        }
        head += 1;
    }
    None
}

/// The heads of `profile` that `edition` has: the first ones, for heads are only ever appended.
const fn decided(profile: ActionProfile, edition: &Edition) -> &'static [Head] {
    let mut heads = profile.heads();
    while let Some((&last, before)) = heads.split_last() {
        if edition.has(last) {
            break;
        }
        heads = before;
    }
    heads
}

/// What speaks against a file that is of no edition.
const fn unknown_edition(file: &TableFile<'_>) -> FormatError {
    if file.schema_hash() == SCHEMA_HASH {
        FormatError::ActionSet { found: file.action_set_hash(), expected: ACTION_SET_HASH }
    } else {
        FormatError::Schema { found: file.schema_hash(), expected: SCHEMA_HASH }
    }
}
