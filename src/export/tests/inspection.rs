//! What people and programs are shown of a file.

use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{FeatureRange, TableFile, TableSpec, encoded_len};
use kvtide_runtime::{ACTION_SET_HASH, ActionProfile, FEATURES, Feature, SCHEMA_HASH, Table, TreeNode};

use super::{provenance, student};
use crate::distil::Student;
use crate::export::{ExplainError, Explanation, Inspection, encode};

/// Splits on features 5 and 8, three leaves.
pub(super) fn small() -> Student {
    let mut student = student(0, 1);
    student.tree.nodes = vec![
        TreeNode::Split { feature: 5, left: 1, threshold: 0.183_456_7 },
        TreeNode::Split { feature: 8, left: 3, threshold: 0.02 },
        TreeNode::Leaf { choices: [4, 0, 0, 1, 8, 0] },
        TreeNode::Leaf { choices: [1, 0, 1, 0, 8, 0] },
        TreeNode::Leaf { choices: [19, 4, 2, 2, 8, 0] },
    ];
    student
}

#[test]
fn people_are_shown_rules_with_names() {
    let bytes = encode(&small(), &provenance()).unwrap();
    let inspection = Inspection::of(&bytes).unwrap();
    assert!(inspection.is_usable());
    let text = inspection.text(usize::MAX);
    let rules = "\nrules
  if growth_32 <= 0.1835
    if waiting <= 0.02: watermark 0.01, victim newest, preemption recompute, admission fcfs, budget 1048576
    else: watermark 1, victim most-slack, preemption cheaper, admission shortest-on-time-first, budget 1048576
  else: watermark 0.05, victim newest, preemption swap, admission on-time-first, budget 1048576
";
    assert!(text.ends_with(rules), "{text}");
    assert!(text.starts_with(&format!("size        {} bytes, 3 leaves, depth 2\n", bytes.len())), "{text}");
    assert!(text.contains("profile     full (watermark, victim, preemption, admission, budget)\n"), "{text}");
    assert!(text.contains(&format!("schema      this build's ({SCHEMA_HASH:016x})\n")), "{text}");
    assert!(text.contains("\n  growth_32                    0         4       1  pool\n"), "{text}");
    assert!(text.contains("\n  mean_slack                  -8         8       0  TTFT targets\n"), "{text}");
    assert!(text.contains("  teacher                     ppo `x`\\u{a}#![evil]\n"), "{text}");

    let short = inspection.text(2);
    assert!(short.ends_with("admission fcfs, budget 1048576\n  ... 2 more lines\n"), "{short}");
    assert!(!inspection.text(0).contains("rules"));
}

#[test]
fn a_profile_shows_only_its_heads_and_a_lone_leaf_is_a_rule() {
    let mut student = student(0, 1);
    student.profile = ActionProfile::Watermark;
    student.tree.nodes = vec![TreeNode::Leaf { choices: [5, 1, 1, 1, 8, 0] }];
    let bytes = encode(&student, &provenance()).unwrap();
    let text = Inspection::of(&bytes).unwrap().text(9);
    assert!(text.ends_with("\nrules\n  always: watermark 0.08\n"), "{text}");
}

#[test]
fn programs_are_given_exact_numbers() {
    let bytes = encode(&small(), &provenance()).unwrap();
    let json = Inspection::of(&bytes).unwrap().json();
    assert_eq!(json["nodes"][0]["feature"], "growth_32");
    assert_eq!(json["nodes"][0]["threshold"].as_f64().unwrap() as f32, 0.183_456_7);
    assert_eq!(json["nodes"][0]["threshold"].to_string(), "0.1834567");
    assert_eq!(json["nodes"][2]["leaf"]["watermark"], 0.05);
    assert_eq!(json["nodes"][4]["leaf"]["victim"], "most-slack");
    assert_eq!(json["features"][Feature::MeanSlack as usize]["min"], -8.0);
    assert_eq!(json["features"][8]["splits"], 1);
    assert_eq!(json["metadata"]["experiment"], "chat");
    let large = encode(&student(255, 1), &provenance()).unwrap();
    let large = Inspection::of(&large).unwrap().json();
    let splits = large["features"].as_array().unwrap().iter().map(|feature| feature["splits"].as_u64().unwrap());
    assert_eq!((splits.sum::<u64>(), large["leaves"].as_u64()), (255, Some(256)));
    assert_eq!((&json["schema"]["known"], &json["leaves"], &json["depth"]), (&true.into(), &3.into(), &2.into()));
}

