//! Files, generated source and what people are shown.

mod choice;
mod engine_rules;
mod inspection;
mod retention;
mod source;

use std::fs;

use kvtide_envs::seed;
use kvtide_runtime::format::FeatureRange;
use kvtide_runtime::{
    ActionMask, ActionProfile, FEATURES, Feature, Head, NUM_FEATURES, Observation, Policy, Table, TreeNode,
};
use rand::RngExt;

use super::{ExportError, TableProvenance, encode, load, load_table, save};
use crate::distil::{DistilConfig, Fidelity, HeadFidelity, PerHeadTrees, Student, Tree};

/// A student with a random tree of about `splits` splits, thresholds within the range of each feature.
fn student(splits: usize, seed: u64) -> Student {
    let mut stream = seed::stream(seed, "test", 0);
    let mut nodes: Vec<Option<TreeNode>> = vec![None];
    let mut done = 0;
    while let Some(next) = nodes.iter().position(Option::is_none) {
        nodes[next] = Some(if done < splits {
            done += 1;
            let feature = stream.random_range(0..NUM_FEATURES as u8);
            let spec = &FEATURES[usize::from(feature)];
            let left = nodes.len() as u16;
            nodes.extend([None, None]);
            TreeNode::Split { feature, left, threshold: stream.random_range(spec.min..spec.max) }
        } else {
            TreeNode::Leaf { choices: Head::ALL.map(|head| stream.random_range(0..head.size() as u8)) }
        });
    }
    let nodes = nodes.into_iter().flatten().collect();
    let head = |head: &Head| HeadFidelity { head: head.name(), by_visits: 0.9, by_regret: 0.987_65 };
    let fidelity = Fidelity { heads: Head::ALL.iter().map(head).collect(), joint: 0.95, samples: 200 };
    Student {
        per_head: (PerHeadTrees::grow(&[], &DistilConfig::default(), ActionProfile::Full), fidelity.clone()),
        tree: Tree { nodes, importance: [0.0; NUM_FEATURES] },
        smaller: Vec::new(),
        profile: ActionProfile::Full,
        ranges: FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max }),
        samples: 1000,
        fidelity,
    }
}

fn provenance() -> TableProvenance {
    TableProvenance {
        experiment: "chat".to_owned(),
        commit: "0123abc".to_owned(),
        seed: 7,
        checkpoint: "b3:00ff".to_owned(),
        teacher: "ppo `x`\n#![evil]".to_owned(),
        training: [("env".to_owned(), "llama-3-8b@h100".to_owned())].into(),
    }
}

fn observations(count: usize) -> impl Iterator<Item = Observation> {
    let mut stream = seed::stream(3, "test.observations", 0);
    (0..count).map(move |_| Observation { values: FEATURES.map(|spec| stream.random_range(spec.min..=spec.max)) })
}

#[test]
fn the_file_decides_as_the_student_does() {
    let mut mask = ActionMask::ALL;
    for (splits, seed) in [(0, 1), (1, 2), (255, 3), (1000, 4)] {
        let student = student(splits, seed);
        let bytes = encode(&student, &provenance()).unwrap();
        let table = Table::parse(&bytes).unwrap();
        assert_eq!(usize::from(table.leaves()), student.tree.leaves());
        for observation in observations(10_000) {
            assert_eq!(table.decide(&observation, mask), student.decide(&observation, mask));
        }
        mask = mask.forbid(Head::Preemption, 0).forbid(Head::Watermark, 3);
    }
}

#[test]
fn metadata_is_sorted_and_says_where_it_comes_from() {
    let mut student = student(3, 1);
    student.tree.importance[Feature::FreeFraction as usize] = 0.25;
    student.tree.importance[Feature::Waiting as usize] = 0.75;
    let bytes = encode(&student, &provenance()).unwrap();
    let table = Table::parse(&bytes).unwrap();
    let pairs: Vec<(&str, &str)> = table.metadata().collect();
    assert!(pairs.is_sorted());
    let value = |key: &str| pairs.iter().find(|(found, _)| *found == key).unwrap().1;
    assert_eq!((value("experiment"), value("commit"), value("seed")), ("chat", "0123abc", "7"));
    assert_eq!((value("fidelity"), value("fidelity.victim.regret")), ("0.9500", "0.9877"));
    assert_eq!((value("leaves"), value("samples"), value("checkpoint")), ("4", "1000", "b3:00ff"));
    assert_eq!(value("env"), "llama-3-8b@h100");
    assert_eq!(value("importance"), "waiting 0.750, free_fraction 0.250");
    assert_eq!(value("features"), features(&student));
    assert_eq!(pairs.len(), 25);
    assert_eq!(encode(&student, &provenance()).unwrap(), bytes);
}

/// Looked up node by node, in the order of the schema.
fn features(student: &Student) -> String {
    let splits = |feature: usize| {
        student
            .tree
            .nodes
            .iter()
            .any(|node| matches!(node, TreeNode::Split { feature: found, .. } if usize::from(*found) == feature))
    };
    let names = FEATURES.iter().enumerate().filter(|(index, _)| splits(*index)).map(|(_, spec)| spec.name);
    names.collect::<Vec<&str>>().join(", ")
}

#[test]
fn too_long_metadata_is_an_error_of_one_line() {
    let long = TableProvenance { teacher: "x".repeat(20_000), ..provenance() };
    let error = encode(&student(1, 1), &long).unwrap_err().to_string();
    assert!(error.contains("bytes of metadata, the limit is 16384"), "{error}");
}

#[test]
fn files_are_written_whole_and_refused_with_their_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.kvt");
    let bytes = encode(&student(30, 1), &provenance()).unwrap();
    save(&path, b"old").unwrap();
    save(&path, &bytes).unwrap();
    assert_eq!(load(&path).unwrap(), bytes);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    let table = load_table(&path).unwrap();
    assert_eq!(table, Table::parse(&bytes).unwrap());

    let mut damaged = bytes.clone();
    damaged[100] ^= 1;
    save(&path, &damaged).unwrap();
    let error = load_table(&path).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: damaged: CRC-32", path.display())), "{error}");
    fs::write(&path, vec![0x8b; 300_000]).unwrap();
    let error = load_table(&path).unwrap_err().to_string();
    assert!(error.ends_with("file has 262145 bytes, the limit is 262144"), "{error}");

    let missing = folder.path().join("no/such.kvt");
    for error in [load_table(&missing).unwrap_err(), save(&missing, &bytes).unwrap_err()] {
        assert!(matches!(error, ExportError::Io { .. }));
        assert!(error.to_string().starts_with(&format!("{}: ", missing.display())), "{error}");
    }
    // A path that cannot be replaced leaves nothing beside it.
    let directory = folder.path().join("folder");
    fs::create_dir(&directory).unwrap();
    assert!(save(&directory, &bytes).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}
