//! The files in `hostile/`: each is refused for the reason that `hostile/README.md` gives.
//!
//! Files are made of the golden one, whose schema never existed, so that they outlive every schema; the few that are
//! refused for what they mean to this build are made for it. `KVTIDE_WRITE_HOSTILE=1 cargo test -p kvtide-runtime --test
//! hostile_files` writes files and index again; needed when the schema or the action set changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::support::{leaf, seal, split, table_of};
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{FormatError, MAX_DEPTH, MAX_FILE_BYTES, NODE_BYTES};
use kvtide_runtime::{NUM_FEATURES, Table, TreeNode};

static GOLDEN: &[u8] = include_bytes!("golden/v1_small.kvt");
/// The same with a retention section.
static RETAINING: &[u8] = include_bytes!("golden/v2_small.kvt");

/// Where the parts of the golden file begin; `FORMAT.md`, worked example.
const RANGES: usize = 0x28;
const NODES: usize = 0x40;
const METADATA: usize = 0x68;
const EXTENSIONS: usize = 0x93;
const CONTENT_END: usize = 0x9f;
/// Of the golden file of version 2: its retention section, and the nodes in there.
const SECTION: usize = 0x9f;
const SECTION_NODES: usize = SECTION + 16 + 2 * 8;

struct Sample {
    name: &'static str,
    error: &'static str,
    what: &'static str,
    bytes: Vec<u8>,
}

/// The golden file with `value` at `offset`, and the CRC made right.
fn with(offset: usize, value: &[u8]) -> Vec<u8> {
    let mut bytes = GOLDEN.to_vec();
    bytes[offset..offset + value.len()].copy_from_slice(value);
    seal(bytes)
}

/// The golden file with other nodes.
fn with_nodes(nodes: &[TreeNode]) -> Vec<u8> {
    let mut bytes = with(32, &(nodes.len() as u32).to_le_bytes());
    let stored = nodes.iter().flat_map(|node| node.to_bytes());
    bytes.splice(NODES..METADATA, stored);
    seal(bytes)
}

/// A chain, one comparison too deep.
fn too_deep() -> Vec<u8> {
    let levels = u16::from(MAX_DEPTH) + 1;
    let mut nodes = vec![split(0, 1, 0.0)];
    for level in 1..=levels {
        nodes.push(leaf([0; NUM_HEADS]));
        nodes.push(if level < levels { split(0, 2 * level + 1, 0.0) } else { leaf([1, 1, 1, 1, 0, 0]) });
    }
    with_nodes(&nodes)
}

/// The golden file with a second extension.
fn second_extension(id: u16) -> Vec<u8> {
    let mut bytes = with(EXTENSIONS, &[2]);
    let [low, high] = id.to_le_bytes();
    bytes.splice(CONTENT_END..CONTENT_END, [low, high, 0, 0, 0, 0, 0, 0]);
    seal(bytes)
}

/// A table for this build with one range too few.
fn one_range_less() -> Vec<u8> {
    let mut bytes = table_of(&[leaf([0; NUM_HEADS])]);
    bytes[11] -= 1;
    bytes.drain(RANGES..RANGES + 8);
    seal(bytes)
}

fn changed_table(offset: usize, value: &[u8]) -> Vec<u8> {
    let mut bytes = table_of(&[leaf([0; NUM_HEADS])]);
    bytes[offset..offset + value.len()].copy_from_slice(value);
    seal(bytes)
}

