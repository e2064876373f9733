//! Stories of tables that change, and one with two threads.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvtide_reload::{LoadCounters, LoadError, SharedPolicy};
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{
    FeatureRange, RetentionSpec, TableSpec, encode, encode_with_retention, encoded_len, encoded_len_with_retention,
};
use kvtide_runtime::{
    ACTION_SET_HASH, ActionMask, ActionProfile, FEATURES, Fallback, Feature, GuardConfig, GuardCounters, Observation,
    RELEASE_FEATURES, RELEASE_SCHEMA_HASH, ReleaseObservation, Retention, RetentionFallback, SCHEMA_HASH, TreeNode,
};

/// Watermark levels 6 and 8.
const FIRST: (u8, f64) = (6, 0.12);
const SECOND: (u8, f64) = (8, 0.18);

/// A table that always says the same, trained on free fractions up to `free_max`.
fn table(level: u8, profile: ActionProfile, free_max: f32) -> Vec<u8> {
    encoded(level, profile, free_max, None)
}

/// The same with a second tree, if there is a `class` for it to say always.
fn encoded(level: u8, profile: ActionProfile, free_max: f32, class: Option<Retention>) -> Vec<u8> {
    let mut ranges = FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    ranges[Feature::FreeFraction as usize].max = free_max;
    let spec = TableSpec {
        profile,
        heads: NUM_HEADS as u8,
        schema_hash: SCHEMA_HASH,
        action_set_hash: ACTION_SET_HASH,
        ranges: &ranges,
        nodes: &[
            // By the free fraction, to the same end on either side.
            TreeNode::Split { feature: Feature::FreeFraction as u8, left: 1, threshold: 0.1 },
            TreeNode::Leaf { choices: [level, 0, 1, 0, 8, 0] },
            TreeNode::Leaf { choices: [level, 0, 1, 0, 8, 0] },
        ],
        metadata: &[],
        extensions: &[],
    };
    let Some(class) = class else {
        let mut bytes = vec![0; encoded_len(&spec)];
        encode(&spec, &mut bytes).expect("the table keeps the rules");
        return bytes;
    };
    let ranges = RELEASE_FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    let nodes = [TreeNode::Leaf { choices: [class as u8, 0, 0, 0, 0, 0] }];
    let retention = RetentionSpec { schema_hash: RELEASE_SCHEMA_HASH, ranges: &ranges, nodes: &nodes };
    let mut bytes = vec![0; encoded_len_with_retention(&spec, &retention)];
    encode_with_retention(&spec, &retention, &mut bytes).expect("the table keeps the rules");
    bytes
}

fn full(level: u8) -> Vec<u8> {
    table(level, ActionProfile::Full, 1.0)
}

/// As a careful writer does: beside its place, then renamed.
fn rename_over(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("tmp");
    fs::write(&beside, bytes).unwrap();
    fs::rename(beside, path).unwrap();
}

#[test]
fn a_reader_follows_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.kvt");
    let policy = SharedPolicy::new(ActionProfile::Full);
    let mut reader = policy.reader(GuardConfig::default());
    let mut decide = || reader.decide(&Observation::ZERO, 0, ActionMask::ALL).watermark;
    let fallback = GuardConfig::default().fallback.watermark;
    assert_eq!(decide(), fallback);

    rename_over(&path, &full(FIRST.0));
    policy.load_file(&path).unwrap();
    assert_eq!(decide(), FIRST.1);
    rename_over(&path, &full(SECOND.0));
    assert_eq!(decide(), FIRST.1, "nobody has loaded it");
    policy.load_file(&path).unwrap();
    assert_eq!(decide(), SECOND.1);
    // Two before the next decision: the last one counts.
    policy.load_bytes(&full(SECOND.0)).unwrap();
    policy.load_bytes(&full(FIRST.0)).unwrap();
    assert_eq!(decide(), FIRST.1);
    policy.withdraw();
    assert_eq!(decide(), fallback);
    assert_eq!(reader.last_fallback(), Some(Fallback::NoTable));
    assert_eq!(
        *reader.counters(),
        GuardCounters { decisions: 6, table_decisions: 4, no_table: 2, ..GuardCounters::default() }
    );
    assert_eq!(policy.counters(), LoadCounters { accepted: 4, ..LoadCounters::default() });
}

