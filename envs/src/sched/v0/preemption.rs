//! Running → waiting or swapped: a victim gives its GPU blocks up.

use kvtide_runtime::Preemption;

use super::super::{BlockCopy, Phase, Preempted, PreemptedAs, RequestId, StepPlan};
use super::{EngineError, StepContext, V0};
use crate::tier::{Route, Tier};

impl V0 {
    /// Takes the blocks of the running request at `position`, by copying them to the host or by forgetting them. It joins
    /// its new queue after the step.
    pub(super) fn preempt(
        &mut self,
        position: usize,
        step: &StepContext<'_>,
        plan: &mut StepPlan,
    ) -> Result<(), EngineError> {
        let victim = self.running.remove(position);
        if self.settle(victim) {
            plan.left.push(victim);
        }
        self.preemptions += 1;
        let rule = step.controls.preemption;
        // What the host has no room for is not cheaper.
        let swap = self.would_swap(victim, rule) && (rule != Preemption::Cheaper || self.host_has_room(victim));
        let request = &mut self.requests[victim.index()];
        request.preemptions += 1;
        if !swap {
            self.recompute(victim, plan);
        } else if self.host_has_room(victim) {
            self.swap_out(victim, plan);
        } else if self.is_safe() {
            // Repair: vLLM's engine dies.
            self.recompute(victim, plan);
        } else {
            return Err(EngineError::HostPoolFull { victim });
        }
        Ok(())
    }

    /// Whether `rule` would copy the whole sequence to the host.
    fn would_swap(&self, victim: RequestId, rule: Preemption) -> bool {
        let request = &self.requests[victim.index()];
        self.config.pricing.swaps(rule, request.blocks.len() as u32, request.len())
    }

    /// The swap-out test asks for one block more than is copied if the last block is exactly full.
    fn host_has_room(&self, victim: RequestId) -> bool {
        self.swap_need(&self.requests[victim.index()]) <= self.pools[Tier::Host].num_free()
    }

    fn recompute(&mut self, victim: RequestId, plan: &mut StepPlan) {
        let request = &mut self.requests[victim.index()];
        let lost_tokens = request.computed;
        plan.preempted.push(Preempted { id: victim, how: PreemptedAs::Recompute, lost_tokens });
        self.pools[Tier::Gpu].give_back(&mut request.blocks);
        request.reset();
        request.phase = Phase::Waiting;
        self.scratch.recomputed.push(victim);
    }

    /// GPU blocks are given back in table order, then host blocks taken.
    fn swap_out(&mut self, victim: RequestId, plan: &mut StepPlan) {
        let request = &mut self.requests[victim.index()];
        let blocks = request.blocks.len() as u32;
        let first = plan.copies[Route::GpuToHost].len();
        let sources = request.blocks.iter().map(|&src| BlockCopy { src, dst: src });
        plan.copies[Route::GpuToHost].extend(sources);
        self.pools[Tier::Gpu].give_back(&mut request.blocks);
        self.pools[Tier::Host].take(blocks, &mut request.blocks);
        for (copy, &dst) in plan.copies[Route::GpuToHost][first..].iter_mut().zip(&request.blocks) {
            copy.dst = dst;
        }
        request.phase = Phase::Swapped;
        plan.preempted.push(Preempted { id: victim, how: PreemptedAs::Swap, lost_tokens: 0 });
        plan.moved[Route::GpuToHost].push((victim, blocks));
        self.scratch.swapped_out.push(victim);
    }
}
