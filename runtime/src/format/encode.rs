//! Writing a file into the caller's buffer.

use core::fmt;

use super::retention::SECTION_HEADER_BYTES;
use super::{
    CRC_BYTES, Extension, FORMAT_VERSION, FeatureRange, FormatError, HEADER_BYTES, MAGIC, MAX_EXTENSIONS, MAX_FEATURES,
    MAX_FILE_BYTES, MAX_METADATA_BYTES, MAX_NODES, NODE_BYTES, PLAIN_VERSION, RANGE_BYTES, TableFile, TreeNode, crc32,
};
use crate::action::ActionProfile;
use crate::edition::Edition;
use crate::retention::Retention;
use crate::table::Table;

/// Everything a file says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TableSpec<'a> {
    /// The heads the table decides.
    pub profile: ActionProfile,
    /// For how many heads a leaf has a choice: [`NUM_HEADS`](crate::action::NUM_HEADS) for a table that is to be used with this build.
    pub heads: u8,
    /// [`SCHEMA_HASH`](crate::SCHEMA_HASH) for a table that is to be used with this build.
    pub schema_hash: u64,
    /// [`ACTION_SET_HASH`](crate::ACTION_SET_HASH) for a table that is to be used with this build.
    pub action_set_hash: u64,
    /// What the teacher saw of each feature, in index order.
    pub ranges: &'a [FeatureRange],
    /// The nodes in breadth-first order.
    pub nodes: &'a [TreeNode],
    /// Pairs of key and value in increasing order of key; a key has at most 255 bytes, a value at most 65,535.
    pub metadata: &'a [(&'a str, &'a str)],
    /// Extensions in increasing order of id.
    pub extensions: &'a [Extension<'a>],
}

/// The second tree of a file, which says how long blocks that are given back stay cached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetentionSpec<'a> {
    /// [`RELEASE_SCHEMA_HASH`](crate::RELEASE_SCHEMA_HASH) for a tree that is to be used with this build.
    pub schema_hash: u64,
    /// What training saw of each feature of a release, in index order.
    pub ranges: &'a [FeatureRange],
    /// The nodes in breadth-first order; a leaf's first choice is the index of its class, the others are 0.
    pub nodes: &'a [TreeNode],
}

/// Why a table was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncodeError {
    /// The buffer is too small.
    Space {
        /// What [`encoded_len`] says.
        needed: usize,
        /// Length of the buffer.
        found: usize,
    },
    /// A metadata key or value is too long for its length field.
    MetadataLength {
        /// Index of the pair.
        pair: usize,
    },
    /// A reader would refuse the file.
    Format(FormatError),
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodeError::Space { needed, found } => write!(f, "the table needs {needed} bytes, the buffer has {found}"),
            EncodeError::MetadataLength { pair } => write!(f, "metadata pair {pair} has too long a key or value"),
            EncodeError::Format(_) => write!(f, "the table breaks a rule of its format"),
        }
    }
}

impl core::error::Error for EncodeError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            EncodeError::Format(error) => Some(error),
            _ => None,
        }
    }
}

impl From<FormatError> for EncodeError {
    fn from(error: FormatError) -> EncodeError {
        EncodeError::Format(error)
    }
}

/// Bytes [`encode`] needs for `spec`.
pub fn encoded_len(spec: &TableSpec<'_>) -> usize {
    let extensions: usize = spec.extensions.iter().map(|e| Extension::HEADER_BYTES + e.bytes.len()).sum();
    HEADER_BYTES
        + spec.ranges.len() * RANGE_BYTES
        + spec.nodes.len() * NODE_BYTES
        + metadata_len(spec)
        + size_of::<u16>()
        + extensions
        + CRC_BYTES
}

/// Writes `spec` to the start of `out` and returns its length.
///
/// What was written has been read back: a reader of this version accepts it, and if it carries a schema and an action set
/// that this build knows, so does [`Table::parse`].
///
/// # Errors
/// If `out` is too small or a reader would refuse the file; `out` then holds nothing of use.
pub fn encode(spec: &TableSpec<'_>, out: &mut [u8]) -> Result<usize, EncodeError> {
    encode_either(spec, None, out)
}

/// Bytes [`encode_with_retention`] needs for both trees.
pub fn encoded_len_with_retention(spec: &TableSpec<'_>, retention: &RetentionSpec<'_>) -> usize {
    encoded_len(spec) + SECTION_HEADER_BYTES + retention.ranges.len() * RANGE_BYTES + retention.nodes.len() * NODE_BYTES
}

/// Writes `spec` with a second tree, as [`encode`] does without.
///
/// # Errors
/// As [`encode`].
pub fn encode_with_retention(
    spec: &TableSpec<'_>,
    retention: &RetentionSpec<'_>,
    out: &mut [u8],
) -> Result<usize, EncodeError> {
    encode_either(spec, Some(retention), out)
}

fn encode_either(
    spec: &TableSpec<'_>,
    retention: Option<&RetentionSpec<'_>>,
    out: &mut [u8],
) -> Result<usize, EncodeError> {
    check_counts(spec)?;
    retention.map_or(Ok(()), check_retention_counts)?;
    let needed = retention.map_or_else(|| encoded_len(spec), |tree| encoded_len_with_retention(spec, tree));
    if needed > MAX_FILE_BYTES {
        return Err(FormatError::TooLarge { found: needed }.into());
    }
    let found = out.len();
    let out = out.get_mut(..needed).ok_or(EncodeError::Space { needed, found })?;
    write(spec, retention, &mut ByteWriter { out: &mut *out, len: 0 })?;

    let file = TableFile::parse(out)?;
    if Edition::of(file.schema_hash(), file.action_set_hash()).is_some() {
        Table::from_file(file)?;
    }
    Ok(needed)
}

