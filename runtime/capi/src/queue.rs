//! The order of admission, for a node in C.
#![expect(clippy::missing_safety_doc, reason = "the rules for all functions stand at the head of the header")]

use std::sync::Mutex;

use kvtide_rules as rules;
use kvtide_rules::{AdmissionQueue, Answer, Micros, Patience, Seat};
use kvtide_runtime as rt;

use crate::foreign;
use crate::policy::alone;
use crate::rules::{Pricing, Slo, choice};
use crate::status::{Failure, Status, guarded};

/// What admission order needs of a request that begins to wait.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Candidate {
    /// Whose; anything the program likes.
    pub id: u64,
    /// When it arrived.
    pub arrival_us: u64,
    /// Tokens to compute: the prompt, and after a preemption those generated as well.
    pub tokens: u32,
    /// How far its answer is, a kvtide_answer.
    pub answer: u32,
    /// When its latest token appeared; of no meaning unless its answer has begun.
    pub last_token_us: u64,
}

/// How far the answer to a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AnswerState {
    /// No token yet.
    Awaited = 0,
    /// Its first token came too late.
    Late = 1,
    /// Its first token was on time.
    Begun = 2,
}

/// Who is to be admitted next.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Next {
    /// The seat kvtide_queue_push_back or _push_front gave.
    pub seat: i64,
    /// The candidate's id.
    pub id: u64,
}

/// A queue with the order of admission. For one thread at a time.
pub struct Queue {
    waiting: Mutex<AdmissionQueue<u64>>,
    slo: rules::Slo,
    pricing: rules::Pricing,
    patience: Patience,
}

impl Candidate {
    fn answer(&self) -> Result<Answer, Failure> {
        let last_token = Micros(self.last_token_us);
        let answers = [Answer::Awaited, Answer::Late, Answer::Begun { last_token }];
        choice(&answers, self.answer, "answer")
    }
}

impl Queue {
    fn entry(&self, candidate: &Candidate) -> Result<rules::Entry<u64>, Failure> {
        let (arrival, answer) = (Micros(candidate.arrival_us), candidate.answer()?);
        Ok(rules::Entry::new(candidate.id, self.slo, arrival, answer, candidate.tokens, &self.pricing))
    }
}

/// Makes an empty queue for requests with these targets and prices. Whoever waited longer than max_wait_us, and than
/// patience times the longest wait that first come, first served would have given anybody lately, comes first under every
/// order; tables are trained with KVTIDE_MAX_WAIT_US and KVTIDE_PATIENCE.
///
/// *queue is the new queue, to be freed with kvtide_queue_free, or null if the call fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_queue_new(
    slo: *const Slo,
    pricing: *const Pricing,
    max_wait_us: u64,
    patience: f64,
    queue: *mut *mut Queue,
) -> Status {
    guarded(|| {
        // SAFETY: null or may be written.
        unsafe { foreign::write(queue, std::ptr::null_mut(), "queue")? };
        // SAFETY: null or such structs.
        let (slo, pricing) = unsafe { (foreign::reference(slo, "slo")?, foreign::reference(pricing, "pricing")?) };
        let new = Queue {
            waiting: Mutex::default(),
            slo: slo.theirs(),
            pricing: pricing.theirs(),
            patience: Patience { max_wait: Micros(max_wait_us), factor: patience.max(0.0) },
        };
        // SAFETY: null or may be written.
        unsafe { foreign::write(queue, Box::into_raw(Box::new(new)), "queue") }
    })
}

/// Frees a queue; null is none. Nobody may be using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_queue_free(queue: *mut Queue) {
    // SAFETY: null, or made by `kvtide_queue_new` and used no more.
    unsafe { foreign::free(queue) };
}

