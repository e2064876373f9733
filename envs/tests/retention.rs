//! Retention classes in the whole simulator: what they change, what they must not, and what is observed for them.

use std::sync::{Arc, Mutex};

use crate::common::{engine, node_config};
use kvtide_envs::deploy::{EngineConfig, EngineKind};
use kvtide_envs::env::{Controller, EngineDefault, Node, Retaining, run};
use kvtide_envs::evict::Eviction;
use kvtide_envs::metrics::{Collector, Summary};
use kvtide_envs::sched::{Retain, Slo};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{
    FeatureRange, RetentionSpec, TableSpec, encode_with_retention, encoded_len_with_retention,
};
use kvtide_runtime::{
    ACTION_SET_HASH, ActionProfile, FEATURES, NUM_FEATURES, RELEASE_FEATURES, RELEASE_SCHEMA_HASH, ReleaseFeature,
    ReleaseObservation, Retention, RetentionPolicy, SCHEMA_HASH, Table, TreeNode,
};

/// Sessions of one to four turns that begin with one of two system prompts, and now and then a text that nobody asks for
/// again.
fn traffic(sessions: u64) -> Arc<[Request]> {
    let mut requests = Vec::new();
    for session in 0..sessions {
        for turn in 0..=session % 4 {
            let ids = 3 + 2 * turn;
            let id = |at: u64| if at < 2 { session % 2 * 10 + at } else { 1_000 + session * 100 + at };
            let arrival = Micros(session * 700_000 + turn * 9_000_000);
            let mut request = Request::new(arrival, (ids * 256 + 40) as u32, 60 + (session % 7) as u32 * 30);
            request.hash_ids = (0..ids).map(id).collect::<Vec<u64>>().into();
            request.hash_block_tokens = 256;
            request.tenant = (session % 3 == 0).then(|| "agents".to_owned());
            requests.push(request);
        }
        if session % 3 == 0 {
            requests.push(Request::new(Micros(session * 700_000 + 1), 3_000, 100));
        }
    }
    requests.sort_by_key(|request| request.arrival);
    requests.into()
}

fn serve(eviction: Eviction, blocks: u32, controller: &mut dyn Controller) -> Summary {
    serve_node(eviction, blocks, controller).1
}

fn serve_node(eviction: Eviction, blocks: u32, controller: &mut dyn Controller) -> (Node, Summary) {
    let engine = EngineConfig {
        engine: EngineKind::V1,
        enable_chunked_prefill: true,
        enable_prefix_caching: true,
        prefix_sharing: kvtide_envs::kv::Sharing::Global,
        max_num_seqs: 64,
        max_num_batched_tokens: 2048,
        max_model_len: 8192,
        watermark: Some(0.0),
        eviction,
        ..engine(16, blocks, 0)
    };
    let config = node_config(engine, Slo::default());
    let mut node = Node::new(&config, traffic(200), Collector::default()).unwrap();
    node.collect_releases();
    let summary = run(&mut node, controller, 8).unwrap();
    node.scheduler().validate().unwrap();
    (node, summary)
}

fn always(head: Retention, tail: Retention) -> Retaining<EngineDefault> {
    Retaining::new(EngineDefault, Retain::Always([head, tail]))
}

#[test]
fn classes_nobody_chooses_are_lru() {
    for blocks in [700, 1_500] {
        let lru = serve(Eviction::Lru, blocks, &mut EngineDefault);
        assert!(lru.prefix_hit_tokens > 0 && lru.retention.is_none());
        for class in Retention::ALL {
            let all_alike = serve(Eviction::Classes, blocks, &mut always(class, class));
            let report = all_alike.retention.as_ref().unwrap();
            // All of one class is one queue, unless a term ends meanwhile.
            if report.evicted_blocks.iter().filter(|&&count| count > 0).count() == 1 {
                assert_eq!(all_alike.hash, lru.hash, "{class}, {blocks}");
            }
        }
        let normal = serve(Eviction::Classes, blocks, &mut EngineDefault);
        assert_eq!(normal.hash, lru.hash);
        assert!(normal.retention.unwrap().evicted_blocks[Retention::Normal as usize] > 1_000);
        // A pool without classes obeys nobody.
        assert_eq!(serve(Eviction::Lru, blocks, &mut always(Retention::Keep, Retention::Normal)).hash, lru.hash);
    }
}

