//! A second tree in the terms of other engines, and why it decides as it does.

use std::collections::BTreeMap;

use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::FeatureRange;
use kvtide_runtime::{FEATURES, Feature, RELEASE_FEATURES, ReleaseFeature, Retention, RetentionTable, Table, TreeNode};
use serde_json::{Value, json};

use super::inspection::small;
use super::provenance;
use crate::distil::RetentionTree;
use crate::export::{ExplainError, Explanation, RetentionRules, Turnover, add_retention, encode};

fn leaf(class: Retention) -> TreeNode {
    let mut choices = [0; NUM_HEADS];
    choices[0] = class as u8;
    TreeNode::Leaf { choices }
}

fn split(feature: usize, left: u16, threshold: f32) -> TreeNode {
    TreeNode::Split { feature: feature as u8, left, threshold }
}

/// Parts, then turns of the head (asked twice about, and about what no turn is) and the stop of the tail.
fn tree() -> RetentionTree {
    let (part, turn, stop) = (ReleaseFeature::Part, ReleaseFeature::Turn, ReleaseFeature::Stop);
    RetentionTree {
        nodes: vec![
            split(part.index(), 1, 0.5),
            split(turn.index(), 3, 4.5),
            split(stop.index(), 5, 1.5),
            split(turn.index(), 7, 1.5),
            leaf(Retention::KeepLong),
            leaf(Retention::Normal),
            split(Feature::FreeFraction as usize, 9, 0.1),
            leaf(Retention::EvictFirst),
            split(turn.index(), 11, 1.0),
            leaf(Retention::EvictFirst),
            leaf(Retention::Keep),
            leaf(Retention::Normal),
            leaf(Retention::Keep),
        ],
        ranges: RELEASE_FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max }),
        samples: 1,
    }
}

fn table(tree: &RetentionTree) -> &'static [u8] {
    add_retention(&encode(&small(), &provenance()).unwrap(), tree).unwrap().leak()
}

fn retention(tree: &RetentionTree) -> RetentionTable<'static> {
    Table::parse(table(tree)).unwrap().retention().unwrap()
}

fn rules(turnover: Option<Turnover>) -> Value {
    serde_json::to_value(RetentionRules::of("policy.kvt", &retention(&tree()), turnover)).unwrap()
}

#[test]
fn each_leaf_is_told_by_what_leads_there() {
    let all = rules(None);
    assert_eq!(
        (&all["has_run"], &all["table"], &all["turnover_s"]),
        (&false.into(), &"policy.kvt".into(), &Value::Null)
    );
    let rules = all["rules"].as_array().unwrap();
    let told = |rule: &Value| {
        let condition = |one: &Value| {
            format!("{} {} {}", one["feature"].as_str().unwrap(), one["comparison"].as_str().unwrap(), one["threshold"])
        };
        let conditions: Vec<String> = rule["conditions"].as_array().unwrap().iter().map(condition).collect();
        let text = |name: &str| rule[name].as_str().unwrap().to_owned();
        format!(
            "{} {}: {} if {} ({})",
            rule["leaf"],
            text("part"),
            text("retention"),
            conditions.join(", "),
            text("known_at")
        )
    };
    // Leaf 11, of a turn above 1.5 and at most 1, is where nobody comes.
    let expected = [
        "7 head: evict-first if turn <= 1.5 (submission)",
        "12 head: keep if turn > 1.5, turn <= 4.5 (submission)",
        "4 head: keep-long if turn > 4.5 (submission)",
        "5 tail: normal if stop <= 1.5 (release)",
        "9 tail: evict-first if stop > 1.5, free_fraction <= 0.1 (release)",
        "10 tail: keep if stop > 1.5, free_fraction > 0.1 (release)",
    ];
    assert_eq!(rules.iter().map(told).collect::<Vec<String>>(), expected);
    assert_eq!(RetentionRules::of("x", &retention(&tree()), None).told_at_submission(), 3);
    assert_eq!(rules[0]["conditions"][0]["unit"], "turns");
}

