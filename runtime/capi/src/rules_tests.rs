//! The rules as a C program calls them, with the mistakes it may make.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use kvtide_rules::{Micros, Patience};

use crate::structs::RunningRequest;
use crate::*;

static SLO: Slo = Slo { ttft_us: 2_000_000, tpot_us: 100_000, stall_us: 3_000_000 };
static PRICING: Pricing =
    Pricing { swap_ns_per_block: 1e6, prefill_ns_per_token: 1e5, attention_ns_per_token_pair: 0.0 };

fn last_error() -> String {
    // SAFETY: never null, and ends with a zero.
    unsafe { CStr::from_ptr(kvtide_last_error()) }.to_str().expect("errors are UTF-8").to_owned()
}

/// A call that writes one value.
fn told<T: Default>(call: impl FnOnce(*mut T) -> Status) -> Result<T, Status> {
    let mut value = T::default();
    match call(&raw mut value) {
        Status::Ok => Ok(value),
        failed => Err(failed),
    }
}

fn queue() -> *mut Queue {
    let mut queue = null_mut();
    // SAFETY: all pointers are to what lives here.
    let status = unsafe {
        kvtide_queue_new(&raw const SLO, &raw const PRICING, KVTIDE_MAX_WAIT_US, KVTIDE_PATIENCE, &raw mut queue)
    };
    assert_eq!(status, Status::Ok);
    queue
}

fn candidate(id: u64, tokens: u32) -> Candidate {
    Candidate { id, arrival_us: 1_000_000, tokens, answer: AnswerState::Awaited as u32, last_token_us: 0 }
}

fn next(queue: *const Queue, admission: Admission, now_us: u64) -> Option<(i64, u64)> {
    let (mut next, mut found) = (Next { seat: -9, id: 9 }, 9);
    // SAFETY: a queue of this test, and what lives here.
    let status = unsafe { kvtide_queue_next(queue, admission as u32, now_us, &raw mut next, &raw mut found) };
    assert_eq!(status, Status::Ok);
    (found == 1).then_some((next.seat, next.id))
}

#[test]
fn targets_are_read() {
    let parse = |text: &CStr| {
        let mut slo = Slo { ttft_us: 0, tpot_us: 0, stall_us: 0 };
        // SAFETY: all pointers are to what lives here.
        let status = unsafe { kvtide_slo_parse(text.as_ptr(), &raw mut slo) };
        (status, [slo.ttft_us, slo.tpot_us, slo.stall_us])
    };
    assert_eq!(parse(c"ttft:1500,tpot:50"), (Status::Ok, [1_500_000, 50_000, 3_000_000]));
    assert_eq!(parse(c"chat"), (Status::Ok, [400_000, 30_000, 1_000_000]));
    assert_eq!(parse(c"ttft:0"), (Status::Argument, [0; 3]));
    assert_eq!(last_error(), "SLO target ttft:\"0\" is not a whole number of milliseconds from 1 to 86400000");
    assert_eq!(parse(c"\xff").0, Status::Argument);
    assert_eq!(last_error(), "text is not UTF-8");
}

#[test]
fn deadlines_and_prices_are_told() {
    // SAFETY: all pointers are to what lives here.
    let deadline = told(|out| unsafe { kvtide_deadline(&raw const SLO, 1_000_000, 3, out) });
    assert_eq!(deadline, Ok(3_300_000));
    // SAFETY: likewise.
    assert_eq!(told(|out| unsafe { kvtide_prefill_us(&raw const PRICING, 64, out) }), Ok(6400));
    // SAFETY: likewise.
    let swaps = |preemption| told(|out| unsafe { kvtide_swaps(&raw const PRICING, preemption, 3, 64, out) });
    assert_eq!([0, 1, 2, 3].map(swaps), [Ok(1), Ok(0), Ok(1), Err(Status::Argument)]);
    assert_eq!(last_error(), "preemption is 3, the limit is 2");
}

#[test]
fn a_victim_is_chosen() {
    let request = |held_blocks, deadline_us| RunningRequest {
        tokens: 0,
        computed_tokens: 0,
        generated_tokens: 0,
        held_blocks,
        deadline_us,
    };
    let running = [request(2, 5), request(1, 9), request(1, 7)];
    // SAFETY: so many requests live here.
    let choose = |victim, len| told(|out| unsafe { kvtide_choose_victim(victim, running.as_ptr(), len, out) });
    assert_eq!([0, 1, 2, 3, 4].map(|victim| choose(victim, 3)), [Ok(2), Ok(2), Ok(0), Ok(2), Ok(1)]);
    assert_eq!((choose(5, 3), choose(0, 0)), (Err(Status::Argument), Err(Status::Argument)));
    assert_eq!(last_error(), "candidates is empty");
}

#[test]
fn patience_in_the_header_is_what_tables_are_trained_with() {
    let patience = Patience { max_wait: Micros(KVTIDE_MAX_WAIT_US), factor: KVTIDE_PATIENCE };
    assert_eq!(patience, Patience::default());
}

