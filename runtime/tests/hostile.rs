//! Hostile: files that are cut, damaged or made to harm, each refused by name.

use crate::support::{bytes_of, leaf, ranges, seal, spec, split, table_of};
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{
    Extension, FormatError, HEADER_BYTES, MAX_DEPTH, MAX_FILE_BYTES, NODE_BYTES, TableFile, TableSpec,
};
use kvtide_runtime::{ActionProfile, Head, NUM_FEATURES, SCHEMA_HASH, Table, TreeNode};

use FormatError as E;

static GOLDEN: &[u8] = include_bytes!("golden/v1_small.kvt");

/// Five nodes, two pairs of metadata, two extensions.
fn sound() -> Vec<u8> {
    let nodes = [
        split(3, 1, 0.5),
        leaf([1, 0, 1, 0, 8, 0]),
        split(7, 3, 2.0),
        leaf([4, 4, 2, 2, 8, 0]),
        leaf([11, 0, 0, 0, 8, 0]),
    ];
    bytes_of(&TableSpec {
        metadata: &[("commit", "abc"), ("seed", "42")],
        extensions: &[Extension { id: 9, flags: 0, bytes: b"xyz" }, Extension { id: 10, flags: 0, bytes: b"" }],
        ..spec(&ranges(), &nodes)
    })
}

const NODES: usize = HEADER_BYTES + NUM_FEATURES * 8;
const METADATA: usize = NODES + 5 * NODE_BYTES;
const SECOND_PAIR: usize = METADATA + 3 + 6 + 3;
const EXTENSION_COUNT: usize = SECOND_PAIR + 3 + 4 + 2;
const FIRST_EXTENSION: usize = EXTENSION_COUNT + 2;
const SECOND_EXTENSION: usize = FIRST_EXTENSION + 8 + 3;
const CRC: usize = SECOND_EXTENSION + 8;
const LEN: usize = CRC + 4;

/// What is said of a sound file with `value` at `offset` and the CRC made right.
fn refuse(offset: usize, value: &[u8]) -> FormatError {
    let mut bytes = sound();
    bytes[offset..offset + value.len()].copy_from_slice(value);
    Table::parse(&seal(bytes)).expect_err("the change breaks a rule")
}

const fn node_at(node: usize) -> usize {
    NODES + node * NODE_BYTES
}

#[test]
fn the_sound_file_is_sound() {
    let bytes = sound();
    assert_eq!(bytes.len(), LEN);
    assert!(Table::parse(&bytes).is_ok());
}

