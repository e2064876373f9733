//! The bytes of a `.kvt` file: limits, reading, writing. `FORMAT.md` beside this crate is the specification.
//!
//! Reading is one pass that decides everything: whatever [`TableFile::parse`] accepts can be walked in at most
//! [`MAX_DEPTH`] comparisons without a further check. It is a `const fn`, so a table compiled into a program is
//! verified by the compiler. Writing ends in reading, so the rules are written down once.
//!
//! This module knows bytes, not meaning: a [`TableFile`] may have been made for another schema or action set, and can
//! be inspected but not obeyed. [`Table`](crate::Table) is the one that decides.

mod encode;
mod error;
mod extension;
mod file;
mod metadata;
mod node;
mod read;
mod retention;

pub use crate::crc::crc32;
pub use encode::{
    EncodeError, RetentionSpec, TableSpec, encode, encode_with_retention, encoded_len, encoded_len_with_retention,
};
pub use error::FormatError;
pub use extension::{Extension, Extensions};
pub(crate) use file::Outline;
pub use file::{FeatureRange, TableFile};
pub use metadata::Metadata;
pub use node::{Leaf, Path, PathStep, TreeNode};
pub use retention::RetentionSection;

/// First bytes of every file. As in PNG, the high bit, CR LF, end-of-file and LF show what a text-mode copy would break.
pub const MAGIC: [u8; 8] = *b"\x8bKVT\r\n\x1a\n";
/// The newest layout this crate reads and writes: version 1 with a retention section.
pub const FORMAT_VERSION: u16 = 2;
/// The layout of a table without one.
pub const PLAIN_VERSION: u16 = 1;

/// Bytes before the trained ranges.
pub const HEADER_BYTES: usize = 40;
/// Bytes of one node.
pub const NODE_BYTES: usize = 8;
/// Bytes of one trained range.
pub const RANGE_BYTES: usize = 8;
/// Bytes of the closing CRC-32.
pub const CRC_BYTES: usize = 4;

/// Longest file.
pub const MAX_FILE_BYTES: usize = 256 * 1024;
/// Most nodes: 8,192 leaves.
pub const MAX_NODES: u32 = 16_383;
/// Most comparisons on the way to a leaf.
pub const MAX_DEPTH: u8 = 32;
/// Most features.
pub const MAX_FEATURES: u8 = 64;
/// Longest metadata section.
pub const MAX_METADATA_BYTES: u32 = 16 * 1024;
/// Most extensions.
pub const MAX_EXTENSIONS: u16 = 16;