#[test]
fn a_foreign_schema_is_shown_in_numbers() {
    let ranges = [FeatureRange { min: 0.0, max: 1.0 }; 3];
    let nodes = [
        TreeNode::Split { feature: 2, left: 1, threshold: 0.5 },
        TreeNode::Leaf { choices: [200, 0, 0, 0, 8, 0] },
        TreeNode::Leaf { choices: [1, 0, 0, 0, 8, 0] },
    ];
    let foreign = |schema_hash: u64, action_set_hash: u64| {
        let profile = ActionProfile::Watermark;
        let spec = TableSpec {
            profile,
            heads: NUM_HEADS as u8,
            schema_hash,
            action_set_hash,
            ranges: &ranges,
            nodes: &nodes,
            metadata: &[],
            extensions: &[],
        };
        let mut bytes = vec![0; encoded_len(&spec)];
        kvtide_runtime::format::encode(&spec, &mut bytes).map(|_| bytes)
    };
    let bytes = foreign(1, 2).unwrap();
    let inspection = Inspection::of(&bytes).unwrap();
    assert!(!inspection.is_usable());
    let text = inspection.text(9);
    assert!(text.ends_with("rules\n  if feature_2 <= 0.5: watermark #200\n  else: watermark #1\n"), "{text}");
    assert!(text.contains("schema      unknown (0000000000000001; this build's is "), "{text}");
    assert!(text.contains("features are shown as numbers") && text.contains("choices are shown as numbers"), "{text}");
    assert_eq!(inspection.json()["features"][0]["unit"], serde_json::Value::Null);

    // Known actions, and a choice that does not exist among them.
    let bytes = foreign(1, ACTION_SET_HASH).unwrap();
    let text = Inspection::of(&bytes).unwrap().text(9);
    assert!(text.ends_with("watermark #200\n  else: watermark 0.01\n"), "{text}");
    // What claims to be this build's is held to it.
    assert!(foreign(SCHEMA_HASH, ACTION_SET_HASH).is_err());
    let mut claims = foreign(1, ACTION_SET_HASH).unwrap();
    claims[16..24].copy_from_slice(&SCHEMA_HASH.to_le_bytes());
    let end = claims.len() - 4;
    let crc = kvtide_runtime::format::crc32(&claims[..end]);
    claims[end..].copy_from_slice(&crc.to_le_bytes());
    assert!(TableFile::parse(&claims).is_ok() && Inspection::of(&claims).is_err());
}

#[test]
fn a_picture_shows_every_comparison_and_leaf_once() {
    let bytes = encode(&small(), &provenance()).unwrap();
    let inspection = Inspection::of(&bytes).unwrap();
    let svg = inspection.svg(8);
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    for text in [
        ">growth 32<",
        ">≤ 18.3 % of the pool<",
        ">waiting<",
        ">≤ 2 % of the slots<",
        ">watermark 0.01<",
        ">newest, recompute, fcfs<",
        ">watermark 1<",
        ">most-slack, cheaper, shortest-on-time-first<",
    ] {
        assert_eq!(svg.matches(text).count(), 1, "{text} in {svg}");
    }
    assert_eq!((svg.matches(">yes<").count(), svg.matches(">no<").count()), (2, 2));
    let cut = inspection.svg(1);
    assert!(cut.contains(">… 2 leaves, watermark 0.01 to 1<") && !cut.contains("waiting"), "{cut}");
    assert!(
        cut.contains("at most 2 comparisons, 1 of them drawn") && cut.contains(">mostly newest, mostly recompute<"),
        "{cut}"
    );
    assert!(inspection.svg(0).contains(">… 3 leaves, watermark 0.01 to 1<"));
}

