//! A whole file: bytes in, a validated view out.

use super::extension::{self, Extensions};
use super::metadata::{self, Metadata};
use super::node::{self, Leaf, Path, TreeNode};
use super::read::{ByteReader, ok};
use super::retention::{RawSection, RetentionSection, SectionOutline};
use super::{
    CRC_BYTES, FORMAT_VERSION, FormatError, HEADER_BYTES, MAGIC, MAX_EXTENSIONS, MAX_FEATURES, MAX_FILE_BYTES,
    MAX_METADATA_BYTES, MAX_NODES, NODE_BYTES, PLAIN_VERSION, RANGE_BYTES, crc32,
};
use crate::action::{ActionProfile, NUM_HEADS};

/// A view of a sound file, for whichever schema and action set it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFile<'a> {
    profile: ActionProfile,
    heads: u8,
    schema_hash: u64,
    action_set_hash: u64,
    ranges: &'a [[u8; RANGE_BYTES]],
    nodes: &'a [[u8; NODE_BYTES]],
    metadata: &'a [u8],
    extensions: &'a [u8],
    retention: Option<RetentionSection<'a>>,
    depth: u8,
    leaves: u16,
}

impl<'a> TableFile<'a> {
    /// Checks everything but the meaning of `bytes`: lengths first, then the CRC, then the content.
    pub const fn parse(bytes: &'a [u8]) -> Result<TableFile<'a>, FormatError> {
        if bytes.len() > MAX_FILE_BYTES {
            return Err(FormatError::TooLarge { found: bytes.len() });
        }
        let mut reader = ByteReader::new(bytes);
        let header = ok!(Header::read(&mut reader));
        let ranges_bytes = ok!(reader.bytes(header.features as usize * RANGE_BYTES));
        let nodes_bytes = ok!(reader.bytes(header.nodes as usize * NODE_BYTES));
        let metadata_offset = reader.offset();
        let metadata = ok!(reader.bytes(header.metadata_bytes as usize));
        let extension_count = ok!(reader.u16());
        if extension_count > MAX_EXTENSIONS {
            return Err(FormatError::Extensions { found: extension_count });
        }
        let extensions_offset = reader.offset();
        let extensions = ok!(take_extensions(&mut reader, extension_count));
        let raw_retention =
            if header.version == PLAIN_VERSION { None } else { Some(ok!(RawSection::read(&mut reader))) };
        ok!(check_crc(bytes, reader.offset()));

        let (ranges, _) = ranges_bytes.as_chunks();
        ok!(check_ranges(ranges));
        let (nodes, _) = nodes_bytes.as_chunks();
        let shape = ok!(node::check_tree(nodes, header.features, header.heads));
        ok!(metadata::check(metadata, metadata_offset));
        ok!(extension::check(extensions, extensions_offset));
        let retention = match raw_retention {
            Some(raw) => Some(ok!(raw.check())),
            None => None,
        };
        Ok(TableFile {
            profile: header.profile,
            heads: header.heads,
            schema_hash: header.schema_hash,
            action_set_hash: header.action_set_hash,
            ranges,
            nodes,
            metadata,
            extensions,
            retention,
            depth: shape.depth,
            leaves: shape.leaves,
        })
    }

    /// The layout it is written in: that with a retention section, or that without.
    pub const fn version(&self) -> u16 {
        if self.retention.is_some() { FORMAT_VERSION } else { PLAIN_VERSION }
    }

    /// The second tree, for whichever schema it was made; `None` in a file without.
    pub const fn retention(&self) -> Option<RetentionSection<'a>> {
        self.retention
    }

    /// The heads the table decides. A leaf stores a choice for the others too; a node keeps its own there.
    pub const fn profile(&self) -> ActionProfile {
        self.profile
    }

    /// For how many heads a leaf has a choice.
    pub const fn heads(&self) -> u8 {
        self.heads
    }

    /// Which observation the file was made for.
    pub const fn schema_hash(&self) -> u64 {
        self.schema_hash
    }

    /// Which actions the file was made for.
    pub const fn action_set_hash(&self) -> u64 {
        self.action_set_hash
    }

    /// Comparisons on the longest way to a leaf.
    pub const fn depth(&self) -> u8 {
        self.depth
    }

    /// Number of leaves.
    pub const fn leaves(&self) -> u16 {
        self.leaves
    }

