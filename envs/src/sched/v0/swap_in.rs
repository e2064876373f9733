//! Swapped → running: requests come back from the host, head first, and go on in the same step.

use super::super::{AllocStatus, BlockCopy, Phase, Prefill, PrefillSource, Refusal, RequestId, Stage, StepPlan, Test};
use super::{StepContext, V0};
use crate::tier::{Route, Tier};

impl V0 {
    /// Brings swapped requests back until one is refused. Never in a step that preempted.
    pub(super) fn swap_in(&mut self, step: &mut StepContext<'_>, plan: &mut StepPlan) {
        let budget = self.config.max_num_batched_tokens;
        while let Some(&id) = self.swapped.front() {
            let request = &self.requests[id.index()];
            let need = self.swap_need(request);
            let free = self.pools[Tier::Gpu].num_free();
            let reserve = self.reserve(step);
            let refusal = |status| Refusal { id, test: Test::Prompt, need, reserve, free, status };
            if self.pools[Tier::Gpu].num_blocks() < need {
                plan.swap_ins_refused.push(refusal(AllocStatus::Never));
                self.reject_swapped(id);
                continue;
            }
            if u64::from(free) < u64::from(need) + u64::from(reserve) {
                plan.swap_ins_refused.push(refusal(AllocStatus::Later));
                break;
            }
            let mut tokens = if request.stage == Stage::Decode { 1 } else { request.len() - request.computed };
            if self.is_safe() {
                // Repair: vLLM never chunks here, so a rest above the budget could not come back. Without chunks nothing
                // ties decodes to the budget, so it may be overspent already.
                tokens = tokens.min(budget.saturating_sub(step.tokens));
            }
            if tokens == 0 || step.tokens + tokens > budget || step.slots >= self.config.max_num_seqs {
                break;
            }
            self.swapped.pop_front();
            self.bring_back(id, tokens, plan);
            step.tokens += tokens;
            step.slots += 1;
        }
    }

    /// Host blocks are given back in table order, then GPU blocks taken, then the slot of the pending token.
    fn bring_back(&mut self, id: RequestId, tokens: u32, plan: &mut StepPlan) {
        let request = &mut self.requests[id.index()];
        let blocks = request.blocks.len() as u32;
        let first = plan.copies[Route::HostToGpu].len();
        plan.copies[Route::HostToGpu].extend(request.blocks.iter().map(|&src| BlockCopy { src, dst: src }));
        self.pools[Tier::Host].give_back(&mut request.blocks);
        self.pools[Tier::Gpu].take(blocks, &mut request.blocks);
        for (copy, &dst) in plan.copies[Route::HostToGpu][first..].iter_mut().zip(&request.blocks) {
            copy.dst = dst;
        }
        request.phase = Phase::Running;
        plan.moved[Route::HostToGpu].push((id, blocks));
        self.scratch.swapped_in.push(id);
        if request.stage == Stage::Decode {
            self.decode(id, plan);
        } else {
            let context = request.computed;
            let samples = context + tokens == request.len();
            plan.prefills.push(Prefill { id, tokens, context, source: PrefillSource::Swapped, samples });
            self.loose.push(id);
        }
    }

    /// Drops a request that can never come back.
    fn reject_swapped(&mut self, id: RequestId) {
        self.swapped.pop_front();
        let request = &mut self.requests[id.index()];
        request.phase = Phase::Rejected;
        self.scratch.rejected_swapped.push(id);
        if self.is_safe() {
            // Repair: vLLM leaks these host blocks.
            let mut blocks = std::mem::take(&mut self.requests[id.index()].blocks);
            self.pools[Tier::Host].give_back(&mut blocks);
        }
    }
}
