//! Classes of given-back blocks as a C program asks for them, with the mistakes it may make.

use std::ptr::{null, null_mut};

use kvtide_runtime as rt;
use kvtide_runtime::format::{
    FeatureRange, RetentionSpec, TableSpec, encode_with_retention, encoded_len_with_retention,
};

use crate::choices::FallbackReason;
use crate::structs::{Observation, Options};
use crate::tests::{ALLOCATOR_CALLS, free, last_error, observation, open, options, table};
use crate::*;

/// The tables of other tests with a second tree: heads are kept, and so for long where many asked; tails go first.
fn retaining(turns: f32) -> Vec<u8> {
    let first = table(6, rt::ActionProfile::Full);
    let file = rt::format::TableFile::parse(&first).expect("a table");
    let (ranges, nodes): (Vec<FeatureRange>, Vec<rt::TreeNode>) = (file.ranges().collect(), file.nodes().collect());
    let spec = TableSpec {
        profile: file.profile(),
        heads: file.heads(),
        schema_hash: file.schema_hash(),
        action_set_hash: file.action_set_hash(),
        ranges: &ranges,
        nodes: &nodes,
        metadata: &[],
        extensions: &[],
    };
    let mut ranges = rt::RELEASE_FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    ranges[rt::ReleaseFeature::Turn.index()].max = turns;
    let leaf = |class: rt::Retention| rt::TreeNode::Leaf { choices: [class as u8, 0, 0, 0, 0, 0] };
    let split = |feature: rt::ReleaseFeature, left, threshold| rt::TreeNode::Split {
        feature: feature.index() as u8,
        left,
        threshold,
    };
    let nodes = [
        split(rt::ReleaseFeature::Part, 1, 0.5),
        split(rt::ReleaseFeature::Asked, 3, 4.0),
        split(rt::ReleaseFeature::Turn, 5, 99.0),
        leaf(rt::Retention::Keep),
        leaf(rt::Retention::KeepLong),
        leaf(rt::Retention::EvictFirst),
        leaf(rt::Retention::Normal),
    ];
    let retention = RetentionSpec { schema_hash: rt::RELEASE_SCHEMA_HASH, ranges: &ranges, nodes: &nodes };
    let mut bytes = vec![0; encoded_len_with_retention(&spec, &retention)];
    encode_with_retention(&spec, &retention, &mut bytes).expect("the table keeps the rules");
    bytes
}

fn release(part: Part, asked: u32) -> Release {
    Release {
        struct_size: size_of::<Release>() as u32,
        part: part as u32,
        stop: Stop::EndOfTurn as u32,
        turn: 2,
        block_size: 16,
        num_gpu_blocks: 1000,
        prompt_tokens: 160,
        hit_tokens: 80,
        generated_tokens: 40,
        part_blocks: 5,
        depth_blocks: 0,
        shared_blocks: 0,
        asked,
        kept_blocks: 0,
        kind_reuse: 0.5,
        evicted_per_second: 10.0,
        asked_evicted: KVTIDE_UNKNOWN,
        kind_return_us: KVTIDE_UNKNOWN,
        last_return_us: KVTIDE_UNKNOWN,
        held_evicted: 0,
        ttft_target_us: 2_000_000,
    }
}

fn nothing() -> Retained {
    Retained { struct_size: size_of::<Retained>() as u32, retention: 99, fallback: 99, reserved: 99 }
}

fn retain(policy: *const Policy, seen: &Observation, release: &Release, now_us: u64) -> (Status, u32, u32) {
    let mut out = nothing();
    // SAFETY: all pointers are to what lives here, or null.
    let status = unsafe { kvtide_retention_decide(policy, seen, release, now_us, &raw mut out) };
    assert_eq!((out.struct_size, out.reserved), (size_of::<Retained>() as u32, 0));
    (status, out.retention, out.fallback)
}

fn counters(policy: *const Policy) -> RetainedCounters {
    // SAFETY: zeros are a value of integers.
    let mut counters: RetainedCounters = unsafe { std::mem::zeroed() };
    counters.struct_size = size_of::<RetainedCounters>() as u32;
    // SAFETY: a policy of this test.
    assert_eq!(unsafe { kvtide_retention_counters(policy, &raw mut counters) }, Status::Ok);
    counters
}

fn policy(bytes: &[u8]) -> *mut Policy {
    let (status, policy) = open(bytes, &options(rt::ActionProfile::Full));
    assert_eq!(status, Status::Ok, "{}", last_error());
    policy
}