#[test]
fn what_is_refused_changes_nothing_and_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.kvt");
    let policy = SharedPolicy::new(ActionProfile::Core);
    let mut reader = policy.reader(GuardConfig::default());
    policy.load_bytes(&table(FIRST.0, ActionProfile::Core, 1.0)).unwrap();

    let good = full(SECOND.0);
    let mut flipped = good.clone();
    flipped[100] ^= 1;
    let foreign = include_bytes!("../../tests/golden/v1_small.kvt");
    let cases: [(&[u8], &str); 6] = [
        (&[], "truncated"),
        (&good[..good.len() / 2], "truncated"),
        (&flipped, "crc"),
        (&vec![0; (1 << 18) + 1], "too_large"),
        (foreign, "schema"),
        (&good, "action_profile"),
    ];
    for (bytes, name) in cases {
        fs::write(&path, bytes).unwrap();
        let errors = [policy.load_file(&path).unwrap_err(), policy.load_bytes(bytes).unwrap_err()];
        for error in errors {
            assert_eq!(error.name(), name, "{error}");
        }
        assert_eq!(reader.decide(&Observation::ZERO, 0, ActionMask::ALL).watermark, FIRST.1);
    }
    assert!(matches!(policy.load_file(folder.path()), Err(LoadError::NotAFile { .. })));
    assert!(matches!(policy.load_file(&folder.path().join("none")), Err(LoadError::Io { .. })));
    assert_eq!(reader.decide(&Observation::ZERO, 0, ActionMask::ALL).watermark, FIRST.1);
    let counters = policy.counters();
    assert_eq!(counters, LoadCounters { accepted: 1, unreadable: 2, invalid: 8, unknown_schema: 2, unfit_profile: 2 });
    assert_eq!(counters.refused(), 14);
    assert_eq!(reader.counters().table_decisions, 7);
}

#[test]
fn an_excursion_is_remembered_over_a_reload() {
    let config = GuardConfig {
        out_of_range_decisions: 2,
        recovery_decisions: 2,
        hold_decisions: 0,
        range_tolerance: 0.0,
        ..GuardConfig::default()
    };
    let policy = SharedPolicy::new(ActionProfile::Full);
    let mut reader = policy.reader(config);
    let mut observation = Observation::ZERO;
    observation.set(Feature::FreeFraction, 0.5);
    policy.load_bytes(&table(FIRST.0, ActionProfile::Full, 0.25)).unwrap();
    let mut taken = Vec::new();
    for decision in 0..5 {
        if decision == 3 {
            // This one knows such traffic, but the node has to stay in range as long as ever.
            policy.load_bytes(&full(SECOND.0)).unwrap();
        }
        taken.push(reader.decide(&observation, 0, ActionMask::ALL).watermark == SECOND.1);
    }
    assert_eq!(taken, [false, false, false, false, true]);
    let counters = *reader.counters();
    assert_eq!((counters.decisions, counters.table_decisions, counters.out_of_range), (5, 2, 3));
}

#[test]
fn another_table_brings_its_own_fallback() {
    let knows = |fallback: &str| {
        let file = full(FIRST.0);
        let table = kvtide_runtime::Table::parse(&file).unwrap();
        let (ranges, nodes): (Vec<FeatureRange>, Vec<TreeNode>) = (table.ranges().collect(), table.nodes().collect());
        let spec = TableSpec {
            profile: table.profile(),
            heads: NUM_HEADS as u8,
            schema_hash: SCHEMA_HASH,
            action_set_hash: ACTION_SET_HASH,
            ranges: &ranges,
            nodes: &nodes,
            metadata: &[("fallback", fallback)],
            extensions: &[],
        };
        let mut bytes = vec![0; encoded_len(&spec)];
        encode(&spec, &mut bytes).unwrap();
        bytes
    };
    let fallen_back = |engine: f64| {
        let policy = SharedPolicy::new(ActionProfile::Full);
        let own = GuardConfig::default().fallback;
        let fallback = kvtide_runtime::Controls { watermark: engine, ..own };
        let mut reader = policy.reader(GuardConfig { fallback, ..GuardConfig::default() });
        // Too old to be trusted.
        let mut stale = || reader.decide(&Observation::ZERO, u64::MAX, ActionMask::ALL).watermark;
        let without = stale();
        policy.load_bytes(&knows("0.05")).unwrap();
        let first = stale();
        policy.load_bytes(&knows("0.12")).unwrap();
        [without, first, stale()]
    };
    assert_eq!(fallen_back(0.0), [0.0, 0.05, 0.12]);
    assert_eq!(fallen_back(0.02), [0.02; 3]);
}