#[test]
fn every_truncation_is_refused_by_length() {
    for bytes in [sound(), GOLDEN.to_vec()] {
        for len in 0..bytes.len() {
            let error = TableFile::parse(&bytes[..len]).unwrap_err();
            assert!(
                matches!(error, E::Truncated { needed, found } if found == len && needed > len && needed <= bytes.len()),
                "{len}: {error}"
            );
        }
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    for sound in [sound(), GOLDEN.to_vec()] {
        for bit in 0..sound.len() * 8 {
            let mut bytes = sound.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(TableFile::parse(&bytes).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn every_flipped_bit_with_a_right_crc_is_refused_or_walkable() {
    for bit in 0..CRC * 8 {
        let mut bytes = sound();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(file) = TableFile::parse(&seal(bytes)) {
            assert!(
                matches!(file.nodes().nth(usize::from(file.leaf(&[]).node)), Some(TreeNode::Leaf { .. })),
                "bit {bit}"
            );
        }
    }
}

#[test]
fn damage_is_found_by_the_crc() {
    let mut bytes = sound();
    bytes[METADATA + 5] ^= 1;
    assert!(matches!(Table::parse(&bytes), Err(E::Crc { .. })));
}

#[test]
fn lengths() {
    let mut long = sound();
    long.push(0);
    assert_eq!(Table::parse(&seal(long)), Err(E::TrailingBytes { expected: LEN, found: LEN + 1 }));
    let vast = vec![0; MAX_FILE_BYTES + 1];
    assert_eq!(Table::parse(&vast), Err(E::TooLarge { found: MAX_FILE_BYTES + 1 }));
}

#[test]
fn header() {
    assert_eq!(refuse(1, b"W"), E::Magic);
    assert_eq!(refuse(0, b"\x0b"), E::TextMode, "high bit stripped");
    assert_eq!(refuse(4, b"\n\x1a\n"), E::TextMode, "CR LF to LF");
    assert_eq!(refuse(7, b"\r"), E::TextMode, "LF to CR");
    assert_eq!(refuse(8, &[3, 0]), E::Version { found: 3 });
    assert_eq!(refuse(8, &[0, 0]), E::Version { found: 0 });
    assert_eq!(refuse(10, &[4]), E::Profile { found: 4 });
    assert_eq!(refuse(11, &[65]), E::Features { found: 65 });
    // More than are known, and fewer than this table's action set has.
    for found in [0, 5, 7, 255] {
        assert_eq!(refuse(12, &[found]), E::Heads { found });
    }
    for offset in 13..16 {
        assert_eq!(refuse(offset, &[1]), E::Reserved { offset });
    }
    assert_eq!(refuse(32, &0_u32.to_le_bytes()), E::Nodes { found: 0 });
    assert_eq!(refuse(32, &16_384_u32.to_le_bytes()), E::Nodes { found: 16_384 });
    assert_eq!(refuse(32, &u32::MAX.to_le_bytes()), E::Nodes { found: u32::MAX });
    assert_eq!(refuse(36, &16_385_u32.to_le_bytes()), E::MetadataBytes { found: 16_385 });
}

#[test]
fn counts_beyond_the_file() {
    let needed = |nodes: usize| NODES + nodes * NODE_BYTES;
    assert_eq!(refuse(32, &16_383_u32.to_le_bytes()), E::Truncated { needed: needed(16_383), found: LEN });
    assert_eq!(refuse(36, &16_384_u32.to_le_bytes()), E::Truncated { needed: METADATA + 16_384, found: LEN });
    let extension_end = FIRST_EXTENSION + 8 + u32::MAX as usize;
    assert_eq!(
        refuse(FIRST_EXTENSION + 4, &u32::MAX.to_le_bytes()),
        E::Truncated { needed: extension_end, found: LEN }
    );
}

#[test]
fn meaning() {
    let mut schema = sound();
    schema[16] ^= 1;
    assert_eq!(Table::parse(&seal(schema)), Err(E::Schema { found: SCHEMA_HASH ^ 1, expected: SCHEMA_HASH }));
    assert!(matches!(refuse(24, &7_u64.to_le_bytes()), E::ActionSet { found: 7, .. }));

    // Ours by its hash, but with one range too few.
    let mut bytes = table_of(&[leaf([0; NUM_HEADS])]);
    bytes[11] -= 1;
    bytes.drain(HEADER_BYTES..HEADER_BYTES + 8);
    assert_eq!(Table::parse(&seal(bytes)), Err(E::SchemaFeatures { found: NUM_FEATURES as u8 - 1 }));

    for head in Head::ALL {
        let found = head.size() as u8;
        assert_eq!(
            refuse(node_at(3) + [4, 5, 6, 7, 2, 3][head as usize], &[found]),
            E::LeafChoice { node: 3, head, found }
        );
    }
}

#[test]
fn ranges_are_finite_and_ordered() {
    let at = |feature: usize| HEADER_BYTES + feature * 8;
    assert_eq!(refuse(at(0), &2.0_f32.to_le_bytes()), E::Range { feature: 0 }, "min > max");
    assert_eq!(refuse(at(5), &f32::NAN.to_le_bytes()), E::Range { feature: 5 });
    assert_eq!(refuse(at(5), &f32::NEG_INFINITY.to_le_bytes()), E::Range { feature: 5 });
    assert_eq!(refuse(at(27) + 4, &f32::NAN.to_le_bytes()), E::Range { feature: 27 });
    assert_eq!(refuse(at(27) + 4, &f32::INFINITY.to_le_bytes()), E::Range { feature: 27 });
}

#[test]
fn node_fields() {
    assert_eq!(refuse(node_at(2) + 1, &[2]), E::NodeKind { node: 2, found: 2 });
    assert_eq!(refuse(node_at(1) + 1, &[255]), E::NodeKind { node: 1, found: 255 });
    assert_eq!(refuse(node_at(1), &[1]), E::LeafFields { node: 1 }, "a leaf with a feature");
    let beyond = NUM_FEATURES as u8;
    assert_eq!(refuse(node_at(2), &[beyond]), E::NodeFeature { node: 2, feature: beyond });
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = E::Threshold { node: 2, bits: value.to_bits() };
        assert_eq!(refuse(node_at(2) + 4, &value.to_le_bytes()), error);
    }
}

#[test]
fn children() {
    let left = |node: usize, left: u16| refuse(node_at(node) + 2, &left.to_le_bytes());
    assert_eq!(left(2, 4), E::ChildOutOfRange { node: 2, left: 4 }, "the right child is beyond the end");
    assert_eq!(left(2, u16::MAX), E::ChildOutOfRange { node: 2, left: u16::MAX });
    assert_eq!(left(0, 0), E::ChildBeforeParent { node: 0, left: 0 }, "its own child");
    assert_eq!(left(2, 1), E::ChildBeforeParent { node: 2, left: 1 }, "a cycle");
    assert_eq!(left(2, 2), E::ChildBeforeParent { node: 2, left: 2 });
    assert_eq!(left(0, 3), E::ChildOrder { node: 0, left: 3, expected: 1 }, "shared with node 2");
    assert_eq!(refuse(node_at(2), &leaf([0; NUM_HEADS]).to_bytes()), E::Orphan { node: 3 });
    assert_eq!(refuse(node_at(0), &leaf([0; NUM_HEADS]).to_bytes()), E::Orphan { node: 1 });
}

/// A chain: every left child is a leaf, every right one the next split.
fn chain(depth: u16) -> Vec<u8> {
    let mut nodes = vec![split(0, 1, 0.0)];
    for level in 1..=depth {
        nodes.push(leaf([0; NUM_HEADS]));
        nodes.push(if level < depth { split(0, 2 * level + 1, 0.0) } else { leaf([1; NUM_HEADS]) });
    }
    let mut bytes = table_of(&[leaf([0; NUM_HEADS])]);
    bytes[32..34].copy_from_slice(&(nodes.len() as u16).to_le_bytes());
    let stored: Vec<u8> = nodes.iter().flat_map(|node| node.to_bytes()).collect();
    bytes.splice(NODES..NODES + NODE_BYTES, stored);
    seal(bytes)
}

#[test]
fn depth() {
    let deepest = chain(MAX_DEPTH.into());
    let table = Table::parse(&deepest).unwrap();
    assert_eq!(table.depth(), MAX_DEPTH);
    let mut observation = kvtide_runtime::Observation::ZERO;
    observation.values[0] = 1.0;
    assert_eq!(table.leaf(&observation).1.indices(), [1; NUM_HEADS]);
    assert_eq!(table.path(&observation).count(), usize::from(MAX_DEPTH));

    let node = 2 * u16::from(MAX_DEPTH) + 1;
    assert_eq!(Table::parse(&chain(u16::from(MAX_DEPTH) + 1)), Err(E::TooDeep { node }));
}

#[test]
fn metadata() {
    assert_eq!(refuse(SECOND_PAIR, &[200]), E::MetadataPair { offset: SECOND_PAIR });
    assert_eq!(refuse(SECOND_PAIR + 1, &[3]), E::MetadataPair { offset: SECOND_PAIR });
    assert_eq!(refuse(METADATA, &[0, 9]), E::MetadataKey { offset: METADATA });
    assert_eq!(refuse(METADATA + 3, &[0xff]), E::MetadataUtf8 { offset: METADATA });
    assert_eq!(refuse(SECOND_PAIR + 3 + 4, &[0xc3, 0x28]), E::MetadataUtf8 { offset: SECOND_PAIR });
    assert_eq!(refuse(METADATA + 3, b"z"), E::MetadataOrder { offset: SECOND_PAIR });
    assert_eq!(refuse(SECOND_PAIR + 3, b"bbbb"), E::MetadataOrder { offset: SECOND_PAIR });

    // The same key twice.
    let mut bytes = table_of(&[leaf([0; NUM_HEADS])]);
    let pairs = [1, 0, 0, b'k', 1, 0, 0, b'k'];
    bytes[36] = pairs.len() as u8;
    let start = NODES + NODE_BYTES;
    bytes.splice(start..start, pairs);
    assert_eq!(Table::parse(&seal(bytes)), Err(E::MetadataOrder { offset: start + 4 }));
}

#[test]
fn extensions() {
    assert_eq!(refuse(EXTENSION_COUNT, &17_u16.to_le_bytes()), E::Extensions { found: 17 });
    assert_eq!(refuse(FIRST_EXTENSION + 2, &[1]), E::CriticalExtension { offset: FIRST_EXTENSION, id: 9 });
    assert_eq!(refuse(FIRST_EXTENSION + 3, &[0x80]), E::ExtensionFlags { offset: FIRST_EXTENSION, flags: 0x8000 });
    for id in [9, 8, 0] {
        assert_eq!(refuse(SECOND_EXTENSION, &[id]), E::ExtensionOrder { offset: SECOND_EXTENSION, id: id.into() });
    }
    // Fewer extensions than there are leaves bytes over.
    assert_eq!(refuse(EXTENSION_COUNT, &[1]), E::TrailingBytes { expected: SECOND_EXTENSION + 4, found: LEN });
}

#[test]
fn every_profile_is_read() {
    for profile in ActionProfile::ALL {
        let mut bytes = sound();
        bytes[10] = profile as u8;
        assert_eq!(Table::parse(&seal(bytes)).unwrap().profile(), profile);
    }
}

#[test]
fn refusals_are_one_line_and_say_where() {
    assert_eq!(refuse(8, &[3, 0]).to_string(), "format version 3, this build reads 1 to 2");
    assert_eq!(refuse(node_at(2) + 4, &f32::NAN.to_le_bytes()).to_string(), "node 2 has the threshold NaN");
    assert_eq!(refuse(node_at(3) + 5, &[9]).to_string(), "leaf 3 chooses 9 of head victim, which has 5");
}
