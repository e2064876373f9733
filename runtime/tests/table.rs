//! Stories: what a small table decides, and how it explains itself.

use crate::support::{bytes_of, leaf, ranges, spec, split, table_of};
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{
    EncodeError, Extension, FeatureRange, FormatError, HEADER_BYTES, MAX_FILE_BYTES, TableSpec, encode, encoded_len,
};
use kvtide_runtime::{
    Action, ActionMask, ActionProfile, Feature, Head, NUM_FEATURES, Observation, OwnedTable, Policy, Table, TreeNode,
};

const CAUTIOUS: [u8; NUM_HEADS] = [7, 1, 2, 1, 2, 0];
const BOLD: [u8; NUM_HEADS] = [0, 0, 1, 0, 8, 0];

/// Little free: cautious. Much free: bold.
fn three_nodes() -> Vec<u8> {
    table_of(&[split(Feature::FreeFraction as u8, 1, 0.25), leaf(CAUTIOUS), leaf(BOLD)])
}

fn free(fraction: f32) -> Observation {
    let mut observation = Observation::ZERO;
    observation.values[Feature::FreeFraction as usize] = fraction;
    observation
}

#[test]
fn the_threshold_itself_goes_left() {
    let bytes = three_nodes();
    let table = Table::parse(&bytes).unwrap();
    let decide = |fraction| table.decide(&free(fraction), ActionMask::ALL).indices();
    assert_eq!(decide(0.1), CAUTIOUS);
    assert_eq!(decide(0.25), CAUTIOUS);
    assert_eq!(decide(0.25_f32.next_up()), BOLD);
    assert_eq!(decide(f32::INFINITY), BOLD);
    assert_eq!(decide(f32::NEG_INFINITY), CAUTIOUS);
}

#[test]
fn nan_never_goes_right() {
    let bytes = table_of(&[split(0, 1, f32::MIN), leaf(CAUTIOUS), leaf(BOLD)]);
    let table = Table::parse(&bytes).unwrap();
    assert_eq!(table.leaf(&free(f32::NAN)), (1, Action::new(CAUTIOUS).unwrap()));
}

#[test]
fn what_the_mask_forbids_is_replaced() {
    let bytes = three_nodes();
    let table = Table::parse(&bytes).unwrap();
    let no_host = ActionMask::ALL.forbid(Head::Preemption, 0).forbid(Head::Preemption, 2);
    assert_eq!(table.decide(&free(0.0), no_host).indices(), [7, 1, 1, 1, 2, 0]);
}

#[test]
fn a_path_names_every_comparison() {
    let slack = Feature::MeanSlack as u8;
    let bytes = table_of(&[
        split(Feature::FreeFraction as u8, 1, 0.25),
        leaf(CAUTIOUS),
        split(slack, 3, -0.5),
        leaf(CAUTIOUS),
        leaf(BOLD),
    ]);
    let table = Table::parse(&bytes).unwrap();
    assert_eq!((table.depth(), table.leaves(), table.nodes().len()), (2, 3, 5));

    let mut observation = free(0.75);
    observation.set(Feature::MeanSlack, -2.0);
    let told: Vec<String> = table
        .path(&observation)
        .map(|(feature, at)| {
            let name = kvtide_runtime::FEATURES[feature as usize].name;
            format!("{}: {name} {} > {} is {}", at.node, at.value, at.threshold, at.went_right)
        })
        .collect();
    assert_eq!(told, ["0: free_fraction 0.75 > 0.25 is true", "2: mean_slack -2 > -0.5 is false"]);
    assert_eq!(table.leaf(&observation).0, 3);
}

#[test]
fn one_leaf_is_a_table() {
    let bytes = table_of(&[leaf(BOLD)]);
    let table = Table::parse(&bytes).unwrap();
    assert_eq!((table.depth(), table.leaves()), (0, 1));
    assert_eq!(table.path(&free(0.5)).count(), 0);
    assert_eq!(table.decide(&free(0.5), ActionMask::ALL).indices(), BOLD);
}

#[test]
fn a_table_says_what_it_was_told() {
    let (ranges, nodes) = (ranges(), [leaf(BOLD)]);
    let metadata = [("commit", "0123abc"), ("experiment", "chat größe"), ("fidelity", "")];
    let bytes = bytes_of(&TableSpec { profile: ActionProfile::Core, metadata: &metadata, ..spec(&ranges, &nodes) });
    let table = Table::parse(&bytes).unwrap();
    assert_eq!(table.profile(), ActionProfile::Core);
    assert_eq!(table.metadata().collect::<Vec<_>>(), metadata);
    assert_eq!(table.ranges().collect::<Vec<_>>(), ranges);
    assert_eq!(table.nodes().collect::<Vec<_>>(), nodes);
}