fn samples() -> Vec<Sample> {
    let node = |node: usize| NODES + node * NODE_BYTES;
    let le = |value: u32| value.to_le_bytes();
    let float = |value: f32| value.to_le_bytes();
    let flipped = |bit: usize| {
        let mut bytes = GOLDEN.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    };
    let half_written = [&GOLDEN[..GOLDEN.len() / 2], &vec![0; GOLDEN.len() - GOLDEN.len() / 2]].concat();
    let text: Vec<u8> = GOLDEN.iter().enumerate().filter(|&(at, _)| at != 4).map(|(_, &byte)| byte).collect();
    let leaf_choices = RANGES + NUM_FEATURES * 8 + 4;
    let all: Vec<(&str, &str, &str, Vec<u8>)> = vec![
        ("empty", "truncated", "no byte at all", Vec::new()),
        ("truncated", "truncated", "the first 100 bytes", GOLDEN[..100].to_vec()),
        ("without_crc", "truncated", "the last 4 bytes are missing", GOLDEN[..CONTENT_END].to_vec()),
        ("half_written", "trailing_bytes", "zeros from the middle on, as after a crash", half_written),
        ("trailing", "trailing_bytes", "one byte too many", seal([GOLDEN, &[0]].concat())),
        ("magic", "magic", "another kind of file", with(1, b"P")),
        ("text_mode", "text_mode", "CR LF became LF on the way", text),
        ("version", "version", "format version 3", with(8, &[3])),
        ("profile", "profile", "action profile 4", with(10, &[4])),
        ("features", "features", "65 features", with(11, &[65])),
        ("heads", "heads", "9 heads", with(12, &[9])),
        ("reserved", "reserved", "a reserved byte is 1", with(14, &[1])),
        ("no_nodes", "nodes", "0 nodes", with(32, &le(0))),
        ("oversized_nodes", "nodes", "4,294,967,295 nodes", with(32, &le(u32::MAX))),
        ("nodes_beyond_the_file", "truncated", "16,383 nodes in a file of 5", with(32, &le(16_383))),
        ("oversized_metadata", "metadata_bytes", "4,294,967,295 bytes of metadata", with(36, &le(u32::MAX))),
        ("metadata_beyond_the_file", "truncated", "16,384 bytes of metadata in a file of 43", with(36, &le(16_384))),
        ("oversized_extensions", "extensions", "65,535 extensions", with(EXTENSIONS, &[0xff, 0xff])),
        (
            "extension_beyond_the_file",
            "truncated",
            "an extension of 4,294,967,295 bytes",
            with(EXTENSIONS + 6, &le(u32::MAX)),
        ),
        ("bit_of_a_threshold", "crc", "one bit flipped in a threshold", flipped(node(0) * 8 + 4 * 8)),
        ("bit_of_a_choice", "crc", "one bit flipped in a leaf", flipped(node(1) * 8 + 4 * 8)),
        ("bit_of_the_crc", "crc", "one bit flipped in the CRC", flipped(CONTENT_END * 8)),
        ("range_nan", "range", "a trained range ends at NaN", with(RANGES + 4, &float(f32::NAN))),
        (
            "range_infinite",
            "range",
            "a trained range begins at minus infinity",
            with(RANGES, &float(f32::NEG_INFINITY)),
        ),
        (
            "range_reversed",
            "range",
            "a trained range whose least is 2 and whose largest is 1",
            with(RANGES, &float(2.0)),
        ),
        ("node_kind", "node_kind", "a node of kind 2", with(node(1) + 1, &[2])),
        ("leaf_fields", "leaf_fields", "a leaf with a child", with(node(1) + 2, &[3])),
        ("node_feature", "node_feature", "a comparison of feature 3 of 3", with(node(0), &[3])),
        ("threshold_nan", "threshold", "a threshold that is NaN", with(node(0) + 4, &float(f32::NAN))),
        ("threshold_infinite", "threshold", "a threshold that is infinite", with(node(2) + 4, &float(f32::INFINITY))),
        ("child_beyond_the_end", "child_out_of_range", "children at 4 and 5 of 5 nodes", with(node(2) + 2, &[4])),
        ("cycle", "child_before_parent", "node 2 leads back to node 1 and itself", with(node(2) + 2, &[1])),
        ("own_child", "child_before_parent", "the root is its own child", with(node(0) + 2, &[0])),
        ("shared_child", "child_order", "nodes 0 and 2 have the same children", with(node(0) + 2, &[3])),
        (
            "orphan",
            "orphan",
            "two leaves nobody leads to",
            with_nodes(&[leaf([0; NUM_HEADS]), leaf([0; NUM_HEADS]), leaf([0; NUM_HEADS])]),
        ),
        ("too_deep", "too_deep", "33 comparisons to a leaf", too_deep()),
        ("metadata_pair", "metadata_pair", "a value longer than the metadata", with(METADATA + 1, &[200])),
        ("metadata_key", "metadata_key", "a key without letters", with(METADATA, &[0, 13])),
        ("metadata_utf8", "metadata_utf8", "a key that is not UTF-8", with(METADATA + 3, &[0xff])),
        ("metadata_order", "metadata_order", "keys out of order", with(METADATA + 3, b"z")),
        ("extension_twice", "extension_order", "the same extension twice", second_extension(0x8001)),
        ("extension_flags", "extension_flags", "a flag without a meaning", with(EXTENSIONS + 4, &[2])),
        (
            "extension_critical",
            "critical_extension",
            "an unknown extension that must not be skipped",
            with(EXTENSIONS + 4, &[1]),
        ),
        ("schema", "schema", "sound, for a schema that never existed", GOLDEN.to_vec()),
        (
            "action_set",
            "action_set",
            "sound, for this build's schema and another action set",
            changed_table(24, &[0; 8]),
        ),
        ("schema_features", "schema_features", "this build's schema with a range too few", one_range_less()),
        ("leaf_choice", "leaf_choice", "a leaf that chooses watermark 255", changed_table(leaf_choices, &[255])),
    ];
    let all = all.into_iter().chain(retention_samples());
    all.map(|(name, error, what, bytes)| Sample { name, error, what, bytes }).collect()
}