#[test]
fn nothing_has_padding() {
    assert_eq!(size_of::<Release>(), 16 * 4 + 5 * 8);
    assert_eq!((size_of::<Retained>(), size_of::<RetainedCounters>()), (16, 2 * 4 + 13 * 8));
}

#[test]
fn names_have_the_runtimes_numbers() {
    assert!(rt::Retention::ALL.iter().all(|&class| Retention::from(class) as u32 == class as u32));
    assert!([rt::Part::Head, rt::Part::Tail].iter().all(|&part| Part::from(part) as u32 == part as u32));
    assert!(rt::Stop::ALL.iter().all(|&stop| Stop::from(stop) as u32 == stop as u32));
}

#[test]
fn the_second_tree_decides_by_what_is_released() {
    let policy = policy(&retaining(256.0));
    let class = |release: &Release| retain(policy, &observation(), release, 0);
    assert_eq!(class(&release(Part::Head, 3)), (Status::Ok, Retention::Keep as u32, 0));
    assert_eq!(class(&release(Part::Head, 9)), (Status::Ok, Retention::KeepLong as u32, 0));
    assert_eq!(class(&release(Part::Tail, 9)), (Status::Ok, Retention::EvictFirst as u32, 0));
    assert_eq!(class(&Release { turn: 100, ..release(Part::Tail, 9) }), (Status::Ok, Retention::Normal as u32, 0));
    let told = counters(policy);
    assert_eq!((told.decisions, told.table_decisions, told.failed), (4, 4, 0));
    assert_eq!((told.evict_first, told.normal, told.keep, told.keep_long), (1, 1, 1, 1));
    free(policy);
}

#[test]
fn a_policy_without_a_second_tree_says_normal() {
    let policy = policy(&table(6, rt::ActionProfile::Full));
    let normal = (Status::Ok, Retention::Normal as u32, FallbackReason::NoTable as u32);
    assert_eq!(retain(policy, &observation(), &release(Part::Head, 9), 0), normal);
    // Until one that has it is taken, at the next release.
    let bytes = retaining(256.0);
    // SAFETY: a policy and bytes of this test.
    assert_eq!(unsafe { kvtide_policy_reload_bytes(policy, bytes.as_ptr(), bytes.len()) }, Status::Ok);
    assert_eq!(retain(policy, &observation(), &release(Part::Head, 9), 0), (Status::Ok, 3, 0));
    // SAFETY: a policy of this test.
    assert_eq!(unsafe { kvtide_policy_withdraw(policy) }, Status::Ok);
    assert_eq!(retain(policy, &observation(), &release(Part::Head, 9), 0), normal);
    assert_eq!((counters(policy).no_table, counters(policy).keep_long), (2, 1));
    free(policy);
}

#[test]
fn every_reason_is_told_and_counted() {
    let policy = policy(&retaining(2.0));
    let known = release(Part::Tail, 1);
    let reason = |seen: &Observation, release: &Release, now_us| retain(policy, seen, release, now_us).2;
    assert_eq!(reason(&observation(), &known, 1_000_001), FallbackReason::Stale as u32);
    // A turn beyond those it was trained on, eight times.
    let later = Release { turn: 9, ..known };
    let reasons: Vec<u32> = (0..8).map(|_| reason(&observation(), &later, 0)).collect();
    assert_eq!(reasons, [0, 0, 0, 0, 0, 0, 0, FallbackReason::OutOfRange as u32]);
    // SAFETY: a policy of this test.
    assert_eq!(unsafe { kvtide_retention_set_behind(policy, 1) }, Status::Ok);
    for _ in 0..32 {
        reason(&observation(), &known, 0);
    }
    assert_eq!(reason(&observation(), &known, 0), FallbackReason::BehindLru as u32);
    // SAFETY: a policy of this test.
    assert_eq!(unsafe { kvtide_retention_set_behind(policy, 0) }, Status::Ok);
    assert_eq!(retain(policy, &observation(), &known, 0), (Status::Ok, Retention::EvictFirst as u32, 0));
    let told = counters(policy);
    assert_eq!((told.stale, told.non_finite, told.unknown_schema, told.no_table), (1, 0, 0, 0));
    assert_eq!((told.out_of_range, told.behind_lru), (1 + 31, 2));
    assert_eq!(told.decisions, told.table_decisions + told.stale + told.out_of_range + told.behind_lru);
    assert_eq!(told.table_decisions, told.evict_first);
    free(policy);
}

