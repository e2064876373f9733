//! Properties: random trees and random bytes.

use std::collections::VecDeque;

use crate::support::{bytes_of, ranges, seal, spec, table_of};
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{
    EncodeError, Extension, FormatError, MAX_DEPTH, NODE_BYTES, TableFile, TableSpec, encode, encoded_len,
};
use kvtide_runtime::{
    ActionMask, ActionProfile, Guard, GuardConfig, Head, NUM_FEATURES, Observation, OwnedTable, Policy, RunningRequest,
    Snapshot, Table, TreeNode, WaitingRequest,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// The slow, obvious tree.
#[derive(Debug, Clone)]
enum Tree {
    Leaf([u8; NUM_HEADS]),
    Split { feature: u8, threshold: f32, left: Box<Tree>, right: Box<Tree> },
}

impl Tree {
    fn decide(&self, values: &[f32]) -> [u8; NUM_HEADS] {
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
    fn nodes(&self) -> Vec<TreeNode> {
        let mut nodes = Vec::new();
        let mut queue = VecDeque::from([self]);
        let mut seen = 1;
        while let Some(tree) = queue.pop_front() {
            nodes.push(match tree {
                Tree::Leaf(choices) => TreeNode::Leaf { choices: *choices },
                Tree::Split { feature, threshold, left, right } => {
                    queue.extend([&**left, &**right]);
                    seen += 2;
                    TreeNode::Split { feature: *feature, left: seen - 2, threshold: *threshold }
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

fn choices() -> impl Strategy<Value = [u8; NUM_HEADS]> {
    let size = |head: Head| 0..head.size() as u8;
    let [a, b, c, d, e, f] = Head::ALL.map(size);
    (a, b, c, d, e, f).prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f])
}

fn tree() -> impl Strategy<Value = Tree> {
    choices().prop_map(Tree::Leaf).prop_recursive(10, 256, 2, |inner| {
        (0..NUM_FEATURES as u8, value(), inner.clone(), inner).prop_map(|(feature, threshold, left, right)| {
            Tree::Split { feature, threshold, left: left.into(), right: right.into() }
        })
    })
}

fn mask() -> impl Strategy<Value = ActionMask> {
    prop::collection::vec((0..NUM_HEADS, any::<u8>()), 0..20).prop_map(|forbidden| {
        forbidden.into_iter().fold(ActionMask::ALL, |mask, (head, choice)| mask.forbid(Head::ALL[head], choice % 32))
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
    let after = |at: kvtide_runtime::format::PathStep| match file.nodes().nth(usize::from(at.node)) {
        Some(TreeNode::Split { left, .. }) => left + u16::from(at.went_right),
        _ => u16::MAX,
    };
    prop_assert_eq!(leaf.node, file.path(&observation.values).last().map_or(0, after), "the path ends elsewhere");
    let choices = leaf.choices;
    prop_assert_eq!(file.nodes().nth(usize::from(leaf.node)), Some(TreeNode::Leaf { choices }));
    Ok(())
}

/// Numbers as nodes have them, and those at the edges of their type.
fn count() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0..5000_u32, 1 => any::<u32>(), 1 => (0..40_u32).prop_map(|less| u32::MAX - less)]
}

fn running() -> impl Strategy<Value = RunningRequest> {
    let deadline = prop_oneof![4 => 0..4_000_000_u64, 1 => any::<u64>()];
    (count(), count(), 0..3_u32, count(), deadline).prop_map(|(tokens, computed, generated, held, deadline_us)| {
        RunningRequest {
            tokens,
            // Decodes have one token to compute, and are most.
            computed_tokens: if computed % 2 == 0 { tokens.saturating_sub(1) } else { computed },
            generated_tokens: generated * tokens.min(1000) / 2,
            held_blocks: held / 16,
            deadline_us,
        }
    })
}

fn deadlines_are_near(requests: &[RunningRequest], now_us: u64) -> bool {
    requests.iter().all(|request| request.slack_us(now_us).unsigned_abs() < 1 << 56)
}

/// The sums as their documentation has them, in numbers that cannot overflow.
fn plain_sums(mut snapshot: Snapshot, requests: &[RunningRequest]) -> Snapshot {
    let sum = |value: &dyn Fn(&RunningRequest) -> u128| requests.iter().map(value).sum::<u128>();
    let narrow = |before: u32, more: u128| u32::try_from(u128::from(before) + more).unwrap_or(u32::MAX);
    for (blocks, steps) in snapshot.growth_blocks.iter_mut().zip([1_u128, 8, 32]) {
        let size = u128::from(snapshot.block_size.max(1));
        *blocks = narrow(
            *blocks,
            sum(&|request| {
                let cached = request.computed_tokens.max(request.tokens.max(1) - 1);
                let tokens = u128::from(cached) + steps;
                let needed = tokens / size + u128::from(tokens % size > 0);
                needed.saturating_sub(request.held_blocks.into())
            }),
        );
    }
    snapshot.running = narrow(snapshot.running, sum(&|_| 1));
    snapshot.held_blocks = narrow(snapshot.held_blocks, sum(&|request| request.held_blocks.into()));
    let late = |request: &RunningRequest| request.slack_us(snapshot.now_us) < 0;
    snapshot.behind = narrow(snapshot.behind, sum(&|request| late(request).into()));
    let slack: i128 = requests.iter().map(|request| i128::from(request.slack_us(snapshot.now_us))).sum();
    snapshot.slack_sum_us = i64::try_from(slack).unwrap_or(if slack < 0 { i64::MIN } else { i64::MAX });
    snapshot.generated_tokens += sum(&|request| request.generated_tokens.into()) as u64;
    snapshot.pending_prefill_tokens += sum(&|request| {
        let pending = u128::from(request.tokens).saturating_sub(request.computed_tokens.into());
        if pending == 1 && request.generated_tokens > 0 { 0 } else { pending }
    }) as u64;
    let decodes = |request: &&RunningRequest| {
        let pending = request.tokens.saturating_sub(request.computed_tokens);
        pending == 0 || pending == 1 && request.generated_tokens > 0
    };
    let slacks: Vec<i64> = requests.iter().filter(decodes).map(|request| request.slack_us(snapshot.now_us)).collect();
    snapshot.decodes = slacks.len() as u32;
    let slack: i128 = slacks.iter().map(|&slack| i128::from(slack)).sum();
    snapshot.decode_slack_sum_us = i64::try_from(slack).unwrap_or(if slack < 0 { i64::MIN } else { i64::MAX });
    snapshot.least_decode_slack_us = slacks.iter().copied().min().unwrap_or(0);
    snapshot
}

fn waiting() -> impl Strategy<Value = WaitingRequest> {
    let time = || prop_oneof![4 => 0..4_000_000_u64, 1 => any::<u64>()];
    (count(), time(), prop::option::of(time()), time()).prop_map(|(tokens, arrival_us, deadline, prefill_us)| {
        WaitingRequest { tokens, arrival_us, first_token_deadline_us: deadline, prefill_us: prefill_us / 4 }
    })
}

/// What both ends of the queue add up to, as the documentation has it.
fn plain_looks(mut snapshot: Snapshot, queue: &[WaitingRequest]) -> Snapshot {
    let blocks = |request: &WaitingRequest| u64::from(request.tokens).div_ceil(snapshot.block_size.max(1).into());
    let front = &queue[..queue.len().min(16)];
    if let Some(head) = front.first() {
        (snapshot.head_blocks, snapshot.head_tokens) = (blocks(head) as u32, head.tokens);
    }
    snapshot.waiting_blocks = front.iter().map(blocks).sum();
    snapshot.waiting_tokens = front.iter().map(|request| u64::from(request.tokens)).sum();
    let now = snapshot.now_us;
    let tokenless = || front.iter().filter_map(|request| Some((request, request.first_token_deadline_us?)));
    snapshot.oldest_wait_us = tokenless().map(|(request, _)| now.saturating_sub(request.arrival_us)).max().unwrap_or(0);
    snapshot.late_waiting = tokenless().filter(|&(_, deadline)| now > deadline).count() as u32;
    let on_time = || {
        queue.iter().rev().take(64).filter_map(|request| {
            let slack = request.first_token_deadline_us?.checked_sub(now.saturating_add(request.prefill_us))?;
            Some((request, slack))
        })
    };
    snapshot.on_time_waiting = on_time().count() as u32;
    snapshot.on_time_blocks = on_time().map(|(request, _)| blocks(request)).sum();
    snapshot.on_time_slack_us = on_time().map(|(_, slack)| slack).min().unwrap_or(0);
    snapshot
}

fn block_size() -> impl Strategy<Value = u32> {
    prop_oneof![4 => (0..12_u32).prop_map(|shift| 1 << shift), 2 => 0..100_u32, 1 => any::<u32>()]
}

fn now_us() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..4_000_000_u64, 1 => any::<u64>()]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn both_ends_of_waiting_add_up(
        queue in prop::collection::vec(waiting(), 0..100),
        block_size in block_size(),
        now_us in now_us(),
    ) {
        let empty = Snapshot { now_us, block_size, ..Snapshot::default() };
        let mut looked_at = empty;
        looked_at.look_at_waiting(queue.iter().copied(), queue.iter().rev().copied());
        prop_assert_eq!(looked_at, plain_looks(empty, &queue));
        // The first 16 and the last 64 are enough.
        if queue.len() > 80 {
            let ends = [&queue[..16], &queue[queue.len() - 64..]].concat();
            let mut short = empty;
            short.look_at_waiting(ends.iter().copied(), ends.iter().rev().copied());
            prop_assert_eq!(short, looked_at);
        }
    }

    #[test]
    fn running_requests_add_up(
        requests in prop::collection::vec(running(), 0..40),
        block_size in block_size(),
        now_us in now_us(),
        (first, second) in (count(), count()),
    ) {
        let growth_blocks = [first, second, first / 2];
        let empty = Snapshot { now_us, block_size, growth_blocks, held_blocks: second, ..Snapshot::default() };
        let plain = plain_sums(empty, &requests);
        let (mut together, mut one_by_one) = (empty, empty);
        together.add_all_running(requests.iter().copied());
        for request in &requests {
            one_by_one.add_running(request);
        }
        prop_assert_eq!(together, plain);
        // One by one, a sum may stop at its limit on the way and turn back from there.
        prop_assert!(one_by_one == plain || !deadlines_are_near(&requests, now_us));
        for request in &requests {
            let mut alone = Snapshot { block_size, ..Snapshot::default() };
            alone.add_running(request);
            prop_assert_eq!(alone.growth_blocks, [1, 8, 32].map(|steps| request.growth(steps, block_size)));
        }
    }

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
            heads: file.heads(),
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
        let node = TreeNode::from_bytes(bytes);
        prop_assert_eq!(TreeNode::from_bytes(node.to_bytes()).to_bytes(), node.to_bytes());
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
        let nodes: Vec<TreeNode> = nodes
            .into_iter()
            .map(|(is_leaf, feature, left, threshold, choices)| {
                if is_leaf { TreeNode::Leaf { choices } } else { TreeNode::Split { feature, left, threshold } }
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