#[test]
fn encoding_refuses_what_parsing_would() {
    let (ranges, mut out) = (ranges(), vec![0; 1 << 19]);
    let mut refuse = |spec: &TableSpec<'_>| encode(spec, &mut out).unwrap_err();
    let good = [leaf(BOLD)];

    let needed = encoded_len(&spec(&ranges, &good));
    assert_eq!(
        encode(&spec(&ranges, &good), &mut vec![0; needed - 1]),
        Err(EncodeError::Space { needed, found: needed - 1 })
    );
    let wrong_choice = FormatError::LeafChoice { node: 0, head: Head::Victim, found: 5 };
    assert_eq!(refuse(&spec(&ranges, &[leaf([0, 5, 0, 0, 8, 0])])), EncodeError::Format(wrong_choice));
    assert_eq!(refuse(&spec(&ranges, &[])), EncodeError::Format(FormatError::Nodes { found: 0 }));
    assert_eq!(
        refuse(&spec(&ranges, &vec![good[0]; 16_384])),
        EncodeError::Format(FormatError::Nodes { found: 16_384 })
    );
    assert_eq!(
        refuse(&spec(&ranges[1..], &good)),
        EncodeError::Format(FormatError::SchemaFeatures { found: NUM_FEATURES as u8 - 1 })
    );
    assert_eq!(
        refuse(&spec(&vec![ranges[0]; 256], &good)),
        EncodeError::Format(FormatError::Features { found: u8::MAX })
    );
    let vast = [Extension { id: 1, flags: 0, bytes: &vec![0; MAX_FILE_BYTES] }];
    let too_large = TableSpec { extensions: &vast, ..spec(&ranges, &good) };
    assert_eq!(
        encode(&too_large, &mut []),
        Err(EncodeError::Format(FormatError::TooLarge { found: needed + 8 + MAX_FILE_BYTES }))
    );
    let unsorted = TableSpec { metadata: &[("b", ""), ("a", "")], ..spec(&ranges, &good) };
    let offset = HEADER_BYTES + NUM_FEATURES * 8 + 8 + 4;
    assert_eq!(refuse(&unsorted), EncodeError::Format(FormatError::MetadataOrder { offset }));
    let long_key = "k".repeat(256);
    let long = TableSpec { metadata: &[("a", ""), (&long_key, "")], ..spec(&ranges, &good) };
    assert_eq!(refuse(&long), EncodeError::MetadataLength { pair: 1 });
    let value = "v".repeat(16_384);
    let much = TableSpec { metadata: &[("a", &value)], ..spec(&ranges, &good) };
    assert_eq!(refuse(&much), EncodeError::Format(FormatError::MetadataBytes { found: 16_388 }));
}

#[test]
fn a_feature_may_have_stood_still_in_training() {
    let mut ranges = ranges();
    ranges[3] = FeatureRange { min: 0.5, max: 0.5 };
    let bytes = bytes_of(&spec(&ranges, &[leaf(BOLD)]));
    assert_eq!(Table::parse(&bytes).unwrap().ranges().nth(3), Some(ranges[3]));
}

/// A container that changes behind the table's back: never a panic, and never another length.
#[test]
fn bytes_that_change_are_refused_or_walkable() {
    use std::cell::Cell;
    struct Shifty(Vec<Vec<u8>>, Cell<usize>);
    impl AsRef<[u8]> for Shifty {
        fn as_ref(&self) -> &[u8] {
            let turn = self.1.get();
            self.1.set(turn + 1);
            &self.0[turn.min(self.0.len() - 1)]
        }
    }
    let good = three_nodes();
    let owned = OwnedTable::parse(Shifty(vec![good.clone(), good[1..].to_vec()], Cell::new(0))).unwrap();
    assert!(matches!(owned.table(), Err(FormatError::Truncated { .. })));
    let rubbish = vec![0xff; good.len()];
    let owned = OwnedTable::parse(Shifty(vec![good, rubbish], Cell::new(0))).unwrap();
    let action = owned.table().unwrap().decide(&free(0.5), ActionMask::ALL);
    assert!(Head::ALL.iter().all(|&head| usize::from(action.get(head)) < head.size()));
}

/// The largest table: a complete tree of 8,192 leaves.
#[test]
fn the_largest_table_fits() {
    let nodes: Vec<TreeNode> =
        (0..16_383).map(|node| if node < 8_191 { split(0, 2 * node + 1, 0.5) } else { leaf(BOLD) }).collect();
    let bytes = table_of(&nodes);
    let table = Table::parse(&bytes).unwrap();
    assert_eq!((table.depth(), table.leaves()), (13, 8_192));
    assert_eq!(table.leaf(&free(1.0)).0, 16_382 - 4_096 + 1 + 4_095);
}
