//! Golden: the bytes of format version 1, which every later reader must still accept.
//!
//! `golden/v1_small.kvt` was written by another program (Python's `struct` and `zlib`) from the tables of `FORMAT.md`,
//! which explains it byte by byte. It names a schema that never existed, so that it outlives every schema. So does
//! `v1_wide.kvt`, with 31 features and 40 leaves, written likewise.
//!
//! Beside each file lie observations and what they lead to, by a walk of the bytes in that other program. A released
//! version adds its files; none is ever taken away or changed.

use crate::support::{bytes_of, leaf, split};
use kvtide_runtime::ActionProfile;
use kvtide_runtime::format::{
    Extension, FeatureRange, FormatError, Leaf, MAGIC, TableFile, TableSpec, encode, encoded_len,
};
use kvtide_runtime::{SCHEMA_HASH, Table, TreeNode};

static GOLDEN: &[u8] = include_bytes!("golden/v1_small.kvt");

/// Parsed by the compiler.
static FILE: TableFile<'static> = match TableFile::parse(GOLDEN) {
    Ok(file) => file,
    Err(_) => panic!("the golden file is refused"),
};

#[rustfmt::skip]
const BYTES: [u8; 163] = [
    // Magic, version 1, profile full, 3 features, 4 heads, reserved.
    0x8b, b'K', b'V', b'T', b'\r', b'\n', 0x1a, b'\n', 1, 0, 2, 3, 4, 0, 0, 0,
    // Schema and action set.
    0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,
    0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe,
    // 5 nodes, 43 bytes of metadata.
    5, 0, 0, 0, 43, 0, 0, 0,
    // Ranges: 0..=1, 0..=4, -8..=8.
    0, 0, 0, 0, 0, 0, 0x80, 0x3f,
    0, 0, 0, 0, 0, 0, 0x80, 0x40,
    0, 0, 0, 0xc1, 0, 0, 0, 0x41,
    // Nodes: feature 0 > 0.25, a leaf, feature 2 > -1.5, two leaves.
    0, 0, 1, 0, 0, 0, 0x80, 0x3e,
    0, 1, 0, 0, 7, 1, 2, 1,
    2, 0, 3, 0, 0, 0, 0xc0, 0xbf,
    0, 1, 0, 0, 11, 2, 0, 1,
    0, 1, 0, 0, 0, 0, 1, 0,
    // Metadata.
    6, 7, 0, b'c', b'o', b'm', b'm', b'i', b't', b'0', b'1', b'2', b'3', b'a', b'b', b'c',
    10, 6, 0, b'e', b'x', b'p', b'e', b'r', b'i', b'm', b'e', b'n', b't', b'g', b'o', b'l', b'd', b'e', b'n',
    4, 1, 0, b's', b'e', b'e', b'd', b'7',
    // One extension: id 0x8001, no flags, 2 bytes.
    1, 0, 0x01, 0x80, 0, 0, 2, 0, 0, 0, 0xca, 0xfe,
    // CRC-32.
    0xc9, 0x92, 0xb1, 0x46,
];

const RANGES: [FeatureRange; 3] =
    [FeatureRange { min: 0.0, max: 1.0 }, FeatureRange { min: 0.0, max: 4.0 }, FeatureRange { min: -8.0, max: 8.0 }];
const METADATA: [(&str, &str); 3] = [("commit", "0123abc"), ("experiment", "golden"), ("seed", "7")];
const EXTENSIONS: [Extension<'static>; 1] = [Extension { id: 0x8001, flags: 0, bytes: &[0xca, 0xfe] }];

fn nodes() -> [TreeNode; 5] {
    [
        split(0, 1, 0.25),
        leaf([7, 1, 2, 1, 0, 0]),
        split(2, 3, -1.5),
        leaf([11, 2, 0, 1, 0, 0]),
        leaf([0, 0, 1, 0, 0, 0]),
    ]
}

fn small(nodes: &[TreeNode]) -> TableSpec<'_> {
    TableSpec {
        profile: ActionProfile::Full,
        heads: 4,
        schema_hash: 0x0123_4567_89ab_cdef,
        action_set_hash: 0xfedc_ba98_7654_3210,
        ranges: &RANGES,
        nodes,
        metadata: &METADATA,
        extensions: &EXTENSIONS,
    }
}

#[test]
fn the_file_is_what_is_written_here() {
    assert_eq!(GOLDEN, BYTES);
}

