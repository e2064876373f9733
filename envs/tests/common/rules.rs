//! What holds of every step of a safe engine, checked from outside.

use std::collections::BTreeSet;

use kvtide_envs::kv::BlockId;
use kvtide_envs::sched::{PreemptedAs, PrefillSource, RequestId, Stage, StepPlan, V0};
use kvtide_envs::tier::{Route, Tier};
use kvtide_runtime::{Admission, Controls, Preemption};

use super::line::decodes;

/// Compares a plan with the state before `schedule` and after it (before `complete`).
///
/// # Errors
/// The rule that does not hold.
pub fn check_step(before: &V0, plan: &StepPlan, after: &V0, controls: &Controls) -> Result<(), String> {
    budgets(plan, after)?;
    who_is_where(before, plan, after)?;
    orders(before, plan, after, controls)?;
    watermark(plan, after, controls)?;
    slots(plan, after)?;
    copies(before, plan, after)?;
    if plan.is_idle() && !after.is_empty() {
        return Err("the engine is idle with work left".to_owned());
    }
    if !plan.rejected.is_empty() {
        return Err("a safe engine dropped a request it had accepted".to_owned());
    }
    Ok(())
}

fn ensure(holds: bool, rule: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(rule.to_owned()) }
}

fn budgets(plan: &StepPlan, after: &V0) -> Result<(), String> {
    let config = after.config();
    let decodes = decodes(plan, after).len() as u32;
    let tokens: u32 = plan.prefills.iter().map(|prefill| prefill.tokens).sum::<u32>() + decodes;
    ensure(tokens == plan.batched_tokens(), "batched_tokens is the sum")?;
    let is_prefill = !plan.prefills.is_empty();
    if config.enable_chunked_prefill || is_prefill {
        ensure(tokens <= config.max_num_batched_tokens, "a step is within its token budget")?;
    }
    ensure(
        config.enable_chunked_prefill || !is_prefill || decodes == 0,
        "without chunks, prefill and decode do not mix",
    )?;
    ensure(after.running().len() <= config.max_num_seqs as usize, "running is within max_num_seqs")?;
    ensure(plan.prefills.iter().all(|prefill| prefill.tokens > 0), "a prefill has tokens")
}

fn who_is_where(before: &V0, plan: &StepPlan, after: &V0) -> Result<(), String> {
    let scheduled: Vec<RequestId> =
        plan.prefills.iter().map(|prefill| prefill.id).chain(decodes(plan, after)).collect();
    let distinct: BTreeSet<RequestId> = scheduled.iter().copied().collect();
    ensure(distinct.len() == scheduled.len(), "nobody is scheduled twice")?;
    ensure(scheduled.iter().all(|id| after.running().contains(id)), "whoever is scheduled runs")?;
    let victims: BTreeSet<RequestId> = plan.preempted.iter().map(|victim| victim.id).collect();
    ensure(victims.len() == plan.preempted.len(), "nobody is preempted twice in a step")?;
    ensure(victims.is_disjoint(&distinct), "a victim is not scheduled in the same step")?;
    ensure(victims.iter().all(|id| before.running().contains(id)), "victims were running")?;
    for victim in &plan.preempted {
        let lost = if victim.how == PreemptedAs::Swap { 0 } else { before.request(victim.id).computed };
        ensure(victim.lost_tokens == lost, "lost tokens are those that were computed")?;
    }
    ensure(plan.preempted.is_empty() || plan.moved[Route::HostToGpu].is_empty(), "swap-in and preemption never meet")
}