#[test]
fn every_reader_gets_the_table() {
    let policy = SharedPolicy::new(ActionProfile::Full);
    let mut early = policy.reader(GuardConfig::default());
    drop(policy.reader(GuardConfig::default()));
    policy.clone().load_bytes(&full(FIRST.0)).unwrap();
    let mut late = policy.reader(GuardConfig::default());
    for reader in [&mut early, &mut late] {
        assert_eq!(reader.decide(&Observation::ZERO, 0, ActionMask::ALL).watermark, FIRST.1);
    }
    assert_eq!(early.table().map(|table| table.bytes().to_vec()), Some(full(FIRST.0)));
}

#[test]
fn the_second_tree_follows_the_file_too() {
    let policy = SharedPolicy::new(ActionProfile::Full);
    let mut reader = policy.reader(GuardConfig::default());
    let seen = ReleaseObservation::of_node(&Observation::ZERO);
    assert_eq!(reader.retain(&seen, 0), Retention::Normal);
    let no_table = Some(RetentionFallback::Table(Fallback::NoTable));
    assert_eq!(reader.last_retention_fallback(), no_table);
    policy.load_bytes(&encoded(FIRST.0, ActionProfile::Full, 1.0, Some(Retention::KeepLong))).unwrap();
    assert_eq!(reader.retain(&seen, 0), Retention::KeepLong);
    // A release may be the first to see a table; what controls fall back to is its own from then on.
    assert_eq!(reader.decide(&Observation::ZERO, 0, ActionMask::ALL).watermark, FIRST.1);
    reader.set_behind(true);
    assert_eq!(reader.retain(&seen, 0), Retention::Normal);
    assert_eq!(reader.last_retention_fallback(), Some(RetentionFallback::Behind));
    reader.set_behind(false);
    policy.load_bytes(&full(SECOND.0)).unwrap();
    assert_eq!(reader.retain(&seen, 0), Retention::Normal);
    assert_eq!(reader.last_retention_fallback(), no_table);
    let counters = reader.retention_counters();
    assert_eq!((counters.decisions, counters.table_decisions, counters.behind), (4, 1, 1));
}

/// One thread renames valid and invalid files over the path and reloads; the other decides all the while.
#[test]
fn every_decision_comes_from_a_valid_table() {
    const ROUNDS: usize = 400;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.kvt");
    let policy = SharedPolicy::new(ActionProfile::Full);
    policy.load_bytes(&full(FIRST.0)).unwrap();
    let mut reader = policy.reader(GuardConfig::default());
    let done = AtomicBool::new(false);

    let loader = |policy: &SharedPolicy| {
        let (first, second) = (full(FIRST.0), full(SECOND.0));
        for round in 0..ROUNDS {
            let good = if round % 2 == 0 { &second } else { &first };
            match round % 4 {
                // Cut where a writer might just be; in place, not renamed.
                1 => fs::write(&path, &good[..round % good.len()]).unwrap(),
                3 => {
                    let mut damaged = good.clone();
                    damaged[round % good.len()] ^= 1 << (round % 8);
                    rename_over(&path, &damaged);
                }
                _ => rename_over(&path, if round % 8 < 4 { &second } else { &first }),
            }
            assert_eq!(policy.load_file(&path).is_ok(), round % 2 == 0, "round {round}");
        }
        done.store(true, Ordering::Release);
    };
    let seen = thread::scope(|scope| {
        scope.spawn(|| loader(&policy));
        let mut seen = [0_u64; 2];
        loop {
            // Read before the decision, so that the last one is after the last load.
            let last = done.load(Ordering::Acquire);
            let watermark = reader.decide(&Observation::ZERO, 0, ActionMask::ALL).watermark;
            assert_eq!(reader.last_fallback(), None);
            let which = [FIRST.1, SECOND.1].iter().position(|&known| known == watermark);
            seen[which.expect("a watermark of one of the two tables")] += 1;
            if last {
                assert_eq!(watermark, FIRST.1, "the last valid table");
                return seen;
            }
        }
    });
    let rounds = ROUNDS as u64;
    assert_eq!(
        policy.counters(),
        LoadCounters { accepted: rounds / 2 + 1, invalid: rounds / 2, ..LoadCounters::default() }
    );
    assert_eq!(reader.counters().table_decisions, seen.iter().sum::<u64>());
}
