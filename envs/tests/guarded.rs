//! A table behind its guard, in the loop: what is measured is what a node does.

use crate::common::{engine, node_config};
use kvtide_envs::deploy::{EngineConfig, EngineKind};
use kvtide_envs::env::{Controller, Guarded, Node, NodeConfig, PolicyController, run};
use kvtide_envs::metrics::{Collector, GuardReport, Summary};
use kvtide_envs::sched::Slo;
use kvtide_envs::workload::SyntheticSpec;
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{FeatureRange, TableSpec, encode, encoded_len};
use kvtide_runtime::{
    ACTION_SET_HASH, Action, ActionProfile, Controls, FEATURES, Feature, Host, SCHEMA_HASH, Table, TreeNode,
};

/// A table that leaves half of the pool free while at least a twentieth of the slots runs, and an eighth before; `running`
/// was `range` in training, and 0.03 did best there.
fn bytes(range: FeatureRange) -> Vec<u8> {
    let mut ranges = FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    ranges[Feature::Running as usize] = range;
    let leaf = |level| TreeNode::Leaf { choices: [level, 0, 1, 0, 8, 0] };
    let split = TreeNode::Split { feature: Feature::Running as u8, left: 1, threshold: 0.05 };
    let spec = TableSpec {
        profile: ActionProfile::Watermark,
        heads: NUM_HEADS as u8,
        schema_hash: SCHEMA_HASH,
        action_set_hash: ACTION_SET_HASH,
        ranges: &ranges,
        nodes: &[split, leaf(6), leaf(10)],
        metadata: &[("fallback", "0.03")],
        extensions: &[],
    };
    let mut bytes = vec![0; encoded_len(&spec)];
    encode(&spec, &mut bytes).unwrap();
    bytes
}

const EVERYTHING: FeatureRange = FeatureRange { min: 0.0, max: 1.0 };
/// More than ever runs.
const ELSEWHERE: FeatureRange = FeatureRange { min: 0.9, max: 1.0 };

/// A small V1 node under pressure, served to its end.
fn serve(controller: &mut dyn Controller) -> Summary {
    let engine = EngineConfig {
        engine: EngineKind::V1,
        enable_chunked_prefill: true,
        max_num_seqs: 64,
        max_num_batched_tokens: 2048,
        max_model_len: 8192,
        watermark: Some(0.0),
        ..engine(16, 900, 0)
    };
    let config = NodeConfig { host: Host::VLLM, ..node_config(engine, Slo::default()) };
    let spec: SyntheticSpec = "chat:rate=3,duration=120,seed=5".parse().unwrap();
    let mut node = Node::new(&config, spec.generate().unwrap().share(), Collector::default()).unwrap();
    run(&mut node, controller, 8).unwrap()
}

#[test]
fn in_range_the_guard_changes_nothing() {
    let bytes = bytes(EVERYTHING);
    let table = Table::parse(&bytes).unwrap();
    let guarded = serve(&mut Guarded::new(table));
    let bare = serve(&mut PolicyController::new(table, table.profile()));
    assert_eq!(guarded.hash, bare.hash);
    assert!(bare.guard.is_none());
    let report = guarded.guard.unwrap();
    assert!(report.decisions > 100, "{report:?}");
    assert_eq!(report, GuardReport { decisions: report.decisions, ..GuardReport::none() });
}

#[test]
fn out_of_range_it_does_what_its_traffic_said_is_best_and_says_why() {
    let bytes = bytes(ELSEWHERE);
    let fallback = Controls { watermark: 0.03, ..Action::V1_DEFAULT.controls() };
    let guarded = serve(&mut Guarded::new(Table::parse(&bytes).unwrap()));
    let report = guarded.guard.clone().unwrap();
    // The guard is patient: the table takes the first decisions.
    assert_eq!(report.fallen_back(), report.decisions - 7);
    assert_eq!(report.fallbacks.keys().collect::<Vec<_>>(), ["out_of_range"]);
    assert_eq!(report.out_of_range.get("running"), Some(&report.decisions));
    assert_eq!(report.last_fallback.as_deref(), Some("out_of_range"));
    assert!(report.share() > 0.9);
    // From there on it is the constant, but for what those decisions did.
    let constant = serve(&mut { fallback });
    let bare = serve(&mut PolicyController::new(Table::parse(&bytes).unwrap(), ActionProfile::Watermark));
    assert_ne!(
        bare.preemptions, constant.preemptions,
        "the table must differ from its fallback for this to say anything"
    );
    assert!(
        guarded.preemptions.abs_diff(constant.preemptions) <= 2,
        "{} {}",
        guarded.preemptions,
        constant.preemptions
    );
}