#[test]
fn what_is_chosen_is_done() {
    let normal = serve(Eviction::Classes, 1_500, &mut EngineDefault);
    let kept = serve(Eviction::Classes, 1_500, &mut always(Retention::Keep, Retention::EvictFirst));
    let again = serve(Eviction::Classes, 1_500, &mut always(Retention::Keep, Retention::EvictFirst));
    assert_eq!(kept, again);
    assert_ne!(kept.hash, normal.hash);
    let evicted = kept.retention.unwrap().evicted_blocks;
    assert!(evicted[Retention::EvictFirst as usize] > evicted[Retention::Keep as usize], "{evicted:?}");
}

/// Notes what it is asked.
struct Asked(Mutex<Vec<ReleaseObservation>>);

impl RetentionPolicy for Asked {
    fn retain(&self, seen: &ReleaseObservation) -> Retention {
        self.0.lock().unwrap().push(*seen);
        Retention::Normal
    }
}

#[test]
fn whoever_chooses_is_asked_about_heads_and_tails() {
    let asked = Arc::new(Asked(Mutex::default()));
    let summary = serve(Eviction::Classes, 1_500, &mut Retaining::new(EngineDefault, Retain::Policy(asked.clone())));
    let report = summary.retention.clone().unwrap();
    let seen = asked.0.lock().unwrap();
    let total = |counts: [u64; 4]| counts.iter().sum::<u64>() as usize;
    assert_eq!(seen.len(), total(report.heads) + total(report.tails));
    assert!(
        seen.len() >= summary.completed as usize && seen.len() <= 2 * (summary.requests + summary.preemptions) as usize
    );
    for observation in seen.iter() {
        for (value, spec) in observation.values.iter().zip(RELEASE_FEATURES) {
            assert!((spec.min..=spec.max).contains(value), "{}: {value}", spec.name);
        }
    }
    // Nothing is a constant that traffic like this moves.
    for feature in [
        ReleaseFeature::Part,
        ReleaseFeature::Turn,
        ReleaseFeature::HitShare,
        ReleaseFeature::Asked,
        ReleaseFeature::AskedAge,
        ReleaseFeature::KindReuse,
        ReleaseFeature::KindReturn,
        ReleaseFeature::LastReturn,
        ReleaseFeature::Prompt,
        ReleaseFeature::Output,
        ReleaseFeature::PartBlocks,
        ReleaseFeature::Depth,
        ReleaseFeature::Shared,
        ReleaseFeature::Held,
        ReleaseFeature::TurnoverRate,
    ] {
        let first = seen[0][feature];
        assert!(seen.iter().any(|other| other[feature] != first), "{feature:?} is always {first}");
    }
    let moves = |feature: usize| seen.iter().any(|other| other.values[feature] != seen[0].values[feature]);
    assert!((0..NUM_FEATURES).filter(|&feature| moves(feature)).count() > 10, "the node is seen as well");
    // Sessions have four turns at most, behind a system prompt whose first asker counts as one.
    let most = seen.iter().map(|other| other[ReleaseFeature::Turn]).fold(0.0, f32::max);
    assert!((4.0..=5.0).contains(&most), "{most}");
}

/// The shadow of a pool that is LRU says what the pool says.
#[test]
fn the_shadow_of_lru_is_lru() {
    for blocks in [700, 1_500, 6_000] {
        let asked = Arc::new(Asked(Mutex::default()));
        let summary = serve(Eviction::Classes, blocks, &mut Retaining::new(EngineDefault, Retain::Policy(asked)));
        let [asked, hits, lru_hits] = summary.retention.unwrap().shadow;
        assert!(asked > 5_000);
        let distance = (hits as f64 - lru_hits as f64) / asked as f64;
        assert!(distance.abs() < 0.01, "{blocks}: {hits} and {lru_hits} of {asked}");
    }
}

