//! The second tree: its bytes, what it decides, and the guard before it.

use kvtide_runtime::format::{
    EncodeError, FORMAT_VERSION, FeatureRange, FormatError, PLAIN_VERSION, RetentionSpec, TableFile,
    encode_with_retention, encoded_len_with_retention,
};
use kvtide_runtime::{
    Fallback, GuardConfig, NUM_RELEASE_FEATURES, Observation, OwnedTable, RELEASE_FEATURES, RELEASE_SCHEMA_HASH,
    ReleaseFeature, ReleaseObservation, Retention, RetentionFallback, RetentionGuard, Table, TreeNode,
};
use proptest::prelude::*;

use crate::support::{leaf, ranges, spec, split, table_of};

static GOLDEN: &[u8] = include_bytes!("golden/v2_small.kvt");

const RANGES: [FeatureRange; 2] = [FeatureRange { min: 0.0, max: 1.0 }, FeatureRange { min: -2.0, max: 2.0 }];

fn class(class: Retention) -> TreeNode {
    leaf([class as u8, 0, 0, 0, 0, 0])
}

fn nodes() -> [TreeNode; 5] {
    let (normal, keep, first) = (class(Retention::Normal), class(Retention::Keep), class(Retention::EvictFirst));
    [split(1, 1, 0.5), normal, split(0, 3, 0.25), keep, first]
}

/// The whole range of every feature of a release.
fn release_ranges() -> Vec<FeatureRange> {
    RELEASE_FEATURES.iter().map(|spec| FeatureRange { min: spec.min, max: spec.max }).collect()
}

/// A table for this build that always does the same with requests, and retains by `nodes`.
fn retaining(nodes: &[TreeNode], schema_hash: u64) -> Vec<u8> {
    let (ranges, root, release_ranges) = (ranges(), [leaf([0; 6])], release_ranges());
    let spec = spec(&ranges, &root);
    let retention = RetentionSpec { schema_hash, ranges: &release_ranges, nodes };
    let mut bytes = vec![0; encoded_len_with_retention(&spec, &retention)];
    assert_eq!(encode_with_retention(&spec, &retention, &mut bytes), Ok(bytes.len()));
    bytes
}

fn seen(feature: ReleaseFeature, value: f32) -> ReleaseObservation {
    let mut seen = ReleaseObservation::of_node(&Observation::ZERO);
    seen.set(feature, value);
    seen
}

#[test]
fn the_golden_file_reads_as_it_was_meant() {
    let file = TableFile::parse(GOLDEN).expect("the golden file keeps the rules");
    assert_eq!(file.version(), FORMAT_VERSION);
    let section = file.retention().expect("it has a second tree");
    assert_eq!((section.schema_hash(), section.features()), (0x1122_3344_5566_7788, 2));
    assert_eq!((section.depth(), section.leaves(), section.uses()), (2, 3, 0b11));
    assert_eq!(section.ranges().collect::<Vec<_>>(), RANGES);
    assert_eq!(section.nodes().collect::<Vec<_>>(), nodes());
    for (values, expected) in [
        ([9.0, 0.5], (1, Retention::Normal)),
        ([0.25, 0.6], (3, Retention::Keep)),
        ([0.3, 0.6], (4, Retention::EvictFirst)),
        ([0.3, f32::NAN], (1, Retention::Normal)),
    ] {
        assert_eq!(section.leaf(&values), expected, "{values:?}");
    }
    assert_eq!(section.leaf(&[]), (1, Retention::Normal), "what is missing is NaN");
}

#[test]
fn the_first_tree_is_that_of_the_file_without() {
    let plain = TableFile::parse(include_bytes!("golden/v1_small.kvt")).expect("a golden file");
    let both = TableFile::parse(GOLDEN).expect("a golden file");
    assert_eq!((plain.version(), plain.retention()), (PLAIN_VERSION, None));
    assert!(plain.nodes().eq(both.nodes()) && plain.ranges().eq(both.ranges()));
    assert!(plain.metadata().eq(both.metadata()) && plain.extensions().eq(both.extensions()));
}

