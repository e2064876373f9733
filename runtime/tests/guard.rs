//! Stories: each reason for the fallback begins, is counted, and ends.

use crate::support::{bytes_of, leaf, ranges, spec, split};
use kvtide_runtime::format::{FeatureRange, FormatError, TableSpec};
use kvtide_runtime::{
    ActionMask, ActionProfile, Admission, Controls, Eviction, Fallback, Feature, Guard, GuardConfig, GuardCounters,
    GuardState, Head, Observation, Preemption, Table, TreeNode, Victim,
};

const FALLBACK: Controls = Controls {
    watermark: 0.037,
    victim: Victim::MostBlocks,
    preemption: Preemption::Recompute,
    admission: Admission::OnTimeFirst,
    budget: 4000.0,
    eviction: Eviction::Lru,
};

const CONFIG: GuardConfig = GuardConfig {
    fallback: FALLBACK,
    max_age_us: 1000,
    range_tolerance: 0.1,
    out_of_range_decisions: 3,
    recovery_decisions: 2,
    hold_decisions: 0,
};

/// What the table decides: watermark 0.12, fewest blocks, swap, fcfs, 512 tokens, lfu.
const TABLE: Controls = Controls {
    watermark: 0.12,
    victim: Victim::FewestBlocks,
    preemption: Preemption::Swap,
    admission: Admission::Fcfs,
    budget: 512.0,
    eviction: Eviction::Lfu,
};

/// Decides by the free fraction, trained on 0.2 to 0.6 of it, to the same end on either side.
fn bytes(profile: ActionProfile) -> Vec<u8> {
    let mut ranges = ranges();
    ranges[Feature::FreeFraction as usize] = FeatureRange { min: 0.2, max: 0.6 };
    let nodes = [split(Feature::FreeFraction as u8, 1, 0.4), leaf([6, 1, 0, 0, 2, 1]), leaf([6, 1, 0, 0, 2, 1])];
    bytes_of(&TableSpec { profile, ..spec(&ranges, &nodes) })
}

fn free(fraction: f32) -> Observation {
    let mut observation = Observation::ZERO;
    observation.values[Feature::FreeFraction as usize] = fraction;
    observation
}

const INSIDE: f32 = 0.4;
const OUTSIDE: f32 = 0.7;

/// Decides over `fractions` and tells which decisions the table took.
fn taken(guard: &mut Guard<'_>, fractions: &[f32]) -> Vec<bool> {
    fractions
        .iter()
        .map(|&fraction| {
            let controls = guard.decide(&free(fraction), 0, ActionMask::ALL);
            let taken = guard.last_fallback().is_none();
            assert_eq!(controls, if taken { TABLE } else { FALLBACK });
            taken
        })
        .collect()
}

#[test]
fn a_trusted_table_decides() {
    let bytes = bytes(ActionProfile::Cache);
    let mut guard = Guard::new(Table::parse(&bytes), CONFIG);
    assert_eq!(taken(&mut guard, &[0.2, INSIDE, 0.6]), [true; 3]);
    assert_eq!(*guard.counters(), GuardCounters { decisions: 3, table_decisions: 3, ..GuardCounters::default() });
}

#[test]
fn without_a_table_it_always_falls_back() {
    let mut absent = Guard::without_table(CONFIG);
    let mut damaged = Guard::new(Table::parse(b"nothing"), CONFIG);
    for guard in [&mut absent, &mut damaged] {
        assert_eq!(taken(guard, &[INSIDE; 4]), [false; 4]);
        assert_eq!(guard.last_fallback(), Some(Fallback::NoTable));
        assert_eq!(*guard.counters(), GuardCounters { decisions: 4, no_table: 4, ..GuardCounters::default() });
    }
}

