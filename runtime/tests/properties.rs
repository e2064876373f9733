//! Properties: random trees and random bytes.

mod support;

use std::collections::VecDeque;

use kvtide_runtime::format::{
    EncodeError, Extension, FormatError, MAX_DEPTH, NODE_BYTES, TableFile, TableSpec, encode, encoded_len,
};
use kvtide_runtime::{
    ActionMask, ActionProfile, Guard, GuardConfig, Head, NUM_FEATURES, Node, Observation, OwnedTable, Policy, Table,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use support::{bytes_of, ranges, seal, spec, table_of};

/// The slow, obvious tree.
#[derive(Debug, Clone)]
enum Tree {
    Leaf([u8; 4]),
    Split { feature: u8, threshold: f32, left: Box<Tree>, right: Box<Tree> },
}

impl Tree {
    fn decide(&self, values: &[f32]) -> [u8; 4] {
        match self {
            Tree::Leaf(choices) => *choices,
            Tree::Split { feature, threshold, left, right } => {
                let side = if values[*feature as usize] > *threshold { right } else { left };
                side.decide(values)
            }
        }
    }

    fn depth(&self) -> u8 {
        match self {
            Tree::Leaf(_) => 0,
            Tree::Split { left, right, .. } => 1 + left.depth().max(right.depth()),
        }
    }

    /// Breadth first: a queue of trees whose nodes have not been written yet.
    fn nodes(&self) -> Vec<Node> {
        let mut nodes = Vec::new();
        let mut queue = VecDeque::from([self]);
        let mut seen = 1;
        while let Some(tree) = queue.pop_front() {
            nodes.push(match tree {
                Tree::Leaf(choices) => Node::Leaf { choices: *choices },
                Tree::Split { feature, threshold, left, right } => {
                    queue.extend([&**left, &**right]);
                    seen += 2;
                    Node::Split { feature: *feature, left: seen - 2, threshold: *threshold }
                }
            });
        }
        nodes
    }
}

/// Few enough values that comparisons meet thresholds exactly.
fn value() -> impl Strategy<Value = f32> {
    let special = [0.0, -0.0, 0.5, 1.0, -8.0, f32::MIN_POSITIVE, f32::MAX, f32::MIN];
    prop_oneof![3 => prop::sample::select(special.to_vec()), 1 => -10.0_f32..10.0]
}

fn observation() -> impl Strategy<Value = Observation> {
    let any = prop_oneof![4 => value(), 1 => any::<f32>(), 1 => prop::sample::select(vec![
        f32::NAN, f32::INFINITY, f32::NEG_INFINITY,
    ])];
    prop::collection::vec(any, NUM_FEATURES)
        .prop_map(|values| Observation { values: values.try_into().expect("as many as features") })
}

fn choices() -> impl Strategy<Value = [u8; 4]> {
    let size = |head: Head| 0..head.size() as u8;
    let [a, b, c, d] = Head::ALL.map(size);
    (a, b, c, d).prop_map(|(a, b, c, d)| [a, b, c, d])
}

fn tree() -> impl Strategy<Value = Tree> {
    choices().prop_map(Tree::Leaf).prop_recursive(10, 256, 2, |inner| {
        (0..NUM_FEATURES as u8, value(), inner.clone(), inner).prop_map(|(feature, threshold, left, right)| {
            Tree::Split { feature, threshold, left: left.into(), right: right.into() }
        })
    })
}

fn mask() -> impl Strategy<Value = ActionMask> {
    prop::collection::vec((0..4_usize, any::<u8>()), 0..20).prop_map(|forbidden| {
        forbidden.into_iter().fold(ActionMask::ALL, |mask, (head, choice)| mask.forbid(Head::ALL[head], choice % 16))
    })
}

fn profile() -> impl Strategy<Value = ActionProfile> {
    prop::sample::select(ActionProfile::ALL.to_vec())
}

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

/// Whatever was accepted can be walked to the end, whatever is observed.
fn walk_is_bounded(file: &TableFile<'_>, observation: &Observation) -> Result<(), TestCaseError> {
    let steps = file.path(&observation.values).count();
    prop_assert!(steps <= usize::from(file.depth()) && file.depth() <= MAX_DEPTH);
    let leaf = file.leaf(&observation.values);
    let choices = leaf.choices;
    prop_assert_eq!(file.nodes().nth(usize::from(leaf.node)), Some(Node::Leaf { choices }));
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_table_decides_as_the_tree_does(tree in tree(), observations in prop::collection::vec(observation(), 1..8)) {
        let bytes = table_of(&tree.nodes());
        let table = Table::parse(&bytes).unwrap();
        prop_assert_eq!(table.depth(), tree.depth());
        prop_assert_eq!(usize::from(table.leaves()) * 2 - 1, table.nodes().len());
        for observation in &observations {
            prop_assert_eq!(table.decide(observation, ActionMask::ALL).indices(), tree.decide(&observation.values));
        }
    }

    #[test]
    fn every_choice_is_allowed(tree in tree(), observation in observation(), mask in mask()) {
        let bytes = table_of(&tree.nodes());
        let action = Table::parse(&bytes).unwrap().decide(&observation, mask);
        for head in Head::ALL {
            prop_assert!(mask.allows(head, action.get(head)));
        }
    }

    #[test]
    fn writing_what_was_read_gives_the_same_bytes(
        tree in tree(),
        profile in profile(),
        hashes in any::<(u64, u64)>(),
        metadata in prop::collection::btree_map("\\PC{1,8}", "\\PC{0,20}", 0..6),
        extensions in prop::collection::btree_map(any::<u16>(), prop::collection::vec(any::<u8>(), 0..9), 0..4),
    ) {
        let (ranges, nodes) = (ranges(), tree.nodes());
        let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let extensions: Vec<_> =
            extensions.iter().map(|(&id, bytes)| Extension { id, flags: 0, bytes }).collect();
        let spec = TableSpec {
            profile,
            schema_hash: hashes.0,
            action_set_hash: hashes.1,
            metadata: &metadata,
            extensions: &extensions,
            ..spec(&ranges, &nodes)
        };
        let bytes = bytes_of(&spec);

        let file = TableFile::parse(&bytes).unwrap();
        let (ranges, nodes): (Vec<_>, Vec<_>) = (file.ranges().collect(), file.nodes().collect());
        let (metadata, extensions): (Vec<_>, Vec<_>) = (file.metadata().collect(), file.extensions().collect());
        let read = TableSpec {
            profile: file.profile(),
            schema_hash: file.schema_hash(),
            action_set_hash: file.action_set_hash(),
            ranges: &ranges,
            nodes: &nodes,
            metadata: &metadata,
            extensions: &extensions,
        };
        prop_assert_eq!(read, spec);
        prop_assert_eq!(bytes_of(&read), bytes);
    }

    #[test]
    fn a_table_that_owns_its_bytes_is_the_same(tree in tree(), pairs in 0..3_usize, extensions in 0..3_u16) {
        let metadata = &[("commit", "abc"), ("seed", "7")][..pairs.min(2)];
        let extensions: Vec<_> = (0..extensions).map(|id| Extension { id, flags: 0, bytes: b"xyz" }).collect();
        let (ranges, nodes) = (ranges(), tree.nodes());
        let bytes = bytes_of(&TableSpec { metadata, extensions: &extensions, ..spec(&ranges, &nodes) });
        let owned = OwnedTable::parse(bytes.clone()).unwrap();
        prop_assert_eq!(owned.table(), Table::parse(&bytes));
        prop_assert_eq!(owned.bytes(), &bytes);
    }

    #[test]
    fn a_node_survives_its_bytes(bytes in any::<[u8; NODE_BYTES]>()) {
        let node = Node::from_bytes(bytes);
        prop_assert_eq!(Node::from_bytes(node.to_bytes()).to_bytes(), node.to_bytes());
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        prop_assert!(TableFile::parse(&bytes).is_err());
        prop_assert!(TableFile::parse(&seal(bytes)).is_err());
    }

    #[test]
    fn what_is_accepted_after_damage_still_ends(
        tree in tree(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..6),
        observation in observation(),
        mask in mask(),
    ) {
        let nodes = tree.nodes();
        let mut bytes = table_of(&nodes);
        let nodes_at = bytes.len() - nodes.len() * NODE_BYTES - 6;
        for (index, byte, in_nodes) in damage {
            let at = if in_nodes { nodes_at + index.index(nodes.len() * NODE_BYTES) } else { index.index(bytes.len()) };
            bytes[at] = byte;
        }
        let bytes = seal(bytes);
        if let Ok(file) = TableFile::parse(&bytes) {
            walk_is_bounded(&file, &observation)?;
        }
        if let Ok(table) = Table::parse(&bytes) {
            let action = table.decide(&observation, mask);
            prop_assert!(Head::ALL.iter().all(|&head| mask.allows(head, action.get(head))));
        }
        let mut guard = Guard::new(Table::parse(&bytes), GuardConfig::default());
        let controls = guard.decide(&observation, 0, mask);
        prop_assert!((0.0..=1.0).contains(&controls.watermark));
    }

    /// Nodes at random, not from a tree: almost all are refused, none may be walked for ever.
    #[test]
    fn arbitrary_nodes_never_loop(
        nodes in prop::collection::vec((any::<bool>(), 0..30_u8, 0..12_u16, value(), choices()), 1..9),
        observation in observation(),
    ) {
        let nodes: Vec<Node> = nodes
            .into_iter()
            .map(|(is_leaf, feature, left, threshold, choices)| {
                if is_leaf { Node::Leaf { choices } } else { Node::Split { feature, left, threshold } }
            })
            .collect();
        let ranges = ranges();
        let spec = spec(&ranges, &nodes);
        let mut bytes = vec![0; encoded_len(&spec)];
        match encode(&spec, &mut bytes) {
            Ok(_) => walk_is_bounded(&TableFile::parse(&bytes).unwrap(), &observation)?,
            Err(EncodeError::Format(
                FormatError::NodeFeature { .. }
                | FormatError::ChildOutOfRange { .. }
                | FormatError::ChildBeforeParent { .. }
                | FormatError::ChildOrder { .. }
                | FormatError::Orphan { .. },
            )) => {}
            Err(error) => prop_assert!(false, "{error}"),
        }
    }
}