    /// What the teacher saw of each feature, in index order.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = FeatureRange> + Clone + use<'a> {
        self.ranges.iter().copied().map(FeatureRange::from_bytes)
    }

    /// What the teacher saw of the feature of that index; `None` if there is none.
    pub fn range(&self, feature: usize) -> Option<FeatureRange> {
        self.ranges.get(feature).copied().map(FeatureRange::from_bytes)
    }

    /// Whether each of `values` that is among `uses`, one bit each, is within its range.
    pub(crate) fn holds(&self, uses: u64, values: &[f32]) -> bool {
        all_hold(self.ranges, uses, values)
    }

    /// The nodes in breadth-first order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = TreeNode> + Clone + use<'a> {
        self.nodes.iter().copied().map(TreeNode::from_bytes)
    }

    /// What the table says about itself.
    pub const fn metadata(&self) -> Metadata<'a> {
        Metadata::new(self.metadata)
    }

    /// What later writers added.
    pub const fn extensions(&self) -> Extensions<'a> {
        Extensions::new(self.extensions)
    }

    /// The comparisons `values` meet. A missing value is NaN.
    pub fn path<'v>(&self, values: &'v [f32]) -> Path<'a, 'v> {
        Path::new(self.nodes, values)
    }

    /// The leaf `values` lead to. A missing value is NaN.
    #[inline]
    pub fn leaf(&self, values: &[f32]) -> Leaf {
        self.path(values).leaf()
    }

    /// Where everything is, to look at the same bytes again without checking them again.
    pub(crate) const fn outline(&self) -> Outline {
        Outline {
            profile: self.profile,
            heads: self.heads,
            schema_hash: self.schema_hash,
            action_set_hash: self.action_set_hash,
            features: self.ranges.len(),
            nodes: self.nodes.len(),
            metadata_bytes: self.metadata.len(),
            extension_bytes: self.extensions.len(),
            retention: match &self.retention {
                Some(section) => Some(section.outline()),
                None => None,
            },
            depth: self.depth,
            leaves: self.leaves,
        }
    }

    pub(crate) const fn raw_nodes(&self) -> &'a [[u8; NODE_BYTES]] {
        self.nodes
    }

    pub(crate) const fn features(&self) -> u8 {
        self.ranges.len() as u8
    }
}

/// A [`TableFile`] without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outline {
    profile: ActionProfile,
    heads: u8,
    schema_hash: u64,
    action_set_hash: u64,
    features: usize,
    nodes: usize,
    metadata_bytes: usize,
    extension_bytes: usize,
    retention: Option<SectionOutline>,
    depth: u8,
    leaves: u16,
}

impl Outline {
    /// The file in `bytes`, which must be those the outline was taken from; `None` if they are of another length. Other
    /// bytes of that length give a view of rubbish whose walks still end.
    pub(crate) fn view(self, bytes: &[u8]) -> Option<TableFile<'_>> {
        let (_, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        let (ranges, rest) = rest.split_at_checked(self.features * RANGE_BYTES)?;
        let (nodes, rest) = rest.split_at_checked(self.nodes * NODE_BYTES)?;
        let (metadata, rest) = rest.split_at_checked(self.metadata_bytes)?;
        let (_extension_count, rest) = rest.split_at_checked(size_of::<u16>())?;
        let (extensions, rest) = rest.split_at_checked(self.extension_bytes)?;
        let (retention, rest) = match self.retention {
            Some(outline) => outline.view(rest).map(|(section, rest)| (Some(section), rest))?,
            None => (None, rest),
        };
        if rest.len() != CRC_BYTES {
            return None;
        }
        Some(TableFile {
            profile: self.profile,
            heads: self.heads,
            schema_hash: self.schema_hash,
            action_set_hash: self.action_set_hash,
            ranges: ranges.as_chunks().0,
            nodes: nodes.as_chunks().0,
            metadata,
            extensions,
            retention,
            depth: self.depth,
            leaves: self.leaves,
        })
    }
}

/// Smallest and largest value of a feature that training saw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeatureRange {
    /// Smallest value.
    pub min: f32,
    /// Largest value.
    pub max: f32,
}

impl FeatureRange {
    /// The range as stored.
    pub const fn to_bytes(self) -> [u8; RANGE_BYTES] {
        let [a, b, c, d] = self.min.to_le_bytes();
        let [e, f, g, h] = self.max.to_le_bytes();
        [a, b, c, d, e, f, g, h]
    }

    /// The range in `bytes`.
    pub const fn from_bytes(bytes: [u8; RANGE_BYTES]) -> FeatureRange {
        let [a, b, c, d, e, f, g, h] = bytes;
        FeatureRange { min: f32::from_le_bytes([a, b, c, d]), max: f32::from_le_bytes([e, f, g, h]) }
    }

    /// Whether `value` is within the range itself, which NaN and infinities are not.
    #[inline]
    #[expect(clippy::needless_bitwise_bool, reason = "one branch for all ranges, not two for each")]
    fn holds(self, value: f32) -> bool {
        (self.min <= value) & (value <= self.max)
    }

    /// Whether `value` is within the range widened on both sides by `tolerance` of its width. NaN is not. A negative
    /// tolerance narrows nothing.
    pub fn contains(self, value: f32, tolerance: f32) -> bool {
        if self.min <= value && value <= self.max {
            return true;
        }
        // In f64, where the width of the widest f32 range is finite.
        let (min, max) = (f64::from(self.min), f64::from(self.max));
        let margin = f64::from(tolerance) * (max - min);
        min - margin <= f64::from(value) && f64::from(value) <= max + margin
    }
}