#[test]
fn every_class_has_both_engines_terms() {
    let all = rules(Some("30".parse().unwrap()));
    let rule = |leaf: u64| all["rules"].as_array().unwrap().iter().find(|rule| rule["leaf"] == leaf).unwrap().clone();
    let range = |start: Value, end: Value, priority: u8, duration_ms: Value| json!([{"token_start": start, "token_end": end, "priority": priority, "duration_ms": duration_ms}]);
    let found = || Value::from("found");
    // Two turnovers of 30 s, and eight.
    for (leaf, start, end, priority, duration_ms, decodes, sglang) in [
        (7, 0.into(), found(), 5, Value::Null, false, -1),
        (12, 0.into(), found(), 65, 60_000.into(), false, 1),
        (4, 0.into(), found(), 90, 240_000.into(), false, 2),
        (5, found(), Value::Null, 35, Value::Null, true, 0),
        (10, found(), Value::Null, 65, 60_000.into(), true, 1),
    ] {
        let rule = rule(leaf);
        let terms = &rule["tensorrt_llm"];
        assert_eq!(terms["token_range_retention_configs"], range(start, end, priority, duration_ms.clone()), "{leaf}");
        let decode = if decodes { (priority.into(), duration_ms) } else { (Value::Null, Value::Null) };
        assert_eq!((terms["decode_retention_priority"].clone(), terms["decode_duration_ms"].clone()), decode, "{leaf}");
        assert_eq!(rule["sglang"]["priority"], sglang, "{leaf}");
    }
    // A tree of one leaf says the same of all of a prompt.
    let one = RetentionTree { nodes: vec![leaf(Retention::KeepLong)], ..tree() };
    let all = serde_json::to_value(RetentionRules::of("x", &retention(&one), None)).unwrap();
    let rule = &all["rules"][0];
    assert_eq!(
        (&rule["part"], &rule["turnovers"], &rule["known_at"]),
        (&"both".into(), &8.into(), &"submission".into())
    );
    let whole = range(0.into(), Value::Null, 90, Value::Null);
    assert_eq!(rule["tensorrt_llm"]["token_range_retention_configs"], whole);
}

#[test]
fn a_turnover_takes_seconds() {
    let seconds = |text: &str| text.parse::<Turnover>().map(|turnover| serde_json::to_value(turnover).unwrap());
    assert_eq!((seconds("30"), seconds(" 0.5 ")), (Ok(30.0.into()), Ok(0.5.into())));
    for bad in ["", "0", "-1", "nan", "inf", "30s", "31536001"] {
        let error = seconds(bad).unwrap_err().to_string();
        assert_eq!(error, format!("{bad:?}: expected seconds, above 0 and at most 31536000"));
    }
}

#[test]
fn a_release_is_explained() {
    let (bytes, tree) = (table(&tree()), retention(&tree()));
    let given = |pairs: &[(&str, f64)]| -> BTreeMap<String, f64> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
    };
    let explained = Explanation::of_release(&tree, &given(&[("part", 0.0), ("turn", 3.0)])).unwrap();
    let text = "part 0 <= 0.5\nturn 3 <= 4.5\nturn 3 > 1.5\nturn 3 > 1\nso: retention keep (node 12)\n";
    assert_eq!(explained.text(), text);
    let json = explained.json();
    assert_eq!((&json["action"], &json["leaf"]), (&json!({"retention": "keep"}), &12.into()));
    assert_eq!(json["observation"], json!({"part": 0.0, "turn": 3.0}));
    // It is the class a node gets, and a feature of the node may be among what is asked.
    let explained = Explanation::of_release(&tree, &given(&[("part", 1.0), ("stop", 9.0), ("free_fraction", 0.05)]));
    let text = explained.unwrap().text();
    assert!(text.contains("so: retention evict-first (node 9)\n"), "{text}");
    assert!(text.contains("beware: stop cannot be 9; it counts as 4"), "{text}");
    let missing = Explanation::of_release(&tree, &given(&[("part", 1.0)])).unwrap_err();
    let decides_by = vec!["free_fraction", "part", "turn", "stop"];
    assert_eq!(missing, ExplainError::Missing { asked: "stop", decides_by });
    let unknown = Explanation::of_release(&tree, &given(&[("turns", 1.0)])).unwrap_err().to_string();
    assert!(unknown.starts_with("\"turns\": no such feature; known: free_fraction, ") && unknown.contains("turn, "));
    // The first tree knows nothing of turns.
    let first = Table::parse(bytes).unwrap();
    let unknown = Explanation::of(&first, &given(&[("turn", 1.0)])).unwrap_err();
    let ExplainError::Unknown { known, .. } = unknown else { panic!("{unknown}") };
    assert_eq!(known, FEATURES.map(|spec| spec.name));
}