/// A table that leaves everything to the engine, and chooses one class for first turns and another for all others.
fn table(first: Retention, others: Retention) -> Table<'static> {
    let ranges = FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    let release_ranges = RELEASE_FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    let leaf = |class: Retention| {
        let mut choices = [0; NUM_HEADS];
        choices[0] = class as u8;
        TreeNode::Leaf { choices }
    };
    let spec = TableSpec {
        profile: ActionProfile::Watermark,
        heads: NUM_HEADS as u8,
        schema_hash: SCHEMA_HASH,
        action_set_hash: ACTION_SET_HASH,
        ranges: &ranges,
        nodes: &[TreeNode::Leaf { choices: [0; NUM_HEADS] }],
        metadata: &[],
        extensions: &[],
    };
    let turn = ReleaseFeature::Turn.index() as u8;
    let nodes = [TreeNode::Split { feature: turn, left: 1, threshold: 1.5 }, leaf(first), leaf(others)];
    let retention = RetentionSpec { schema_hash: RELEASE_SCHEMA_HASH, ranges: &release_ranges, nodes: &nodes };
    let mut bytes = vec![0; encoded_len_with_retention(&spec, &retention)];
    encode_with_retention(&spec, &retention, &mut bytes).unwrap();
    Table::parse(bytes.leak()).unwrap()
}

/// The worst that can be chosen: who comes back loses everything, and whoever asks once is kept. The guard notices that LRU
/// would hit more, and lets it lose no more than its budget.
#[test]
fn a_harmful_tree_is_set_aside_once_it_has_lost_its_budget() {
    /// So large that most of what is hit is idle before, and not held by somebody else.
    const BLOCKS: u32 = 6_000;
    let tree = table(Retention::KeepLong, Retention::EvictFirst).trusted_retention();
    let guarded = |blocks| serve(Eviction::Classes, blocks, &mut Retaining::new(EngineDefault, Retain::Guarded(tree)));
    let report = guarded(BLOCKS).retention.unwrap();
    let [asked, hits, lru_hits] = report.shadow;
    let lost = lru_hits as f64 - hits as f64;
    assert!(report.behind_lru > 0, "{report:?}");
    // Half a point, and what has to show before it counts.
    assert!(lost <= 0.005 * asked as f64 + 100.0 + 500.0, "{report:?}");
    let unguarded = Retain::Policy(Arc::new(tree.unwrap()));
    let loose = serve(Eviction::Classes, BLOCKS, &mut Retaining::new(EngineDefault, unguarded));
    let loose = loose.retention.unwrap().shadow;
    assert!((loose[2] - loose[1]) as f64 > 2.0 * lost, "{loose:?} {report:?}");
}

/// What is hit was given back before, and is told of the release that gave it back.
#[test]
fn every_hit_is_told_of_a_release() {
    let looks = Retain::Policy(Arc::new(Retention::Normal));
    let (node, summary) = serve_node(Eviction::Classes, 1_500, &mut Retaining::new(EngineDefault, looks));
    let samples = node.scheduler().with_classes().unwrap().releases();
    let total = |counts: [u64; 4]| counts.iter().sum::<u64>() as usize;
    let report = summary.retention.unwrap();
    assert_eq!(samples.len(), total(report.heads) + total(report.tails));
    let sum = |of: fn(&kvtide_envs::sched::ReleaseSample) -> u32| {
        samples.iter().map(|sample| u64::from(of(sample))).sum::<u64>()
    };
    let (again, found) = (sum(|sample| sample.asked_again), sum(|sample| sample.found));
    let hits = summary.prefix_hit_tokens / 16;
    // What is hit while somebody still holds it was given back by nobody yet.
    assert!(found <= hits && found * 10 > hits * 5, "{found} of {hits}");
    assert!(again > found, "some came too late");
    for sample in samples {
        assert!(sample.found <= sample.asked_again && sample.asked_again <= sample.blocks);
        assert_eq!(sample.asked_at.is_some(), sample.asked_again > 0);
        assert!(sample.asked_at.is_none_or(|at| at >= sample.evicted));
    }
}