#[test]
fn a_table_for_another_build_is_an_unknown_schema() {
    let refusals = [FormatError::Schema { found: 1, expected: 2 }, FormatError::ActionSet { found: 1, expected: 2 }];
    for refusal in refusals {
        let mut guard = Guard::new(Err(refusal), CONFIG);
        assert_eq!(taken(&mut guard, &[INSIDE; 2]), [false; 2]);
        assert_eq!(guard.table(), Err(Fallback::UnknownSchema));
        assert_eq!(*guard.counters(), GuardCounters { decisions: 2, unknown_schema: 2, ..GuardCounters::default() });
    }
}

#[test]
fn a_stale_observation_falls_back_once() {
    let bytes = bytes(ActionProfile::Cache);
    let mut guard = Guard::new(Table::parse(&bytes), CONFIG);
    assert_eq!(guard.decide(&free(INSIDE), 1000, ActionMask::ALL), TABLE);
    assert_eq!(guard.decide(&free(INSIDE), 1001, ActionMask::ALL), FALLBACK);
    assert_eq!(guard.last_fallback(), Some(Fallback::Stale));
    assert_eq!(guard.decide(&free(INSIDE), 0, ActionMask::ALL), TABLE);
    assert_eq!(
        *guard.counters(),
        GuardCounters { decisions: 3, table_decisions: 2, stale: 1, ..GuardCounters::default() }
    );
}

#[test]
fn a_value_that_is_not_finite_falls_back_once() {
    let bytes = bytes(ActionProfile::Cache);
    let mut guard = Guard::new(Table::parse(&bytes), CONFIG);
    assert_eq!(taken(&mut guard, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, INSIDE]), [false, false, false, true]);
    assert_eq!(
        *guard.counters(),
        GuardCounters { decisions: 4, table_decisions: 1, non_finite: 3, ..GuardCounters::default() }
    );
}

#[test]
fn out_of_range_needs_patience_both_ways() {
    let bytes = bytes(ActionProfile::Cache);
    let mut guard = Guard::new(Table::parse(&bytes), CONFIG);
    let fractions = [OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE, INSIDE, OUTSIDE, INSIDE, INSIDE, OUTSIDE];
    assert_eq!(taken(&mut guard, &fractions), [true, true, false, false, false, false, false, true, true]);
    assert_eq!(
        *guard.counters(),
        GuardCounters { decisions: 9, table_decisions: 4, out_of_range: 5, ..GuardCounters::default() }
    );
}

#[test]
fn only_what_the_table_decides_by_has_a_range() {
    let mut ranges = ranges();
    ranges[Feature::FreeFraction as usize] = FeatureRange { min: 0.2, max: 0.6 };
    ranges[Feature::HostFreeFraction as usize] = FeatureRange { min: 1.0, max: 1.0 };
    let nodes = [split(Feature::Running as u8, 1, 0.4), leaf([6, 1, 0, 0, 2, 1]), leaf([6, 1, 0, 0, 2, 1])];
    let bytes = bytes_of(&TableSpec { profile: ActionProfile::Cache, ..spec(&ranges, &nodes) });
    let mut guard = Guard::new(Table::parse(&bytes), CONFIG);
    // No host pool at all, and far too much that is free, or no number: the table looks at neither.
    assert_eq!(taken(&mut guard, &[OUTSIDE; 9]), [true; 9]);
    assert_eq!(taken(&mut guard, &[f32::NAN; 2]), [true; 2]);
    assert!(guard.state().outside().is_empty());
    assert_eq!(guard.state().times_outside(Feature::FreeFraction), 0);
}

#[test]
fn what_was_out_of_range_is_named_and_counted() {
    let bytes = bytes(ActionProfile::Cache);
    let mut guard = Guard::new(Table::parse(&bytes), CONFIG);
    taken(&mut guard, &[OUTSIDE, OUTSIDE, INSIDE, OUTSIDE]);
    assert!(guard.state().outside().iter().eq([Feature::FreeFraction]));
    assert_eq!(guard.state().times_outside(Feature::FreeFraction), 3);
    assert_eq!(guard.state().times_outside(Feature::Running), 0);
    taken(&mut guard, &[INSIDE]);
    assert!(guard.state().outside().is_empty());
}