#[test]
fn who_is_admitted_next() {
    let queue = queue();
    assert_eq!(next(queue, Admission::OnTimeFirst, 0), None);
    // SAFETY: a queue of this test, and what lives here.
    let back = |candidate: &Candidate| told(|seat| unsafe { kvtide_queue_push_back(queue, candidate, seat) });
    assert_eq!([candidate(70, 900), candidate(71, 50)].map(|candidate| back(&candidate)), [Ok(0), Ok(1)]);
    // It had a token at 1.5 s, so it has until 4.5 s, less 0.09 s.
    let returned = Candidate { answer: AnswerState::Begun as u32, last_token_us: 1_500_000, ..candidate(72, 900) };
    // SAFETY: likewise.
    assert_eq!(told(|seat| unsafe { kvtide_queue_push_front(queue, &raw const returned, seat) }), Ok(-1));

    assert_eq!(next(queue, Admission::Fcfs, 2_000_000), Some((-1, 72)));
    assert_eq!(next(queue, Admission::ShortestOnTimeFirst, 2_000_000), Some((1, 71)));
    // SAFETY: likewise.
    assert_eq!(unsafe { kvtide_queue_admit(queue, 1, 2_000_000) }, Status::Ok);
    // SAFETY: likewise.
    assert_eq!(unsafe { kvtide_queue_lengthen(queue, -1, 901) }, Status::Ok);
    assert_eq!(next(queue, Admission::ShortestOnTimeFirst, 2_000_000), Some((0, 70)));
    assert_eq!(next(queue, Admission::ShortestOnTimeFirst, 4_000_000), Some((-1, 72)));
    // SAFETY: likewise.
    assert_eq!(unsafe { kvtide_queue_remove(queue, 0) }, Status::Ok);
    // SAFETY: likewise.
    assert_eq!(unsafe { kvtide_queue_remove(queue, 0) }, Status::Argument);
    assert_eq!(last_error(), "nobody has seat 0");
    assert_eq!(back(&Candidate { answer: 3, ..candidate(73, 1) }), Err(Status::Argument));
    // SAFETY: a queue of this test, used no more.
    unsafe { kvtide_queue_free(queue) };
}

#[test]
fn decisions_are_due() {
    let mut cadence = null_mut();
    // SAFETY: what lives here.
    assert_eq!(unsafe { kvtide_cadence_new(&raw mut cadence) }, Status::Ok);
    // SAFETY: a count of this test.
    let step = |refused| told(|due| unsafe { kvtide_cadence_stepped(cadence, 3, refused, due) });
    assert_eq!([0, 0, 0, 1, 1, 1, 1].map(step), [0, 0, 1, 1, 0, 0, 1].map(Ok));
    // SAFETY: likewise, used no more.
    unsafe { kvtide_cadence_free(cadence) };
}

#[test]
fn null_is_refused() {
    let queue = queue();
    let mut made: *mut Queue = null_mut();
    let null_pointer = Status::NullPointer;
    // SAFETY: null is what is tested; the others live here.
    unsafe {
        assert_eq!(kvtide_slo_parse(null(), null_mut()), null_pointer);
        assert_eq!(kvtide_slo_parse(c"chat".as_ptr(), null_mut()), null_pointer);
        assert_eq!(kvtide_deadline(null(), 0, 0, null_mut()), null_pointer);
        assert_eq!(kvtide_deadline(&raw const SLO, 0, 0, null_mut()), null_pointer);
        assert_eq!(kvtide_prefill_us(null(), 0, null_mut()), null_pointer);
        assert_eq!(kvtide_swaps(&raw const PRICING, 0, 0, 0, null_mut()), null_pointer);
        assert_eq!(kvtide_choose_victim(0, null(), 1, null_mut()), null_pointer);
        assert_eq!(kvtide_queue_new(null(), null(), 0, 0.0, &raw mut made), null_pointer);
        assert_eq!(kvtide_queue_new(&raw const SLO, &raw const PRICING, 0, 0.0, null_mut()), null_pointer);
        assert_eq!(kvtide_queue_push_back(queue, null(), null_mut()), null_pointer);
        assert_eq!(kvtide_queue_push_front(queue, &candidate(1, 1), null_mut()), null_pointer);
        assert_eq!(next(queue, Admission::Fcfs, 0), None, "whose seat nobody can be told is not put in");
        assert_eq!(kvtide_queue_next(null(), 0, 0, null_mut(), null_mut()), null_pointer);
        assert_eq!(kvtide_queue_admit(null(), 0, 0), null_pointer);
        assert_eq!(kvtide_queue_remove(null(), 0), null_pointer);
        assert_eq!(kvtide_queue_lengthen(null(), 0, 0), null_pointer);
        assert_eq!(kvtide_cadence_new(null_mut()), null_pointer);
        assert_eq!(kvtide_cadence_stepped(null(), 1, 0, null_mut()), null_pointer);
        kvtide_queue_free(null_mut());
        kvtide_cadence_free(null_mut());
        kvtide_queue_free(queue);
    }
    assert!(made.is_null());
}
