//! Calls as a C program makes them, with the mistakes it may make.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char};
use std::fs;
use std::ptr::{null, null_mut};

use kvtide_runtime as rt;
use kvtide_runtime::format::{FeatureRange, TableSpec, encode, encoded_len};

use crate::choices::Eviction;
use crate::status::guarded;
use crate::structs::{Controls, Counters, Mask, Observation, Options, RunningRequest, Snapshot, WaitingRequest};
use crate::*;

/// Counts what each thread allocates and frees.
struct Counting;

thread_local! {
    pub(crate) static ALLOCATOR_CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count_call() {
    // At a thread's end there is nothing left to count with.
    let _ = ALLOCATOR_CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_call();
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count_call();
        // SAFETY: the caller keeps the contract, and `alloc` is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

pub(crate) fn table(level: u8, profile: rt::ActionProfile) -> Vec<u8> {
    let ranges = rt::FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    let spec = TableSpec {
        profile,
        heads: rt::action::NUM_HEADS as u8,
        schema_hash: rt::SCHEMA_HASH,
        action_set_hash: rt::ACTION_SET_HASH,
        ranges: &ranges,
        nodes: &[
            // By the first feature, to the same end on either side.
            rt::TreeNode::Split { feature: 0, left: 1, threshold: 0.5 },
            rt::TreeNode::Leaf { choices: [level, 4, 0, 2, 2, 1] },
            rt::TreeNode::Leaf { choices: [level, 4, 0, 2, 2, 1] },
        ],
        metadata: &[],
        extensions: &[],
    };
    let mut bytes = vec![0; encoded_len(&spec)];
    encode(&spec, &mut bytes).expect("the table keeps the rules");
    bytes
}

pub(crate) fn options(profile: rt::ActionProfile) -> Options {
    Options { honoured_profile: profile as u32, ..Options::default_values() }
}

pub(crate) fn open(bytes: &[u8], options: &Options) -> (Status, *mut Policy) {
    let mut policy = std::ptr::dangling_mut();
    // SAFETY: all pointers are to what lives here.
    let status = unsafe { kvtide_policy_from_bytes(bytes.as_ptr(), bytes.len(), options, &raw mut policy) };
    (status, policy)
}

fn full(level: u8) -> *mut Policy {
    let (status, policy) = open(&table(level, rt::ActionProfile::Full), &options(rt::ActionProfile::Full));
    assert_eq!(status, Status::Ok);
    policy
}

pub(crate) fn last_error() -> String {
    // SAFETY: never null, and ends with a zero.
    unsafe { CStr::from_ptr(kvtide_last_error()) }.to_str().expect("errors are UTF-8").to_owned()
}

pub(crate) fn observation() -> Observation {
    Observation { struct_size: size_of::<Observation>() as u32, values: [0.0; KVTIDE_NUM_FEATURES], taken_us: 0 }
}

fn no_controls() -> Controls {
    Controls {
        struct_size: size_of::<Controls>() as u32,
        victim: 99,
        preemption: 99,
        admission: 99,
        watermark: -1.0,
        budget: -1.0,
        eviction: 99,
        fallback: 99,
    }
}

fn decide(policy: *const Policy, observation: &Observation, now_us: u64, mask: Option<&Mask>) -> (Status, Controls) {
    let mut controls = no_controls();
    let mask = mask.map_or(null(), |mask| &raw const *mask);
    // SAFETY: all pointers are to what lives here, or null.
    let status = unsafe { kvtide_policy_decide(policy, observation, now_us, mask, &raw mut controls) };
    (status, controls)
}

fn counters(policy: *const Policy) -> Counters {
    // SAFETY: zeros are a value of integers.
    let mut counters: Counters = unsafe { std::mem::zeroed() };
    counters.struct_size = size_of::<Counters>() as u32;
    // SAFETY: a policy of this test.
    assert_eq!(unsafe { kvtide_policy_counters(policy, &raw mut counters) }, Status::Ok);
    counters
}

fn snapshot() -> Snapshot {
    // SAFETY: zeros are a value of integers.
    let zeros: Snapshot = unsafe { std::mem::zeroed() };
    Snapshot {
        struct_size: size_of::<Snapshot>() as u32,
        block_size: 16,
        now_us: 1_000_000,
        num_gpu_blocks: 100,
        free_gpu_blocks: 25,
        max_num_seqs: 10,
        max_num_batched_tokens: 1000,
        ttft_target_us: 2_000_000,
        tpot_target_us: 100_000,
        ..zeros
    }
}

pub(crate) fn free(policy: *mut Policy) {
    // SAFETY: made by this test and not used again.
    unsafe { kvtide_policy_free(policy) };
}

#[test]
fn nothing_has_padding() {
    assert_eq!(size_of::<Options>(), 8 * 4 + 8 + 8 + 8 + 4 * 4);
    assert_eq!(size_of::<Snapshot>(), 22 * 4 + 22 * 8);
    assert_eq!((size_of::<RunningRequest>(), size_of::<WaitingRequest>()), (24, 32));
    assert_eq!(size_of::<Observation>(), 4 + 35 * 4 + 8);
    assert_eq!((size_of::<Controls>(), size_of::<Counters>(), size_of::<Mask>()), (40, 2 * 4 + 14 * 8, 24));
    assert_eq!((size_of::<Slo>(), size_of::<Pricing>(), size_of::<Candidate>(), size_of::<Next>()), (24, 24, 32, 16));
}

#[test]
fn choices_have_the_runtimes_numbers() {
    assert!(rt::Victim::ALL.iter().all(|&choice| Victim::from(choice) as u32 == choice as u32));
    assert!(rt::Preemption::ALL.iter().all(|&choice| Preemption::from(choice) as u32 == choice as u32));
    assert!(rt::Admission::ALL.iter().all(|&choice| Admission::from(choice) as u32 == choice as u32));
    assert!(rt::Eviction::ALL.iter().all(|&choice| Eviction::from(choice) as u32 == choice as u32));
    let reasons = rt::Fallback::ALL.map(|reason| FallbackReason::from(Some(reason)) as u32);
    assert_eq!(reasons, [1, 2, 3, 4, 5]);
    let profiles = [Profile::Watermark, Profile::Core, Profile::Full, Profile::Cache].map(|profile| profile as u32);
    assert_eq!(profiles, rt::ActionProfile::ALL.map(|profile| profile as u32));
}

#[test]
fn a_table_decides_the_heads_of_its_profile() {
    let (status, policy) = open(&table(6, rt::ActionProfile::Core), &options(rt::ActionProfile::Full));
    let (decided, controls) = decide(policy, &observation(), 0, None);
    assert_eq!((status, decided), (Status::Ok, Status::Ok));
    assert_eq!((controls.watermark, controls.fallback), (0.12, 0));
    assert_eq!((controls.victim, controls.preemption, controls.admission), (4, 0, 0), "admission is the node's own");
    assert_eq!((controls.budget, controls.eviction), (1_048_576.0, 0), "and so are these");
    let mask = Mask { allowed: [u32::MAX, 0b11, 0b110, 1, u32::MAX, 1] };
    let (decided, controls) = decide(policy, &observation(), 0, Some(&mask));
    assert_eq!((decided, controls.victim, controls.preemption), (Status::Ok, 0, 1));
    free(policy);

    let (_, policy) = open(&table(6, rt::ActionProfile::Cache), &options(rt::ActionProfile::Cache));
    let (_, controls) = decide(policy, &observation(), 0, None);
    assert_eq!((controls.admission, controls.budget, controls.eviction), (2, 512.0, 1));
    free(policy);
}

#[test]
fn a_profile_the_node_cannot_honour_is_refused() {
    for honoured in rt::ActionProfile::ALL {
        for profile in rt::ActionProfile::ALL {
            let (status, policy) = open(&table(6, profile), &options(honoured));
            let fits = profile as u32 <= honoured as u32;
            assert_eq!(status, if fits { Status::Ok } else { Status::Profile });
            assert_eq!(policy.is_null(), !fits);
            if !fits {
                assert!(last_error().starts_with("action_profile: table decides profile"), "{}", last_error());
            }
            free(policy);
        }
    }
}

#[test]
fn another_abi_is_refused() {
    let good = options(rt::ActionProfile::Full);
    let bytes = table(6, rt::ActionProfile::Full);
    for wrong in
        [Options { abi_version: KVTIDE_ABI_VERSION - 1, ..good }, Options { struct_size: good.struct_size + 8, ..good }]
    {
        assert_eq!(open(&bytes, &wrong), (Status::Abi, null_mut()));
    }
    // A newer program, whose options are longer: nothing is written.
    let mut room = [0x55_u8; 2 * size_of::<Options>()];
    let size = size_of::<Options>();
    for (size, version) in [(size, KVTIDE_ABI_VERSION + 1), (size + 8, KVTIDE_ABI_VERSION), (0, KVTIDE_ABI_VERSION)] {
        // SAFETY: there is room for more than the options.
        let status = unsafe { kvtide_options_default(room.as_mut_ptr().cast(), size, version) };
        assert_eq!(status, Status::Abi);
        assert!(room.iter().all(|&byte| byte == 0x55));
    }
    let policy = full(6);
    let mut older = no_controls();
    older.struct_size -= 8;
    // SAFETY: all pointers are to what lives here.
    let status = unsafe { kvtide_policy_decide(policy, &observation(), 0, null(), &raw mut older) };
    assert_eq!((status, older.watermark), (Status::Abi, -1.0), "nothing is written");
    assert_eq!(last_error(), "controls.struct_size is 32, this library has 40");
    free(policy);
}

#[test]
fn null_is_refused_and_controls_are_safe_to_obey() {
    let mut policy: *mut Policy = null_mut();
    let good = options(rt::ActionProfile::Full);
    let mut shot = observation();
    // SAFETY: null is what is tested; the others live here.
    unsafe {
        assert_eq!(kvtide_options_default(null_mut(), size_of::<Options>(), KVTIDE_ABI_VERSION), Status::NullPointer);
        assert_eq!(kvtide_policy_new(null(), &raw mut policy), Status::NullPointer);
        assert_eq!(kvtide_policy_new(&raw const good, null_mut()), Status::NullPointer);
        assert_eq!(kvtide_policy_open(null(), &raw const good, &raw mut policy), Status::NullPointer);
        assert_eq!(kvtide_policy_from_bytes(null(), 9, &raw const good, &raw mut policy), Status::NullPointer);
        assert_eq!(kvtide_policy_reload(null(), c"x".as_ptr()), Status::NullPointer);
        assert_eq!(kvtide_policy_reload_bytes(null(), null(), 0), Status::NullPointer);
        assert_eq!(kvtide_policy_withdraw(null()), Status::NullPointer);
        assert_eq!(kvtide_policy_counters(null(), null_mut()), Status::NullPointer);
        assert_eq!(kvtide_policy_decide(null(), null(), 0, null(), null_mut()), Status::NullPointer);
        let status = kvtide_policy_observe(null(), null(), null(), 0, null(), 0, &raw mut shot);
        assert_eq!(status, Status::NullPointer);
    }
    free(null_mut());
    let (status, controls) = decide(null(), &observation(), 0, None);
    assert_eq!((status, controls.watermark, controls.victim, controls.preemption), (Status::NullPointer, 0.01, 0, 1));
    assert_eq!((controls.fallback, last_error().as_str()), (FallbackReason::Failed as u32, "policy is null"));

    let cautious = Options { fallback_watermark: 0.5, fallback_victim: 2, ..good };
    let (_, policy) = open(&table(6, rt::ActionProfile::Full), &cautious);
    let nothing = Mask { allowed: [0, u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX] };
    let (status, controls) = decide(policy, &observation(), 0, Some(&nothing));
    assert_eq!((status, controls.watermark, controls.victim), (Status::Argument, 0.5, 2));
    assert_eq!((controls.fallback, last_error().as_str()), (6, "mask allows no choice of head watermark"));
    assert_eq!((counters(policy).failed, counters(policy).decisions), (1, 0));
    free(policy);
}

#[test]
fn options_out_of_range_are_refused() {
    let good = options(rt::ActionProfile::Full);
    let bytes = table(6, rt::ActionProfile::Full);
    let wrong = [
        Options { honoured_profile: 4, ..good },
        Options { fallback_victim: 5, ..good },
        Options { fallback_preemption: u32::MAX, ..good },
        Options { fallback_admission: 3, ..good },
        Options { fallback_eviction: 2, ..good },
    ];
    for options in wrong {
        assert_eq!(open(&bytes, &options), (Status::Argument, null_mut()));
    }
    let unset = Options { fallback_watermark: f64::NAN, fallback_budget: 0.0, ..good };
    let (status, policy) = open(&bytes, &unset);
    assert_eq!(status, Status::Ok);
    // SAFETY: a policy of this test.
    assert_eq!(unsafe { kvtide_policy_withdraw(policy) }, Status::Ok);
    let controls = decide(policy, &observation(), 0, None).1;
    assert_eq!((controls.watermark, controls.budget), (0.0, 128.0));
    free(policy);
}

#[test]
fn every_reason_is_told_and_counted() {
    let mut policy = null_mut();
    // SAFETY: all pointers are to what lives here.
    let status = unsafe { kvtide_policy_new(&options(rt::ActionProfile::Full), &raw mut policy) };
    assert_eq!(status, Status::Ok);
    let reason = |observation: &Observation, now_us| decide(policy, observation, now_us, None).1.fallback;
    assert_eq!(reason(&observation(), 0), FallbackReason::NoTable as u32);
    let bytes = table(6, rt::ActionProfile::Full);
    let foreign = include_bytes!("../../tests/golden/v1_small.kvt");
    let folder = tempfile::tempdir().unwrap();
    let none = CString::new(folder.path().join("none.kvt").to_str().unwrap()).unwrap();
    // SAFETY: a policy, bytes and a path of this test.
    unsafe {
        assert_eq!(kvtide_policy_reload_bytes(policy, bytes.as_ptr(), bytes.len() - 1), Status::Table);
        assert_eq!(kvtide_policy_reload_bytes(policy, foreign.as_ptr(), foreign.len()), Status::UnknownSchema);
        assert_eq!(kvtide_policy_reload(policy, none.as_ptr()), Status::Io);
        assert_eq!(kvtide_policy_reload_bytes(policy, bytes.as_ptr(), bytes.len()), Status::Ok);
    }
    assert_eq!(reason(&observation(), 1_000_001), FallbackReason::Stale as u32);
    let mut broken = observation();
    broken.values[0] = f32::NAN;
    assert_eq!(reason(&broken, 0), FallbackReason::NonFinite as u32);
    let mut outside = observation();
    outside.values[0] = 7.0;
    let reasons: Vec<u32> = (0..8).map(|_| reason(&outside, 0)).collect();
    assert_eq!(reasons, [0, 0, 0, 0, 0, 0, 0, FallbackReason::OutOfRange as u32]);
    let told = counters(policy);
    assert_eq!((told.decisions, told.table_decisions, told.no_table, told.stale), (11, 7, 1, 1));
    assert_eq!((told.non_finite, told.out_of_range, told.unknown_schema, told.failed), (1, 1, 0, 0));
    assert_eq!((told.loads_accepted, told.loads_invalid, told.loads_unknown_schema), (1, 1, 1));
    assert_eq!((told.loads_unreadable, told.loads_unfit_profile), (1, 0));
    free(policy);
}

#[test]
fn observing_is_the_runtimes() {
    let policy = full(6);
    let running =
        [RunningRequest { tokens: 33, computed_tokens: 32, generated_tokens: 3, held_blocks: 2, deadline_us: 900_000 };
            3];
    let waiting = [
        WaitingRequest { tokens: 17, had_first_token: 0, arrival_us: 0, first_token_deadline_us: 9, prefill_us: 5 },
        WaitingRequest { tokens: 40, had_first_token: 1, arrival_us: 0, first_token_deadline_us: 9, prefill_us: 5 },
    ];
    let shot = Snapshot { waiting: 2, ..snapshot() };
    let mut out = observation();
    let observe = |shot: &Snapshot, num_running: usize, num_waiting: usize, out: &mut Observation| {
        // SAFETY: all pointers are to what lives here.
        unsafe {
            kvtide_policy_observe(policy, shot, running.as_ptr(), num_running, waiting.as_ptr(), num_waiting, out)
        }
    };
    assert_eq!(observe(&shot, 3, 2, &mut out), Status::Ok);

    let mut theirs = rt::Snapshot {
        now_us: 1_000_000,
        block_size: 16,
        num_gpu_blocks: 100,
        free_gpu_blocks: 25,
        waiting: 2,
        max_num_seqs: 10,
        max_num_batched_tokens: 1000,
        ttft_target_us: 2_000_000,
        tpot_target_us: 100_000,
        ..rt::Snapshot::default()
    };
    let request = rt::RunningRequest {
        tokens: 33,
        computed_tokens: 32,
        generated_tokens: 3,
        held_blocks: 2,
        deadline_us: 900_000,
    };
    (0..3).for_each(|_| theirs.add_running(&request));
    let queue = [(17, Some(9)), (40, None)].map(|(tokens, first_token_deadline_us)| rt::WaitingRequest {
        tokens,
        arrival_us: 0,
        first_token_deadline_us,
        prefill_us: 5,
    });
    theirs.look_at_waiting(queue.into_iter(), queue.into_iter().rev());
    assert_eq!(out.values, rt::Observer::new().observe(&theirs).values);
    assert_eq!(out.taken_us, 1_000_000);

    assert_eq!(observe(&Snapshot { waiting: 1, ..shot }, 3, 2, &mut out), Status::Argument);
    assert_eq!(last_error(), "snapshot.waiting is 1, but 2 waiting requests are given");
    assert_eq!(observe(&shot, KVTIDE_MAX_REQUESTS + 1, 2, &mut out), Status::Argument);
    assert_eq!(observe(&Snapshot { struct_size: 8, ..shot }, 0, 0, &mut out), Status::Abi);
    free(policy);
}

#[test]
fn a_step_allocates_nothing_even_when_the_table_changes() {
    let policy = full(6);
    let running =
        [RunningRequest { tokens: 33, computed_tokens: 32, generated_tokens: 3, held_blocks: 2, deadline_us: 0 }; 64];
    let second = table(8, rt::ActionProfile::Full);
    let (mut shot, mut seen) = (observation(), Vec::with_capacity(4));
    for _ in 0..2 {
        let before = ALLOCATOR_CALLS.get();
        // SAFETY: all pointers are to what lives here.
        let status =
            unsafe { kvtide_policy_observe(policy, &snapshot(), running.as_ptr(), 64, null(), 0, &raw mut shot) };
        let (decided, controls) = decide(policy, &shot, 1_000_000, None);
        assert_eq!(ALLOCATOR_CALLS.get(), before);
        assert_eq!((status, decided), (Status::Ok, Status::Ok));
        seen.push(controls.watermark);
        // SAFETY: a policy and bytes of this test.
        assert_eq!(unsafe { kvtide_policy_reload_bytes(policy, second.as_ptr(), second.len()) }, Status::Ok);
    }
    assert_eq!(seen, [0.12, 0.18]);
    free(policy);
}

/// Two threads that decide by mistake are told so; one that reloads disturbs nobody.
#[test]
fn threads() {
    struct Shared(*const Policy);
    // SAFETY: what the header promises: a policy may be used by several threads.
    unsafe impl Sync for Shared {}
    let policy = full(6);
    let shared = &Shared(policy);
    let second = table(8, rt::ActionProfile::Full);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                for _ in 0..500 {
                    let (status, controls) = decide(shared.0, &observation(), 0, None);
                    match status {
                        Status::Ok => assert!(controls.fallback == 0 && controls.watermark > 0.1),
                        Status::Busy => assert_eq!((controls.fallback, controls.watermark), (6, 0.01)),
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..200 {
                let len = second.len() - round % 2;
                // SAFETY: a policy and bytes of this test.
                let status = unsafe { kvtide_policy_reload_bytes(shared.0, second.as_ptr(), len) };
                assert_eq!(status, if round % 2 == 0 { Status::Ok } else { Status::Table });
            }
        });
    });
    let told = counters(policy);
    assert_eq!(told.decisions + told.failed, 1000);
    assert_eq!((told.table_decisions, told.loads_accepted, told.loads_invalid), (told.decisions, 101, 100));
    free(policy);
}

