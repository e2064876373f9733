//! The rules a table's decisions are carried out by, for a node in C: targets, prices, victims, cadence. Admission order
//! is in `queue`.
#![expect(clippy::missing_safety_doc, reason = "the rules for all functions stand at the head of the header")]

use std::ffi::c_char;
use std::sync::Mutex;

use kvtide_rules as rules;
use kvtide_rules::Micros;
use kvtide_runtime as rt;

use crate::choices::numbered;
use crate::foreign;
use crate::policy::alone;
use crate::status::{Failure, Status, guarded};
use crate::structs::RunningRequest;

/// Targets of a request.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Slo {
    /// Time to first token.
    pub ttft_us: u64,
    /// Mean time per output token after the first.
    pub tpot_us: u64,
    /// Longest gap between two tokens.
    pub stall_us: u64,
}

/// What a scheduler believes a preemption costs, nanoseconds.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Pricing {
    /// One block to or from the host.
    pub swap_ns_per_block: f64,
    /// Prefill, per token.
    pub prefill_ns_per_token: f64,
    /// Attention within a prefill, per token and token of context before it.
    pub attention_ns_per_token_pair: f64,
}

/// When a decision is due. For one thread at a time.
pub struct Cadence {
    steps: Mutex<rules::Cadence>,
}

impl Slo {
    pub(crate) fn theirs(self) -> rules::Slo {
        rules::Slo { ttft: Micros(self.ttft_us), tpot: Micros(self.tpot_us), stall: Micros(self.stall_us) }
    }
}

impl Pricing {
    pub(crate) fn theirs(self) -> rules::Pricing {
        rules::Pricing {
            swap_ns_per_block: self.swap_ns_per_block,
            prefill_ns_per_token: self.prefill_ns_per_token,
            attention_ns_per_token_pair: self.attention_ns_per_token_pair,
        }
    }
}

/// The choice of that number.
pub(crate) fn choice<T: Copy>(choices: &[T], number: u32, name: &'static str) -> Result<T, Failure> {
    let limit = choices.len() as u64 - 1;
    numbered(choices, number).ok_or(Failure::Number { name, found: number.into(), limit })
}

/// Reads targets: the name of a class ("chat"), or "ttft:2000,tpot:100,stall:3000" in milliseconds; what is left out
/// keeps that default. The "slo" in a table's metadata is such a text, or several with "; " between them,
/// the first of which is what the table was trained for above all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_slo_parse(text: *const c_char, slo: *mut Slo) -> Status {
    guarded(|| {
        // SAFETY: null or a string.
        let text = unsafe { foreign::text(text, "text")? };
        let read: rules::Slo = text.parse().map_err(Failure::Slo)?;
        let slo_of = Slo { ttft_us: read.ttft.0, tpot_us: read.tpot.0, stall_us: read.stall.0 };
        // SAFETY: null or may be written.
        unsafe { foreign::write(slo, slo_of, "slo") }
    })
}

/// Writes by when token index (from 0) of a request that arrived at arrival_us is on time: what
/// kvtide_running_request.deadline_us is for the next token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_deadline(
    slo: *const Slo,
    arrival_us: u64,
    index: u32,
    deadline_us: *mut u64,
) -> Status {
    guarded(|| {
        // SAFETY: null or such a struct.
        let slo = unsafe { foreign::reference(slo, "slo")? }.theirs();
        // SAFETY: null or may be written.
        unsafe { foreign::write(deadline_us, slo.deadline(Micros(arrival_us), index).0, "deadline_us") }
    })
}

/// Writes how long it takes to compute so many tokens: kvtide_waiting_request.prefill_us.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_prefill_us(pricing: *const Pricing, tokens: u32, prefill_us: *mut u64) -> Status {
    guarded(|| {
        // SAFETY: null or such a struct.
        let pricing = unsafe { foreign::reference(pricing, "pricing")? }.theirs();
        // SAFETY: null or may be written.
        unsafe { foreign::write(prefill_us, pricing.prefill(tokens).0, "prefill_us") }
    })
}

/// Writes whether a victim with so many blocks and computed tokens is copied to the host (1), which has room for it, or
/// computed again (0), under the kvtide_preemption in force.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_swaps(
    pricing: *const Pricing,
    preemption: u32,
    blocks: u32,
    tokens: u32,
    swaps: *mut u32,
) -> Status {
    guarded(|| {
        // SAFETY: null or such a struct.
        let pricing = unsafe { foreign::reference(pricing, "pricing")? }.theirs();
        let preemption = choice(rt::Preemption::ALL, preemption, "preemption")?;
        // SAFETY: null or may be written.
        unsafe { foreign::write(swaps, u32::from(pricing.swaps(preemption, blocks, tokens)), "swaps") }
    })
}

/// Writes which of the candidates is preempted under the kvtide_victim in force. They are the running requests that have
/// not had their turn in the step, in running order, at least one of them; index is into the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_choose_victim(
    victim: u32,
    candidates: *const RunningRequest,
    num_candidates: usize,
    index: *mut usize,
) -> Status {
    guarded(|| {
        let rule = choice(rt::Victim::ALL, victim, "victim")?;
        // SAFETY: null or so many.
        let candidates = unsafe { foreign::array(candidates, num_candidates, "candidates")? };
        let newest_first = candidates.iter().enumerate().rev();
        let chosen = rules::victim::choose(rule, newest_first, |(_, request)| request.theirs());
        let (position, _) = chosen.ok_or(Failure::Empty("candidates"))?;
        // SAFETY: null or may be written.
        unsafe { foreign::write(index, position, "index") }
    })
}

/// Makes a count of steps. *cadence is to be freed with kvtide_cadence_free, or null if the call fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_cadence_new(cadence: *mut *mut Cadence) -> Status {
    guarded(|| {
        // SAFETY: null or may be written.
        unsafe { foreign::write(cadence, std::ptr::null_mut(), "cadence")? };
        let new = Box::new(Cadence { steps: Mutex::default() });
        // SAFETY: as above.
        unsafe { foreign::write(cadence, Box::into_raw(new), "cadence") }
    })
}

/// Frees a count of steps; null is none. Nobody may be using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_cadence_free(cadence: *mut Cadence) {
    // SAFETY: null, or made by `kvtide_cadence_new` and used no more.
    unsafe { foreign::free(cadence) };
}

/// A step was planned; refused is not 0 if in it an admission, a swap-in or a running request's growth was refused. Writes
/// to *due whether to decide before the next one: after interval steps, or at the first refusal after a step without. What
/// is due is taken to be done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_cadence_stepped(
    cadence: *const Cadence,
    interval: u32,
    refused: u32,
    due: *mut u32,
) -> Status {
    guarded(|| {
        // SAFETY: null or a count that lives.
        let cadence = unsafe { foreign::reference(cadence, "cadence")? };
        let mut steps = alone(&cadence.steps)?;
        steps.stepped(refused != 0);
        let is_due = steps.is_due(interval);
        if is_due {
            steps.decided();
        }
        // SAFETY: null or may be written.
        unsafe { foreign::write(due, u32::from(is_due), "due") }
    })
}
