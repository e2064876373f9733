//! A second tree in a table's file: the first is as it was, and both are shown.

use kvtide_runtime::{Observation, ReleaseFeature, ReleaseObservation, Retention, RetentionPolicy, Table};

use super::inspection::small;
use super::provenance;
use crate::distil::{DistilConfig, RetentionSample, RetentionTree};
use crate::export::{Inspection, add_retention, encode};

fn seen(turn: f32) -> ReleaseObservation {
    let mut seen = ReleaseObservation::of_node(&Observation::ZERO);
    seen.set(ReleaseFeature::Turn, turn);
    seen
}

/// Keep from the second turn on.
fn tree() -> RetentionTree {
    let class = |turn: u8| if turn > 1 { Retention::Keep } else { Retention::EvictFirst };
    let of = |turn: u8| RetentionSample { seen: seen(turn.into()), class: class(turn), weight: 1, idle: 0 };
    let samples: Vec<RetentionSample> = (1..9).map(of).collect();
    RetentionTree::grow(&samples, &DistilConfig { min_leaf_samples: 1, ..DistilConfig::default() })
}

#[test]
fn a_second_tree_changes_nothing_of_the_first() {
    let plain = encode(&small(), &provenance()).unwrap();
    let both = add_retention(&plain, &tree()).unwrap();
    let (before, table) = (Table::parse(&plain).unwrap(), Table::parse(&both).unwrap());
    assert!(before.nodes().eq(table.nodes()) && before.ranges().eq(table.ranges()));
    assert!(before.metadata().eq(table.metadata()));
    let retention = table.retention().unwrap();
    for turn in [1.0, 1.4, 2.0, 8.0] {
        assert_eq!(retention.decide(&seen(turn)), tree().retain(&seen(turn)), "{turn}");
    }
    // Another takes its place.
    let none = RetentionTree::grow(&[], &DistilConfig::default());
    let replaced = add_retention(&both, &none).unwrap();
    assert_eq!(Table::parse(&replaced).unwrap().retention().unwrap().decide(&seen(8.0)), Retention::Normal);
    assert!(add_retention(b"no table", &none).is_err());
}

#[test]
fn both_trees_are_shown() {
    let plain = encode(&small(), &provenance()).unwrap();
    let both = add_retention(&plain, &tree()).unwrap();
    let inspection = Inspection::of(&both).unwrap();
    let text = inspection.text(9);
    assert!(text.ends_with("retention rules\n  if turn <= 1.5: evict-first\n  else: keep\n"), "{text}");
    assert!(text.contains("retention   2 leaves, depth 1\nschema      this build's ("), "{text}");
    let json = inspection.json();
    assert_eq!((&json["format_version"], &json["retention"]["leaves"]), (&2.into(), &2.into()));
    assert_eq!(json["retention"]["nodes"][2]["leaf"], "keep");
    let json = Inspection::of(&plain).unwrap().json();
    assert_eq!((&json["format_version"], json.get("retention")), (&1.into(), None));
}