#[test]
fn a_table_without_a_second_tree_is_written_as_before() {
    let bytes = table_of(&[leaf([0; 6])]);
    assert_eq!(bytes[8..10], PLAIN_VERSION.to_le_bytes());
    assert_eq!(Table::parse(&bytes).unwrap().trusted_retention(), Err(Fallback::NoTable));
}

#[test]
fn a_tree_for_another_schema_can_be_shown_and_the_table_still_decides() {
    let bytes = retaining(&[class(Retention::Keep)], RELEASE_SCHEMA_HASH ^ 1);
    let table = Table::parse(&bytes).expect("the first tree is this build's");
    assert_eq!((table.retention(), table.trusted_retention()), (None, Err(Fallback::UnknownSchema)));
    assert_eq!(table.file().retention().expect("it is there").leaves(), 1);
}

#[test]
fn what_a_reader_would_refuse_is_not_written() {
    let (ranges, root, release_ranges) = (ranges(), [leaf([0; 6])], release_ranges());
    let spec = spec(&ranges, &root);
    let write = |ranges: &[FeatureRange], nodes: &[TreeNode]| {
        let retention = RetentionSpec { schema_hash: RELEASE_SCHEMA_HASH, ranges, nodes };
        encode_with_retention(&spec, &retention, &mut vec![0; 1 << 18])
    };
    let wrong = [leaf([7, 0, 0, 0, 0, 0])];
    let error = FormatError::RetentionClass { node: 0, found: 7 };
    assert_eq!(write(&release_ranges, &wrong), Err(EncodeError::Format(error)));
    let error = FormatError::RetentionNodes { found: 0 };
    assert_eq!(write(&release_ranges, &[]), Err(EncodeError::Format(error)));
    let error = FormatError::RetentionFeatures { found: 65 };
    assert_eq!(write(&[RANGES[0]; 65], &wrong), Err(EncodeError::Format(error)));
    let two_choices = [leaf([1, 1, 0, 0, 0, 0])];
    let error = FormatError::RetentionTree { rule: "leaf_fields" };
    assert_eq!(write(&release_ranges, &two_choices), Err(EncodeError::Format(error)));
}

#[test]
fn an_owned_table_keeps_its_second_tree() {
    let owned = OwnedTable::parse(retaining(&[class(Retention::KeepLong)], RELEASE_SCHEMA_HASH)).unwrap();
    let table = owned.table().unwrap();
    let tree = table.retention().expect("it has one");
    assert_eq!(tree.decide(&seen(ReleaseFeature::Turn, 1.0)), Retention::KeepLong);
    assert_eq!(table.file().version(), FORMAT_VERSION);
}

/// A tree that keeps what was asked for more than twice.
fn popular() -> Vec<u8> {
    let asked = ReleaseFeature::Asked.index() as u8;
    retaining(&[split(asked, 1, 2.0), class(Retention::EvictFirst), class(Retention::Keep)], RELEASE_SCHEMA_HASH)
}