/// What breaks the rules of version 2.
fn retention_samples() -> Vec<(&'static str, &'static str, &'static str, Vec<u8>)> {
    let with = |offset: usize, value: &[u8]| {
        let mut bytes = RETAINING.to_vec();
        bytes[offset..offset + value.len()].copy_from_slice(value);
        seal(bytes)
    };
    let node = |node: usize| SECTION_NODES + node * NODE_BYTES;
    let plain = {
        let mut bytes = GOLDEN.to_vec();
        bytes[8] = 2;
        seal(bytes)
    };
    let called_plain = with(8, &[1]);
    vec![
        ("retention_missing", "truncated", "format version 2 without its retention section", plain),
        ("retention_unannounced", "trailing_bytes", "a retention section in a file of version 1", called_plain),
        ("retention_features", "retention_features", "65 features of a release", with(SECTION + 8, &[65])),
        ("retention_classes", "retention_classes", "5 classes", with(SECTION + 9, &[5])),
        ("retention_reserved", "retention_reserved", "a reserved byte of the section is 1", with(SECTION + 11, &[1])),
        ("retention_no_nodes", "retention_nodes", "a retention tree of 0 nodes", with(SECTION + 12, &[0])),
        (
            "retention_nodes_beyond_the_file",
            "truncated",
            "16,383 nodes of a retention tree in a file of 5",
            with(SECTION + 12, &16_383_u32.to_le_bytes()),
        ),
        (
            "retention_range",
            "retention_range",
            "a trained range of a release that ends at NaN",
            with(SECTION + 16 + 4, &f32::NAN.to_le_bytes()),
        ),
        ("retention_cycle", "retention_tree", "node 2 leads back to node 1 and itself", with(node(2) + 2, &[1])),
        ("retention_feature", "retention_tree", "a comparison of feature 2 of 2", with(node(0), &[2])),
        ("retention_leaf_fields", "retention_tree", "a leaf with a second choice", with(node(1) + 5, &[1])),
        ("retention_class", "retention_class", "a leaf of class 4", with(node(1) + 4, &[4])),
    ]
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile")
}