#[test]
fn a_file_is_opened_and_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.kvt");
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let good = options(rt::ActionProfile::Full);
    let mut policy = std::ptr::dangling_mut();
    let open = |name: *const c_char, policy: &mut *mut Policy| {
        // SAFETY: all pointers are to what lives here.
        unsafe { kvtide_policy_open(name, &raw const good, policy) }
    };
    assert_eq!(open(name.as_ptr(), &mut policy), Status::Io);
    assert!(policy.is_null() && last_error().starts_with("io: "), "{}", last_error());
    fs::write(&path, table(6, rt::ActionProfile::Full)).unwrap();
    assert_eq!(open(name.as_ptr(), &mut policy), Status::Ok);
    assert_eq!(decide(policy, &observation(), 0, None).1.watermark, 0.12);
    for (bytes, status, watermark) in [
        (table(8, rt::ActionProfile::Full)[..60].to_vec(), Status::Table, 0.12),
        (table(8, rt::ActionProfile::Full), Status::Ok, 0.18),
    ] {
        fs::write(&path, bytes).unwrap();
        // SAFETY: a policy and a path of this test.
        assert_eq!(unsafe { kvtide_policy_reload(policy, name.as_ptr()) }, status);
        assert_eq!(decide(policy, &observation(), 0, None).1.watermark, watermark);
    }
    free(policy);
}

#[test]
fn a_panic_becomes_a_code() {
    assert_eq!(guarded(|| panic!("on purpose")), Status::Internal);
    assert_eq!(last_error(), "internal error");
}

#[test]
fn a_long_error_is_cut_at_a_character() {
    let long = CString::new("ä".repeat(2000)).unwrap();
    let mut policy = null_mut();
    // SAFETY: all pointers are to what lives here.
    let status = unsafe { kvtide_policy_open(long.as_ptr(), &options(rt::ActionProfile::Full), &raw mut policy) };
    assert_eq!(status, Status::Io);
    let text = last_error();
    assert!((509..=511).contains(&text.len()) && text.starts_with("io: ää"), "{text}");
}

#[test]
fn versions() {
    // SAFETY: static, and ends with a zero.
    let version = unsafe { CStr::from_ptr(kvtide_version()) };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
    assert_eq!((kvtide_abi_version(), kvtide_schema_hash()), (KVTIDE_ABI_VERSION, rt::SCHEMA_HASH));
    assert_eq!(kvtide_action_set_hash(), rt::ACTION_SET_HASH);
}