/// The table at the end of `FORMAT.md`: offset and bytes in hex, then the meaning.
#[test]
fn the_worked_example_is_this_file() {
    let (_, example) = include_str!("../FORMAT.md").split_once("## Worked example").expect("there is an example");
    let mut bytes = Vec::new();
    for row in example.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<String> = row.split('|').map(|cell| cell.replace('`', " ")).collect();
        let offset = usize::from_str_radix(cells[1].trim(), 16).expect("an offset in hex");
        assert_eq!(offset, bytes.len(), "{row}");
        bytes.extend(cells[2].split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("a byte in hex")));
    }
    assert_eq!(bytes, GOLDEN);
}

#[test]
fn the_encoder_writes_it() {
    let nodes = nodes();
    let spec = small(&nodes);
    assert_eq!(bytes_of(&spec), GOLDEN);
    // And touches nothing beyond its end.
    let mut out = [0x55; 200];
    assert_eq!(encode(&spec, &mut out), Ok(encoded_len(&spec)));
    assert_eq!(&out[..GOLDEN.len()], GOLDEN);
    assert!(out[GOLDEN.len()..].iter().all(|&byte| byte == 0x55));
}

#[test]
fn it_reads_as_it_was_meant() {
    assert_eq!(FILE.profile(), ActionProfile::Full);
    assert_eq!((FILE.heads(), FILE.depth(), FILE.leaves()), (4, 2, 3));
    assert_eq!(FILE.ranges().collect::<Vec<_>>(), RANGES);
    assert_eq!(FILE.nodes().collect::<Vec<_>>(), nodes());
    assert_eq!(FILE.metadata().collect::<Vec<_>>(), METADATA);
    assert_eq!(FILE.extensions().collect::<Vec<_>>(), EXTENSIONS);
}

#[test]
fn it_decides_as_it_always_did() {
    let decide = |values: [f32; 3]| FILE.leaf(&values);
    assert_eq!(decide([0.0, 9.0, 9.0]), Leaf { node: 1, choices: [7, 1, 2, 1, 0, 0] });
    assert_eq!(decide([0.25, 9.0, 9.0]), Leaf { node: 1, choices: [7, 1, 2, 1, 0, 0] });
    assert_eq!(decide([0.3, 0.0, -1.5]), Leaf { node: 3, choices: [11, 2, 0, 1, 0, 0] });
    assert_eq!(decide([0.3, 0.0, -1.4]), Leaf { node: 4, choices: [0, 0, 1, 0, 0, 0] });
    assert_eq!(decide([0.3, 0.0, f32::NAN]), Leaf { node: 3, choices: [11, 2, 0, 1, 0, 0] });
    assert_eq!(FILE.leaf(&[]), Leaf { node: 1, choices: [7, 1, 2, 1, 0, 0] }, "what is missing is NaN");
}

/// One line of a `.decisions` file: the bits of the values, the leaf, its choices.
fn expectation(line: &str) -> (Vec<f32>, Leaf) {
    let (values, decision) = line.split_once("->").expect("an arrow");
    let bits = |text| f32::from_bits(u32::from_str_radix(text, 16).expect("bits in hex"));
    let numbers: Vec<u16> = decision.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    let &[node, a, b, c, d] = &numbers[..] else { panic!("{line}") };
    (
        values.split_whitespace().map(bits).collect(),
        Leaf { node, choices: [a, b, c, d, 0, 0].map(|choice| choice as u8) },
    )
}

#[test]
fn every_released_file_decides_as_it_always_did() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut released = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "kvt") {
            continue;
        }
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).expect("the file can be read");
        let file = TableFile::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let text = std::fs::read_to_string(path.with_extension("decisions")).expect("observations lie beside it");
        let decisions = text.lines().filter(|line| !line.starts_with('#')).map(expectation);
        let mut leaves = std::collections::BTreeSet::new();
        for (values, leaf) in decisions {
            assert_eq!(file.leaf(&values), leaf, "{name}: {values:?}");
            leaves.insert(leaf.node);
        }
        assert!(leaves.len() * 2 >= usize::from(file.leaves()), "{name}: most leaves are never seen");
        released.push(name);
    }
    released.sort();
    assert_eq!(released, ["v1_small", "v1_wide", "v2_small"]);
}

#[test]
fn it_can_be_inspected_but_not_obeyed() {
    assert_eq!(Table::parse(GOLDEN), Err(FormatError::Schema { found: 0x0123_4567_89ab_cdef, expected: SCHEMA_HASH }));
}

#[test]
fn the_magic_shows_what_a_text_copy_breaks() {
    assert!(!MAGIC.is_ascii());
    assert!(MAGIC.windows(2).any(|pair| pair == b"\r\n"));
}