/// Whether each of `values` that is among `uses` is within its range. All are looked at in turn: that is sooner done than finding
/// those that are used.
#[inline]
pub(super) fn all_hold(ranges: &[[u8; RANGE_BYTES]], uses: u64, values: &[f32]) -> bool {
    let mut unused = !uses;
    ranges.iter().zip(values).fold(true, |all, (range, &value)| {
        let is_unused = unused & 1 == 1;
        unused >>= 1;
        all & (is_unused | FeatureRange::from_bytes(*range).holds(value))
    })
}

/// The fixed part of a file, its counts within their limits.
struct Header {
    version: u16,
    profile: ActionProfile,
    features: u8,
    heads: u8,
    schema_hash: u64,
    action_set_hash: u64,
    nodes: u32,
    metadata_bytes: u32,
}

impl Header {
    const fn read(reader: &mut ByteReader<'_>) -> Result<Header, FormatError> {
        ok!(check_magic(ok!(reader.array())));
        let version = ok!(reader.u16());
        if version != PLAIN_VERSION && version != FORMAT_VERSION {
            return Err(FormatError::Version { found: version });
        }
        let profile = match ok!(reader.u8()) {
            0 => ActionProfile::Watermark,
            1 => ActionProfile::Core,
            2 => ActionProfile::Full,
            3 => ActionProfile::Cache,
            found => return Err(FormatError::Profile { found }),
        };
        let features = ok!(reader.u8());
        if features > MAX_FEATURES {
            return Err(FormatError::Features { found: features });
        }
        let heads = ok!(reader.u8());
        if heads == 0 || heads as usize > NUM_HEADS {
            return Err(FormatError::Heads { found: heads });
        }
        let reserved_end = reader.offset() + 3;
        while reader.offset() < reserved_end {
            let offset = reader.offset();
            if ok!(reader.u8()) != 0 {
                return Err(FormatError::Reserved { offset });
            }
        }
        let schema_hash = ok!(reader.u64());
        let action_set_hash = ok!(reader.u64());
        let nodes = ok!(reader.u32());
        if nodes == 0 || nodes > MAX_NODES {
            return Err(FormatError::Nodes { found: nodes });
        }
        let metadata_bytes = ok!(reader.u32());
        if metadata_bytes > MAX_METADATA_BYTES {
            return Err(FormatError::MetadataBytes { found: metadata_bytes });
        }
        Ok(Header { version, profile, features, heads, schema_hash, action_set_hash, nodes, metadata_bytes })
    }
}

const fn check_magic(found: [u8; 8]) -> Result<(), FormatError> {
    if u64::from_le_bytes(found) == u64::from_le_bytes(MAGIC) {
        return Ok(());
    }
    // A translation touches the line ends or the high bit, never the letters.
    let [first, second, third, fourth, ..] = found;
    let [high, k, v, t, ..] = MAGIC;
    if (first == high || first == high & 0x7f) && second == k && third == v && fourth == t {
        return Err(FormatError::TextMode);
    }
    Err(FormatError::Magic)
}

/// The bytes of `count` extensions.
const fn take_extensions<'a>(reader: &mut ByteReader<'a>, count: u16) -> Result<&'a [u8], FormatError> {
    let (start, all) = (reader.offset(), reader.rest());
    let mut taken = 0;
    while taken < count {
        ok!(extension::read(reader));
        taken += 1;
    }
    match all.split_at_checked(reader.offset() - start) {
        Some((extensions, _)) => Ok(extensions),
        None => Ok(&[]),
    }
}

/// Checks that the CRC of the first `end` bytes follows them, and nothing follows it.
const fn check_crc(bytes: &[u8], end: usize) -> Result<(), FormatError> {
    let mut reader = ByteReader::new(bytes);
    let computed = crc32(ok!(reader.bytes(end)));
    let stored = ok!(reader.u32());
    if !reader.rest().is_empty() {
        return Err(FormatError::TrailingBytes { expected: end + CRC_BYTES, found: bytes.len() });
    }
    if stored != computed {
        return Err(FormatError::Crc { stored, computed });
    }
    Ok(())
}

pub(super) const fn check_ranges(ranges: &[[u8; RANGE_BYTES]]) -> Result<(), FormatError> {
    let mut rest = ranges;
    let mut feature = 0;
    while let Some((bytes, tail)) = rest.split_first() {
        let FeatureRange { min, max } = FeatureRange::from_bytes(*bytes);
        if !min.is_finite() || !max.is_finite() || min > max {
            return Err(FormatError::Range { feature });
        }
        feature += 1;
        rest = tail;
    }
    Ok(())
}
