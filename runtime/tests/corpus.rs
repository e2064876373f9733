//! The seeds of the fuzz targets, replayed without a fuzzer; so are the hostile and the golden files.
//!
//! `KVTIDE_WRITE_SEEDS=1 cargo test -p kvtide-runtime --test all corpus` writes the seeds again.

#[path = "../fuzz/check.rs"]
mod check;

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::support::{bytes_of, leaf, ranges, seal, spec, split, table_of};
use kvtide_runtime::NUM_FEATURES;
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{Extension, MAX_DEPTH, TableFile, TableSpec};
use kvtide_runtime::{Table, TreeNode};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Every file of a folder, by name.
fn files(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder(name)).expect("the folder is there").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(&path).expect("the file can be read"))).collect()
}

/// Tables sound and damaged, each for one way through the reader.
fn tables() -> Vec<(&'static str, Vec<u8>)> {
    let ranges = ranges();
    let five = [
        split(3, 1, 0.5),
        leaf([1, 0, 1, 0, 8, 0]),
        split(7, 3, 2.0),
        leaf([4, 4, 2, 2, 8, 0]),
        leaf([11, 0, 0, 0, 8, 0]),
    ];
    let rich = bytes_of(&TableSpec {
        metadata: &[("commit", "abc"), ("seed", "42")],
        extensions: &[Extension { id: 9, flags: 0, bytes: b"xyz" }, Extension { id: 0x8000, flags: 0, bytes: b"" }],
        ..spec(&ranges, &five)
    });
    let complete: Vec<TreeNode> =
        (0..31_u16)
            .map(|node| {
                if node < 15 {
                    split(node as u8 * 2, 2 * node + 1, 0.25)
                } else {
                    leaf([node as u8 % 12, 0, 1, 0, 8, 0])
                }
            })
            .collect();
    let chain: Vec<TreeNode> = (0..=2 * u16::from(MAX_DEPTH))
        .map(|node| {
            let last = node + 2 > 2 * u16::from(MAX_DEPTH);
            if node == 0 || (node % 2 == 0 && !last) { split(30, node + 1, -1.0) } else { leaf([0; NUM_HEADS]) }
        })
        .collect();
    let with = |at: usize, value: &[u8]| {
        let mut bytes = rich.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        seal(bytes)
    };
    let nodes = 40 + NUM_FEATURES * 8;
    vec![
        ("one_leaf", table_of(&[leaf([7, 1, 2, 1, 8, 0])])),
        ("rich", rich.clone()),
        ("complete", table_of(&complete)),
        ("chain", table_of(&chain)),
        ("half", rich[..rich.len() / 2].to_vec()),
        ("flipped", {
            let mut bytes = rich.clone();
            bytes[nodes] ^= 2;
            bytes
        }),
        ("cycle", with(nodes + 2 * 8 + 2, &[1])),
        ("threshold_nan", with(nodes + 4, &f32::NAN.to_le_bytes())),
        ("many_nodes", with(33, &[0x3f])),
        ("critical", with(rich.len() - 4 - 8 - 3 - 8 + 2, &[1])),
    ]
}

/// Numbers of all kinds: `fuzz/check.rs` says how bytes become numbers.
fn numbers_of_nodes() -> Vec<(&'static str, Vec<u8>)> {
    let mut state = 1_u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let any: Vec<u8> = (0..600).map(|_| byte()).collect();
    // A number of kind 0 in three bytes: what nodes have.
    let small: Vec<u8> = (0..600).map(|at| if at % 3 == 0 { 0 } else { byte() }).collect();
    vec![("zeros", vec![0; 8]), ("edges", vec![0xff; 400]), ("any", any), ("small", small), ("empty", Vec::new())]
}

#[test]
fn the_seeds_pass() {
    for (target, seeds) in [("parse", tables()), ("observe", numbers_of_nodes())] {
        let name = format!("fuzz/seeds/{target}");
        if env::var_os("KVTIDE_WRITE_SEEDS").is_some() {
            fs::create_dir_all(folder(&name)).expect("a folder for seeds");
            for (file, bytes) in &seeds {
                fs::write(folder(&name).join(file), bytes).expect("a seed can be written");
            }
        }
        let committed = files(&name);
        assert!(committed.len() >= seeds.len(), "fuzz/seeds/{target} is incomplete");
        for (path, bytes) in committed {
            eprintln!("{}", path.display());
            if target == "parse" { check::parse(&bytes) } else { check::observe(&bytes) }
        }
    }
}

/// What the seeds are worth: tables that decide, files that are sound, and files that are not.
#[test]
fn the_seeds_are_of_both_kinds() {
    let (sound, damaged): (Vec<_>, Vec<_>) =
        files("fuzz/seeds/parse").into_iter().partition(|(_, bytes)| TableFile::parse(bytes).is_ok());
    assert!(sound.len() >= 4 && damaged.len() >= 6, "{} sound, {} damaged", sound.len(), damaged.len());
    let made: Vec<_> =
        tables().into_iter().filter(|(_, bytes)| Table::parse(bytes).is_ok()).map(|(name, _)| name).collect();
    assert_eq!(made, ["one_leaf", "rich", "complete", "chain"]);
}

#[test]
fn hostile_and_golden_files_pass() {
    for name in ["tests/hostile", "tests/golden"] {
        for (path, bytes) in files(name) {
            eprintln!("{}", path.display());
            check::parse(&bytes);
            check::observe(&bytes);
        }
    }
}