fn index_of(samples: &[Sample]) -> String {
    let head = "# Files that must be refused\n\n\
                Each breaks one rule of `FORMAT.md`. `Table::parse` refuses it with the `FormatError` of that name, and nothing else\n\
                may. Made and checked by `hostile_files.rs`; whoever writes a reader of their own may try it on them.\n\n\
                | file | error | what is wrong |\n|---|---|---|\n";
    let rows =
        samples.iter().map(|sample| format!("| `{}.kvt` | `{}` | {} |\n", sample.name, sample.error, sample.what));
    rows.fold(head.to_owned(), |index, row| index + &row)
}

#[test]
fn the_folder_is_what_is_written_here() {
    let samples = samples();
    if env::var_os("KVTIDE_WRITE_HOSTILE").is_some() {
        fs::create_dir_all(folder()).expect("a folder for hostile files");
        fs::write(folder().join("README.md"), index_of(&samples)).expect("the index can be written");
        for sample in &samples {
            fs::write(folder().join(sample.name).with_extension("kvt"), &sample.bytes).expect("a file can be written");
        }
    }
    assert_eq!(fs::read_to_string(folder().join("README.md")).expect("there is an index"), index_of(&samples));
    for sample in &samples {
        let bytes = fs::read(folder().join(sample.name).with_extension("kvt")).expect("the file is there");
        assert!(bytes == sample.bytes, "{}: see the first lines of this test", sample.name);
    }
}

/// Knows nothing of how the files were made: only the folder and its index.
#[test]
fn every_file_is_refused_by_its_name() {
    let index = fs::read_to_string(folder().join("README.md")).expect("there is an index");
    let expected: BTreeMap<String, String> = index
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| {
            let mut cells = row.split('`');
            let (name, error) = (cells.next().expect("a file"), cells.nth(1).expect("an error"));
            (name.to_owned(), error.to_owned())
        })
        .collect();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder()).expect("there is a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if name == "README.md" {
            continue;
        }
        let bytes = fs::read(&path).expect("the file can be read");
        let error = Table::parse(&bytes).expect_err(&name);
        found.insert(name, error.name().to_owned());
    }
    assert_eq!(found, expected);

    // No reason is without a file, but one whose file would have 256 KiB.
    let vast = Table::parse(&vec![0; MAX_FILE_BYTES + 1]).unwrap_err();
    assert_eq!(vast, FormatError::TooLarge { found: MAX_FILE_BYTES + 1 });
    let names: BTreeSet<&str> = found.values().map(String::as_str).chain([vast.name()]).collect();
    let source = include_str!("../src/format/error.rs");
    let all: BTreeSet<&str> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("E::")?.split_once("=> \"")?.1.strip_suffix("\","))
        .collect();
    assert!(all.len() > 30);
    assert_eq!(names, all);
}

/// Each bit of the golden file, which has 1,304: never accepted, and beyond the counts always by the CRC.
#[test]
fn every_flipped_bit_is_refused_by_its_name() {
    for bit in 0..GOLDEN.len() * 8 {
        let mut bytes = GOLDEN.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let name = Table::parse(&bytes).unwrap_err().name();
        let expected: &[&str] = match bit / 8 {
            0..8 => &["magic", "text_mode"],
            8..10 => &["version"],
            10 => &["profile", "crc"],
            11 => &["features", "truncated", "extensions", "trailing_bytes", "crc"],
            12 => &["heads", "crc"],
            13..16 => &["reserved"],
            32..36 => &["nodes", "truncated", "extensions", "trailing_bytes"],
            36..40 => &["metadata_bytes", "truncated", "extensions", "trailing_bytes"],
            0x93..0x95 => &["extensions", "truncated", "trailing_bytes"],
            // The length of the extension's content.
            0x99..0x9d => &["truncated", "trailing_bytes"],
            _ => &["crc"],
        };
        assert!(expected.contains(&name), "bit {bit}: {name}");
    }
}