fn orders(before: &V0, plan: &StepPlan, after: &V0, controls: &Controls) -> Result<(), String> {
    let victims = |how| plan.preempted.iter().filter(move |victim| victim.how == how).map(|victim| victim.id);
    let recomputed: Vec<RequestId> = victims(PreemptedAs::Recompute).collect();
    let swapped_out: Vec<RequestId> = victims(PreemptedAs::Swap).collect();
    let swapped_in: Vec<RequestId> = plan.moved[Route::HostToGpu].iter().map(|swap| swap.0).collect();
    let from_waiting = plan.prefills.iter().filter(|prefill| prefill.source == PrefillSource::Waiting);
    let admitted: Vec<RequestId> = from_waiting.map(|prefill| prefill.id).collect();

    let stayed = before.waiting().filter(|id| !admitted.contains(id));
    ensure(
        after.waiting().eq(recomputed.iter().rev().copied().chain(stayed)),
        "waiting: recompute victims, last first, then the others in order",
    )?;
    if controls.admission == Admission::Fcfs {
        ensure(before.waiting().take(admitted.len()).eq(admitted.iter().copied()), "fcfs admits from the head")?;
    }
    ensure(before.swapped().take(swapped_in.len()).eq(swapped_in.iter().copied()), "swap-in is from the head")?;
    let stayed = before.swapped().skip(swapped_in.len());
    ensure(after.swapped().eq(stayed.chain(swapped_out.iter().copied())), "swapped: old ones, then victims in order")?;
    if controls.preemption == Preemption::Recompute {
        ensure(swapped_out.is_empty(), "recompute swaps nobody")?;
    }

    let survivors = before.running().iter().copied().filter(|id| !recomputed.contains(id) && !swapped_out.contains(id));
    let expected: Vec<RequestId> = survivors.chain(swapped_in).chain(admitted).collect();
    if after.config().enable_chunked_prefill {
        let sorted = |ids: &[RequestId]| ids.iter().copied().collect::<BTreeSet<RequestId>>();
        ensure(sorted(&expected) == sorted(after.running()), "running: survivors, swapped-in, admitted")
    } else {
        ensure(expected == after.running(), "running: survivors in order, then swapped-in, then admitted")
    }
}

/// After an admission or a swap-in, the watermark is free, unless whoever came runs alone.
fn watermark(plan: &StepPlan, after: &V0, controls: &Controls) -> Result<(), String> {
    let pool = after.pool(Tier::Gpu).num_blocks();
    let reserve = (controls.watermark * f64::from(pool)).floor() as u32;
    let came = !plan.moved[Route::HostToGpu].is_empty()
        || plan.prefills.iter().any(|prefill| prefill.source == PrefillSource::Waiting);
    ensure(
        !came || after.running().len() == 1 || after.pool(Tier::Gpu).num_free() >= reserve,
        "admission leaves the watermark free",
    )
}

fn slots(plan: &StepPlan, after: &V0) -> Result<(), String> {
    let mut context = 0;
    for id in decodes(plan, after) {
        let request = after.request(id);
        ensure(request.stage == Stage::Decode, "whoever decodes has its prompt computed")?;
        ensure(request.slots == request.len(), "a decode has a slot for its token")?;
        context += u64::from(request.len());
    }
    ensure(context == plan.decode_context, "decode_context is the sum of lengths")?;
    for prefill in &plan.prefills {
        let request = after.request(prefill.id);
        ensure(request.slots == request.len(), "a prefill has all its slots")?;
        ensure(prefill.context == request.computed, "a chunk goes on where the last ended")?;
        ensure(prefill.context + prefill.tokens <= request.len(), "a chunk ends within the prompt")?;
    }
    Ok(())
}

/// Copies go from the table before to the table after, block by block.
fn copies(before: &V0, plan: &StepPlan, after: &V0) -> Result<(), String> {
    for (swaps, copies) in [
        (&plan.moved[Route::GpuToHost], &plan.copies[Route::GpuToHost]),
        (&plan.moved[Route::HostToGpu], &plan.copies[Route::HostToGpu]),
    ] {
        let mut expected: Vec<(BlockId, BlockId)> = Vec::new();
        for &(id, blocks) in swaps {
            let (from, to) = (before.table(id), after.table(id));
            ensure(from.len() == blocks as usize, "a swap moves every block held")?;
            expected.extend(from.iter().copied().zip(to.iter().copied()));
        }
        ensure(copies.iter().map(|copy| (copy.src, copy.dst)).eq(expected), "copies follow the tables")?;
    }
    Ok(())
}