/// Refuses what a count or length field could not hold; reading back finds everything else.
fn check_counts(spec: &TableSpec<'_>) -> Result<(), EncodeError> {
    let limit = |count: usize, limit: u32, error: FormatError| {
        if count > limit as usize { Err(EncodeError::Format(error)) } else { Ok(()) }
    };
    let saturated = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let features = spec.ranges.len();
    limit(features, MAX_FEATURES.into(), FormatError::Features { found: u8::try_from(features).unwrap_or(u8::MAX) })?;
    limit(spec.nodes.len(), MAX_NODES, FormatError::Nodes { found: saturated(spec.nodes.len()) })?;
    let extensions = spec.extensions.len();
    let found = u16::try_from(extensions).unwrap_or(u16::MAX);
    limit(extensions, MAX_EXTENSIONS.into(), FormatError::Extensions { found })?;
    for (pair, (key, value)) in spec.metadata.iter().enumerate() {
        if key.len() > usize::from(u8::MAX) || value.len() > usize::from(u16::MAX) {
            return Err(EncodeError::MetadataLength { pair });
        }
    }
    let metadata = metadata_len(spec);
    limit(metadata, MAX_METADATA_BYTES, FormatError::MetadataBytes { found: saturated(metadata) })
}

fn metadata_len(spec: &TableSpec<'_>) -> usize {
    spec.metadata.iter().map(|(key, value)| size_of::<u8>() + size_of::<u16>() + key.len() + value.len()).sum()
}

fn check_retention_counts(retention: &RetentionSpec<'_>) -> Result<(), EncodeError> {
    let (features, nodes) = (retention.ranges.len(), retention.nodes.len());
    if features > usize::from(MAX_FEATURES) {
        let found = u8::try_from(features).unwrap_or(u8::MAX);
        return Err(FormatError::RetentionFeatures { found }.into());
    }
    if nodes > MAX_NODES as usize {
        return Err(FormatError::RetentionNodes { found: u32::try_from(nodes).unwrap_or(u32::MAX) }.into());
    }
    Ok(())
}

/// Writes the sections in order. `check_counts` has made every narrowing exact.
fn write(
    spec: &TableSpec<'_>,
    retention: Option<&RetentionSpec<'_>>,
    writer: &mut ByteWriter<'_>,
) -> Result<(), EncodeError> {
    let version = if retention.is_some() { FORMAT_VERSION } else { PLAIN_VERSION };
    writer.put(&MAGIC)?;
    writer.put(&version.to_le_bytes())?;
    writer.put(&[spec.profile as u8, spec.ranges.len() as u8, spec.heads, 0, 0, 0])?;
    writer.put(&spec.schema_hash.to_le_bytes())?;
    writer.put(&spec.action_set_hash.to_le_bytes())?;
    writer.put(&(spec.nodes.len() as u32).to_le_bytes())?;
    writer.put(&(metadata_len(spec) as u32).to_le_bytes())?;
    for range in spec.ranges {
        writer.put(&range.to_bytes())?;
    }
    for node in spec.nodes {
        writer.put(&node.to_bytes())?;
    }
    for (key, value) in spec.metadata {
        writer.put(&[key.len() as u8])?;
        writer.put(&(value.len() as u16).to_le_bytes())?;
        writer.put(key.as_bytes())?;
        writer.put(value.as_bytes())?;
    }
    writer.put(&(spec.extensions.len() as u16).to_le_bytes())?;
    for extension in spec.extensions {
        writer.put(&extension.id.to_le_bytes())?;
        writer.put(&extension.flags.to_le_bytes())?;
        writer.put(&(extension.bytes.len() as u32).to_le_bytes())?;
        writer.put(extension.bytes)?;
    }
    if let Some(retention) = retention {
        write_retention(retention, writer)?;
    }
    let crc = crc32(writer.written());
    writer.put(&crc.to_le_bytes())
}

fn write_retention(retention: &RetentionSpec<'_>, writer: &mut ByteWriter<'_>) -> Result<(), EncodeError> {
    writer.put(&retention.schema_hash.to_le_bytes())?;
    writer.put(&[retention.ranges.len() as u8, Retention::ALL.len() as u8, 0, 0])?;
    writer.put(&(retention.nodes.len() as u32).to_le_bytes())?;
    for range in retention.ranges {
        writer.put(&range.to_bytes())?;
    }
    for node in retention.nodes {
        writer.put(&node.to_bytes())?;
    }
    Ok(())
}

struct ByteWriter<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl ByteWriter<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let (needed, found) = (self.len + bytes.len(), self.out.len());
        let slot = self.out.get_mut(self.len..needed).ok_or(EncodeError::Space { needed, found })?;
        slot.copy_from_slice(bytes);
        self.len = needed;
        Ok(())
    }

    fn written(&self) -> &[u8] {
        self.out.get(..self.len).unwrap_or_default()
    }
}