#[test]
fn a_table_knows_where_to_fall_back_to_unless_the_operator_said() {
    let ranges = ranges();
    let nodes = [leaf([6, 1, 0, 0, 2, 1])];
    let knows = |fallback: &str| bytes_of(&TableSpec { metadata: &[("fallback", fallback)], ..spec(&ranges, &nodes) });
    let fallback = |bytes: &[u8], watermark| {
        GuardConfig::fallback_for(Controls { watermark, ..FALLBACK }, &Table::parse(bytes).unwrap())
    };
    assert_eq!(fallback(&knows("0.05"), 0.0), Controls { watermark: 0.05, ..FALLBACK });
    assert_eq!(fallback(&knows("0.05"), 0.02), Controls { watermark: 0.02, ..FALLBACK });
    for nonsense in ["", "much", "NaN", "-0.1", "1.5", "inf"] {
        assert_eq!(fallback(&knows(nonsense), 0.0), Controls { watermark: 0.0, ..FALLBACK }, "{nonsense}");
    }
    let mut state = GuardState::new(CONFIG);
    state.set_fallback(Controls { watermark: 7.0, ..FALLBACK });
    let controls = state.decide(Err(Fallback::NoTable), &free(INSIDE), 0, ActionMask::ALL);
    assert_eq!(controls, Controls { watermark: 1.0, ..FALLBACK });
}

#[test]
fn an_excursion_shorter_than_the_limit_is_forgotten() {
    let bytes = bytes(ActionProfile::Cache);
    let mut guard = Guard::new(Table::parse(&bytes), CONFIG);
    let fractions = [OUTSIDE, OUTSIDE, INSIDE].repeat(5);
    assert_eq!(taken(&mut guard, &fractions), [true; 15]);
}

#[test]
fn stale_and_broken_observations_say_nothing_about_the_range() {
    let bytes = bytes(ActionProfile::Cache);
    let mut guard = Guard::new(Table::parse(&bytes), CONFIG);
    assert_eq!(taken(&mut guard, &[OUTSIDE, f32::NAN, OUTSIDE]), [true, false, true]);
    guard.decide(&free(INSIDE), 5000, ActionMask::ALL);
    assert_eq!(taken(&mut guard, &[OUTSIDE]), [false]);
}

#[test]
fn the_tolerance_is_a_share_of_the_width() {
    let bytes = bytes(ActionProfile::Cache);
    let strict = GuardConfig { out_of_range_decisions: 0, recovery_decisions: 0, ..CONFIG };
    let mut guard = Guard::new(Table::parse(&bytes), strict);
    // A tenth of 0.4 on either side.
    assert_eq!(taken(&mut guard, &[0.161, 0.159, 0.639, 0.641]), [true, false, true, false]);
}

#[test]
fn a_range_without_width_has_no_tolerance() {
    let still = FeatureRange { min: 0.5, max: 0.5 };
    assert!(still.contains(0.5, 1.0));
    assert!(!still.contains(0.5_f32.next_up(), 1.0));
    let unit = FeatureRange { min: 0.0, max: 1.0 };
    for tolerance in [0.0, -1.0, f32::NAN] {
        assert!(unit.contains(1.0, tolerance) && !unit.contains(1.0_f32.next_up(), tolerance));
    }
    let widest = FeatureRange { min: f32::MIN, max: f32::MAX };
    assert!(widest.contains(f32::MAX, 0.0) && !widest.contains(f32::NAN, 1.0));
}

#[test]
fn heads_outside_the_profile_stay_the_nodes_own() {
    let bytes = bytes(ActionProfile::Watermark);
    let mut guard = Guard::new(Table::parse(&bytes), CONFIG);
    let controls = guard.decide(&free(INSIDE), 0, ActionMask::ALL);
    assert_eq!(controls, Controls { watermark: TABLE.watermark, ..FALLBACK });
}