#[test]
fn what_fails_says_normal() {
    let policy = policy(&retaining(256.0));
    let good = release(Part::Head, 9);
    let failed = |status| (status, Retention::Normal as u32, FallbackReason::Failed as u32);
    let wrong = [Release { part: 2, ..good }, Release { stop: 5, ..good }];
    for (release, name) in wrong.iter().zip(["part is 2, the limit is 1", "stop is 5, the limit is 4"]) {
        assert_eq!(
            (retain(policy, &observation(), release, 0), last_error().as_str()),
            (failed(Status::Argument), name)
        );
    }
    let short = Release { struct_size: 8, ..good };
    assert_eq!(retain(policy, &observation(), &short, 0), failed(Status::Abi));
    assert_eq!(last_error(), "release.struct_size is 8, this library has 104");
    assert_eq!(retain(null(), &observation(), &good, 0), failed(Status::NullPointer));
    let mut out = nothing();
    // SAFETY: null is what is tested; the others live here.
    unsafe {
        let status = kvtide_retention_decide(policy, null(), &raw const good, 0, &raw mut out);
        assert_eq!((status, out.retention), (Status::NullPointer, Retention::Normal as u32));
        let status = kvtide_retention_decide(policy, &observation(), null(), 0, &raw mut out);
        assert_eq!((status, out.fallback), (Status::NullPointer, FallbackReason::Failed as u32));
        let status = kvtide_retention_decide(policy, &observation(), &raw const good, 0, null_mut());
        assert_eq!(status, Status::NullPointer);
        assert_eq!(kvtide_retention_set_behind(null(), 1), Status::NullPointer);
        assert_eq!(kvtide_retention_counters(policy, null_mut()), Status::NullPointer);
    }
    let told = counters(policy);
    assert_eq!((told.failed, told.decisions), (5, 0));
    free(policy);
}

#[test]
fn nothing_is_allocated() {
    let policy = policy(&retaining(256.0));
    let before = ALLOCATOR_CALLS.get();
    for asked in 0..9 {
        assert_eq!(retain(policy, &observation(), &release(Part::Head, asked), 0).0, Status::Ok);
    }
    assert_eq!(ALLOCATOR_CALLS.get(), before);
    free(policy);
}

/// What is not finite a node cannot hand in: it becomes the least, or is never stored.
#[test]
fn a_share_that_is_no_number_is_the_least() {
    let policy = policy(&retaining(256.0));
    let odd = Release { kind_reuse: f32::NAN, evicted_per_second: f32::INFINITY, ..release(Part::Head, 9) };
    assert_eq!(retain(policy, &observation(), &odd, 0), (Status::Ok, Retention::KeepLong as u32, 0));
    let Options { max_age_us, .. } = options(rt::ActionProfile::Full);
    assert_eq!(retain(policy, &observation(), &odd, max_age_us), (Status::Ok, Retention::KeepLong as u32, 0));
    free(policy);
}

fn reuse(num_blocks: u32) -> *mut Reuse {
    let mut reuse = null_mut();
    // SAFETY: a pointer of this test.
    assert_eq!(unsafe { kvtide_reuse_new(num_blocks, &raw mut reuse) }, Status::Ok);
    reuse
}

fn visitor(asked_blocks: u32, hit_blocks: u32, now_us: u64) -> Visitor {
    let struct_size = size_of::<Visitor>() as u32;
    Visitor { struct_size, asked_blocks, hit_blocks, free_blocks: 100, kind: 7, now_us, evicted: now_us / 1000 }
}