#[test]
fn a_head_all_leaves_agree_on_is_said_once_and_strings_stay_text() {
    let mut student = small();
    for node in &mut student.tree.nodes {
        if let TreeNode::Leaf { choices } = node {
            choices[2] = 1;
        }
    }
    let mut provenance = provenance();
    provenance.experiment = "</text><script>".to_owned();
    let bytes = encode(&student, &provenance).unwrap();
    let svg = Inspection::of(&bytes).unwrap().svg(8);
    assert!(
        svg.contains(">always preemption recompute, budget 1048576<") && svg.contains(">newest, on-time-first<"),
        "{svg}"
    );
    assert!(!svg.contains("<script") && svg.contains("&lt;script&gt;"));
}

#[test]
fn a_decision_is_explained_by_the_comparisons_taken() {
    let bytes = encode(&small(), &provenance()).unwrap();
    let table = Table::parse(&bytes).unwrap();
    let explain = |given: &[(&str, f64)]| {
        Explanation::of(&table, &given.iter().map(|&(name, value)| (name.to_owned(), value)).collect())
    };
    let explanation = explain(&[("growth_32", 0.1), ("waiting", 0.5)]).unwrap();
    let text = explanation.text();
    assert_eq!(
        text,
        "growth_32 0.1 <= 0.1835\nwaiting 0.5 > 0.02\nso: watermark 1, victim most-slack, preemption cheaper, \
         admission shortest-on-time-first, budget 1048576 (node 4)\n"
    );
    let json = explanation.json();
    assert_eq!((&json["action"]["watermark"], &json["comparisons"][1]["greater"]), (&1.0.into(), &true.into()));
    // The other way needs one feature only.
    assert!(explain(&[("growth_32", 0.2)]).unwrap().text().ends_with("on-time-first, budget 1048576 (node 2)\n"));
    assert_eq!(
        explain(&[("growth_32", 0.1)]),
        Err(ExplainError::Missing { asked: "waiting", decides_by: vec!["growth_32", "waiting"] })
    );
    let known = FEATURES.iter().map(|spec| spec.name).collect();
    let unknown = ExplainError::Unknown { names: vec!["growth".to_owned()], known };
    assert_eq!(explain(&[("growth", 0.1)]), Err(unknown));
    // What is no number counts as the least a feature can be, as it does in an observation.
    let nan = explain(&[("growth_32", f64::NAN), ("waiting", f64::INFINITY)]).unwrap();
    assert!(nan.text().contains("growth_32 0 <= 0.1835\nwaiting 8 > 0.02\n"), "{}", nan.text());
    assert!(
        nan.text().ends_with(
            "beware: growth_32 cannot be NaN; it counts as 0\nbeware: waiting cannot be inf; it counts as 8\n"
        )
    );
    assert_eq!(nan.json()["observation"], serde_json::json!({"growth_32": 0.0, "waiting": 8.0}));
}

#[test]
fn a_value_the_teacher_never_saw_is_pointed_out() {
    let mut student = small();
    student.ranges[Feature::Growth32 as usize] = FeatureRange { min: 0.0, max: 0.5 };
    let bytes = encode(&student, &provenance()).unwrap();
    let table = Table::parse(&bytes).unwrap();
    let given = [("growth_32".to_owned(), 0.75)].into();
    let explanation = Explanation::of(&table, &given).unwrap();
    assert!(explanation.text().ends_with("beware: growth_32 0.75 is outside the trained range [0, 0.5]\n"));
    assert_eq!(explanation.json()["outside_trained_range"][0]["feature"], "growth_32");
}