/// A request arrives. *seat is its place, good until it leaves; seats ascend in queue order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_queue_push_back(
    queue: *const Queue,
    candidate: *const Candidate,
    seat: *mut i64,
) -> Status {
    // SAFETY: each is null or as the header says.
    unsafe { push(queue, candidate, seat, AdmissionQueue::push_back) }
}

/// A preempted request returns, to the front.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_queue_push_front(
    queue: *const Queue,
    candidate: *const Candidate,
    seat: *mut i64,
) -> Status {
    // SAFETY: each is null or as the header says.
    unsafe { push(queue, candidate, seat, AdmissionQueue::push_front) }
}

/// Writes who is to be admitted next under the kvtide_admission in force, and to *found whether there is anybody. Takes
/// time logarithmic in the queue; the first call with another order than fcfs takes linear time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_queue_next(
    queue: *const Queue,
    admission: u32,
    now_us: u64,
    next: *mut Next,
    found: *mut u32,
) -> Status {
    guarded(|| {
        // SAFETY: null or a queue that lives.
        let queue = unsafe { foreign::reference(queue, "queue")? };
        let order = choice(rt::Admission::ALL, admission, "admission")?;
        let chosen = alone(&queue.waiting)?.next(order, Micros(now_us), queue.patience);
        if let Some((seat, entry)) = chosen {
            // SAFETY: null or may be written.
            unsafe { foreign::write(next, Next { seat: seat.0, id: entry.id }, "next")? };
        }
        // SAFETY: null or may be written.
        unsafe { foreign::write(found, u32::from(chosen.is_some()), "found") }
    })
}

/// Takes a request out because it is admitted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_queue_admit(queue: *const Queue, seat: i64, now_us: u64) -> Status {
    // SAFETY: null or a queue that lives.
    unsafe { change(queue, seat, |waiting, seat| waiting.admit(seat, Micros(now_us)).is_some()) }
}

/// Takes a request out that is not admitted: cancelled, or refused for good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_queue_remove(queue: *const Queue, seat: i64) -> Status {
    // SAFETY: null or a queue that lives.
    unsafe { change(queue, seat, |waiting, seat| waiting.remove(seat).is_some()) }
}

/// A waiting request has so many tokens to compute now: of an asynchronous engine, one was on its way when the request
/// was preempted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_queue_lengthen(queue: *const Queue, seat: i64, tokens: u32) -> Status {
    // SAFETY: null or a queue that lives.
    unsafe { change(queue, seat, |waiting, seat| waiting.lengthen(seat, tokens)) }
}

/// # Safety
/// Each is null or as the header says.
unsafe fn push(
    queue: *const Queue,
    candidate: *const Candidate,
    seat: *mut i64,
    push: impl FnOnce(&mut AdmissionQueue<u64>, rules::Entry<u64>) -> Seat,
) -> Status {
    guarded(|| {
        // SAFETY: the caller says so.
        let (queue, candidate) =
            unsafe { (foreign::reference(queue, "queue")?, foreign::reference(candidate, "candidate")?) };
        let entry = queue.entry(candidate)?;
        // Before anything is changed: whose seat nobody can be told is not put in.
        // SAFETY: null or may be written.
        unsafe { foreign::write(seat, 0, "seat")? };
        let mut waiting = alone(&queue.waiting)?;
        let taken = push(&mut waiting, entry);
        // SAFETY: as above.
        unsafe { foreign::write(seat, taken.0, "seat") }
    })
}

/// # Safety
/// `queue` is null or lives.
unsafe fn change(
    queue: *const Queue,
    seat: i64,
    change: impl FnOnce(&mut AdmissionQueue<u64>, Seat) -> bool,
) -> Status {
    guarded(|| {
        // SAFETY: the caller says so.
        let queue = unsafe { foreign::reference(queue, "queue")? };
        let mut waiting = alone(&queue.waiting)?;
        let is_taken = change(&mut waiting, Seat(seat));
        if is_taken { Ok(()) } else { Err(Failure::NobodyThere { seat }) }
    })
}