/// A session of three turns, in C and by the rules themselves.
#[test]
fn what_is_remembered_is_what_the_rules_remember() {
    let (memory, mut theirs) = (reuse(100), kvtide_rules::Reuse::new(100));
    let keys: Vec<u64> = (1..=40).map(|block: u64| block.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    for turn in 0..3_u64 {
        let (asked, hits, now) = (10 * (turn as u32 + 1), 10 * turn as u32, 1_000_000 * turn);
        let shot = visitor(asked, hits, now);
        let mut visit = 99;
        let known = theirs.admitted(&keys[..asked as usize], asked, hits, 7, kvtide_rules::Micros(now), shot.evicted);
        // SAFETY: all pointers are to what lives here.
        unsafe {
            let status = kvtide_reuse_admitted(memory, keys.as_ptr(), asked as usize, &raw const shot, &raw mut visit);
            assert_eq!((status, visit), (Status::Ok, 0), "the number of who has left is given again");
            let status =
                kvtide_reuse_released(memory, visit, 1, keys.as_ptr(), asked as usize, now + 5000, shot.evicted + 5);
            assert_eq!(status, Status::Ok);
        }
        theirs.released(&known, rt::Stop::ToolCall, kvtide_rules::Micros(now + 5000), shot.evicted + 5);
        for part in [Part::Head, Part::Tail] {
            let mut described = Release { stop: Stop::ToolCall as u32, ..release(part, 99) };
            // SAFETY: all pointers are to what lives here.
            let status = unsafe { kvtide_reuse_describe(memory, visit, shot.evicted + 9, &raw mut described) };
            assert_eq!((status, described.part_blocks), (Status::Ok, 5), "what the node knows stays");
            let of_part = if part == Part::Head { rt::Part::Head } else { rt::Part::Tail };
            let mut expected = rt::Release { part: of_part, ..rt::Release::default() };
            theirs.describe(&known, rt::Stop::ToolCall, shot.evicted + 9, &mut expected);
            let or_unknown = |value: Option<u64>| value.unwrap_or(KVTIDE_UNKNOWN);
            assert_eq!(
                (described.turn, described.asked, described.asked_evicted, described.kind_reuse.to_bits()),
                (expected.turn, expected.asked, or_unknown(expected.asked_evicted), expected.kind_reuse.to_bits())
            );
            assert_eq!(
                (described.kind_return_us, described.last_return_us, described.held_evicted),
                (or_unknown(expected.kind_return_us), or_unknown(expected.last_return_us), expected.held_evicted)
            );
            assert_eq!(described.evicted_per_second.to_bits(), expected.evicted_per_second.to_bits());
            assert_eq!(described.turn, turn as u32 + 1);
        }
        // SAFETY: a memory of this test.
        assert_eq!(unsafe { kvtide_reuse_left(memory, visit) }, Status::Ok);
    }
    // SAFETY: made by this test and not used again.
    unsafe { kvtide_reuse_free(memory) };
}

#[test]
fn a_pool_that_never_hits_is_behind_lru() {
    let memory = reuse(100);
    let keys: Vec<u64> = (1..=40).collect();
    let mut behind = 9;
    for now in 0..200 {
        let (shot, mut visit) = (visitor(40, 0, now), 99);
        // SAFETY: all pointers are to what lives here.
        unsafe {
            let status = kvtide_reuse_admitted(memory, keys.as_ptr(), keys.len(), &raw const shot, &raw mut visit);
            assert_eq!(status, Status::Ok);
            assert_eq!(kvtide_reuse_resumed(memory, visit, keys.as_ptr(), 0, now), Status::Ok);
            assert_eq!(kvtide_reuse_released(memory, visit, 2, keys.as_ptr(), keys.len(), now, now), Status::Ok);
            assert_eq!(kvtide_reuse_left(memory, visit), Status::Ok);
            assert_eq!(kvtide_reuse_is_behind(memory, &raw mut behind), Status::Ok);
        }
        assert_eq!(behind, u32::from(now > 2), "request {now}");
    }
    // SAFETY: made by this test and not used again.
    unsafe { kvtide_reuse_free(memory) };
}

#[test]
fn who_is_not_there_is_not_told_of() {
    let memory = reuse(100);
    let (shot, mut visit) = (visitor(0, 0, 0), 99);
    let mut out = release(Part::Head, 0);
    // SAFETY: null is what is tested; the others live here.
    unsafe {
        assert_eq!(kvtide_reuse_new(9, null_mut()), Status::NullPointer);
        assert_eq!(kvtide_reuse_left(memory, 0), Status::Argument);
        assert_eq!(last_error(), "no request has visit 0");
        assert_eq!(kvtide_reuse_describe(memory, 3, 0, &raw mut out), Status::Argument);
        assert_eq!(kvtide_reuse_resumed(memory, 3, null(), 0, 0), Status::Argument);
        assert_eq!(kvtide_reuse_released(memory, 0, 5, null(), 0, 0, 0), Status::Argument);
        assert_eq!(kvtide_reuse_admitted(memory, null(), 3, &raw const shot, &raw mut visit), Status::NullPointer);
        assert_eq!(kvtide_reuse_admitted(memory, null(), 0, &raw const shot, null_mut()), Status::NullPointer);
        assert_eq!(kvtide_reuse_is_behind(memory, null_mut()), Status::NullPointer);
        assert_eq!(kvtide_reuse_is_behind(null(), &raw mut visit), Status::NullPointer);
        kvtide_reuse_free(null_mut());
        kvtide_reuse_free(memory);
    }
    assert_eq!(visit, 99);
}
