//! Golden: tables of earlier editions decide as the builds they were made with did.
//!
//! `edition1` holds the tables that were in `checkpoints/` when there were 31 features and four heads, and in `leaves.txt`
//! what that build said of them, in names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{bytes_of, leaf, ranges, spec};
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::edition::EDITIONS;
use kvtide_runtime::format::{FormatError, TableSpec};
use kvtide_runtime::{
    Action, ActionMask, ActionProfile, Controls, Feature, Guard, GuardConfig, Head, Host, Observation, OwnedTable,
    Policy, Table, TreeNode,
};

/// What is asked of the engine by heads the tables do not know.
const OWN: Controls = Controls { budget: 777.0, ..ENGINE };
const ENGINE: Controls = Controls {
    watermark: 0.0,
    victim: kvtide_runtime::Victim::Newest,
    preemption: kvtide_runtime::Preemption::Recompute,
    admission: kvtide_runtime::Admission::Fcfs,
    budget: 1_048_576.0,
    eviction: kvtide_runtime::Eviction::Lru,
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/edition1")
}

fn files() -> BTreeMap<String, Vec<u8>> {
    let text = fs::read_to_string(folder().join("leaves.txt")).expect("the list can be read");
    let names = text.lines().filter(|line| !line.starts_with(['#', '>'])).filter_map(|line| line.split(' ').next());
    let read = |name: &str| fs::read(folder().join(name).with_extension("kvt")).expect("a table can be read");
    names.map(|name| (name.to_owned(), read(name))).collect()
}

/// The four heads, as the list has them.
fn told(action: Action, table: &Table<'_>) -> String {
    let controls = action.controls();
    let of = |head: &Head| {
        if table.heads().contains(head) { controls.get(*head).to_string() } else { "-".to_owned() }
    };
    Head::ALL[..4].iter().map(of).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_leaf_says_what_it_said() {
    let files = files();
    let text = fs::read_to_string(folder().join("leaves.txt")).expect("the list can be read");
    let (mut leaves, mut walks) = (0, 0);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(walk) = line.strip_prefix("> ") {
            let (rest, node) = walk.rsplit_once(' ').expect("a leaf");
            let mut cells = rest.split(' ');
            let bytes = &files[cells.next().expect("a table")];
            let mut observation = Observation::ZERO;
            for cell in cells {
                let (feature, bits) = cell.split_once(':').expect("a feature and its value");
                let feature: usize = feature.parse().expect("an index");
                observation.values[feature] = f32::from_bits(u32::from_str_radix(bits, 16).expect("bits in hex"));
            }
            // What came later is not looked at.
            observation.values[31..].fill(f32::NAN);
            assert_eq!(Table::parse(bytes).unwrap().leaf(&observation).0.to_string(), node, "{line}");
            walks += 1;
        } else {
            let [name, node, expected] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let table = Table::parse(&files[name]).unwrap();
            let node = table.nodes().nth(node.parse().expect("a number"));
            let Some(TreeNode::Leaf { choices }) = node else { panic!("{line}: {node:?}") };
            assert_eq!(told(Action::new(choices).unwrap(), &table), expected, "{line}");
            leaves += 1;
        }
    }
    let all: usize = files.values().map(|bytes| usize::from(Table::parse(bytes).unwrap().leaves())).sum();
    assert_eq!((leaves, walks), (all, 12 * files.len()));
}

#[test]
fn what_they_do_not_decide_is_the_nodes_own() {
    for (name, bytes) in files() {
        let table = Table::parse(&bytes).unwrap();
        assert_eq!(table.edition(), &EDITIONS[0], "{name}");
        assert!(!table.heads().contains(&Head::Budget) && table.profile().heads().starts_with(table.heads()), "{name}");
        let observation = Observation { values: std::array::from_fn(|index| index as f32 / 64.0) };
        // Behind a guard an operator's own budget stays; without one, the engine's does.
        let config = GuardConfig { fallback: OWN, range_tolerance: f32::INFINITY, ..GuardConfig::default() };
        let guarded = Guard::new(Ok(table), config).decide(&observation, 0, ActionMask::ALL);
        let bare = table.decide(&observation, ActionMask::ALL).controls();
        assert_eq!((guarded.budget, bare.budget, bare.eviction), (777.0, ENGINE.budget, ENGINE.eviction), "{name}");
        for &head in table.heads() {
            assert_eq!(guarded.get(head), bare.get(head), "{name}");
        }
        let owned = OwnedTable::parse(bytes.as_slice()).unwrap();
        assert_eq!(owned.table(), Ok(table), "{name}");
        assert_eq!((table.ranges().len(), table.range(Feature::TokenTime).max), (31, 0.0), "{name}");
    }
}

#[test]
fn a_host_that_keeps_the_budget_to_itself_takes_them() {
    let host = Host { heads: kvtide_runtime::PerHead { budget: false, ..Host::VLLM.heads }, ..Host::VLLM };
    let bytes = &files()["chat-80g"];
    let table = Table::parse(bytes).unwrap();
    assert_eq!((table.profile(), host.profile()), (ActionProfile::Full, ActionProfile::Core));
    assert_eq!(host.check(&table, true, 0.1), Ok(()));
}

#[test]
fn a_file_keeps_to_its_edition() {
    let (ranges, edition) = (ranges(), &EDITIONS[0]);
    let ranges = &ranges[..31];
    let table = |nodes: &[TreeNode], heads: u8| {
        let spec = TableSpec {
            heads,
            schema_hash: edition.schema_hash,
            action_set_hash: edition.action_set_hash,
            ranges,
            ..spec(&[], nodes)
        };
        let mut bytes = vec![0; kvtide_runtime::format::encoded_len(&spec)];
        kvtide_runtime::format::encode(&spec, &mut bytes).map(|_| bytes)
    };
    let bytes = table(&[leaf([11, 4, 2, 2, 0, 0])], 4).unwrap();
    let choices = Table::parse(&bytes).unwrap().leaf(&Observation::ZERO).1.indices();
    assert_eq!(choices, [19, 4, 2, 2, 8, 0]);
    let refused = |nodes: &[TreeNode], heads: u8| match table(nodes, heads) {
        Err(kvtide_runtime::format::EncodeError::Format(error)) => error,
        other => panic!("{other:?}"),
    };
    let wrong = FormatError::LeafChoice { node: 0, head: Head::Watermark, found: 12 };
    assert_eq!(refused(&[leaf([12, 0, 0, 0, 0, 0])], 4), wrong);
    assert_eq!(refused(&[leaf([0, 0, 0, 0, 1, 0])], 4), FormatError::LeafFields { node: 0 });
    assert_eq!(refused(&[leaf([0; NUM_HEADS])], 6), FormatError::Heads { found: 6 });
    // Today's schema with the earlier action set was never made.
    let mixed = TableSpec { schema_hash: edition.schema_hash, ..spec(ranges, &[]) };
    let nodes = [leaf([0; NUM_HEADS])];
    let bytes = bytes_of(&TableSpec { nodes: &nodes, ..mixed });
    assert!(matches!(Table::parse(&bytes), Err(FormatError::Schema { .. })));
}