#[test]
fn the_fallback_obeys_the_mask_but_keeps_its_watermark() {
    let mask = ActionMask::ALL.pin(Head::Watermark, 3).pin(Head::Victim, 0).pin(Head::Preemption, 1);
    let controls = Guard::without_table(CONFIG).decide(&free(INSIDE), 0, mask);
    assert_eq!(controls, Controls { victim: Victim::Newest, preemption: Preemption::Recompute, ..FALLBACK });
}

#[test]
fn the_table_obeys_the_mask() {
    let bytes = bytes(ActionProfile::Cache);
    let mask = ActionMask::ALL.forbid(Head::Preemption, 0).pin(Head::Victim, 0);
    let controls = Guard::new(Table::parse(&bytes), CONFIG).decide(&free(INSIDE), 0, mask);
    assert_eq!(controls, Controls { victim: Victim::Newest, preemption: Preemption::Recompute, ..TABLE });
}

#[test]
fn a_fallback_watermark_is_made_a_fraction() {
    for (given, used) in [(-1.0, 0.0), (7.0, 1.0), (f64::NAN, 0.0), (f64::INFINITY, 1.0), (0.037, 0.037)] {
        let config = GuardConfig { fallback: Controls { watermark: given, ..FALLBACK }, ..CONFIG };
        assert_eq!(Guard::without_table(config).decide(&free(0.0), 0, ActionMask::ALL).watermark, used);
    }
}

/// Watermark 0.12 where at most 0.4 of the pool is free, else 0.02.
fn two_minded() -> Vec<u8> {
    let mut ranges = ranges();
    ranges[Feature::FreeFraction as usize] = FeatureRange { min: 0.2, max: 0.6 };
    let split = TreeNode::Split { feature: Feature::FreeFraction as u8, left: 1, threshold: 0.4 };
    bytes_of(&TableSpec {
        profile: ActionProfile::Cache,
        ..spec(&ranges, &[split, leaf([6, 1, 0, 0, 2, 1]), leaf([2, 1, 0, 0, 2, 1])])
    })
}

#[test]
fn the_rate_limit_holds_the_table_and_never_the_fallback() {
    let bytes = two_minded();
    let decided = |hold_decisions, steps: &[(f32, u64)]| {
        let mut guard = Guard::new(Table::parse(&bytes), GuardConfig { hold_decisions, ..CONFIG });
        let watermarks: Vec<f64> = steps
            .iter()
            .map(|&(fraction, age_us)| guard.decide(&free(fraction), age_us, ActionMask::ALL).watermark)
            .collect();
        (watermarks, guard.counters().held)
    };
    let flapping = [(0.3, 0), (0.5, 0), (0.3, 0), (0.5, 0), (0.5, 0), (0.3, 0)];
    for no_limit in [0, 1] {
        assert_eq!(decided(no_limit, &flapping), (vec![0.12, 0.02, 0.12, 0.02, 0.02, 0.12], 0));
    }
    assert_eq!(decided(3, &flapping), (vec![0.12, 0.12, 0.12, 0.02, 0.02, 0.02], 2));
    // A stale observation falls back at once, and what comes after is free to choose.
    assert_eq!(decided(9, &[(0.3, 0), (0.5, 2000), (0.5, 0)]), (vec![0.12, FALLBACK.watermark, 0.02], 0));
}

#[test]
fn what_the_mask_forbids_is_not_held() {
    let bytes = two_minded();
    let mut guard = Guard::new(Table::parse(&bytes), GuardConfig { hold_decisions: 100, ..CONFIG });
    assert_eq!(guard.decide(&free(0.3), 0, ActionMask::ALL).preemption, Preemption::Swap);
    let without_swap = ActionMask::ALL.forbid(Head::Preemption, Preemption::Swap as u8);
    assert_ne!(guard.decide(&free(0.5), 0, without_swap).preemption, Preemption::Swap);
}
