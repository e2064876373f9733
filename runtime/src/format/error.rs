//! Why bytes are not a table: one name per reason.

use core::fmt;

use super::{
    FORMAT_VERSION, MAX_DEPTH, MAX_EXTENSIONS, MAX_FEATURES, MAX_FILE_BYTES, MAX_METADATA_BYTES, MAX_NODES,
    PLAIN_VERSION,
};
use crate::action::{Head, NUM_HEADS};
use crate::observation::NUM_FEATURES;
use crate::retention::Retention;

/// Why a file was refused. Offsets are bytes from the start of the file; nodes are numbered from the root, 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    /// The file ends before what it announces.
    Truncated {
        /// Smallest length that could be right.
        needed: usize,
        /// Length of the file.
        found: usize,
    },
    /// More than [`MAX_FILE_BYTES`].
    TooLarge {
        /// Length of the file.
        found: usize,
    },
    /// Bytes follow the CRC.
    TrailingBytes {
        /// Length the file announces.
        expected: usize,
        /// Length of the file.
        found: usize,
    },
    /// Not a `.kvt` file.
    Magic,
    /// A `.kvt` file whose line ends were translated on the way.
    TextMode,
    /// Another layout than [`FORMAT_VERSION`].
    Version {
        /// Version of the file.
        found: u16,
    },
    /// No such action profile.
    Profile {
        /// Byte in the file.
        found: u8,
    },
    /// More than [`MAX_FEATURES`].
    Features {
        /// Count in the file.
        found: u8,
    },
    /// No head, or more than this build knows, or than the action set has.
    Heads {
        /// Count in the file.
        found: u8,
    },
    /// A reserved byte that is not zero.
    Reserved {
        /// Byte of the file at which it stands.
        offset: usize,
    },
    /// No node, or more than [`MAX_NODES`].
    Nodes {
        /// Count in the file.
        found: u32,
    },
    /// More than [`MAX_METADATA_BYTES`].
    MetadataBytes {
        /// Length in the file.
        found: u32,
    },
    /// More than [`MAX_EXTENSIONS`].
    Extensions {
        /// Count in the file.
        found: u16,
    },
    /// The bytes are not those that were written.
    Crc {
        /// CRC-32 at the end of the file.
        stored: u32,
        /// CRC-32 of what precedes it.
        computed: u32,
    },
    /// A trained range that is not finite or not ordered.
    Range {
        /// Feature index.
        feature: u8,
    },
    /// A node that is neither inner (0) nor leaf (1).
    NodeKind {
        /// Which node.
        node: u16,
        /// Byte in the file.
        found: u8,
    },
    /// A leaf with a feature or a child.
    LeafFields {
        /// Which node.
        node: u16,
    },
    /// An inner node that compares a feature the file does not have.
    NodeFeature {
        /// Which node.
        node: u16,
        /// Feature index in the file.
        feature: u8,
    },
    /// A threshold that is not finite.
    Threshold {
        /// Which node.
        node: u16,
        /// Bits of the `f32`.
        bits: u32,
    },
    /// A child beyond the last node.
    ChildOutOfRange {
        /// Which node.
        node: u16,
        /// Its left child.
        left: u16,
    },
    /// A child that is not after its parent; following it might never end.
    ChildBeforeParent {
        /// Which node.
        node: u16,
        /// Its left child.
        left: u16,
    },
    /// A child out of breadth-first order: it is shared, or skips a node.
    ChildOrder {
        /// Which node.
        node: u16,
        /// Its left child.
        left: u16,
        /// What the left child must be.
        expected: u16,
    },
    /// A node that no other leads to.
    Orphan {
        /// Which node.
        node: u16,
    },
    /// More than [`MAX_DEPTH`] comparisons on the way to a node.
    TooDeep {
        /// Which node.
        node: u16,
    },
    /// A key or value that runs over the end of the metadata.
    MetadataPair {
        /// Where the pair begins.
        offset: usize,
    },
    /// An empty key.
    MetadataKey {
        /// Where the pair begins.
        offset: usize,
    },
    /// A key or value that is not UTF-8.
    MetadataUtf8 {
        /// Where the pair begins.
        offset: usize,
    },
    /// A key that is not greater than the one before it.
    MetadataOrder {
        /// Where the pair begins.
        offset: usize,
    },
    /// An extension whose id is not greater than the one before it.
    ExtensionOrder {
        /// Where the extension begins.
        offset: usize,
        /// Its id.
        id: u16,
    },
    /// An extension with flags that have no meaning.
    ExtensionFlags {
        /// Where the extension begins.
        offset: usize,
        /// Its flags.
        flags: u16,
    },
    /// An unknown extension that must not be skipped.
    CriticalExtension {
        /// Where the extension begins.
        offset: usize,
        /// Its id.
        id: u16,
    },
    /// More than [`MAX_FEATURES`] features of a release.
    RetentionFeatures {
        /// Count in the file.
        found: u8,
    },
    /// Another number of retention classes than there are.
    RetentionClasses {
        /// Count in the file.
        found: u8,
    },
    /// Reserved bytes of the retention section that are not zero.
    RetentionReserved {
        /// Where they begin.
        offset: usize,
    },
    /// No node in the retention tree, or more than [`MAX_NODES`].
    RetentionNodes {
        /// Count in the file.
        found: u32,
    },
    /// A trained range of the retention tree that is not finite and ordered.
    RetentionRange {
        /// Which feature.
        feature: u8,
    },
    /// The retention tree breaks a rule that nodes of either tree keep.
    RetentionTree {
        /// The [name](Self::name) of the rule.
        rule: &'static str,
    },
    /// A leaf of the retention tree whose class does not exist.
    RetentionClass {
        /// Which node of that tree.
        node: u16,
        /// Index in the file.
        found: u8,
    },
    /// Made for other features than this build observes.
    Schema {
        /// Hash in the file.
        found: u64,
        /// [`SCHEMA_HASH`](crate::SCHEMA_HASH).
        expected: u64,
    },
    /// Made for other choices than this build can act on.
    ActionSet {
        /// Hash in the file.
        found: u64,
        /// [`ACTION_SET_HASH`](crate::ACTION_SET_HASH).
        expected: u64,
    },
    /// The schema is this build's, the number of ranges is not.
    SchemaFeatures {
        /// Count in the file.
        found: u8,
    },
    /// A leaf that chooses what its head does not have.
    LeafChoice {
        /// Which node.
        node: u16,
        /// Which head.
        head: Head,
        /// Index in the file.
        found: u8,
    },
}

