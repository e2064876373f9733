//! Stories: which tables which host can honour, and what it says of the others.

use crate::support::{bytes_of, leaf, ranges, spec, split};
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{FeatureRange, TableSpec};
use kvtide_runtime::{ActionProfile, Feature, Host, Observation, Table, TreeNode};

const TOLERANCE: f32 = 0.1;
const SWAP: [u8; NUM_HEADS] = [6, 0, 0, 0, 8, 0];
const RECOMPUTE: [u8; NUM_HEADS] = [6, 0, 1, 0, 8, 0];

/// A table that splits on `feature`, which was in `range`, and does the same on either side.
fn by(feature: Feature, min: f32, max: f32, choices: [u8; NUM_HEADS], profile: ActionProfile) -> Vec<u8> {
    let mut ranges = ranges();
    ranges[feature as usize] = FeatureRange { min, max };
    let nodes: [TreeNode; 3] = [split(feature as u8, 1, min), leaf(choices), leaf(choices)];
    bytes_of(&TableSpec { profile, ..spec(&ranges, &nodes) })
}

/// What `host` says of the table in `bytes`; nothing if it takes it.
fn says(host: &Host, bytes: &[u8], has_prefix_cache: bool) -> String {
    let table = Table::parse(bytes).unwrap();
    host.check(&table, has_prefix_cache, TOLERANCE).err().map(|unfit| unfit.to_string()).unwrap_or_default()
}

#[test]
fn a_feature_that_never_comes_into_its_range_is_named() {
    let tier = by(Feature::HostFreeFraction, 0.75, 1.0, RECOMPUTE, ActionProfile::Full);
    assert_eq!(
        says(&Host::VLLM, &tier, true),
        "the table decides by host_free_fraction, which was 0.75 to 1 in training and is always 0 here: vllm-0.33 has no \
         host tier"
    );
    assert_eq!(says(&Host::KVTIDE, &tier, true), "");
    let refusals = by(Feature::RefusalRate, 0.5, 1.0, RECOMPUTE, ActionProfile::Watermark);
    assert!(says(&Host::SGLANG, &refusals, true).ends_with("sglang-0.5 does not tell when it refuses"));
    assert_eq!(says(&Host::VLLM, &refusals, true), "");
}

#[test]
fn a_feature_that_stays_within_its_range_or_is_not_used_is_no_reason() {
    let empty_too = by(Feature::HostFreeFraction, 0.0, 1.0, RECOMPUTE, ActionProfile::Full);
    assert_eq!(says(&Host::VLLM, &empty_too, true), "");
    let mut ranges = ranges();
    ranges[Feature::HostFreeFraction as usize] = FeatureRange { min: 1.0, max: 1.0 };
    let unused = bytes_of(&spec(&ranges, &[leaf(RECOMPUTE)]));
    assert_eq!(says(&Host::VLLM, &unused, true), "");
}

#[test]
fn without_a_prefix_cache_nothing_is_evictable() {
    let cache = by(Feature::EvictableFraction, 0.2, 0.9, RECOMPUTE, ActionProfile::Full);
    assert_eq!(says(&Host::VLLM, &cache, true), "");
    assert!(says(&Host::VLLM, &cache, false).ends_with("vllm-0.33 runs without its prefix cache"));
}

#[test]
fn heads_and_swaps_a_host_does_not_have_are_refused() {
    let full = by(Feature::Running, 0.0, 1.0, RECOMPUTE, ActionProfile::Full);
    assert_eq!(says(&Host::SGLANG, &full, true), "sglang-0.5 lets no policy decide victim");
    let swaps = by(Feature::Running, 0.0, 1.0, SWAP, ActionProfile::Core);
    assert_eq!(says(&Host::VLLM, &swaps, true), "victims are swapped out, and vllm-0.33 has no host tier");
    assert_eq!(says(&Host::KVTIDE, &swaps, true), "");
    // The choice of a head the table does not decide says nothing.
    let pinned = by(Feature::Running, 0.0, 1.0, SWAP, ActionProfile::Watermark);
    assert_eq!(says(&Host::VLLM, &pinned, true), "");
}

#[test]
fn what_a_host_shows_is_what_it_declares() {
    for host in Host::ALL {
        let mut observation = Observation { values: [0.5; kvtide_runtime::NUM_FEATURES] };
        host.show(&mut observation);
        for feature in Feature::ALL {
            let moves = host.features().contains(feature);
            assert_eq!(observation[feature] == 0.5, moves, "{} {feature:?}", host.name);
        }
        assert_eq!(Host::from_name(host.name), Some(host));
    }
    assert_eq!(Host::from_name("vllm"), None);
}
