//! Tables for tests, built with the encoder.
#![allow(dead_code, reason = "each test program uses its own part")]

use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{FeatureRange, TableSpec, crc32, encode, encoded_len};
use kvtide_runtime::{ACTION_SET_HASH, ActionProfile, FEATURES, SCHEMA_HASH, TreeNode};

/// An inner node.
pub fn split(feature: u8, left: u16, threshold: f32) -> TreeNode {
    TreeNode::Split { feature, left, threshold }
}

/// A leaf.
pub fn leaf(choices: [u8; NUM_HEADS]) -> TreeNode {
    TreeNode::Leaf { choices }
}

/// Every feature's whole range.
pub fn ranges() -> Vec<FeatureRange> {
    FEATURES.iter().map(|spec| FeatureRange { min: spec.min, max: spec.max }).collect()
}

/// A table for this build with no metadata.
pub fn spec<'a>(ranges: &'a [FeatureRange], nodes: &'a [TreeNode]) -> TableSpec<'a> {
    TableSpec {
        profile: ActionProfile::Full,
        heads: NUM_HEADS as u8,
        schema_hash: SCHEMA_HASH,
        action_set_hash: ACTION_SET_HASH,
        ranges,
        nodes,
        metadata: &[],
        extensions: &[],
    }
}

/// The bytes of `spec`, which must be right.
pub fn bytes_of(spec: &TableSpec<'_>) -> Vec<u8> {
    let mut bytes = vec![0; encoded_len(spec)];
    let written = encode(spec, &mut bytes).expect("the table keeps the rules");
    assert_eq!(written, bytes.len());
    bytes
}

/// The bytes of a table of `nodes` over the whole range of every feature.
pub fn table_of(nodes: &[TreeNode]) -> Vec<u8> {
    bytes_of(&spec(&ranges(), nodes))
}

/// Makes the CRC right again after a change.
pub fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.len().checked_sub(4) {
        let crc = crc32(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}