impl FormatError {
    /// The reason's name in metrics and logs, and in the index of `tests/hostile`.
    pub const fn name(self) -> &'static str {
        use FormatError as E;
        match self {
            E::Truncated { .. } => "truncated",
            E::TooLarge { .. } => "too_large",
            E::TrailingBytes { .. } => "trailing_bytes",
            E::Magic => "magic",
            E::TextMode => "text_mode",
            E::Version { .. } => "version",
            E::Profile { .. } => "profile",
            E::Features { .. } => "features",
            E::Heads { .. } => "heads",
            E::Reserved { .. } => "reserved",
            E::Nodes { .. } => "nodes",
            E::MetadataBytes { .. } => "metadata_bytes",
            E::Extensions { .. } => "extensions",
            E::Crc { .. } => "crc",
            E::Range { .. } => "range",
            E::NodeKind { .. } => "node_kind",
            E::LeafFields { .. } => "leaf_fields",
            E::NodeFeature { .. } => "node_feature",
            E::Threshold { .. } => "threshold",
            E::ChildOutOfRange { .. } => "child_out_of_range",
            E::ChildBeforeParent { .. } => "child_before_parent",
            E::ChildOrder { .. } => "child_order",
            E::Orphan { .. } => "orphan",
            E::TooDeep { .. } => "too_deep",
            E::MetadataPair { .. } => "metadata_pair",
            E::MetadataKey { .. } => "metadata_key",
            E::MetadataUtf8 { .. } => "metadata_utf8",
            E::MetadataOrder { .. } => "metadata_order",
            E::ExtensionOrder { .. } => "extension_order",
            E::ExtensionFlags { .. } => "extension_flags",
            E::CriticalExtension { .. } => "critical_extension",
            E::RetentionFeatures { .. } => "retention_features",
            E::RetentionClasses { .. } => "retention_classes",
            E::RetentionReserved { .. } => "retention_reserved",
            E::RetentionNodes { .. } => "retention_nodes",
            E::RetentionRange { .. } => "retention_range",
            E::RetentionTree { .. } => "retention_tree",
            E::RetentionClass { .. } => "retention_class",
            E::Schema { .. } => "schema",
            E::ActionSet { .. } => "action_set",
            E::SchemaFeatures { .. } => "schema_features",
            E::LeafChoice { .. } => "leaf_choice",
        }
    }

    /// Whether the file is sound but made for another schema or action set.
    pub const fn is_unknown_meaning(self) -> bool {
        matches!(self, FormatError::Schema { .. } | FormatError::ActionSet { .. })
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use FormatError as E;
        match *self {
            E::Truncated { needed, found } => write!(f, "file ends after {found} bytes, needs at least {needed}"),
            E::TooLarge { found } => write!(f, "file has {found} bytes, the limit is {MAX_FILE_BYTES}"),
            E::TrailingBytes { expected, found } => write!(f, "file has {found} bytes, its table ends at {expected}"),
            E::Magic => write!(f, "not a .kvt file"),
            E::TextMode => write!(f, "line ends were translated; copy the file in binary mode"),
            E::Version { found } => {
                write!(f, "format version {found}, this build reads {PLAIN_VERSION} to {FORMAT_VERSION}")
            }
            E::Profile { found } => write!(f, "no action profile {found}"),
            E::Features { found } => write!(f, "{found} features, the limit is {MAX_FEATURES}"),
            E::Heads { found } => write!(f, "{found} heads, this build knows {NUM_HEADS}"),
            E::Reserved { offset } => write!(f, "reserved byte at {offset} is not zero"),
            E::Nodes { found } => write!(f, "{found} nodes, expected 1 to {MAX_NODES}"),
            E::MetadataBytes { found } => write!(f, "{found} bytes of metadata, the limit is {MAX_METADATA_BYTES}"),
            E::Extensions { found } => write!(f, "{found} extensions, the limit is {MAX_EXTENSIONS}"),
            E::Crc { stored, computed } => write!(f, "damaged: CRC-32 is {computed:08x}, file says {stored:08x}"),
            E::Range { feature } => write!(f, "trained range of feature {feature} is not finite and ordered"),
            E::NodeKind { node, found } => write!(f, "node {node} is of kind {found}, expected 0 or 1"),
            E::LeafFields { node } => write!(f, "leaf {node} has a feature or a child"),
            E::NodeFeature { node, feature } => {
                write!(f, "node {node} compares feature {feature}, which does not exist")
            }
            E::Threshold { node, bits } => write!(f, "node {node} has the threshold {}", f32::from_bits(bits)),
            E::ChildOutOfRange { node, left } => {
                write!(f, "node {node} has its children at {left}, beyond the last node")
            }
            E::ChildBeforeParent { node, left } => {
                write!(f, "node {node} has its children at {left}, not after itself")
            }
            E::ChildOrder { node, left, expected } => {
                write!(f, "node {node} has its children at {left}, breadth-first order has them at {expected}")
            }
            E::Orphan { node } => write!(f, "no node leads to node {node}"),
            E::TooDeep { node } => write!(f, "node {node} is more than {MAX_DEPTH} comparisons deep"),
            E::MetadataPair { offset } => write!(f, "metadata pair at {offset} runs over the end of the metadata"),
            E::MetadataKey { offset } => write!(f, "metadata key at {offset} is empty"),
            E::MetadataUtf8 { offset } => write!(f, "metadata pair at {offset} is not UTF-8"),
            E::MetadataOrder { offset } => write!(f, "metadata key at {offset} is not greater than the one before"),
            E::ExtensionOrder { offset, id } => {
                write!(f, "extension {id} at {offset} is not greater than the one before")
            }
            E::ExtensionFlags { offset, flags } => write!(f, "extension at {offset} has unknown flags {flags:#06x}"),
            E::CriticalExtension { offset, id } => write!(f, "critical extension {id} at {offset} is unknown"),
            E::RetentionFeatures { found } => {
                write!(f, "retention tree: {found} features, the limit is {MAX_FEATURES}")
            }
            E::RetentionClasses { found } => {
                write!(f, "retention tree: {found} classes, there are {}", Retention::ALL.len())
            }
            E::RetentionReserved { offset } => write!(f, "retention tree: reserved bytes at {offset} are not zero"),
            E::RetentionNodes { found } => write!(f, "retention tree: {found} nodes, expected 1 to {MAX_NODES}"),
            E::RetentionRange { feature } => {
                write!(f, "retention tree: trained range of feature {feature} is not finite and ordered")
            }
            E::RetentionTree { rule } => write!(f, "retention tree: a node breaks the rule {rule}"),
            E::RetentionClass { node, found } => {
                write!(f, "retention tree: leaf {node} chooses class {found}, there are {}", Retention::ALL.len())
            }
            E::Schema { found, expected } => write!(f, "made for schema {found:016x}, this build has {expected:016x}"),
            E::ActionSet { found, expected } => {
                write!(f, "made for action set {found:016x}, this build has {expected:016x}")
            }
            E::SchemaFeatures { found } => write!(f, "{found} trained ranges, the schema has {NUM_FEATURES} features"),
            E::LeafChoice { node, head, found } => {
                write!(f, "leaf {node} chooses {found} of head {}, which has {}", head.name(), head.size())
            }
        }
    }
}

impl core::error::Error for FormatError {}