#[test]
fn the_guard_answers_normal_wherever_the_tree_cannot_be_trusted() {
    let bytes = popular();
    let tree = Table::parse(&bytes).unwrap().retention().unwrap();
    let mut guard = RetentionGuard::new(GuardConfig::default());
    let often = seen(ReleaseFeature::Asked, 5.0);
    assert_eq!(guard.decide(Ok(&tree), &often, 0), Retention::Keep);
    assert_eq!(guard.last_fallback(), None);
    let mut answers = |table, observation: &ReleaseObservation, age| {
        (guard.decide(table, observation, age), guard.last_fallback().expect("a fallback").name())
    };
    assert_eq!(answers(Err(Fallback::NoTable), &often, 0), (Retention::Normal, "no_table"));
    assert_eq!(answers(Err(Fallback::UnknownSchema), &often, 0), (Retention::Normal, "unknown_schema"));
    assert_eq!(answers(Ok(&tree), &often, 1_000_001), (Retention::Normal, "stale"));
    let mut broken = often;
    broken.values[ReleaseFeature::Asked.index()] = f32::NAN;
    assert_eq!(answers(Ok(&tree), &broken, 0), (Retention::Normal, "non_finite"));
    guard.set_behind(true);
    assert_eq!(guard.decide(Ok(&tree), &often, 0), Retention::Normal);
    assert_eq!(guard.last_fallback(), Some(RetentionFallback::Behind));
    // Why the tree itself cannot be trusted comes first.
    assert_eq!(guard.decide(Err(Fallback::NoTable), &often, 0), Retention::Normal);
    assert_eq!(guard.last_fallback(), Some(RetentionFallback::Table(Fallback::NoTable)));
    guard.set_behind(false);
    assert_eq!(guard.decide(Ok(&tree), &often, 0), Retention::Keep);
    let counters = *guard.counters();
    assert_eq!((counters.decisions, counters.table_decisions, counters.behind), (8, 2, 1));
    assert_eq!((counters.chosen, counters.fallbacks), ([0, 0, 2, 0], [2, 1, 1, 1, 0]));
}

#[test]
fn a_node_that_left_the_trained_range_is_normal_until_it_has_come_back() {
    let mut trained = release_ranges();
    trained[ReleaseFeature::Asked.index()] = FeatureRange { min: 0.0, max: 10.0 };
    let (ranges, root) = (ranges(), [leaf([0; 6])]);
    let spec = spec(&ranges, &root);
    let asked = ReleaseFeature::Asked.index() as u8;
    let nodes = [split(asked, 1, 2.0), class(Retention::EvictFirst), class(Retention::Keep)];
    let retention = RetentionSpec { schema_hash: RELEASE_SCHEMA_HASH, ranges: &trained, nodes: &nodes };
    let mut bytes = vec![0; encoded_len_with_retention(&spec, &retention)];
    encode_with_retention(&spec, &retention, &mut bytes).unwrap();
    let table = Table::parse(&bytes).unwrap();
    let tree = table.retention().unwrap();
    let mut guard = RetentionGuard::new(GuardConfig::default());
    let (inside, outside) = (seen(ReleaseFeature::Asked, 5.0), seen(ReleaseFeature::Asked, 200.0));
    let mut classes = |observation: &ReleaseObservation, count: usize| -> Vec<Retention> {
        (0..count).map(|_| guard.decide(Ok(&tree), observation, 0)).collect()
    };
    // Eight decisions in a row set it aside, and thirty-two bring it back, as of the first tree.
    assert_eq!(classes(&outside, 8), [[Retention::Keep; 7].as_slice(), &[Retention::Normal]].concat());
    assert_eq!(classes(&inside, 31), [Retention::Normal; 31]);
    assert_eq!(classes(&inside, 1), [Retention::Keep]);
    // What the tree does not look at may be anything.
    assert_eq!(classes(&seen(ReleaseFeature::Turn, 256.0), 40), [Retention::EvictFirst; 40]);
}

proptest! {
    /// Whatever is seen, the way that is shown ends where the decision was made.
    #[test]
    fn the_path_leads_to_the_leaf(values in prop::collection::vec(any::<f32>(), NUM_RELEASE_FEATURES)) {
        let bytes = popular();
        let tree = Table::parse(&bytes).unwrap().retention().unwrap();
        let seen = ReleaseObservation { values: values.try_into().expect("as many as there are") };
        let path: Vec<_> = tree.path(&seen).collect();
        prop_assert_eq!(path.len(), 1);
        prop_assert_eq!(path[0].0, "asked");
        prop_assert_eq!(tree.leaf(&seen).0, 1 + u16::from(path[0].1.went_right));
    }
}
