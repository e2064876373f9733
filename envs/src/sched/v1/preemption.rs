//! Running → waiting: a victim gives its blocks up, to be computed again or brought back from the host.

use kvtide_rules::victim;
use kvtide_runtime::Stop;

use super::super::{AllocStatus, BlockCopy, Phase, Preempted, PreemptedAs, Refusal, RequestId, StepPlan, Test};
use super::{StepContext, StepPlace, V1};
use crate::kv::blocks_for;
use crate::tier::Route;

impl V1 {
    /// Preempts until `need` blocks are free for the running request `id`; false if it had to go itself.
    ///
    /// Victims are taken from those behind it, which have not been served in this step; it is its own victim only when
    /// nobody is left.
    pub(super) fn make_room(&mut self, id: RequestId, need: u32, step: &StepContext<'_>, plan: &mut StepPlan) -> bool {
        while need > self.pool.num_free() {
            let free = self.pool.num_free();
            let status = AllocStatus::Later;
            plan.growth_refused.push(Refusal { id, test: Test::Growth, need, reserve: 0, free, status });
            let candidates = self.position(id) + 1;
            let victim = self.choose_victim(candidates, step).unwrap_or(id);
            self.preempt(victim, step, plan);
            if victim == id {
                return false;
            }
        }
        true
    }

    /// The victim among those from position `first` of running on.
    fn choose_victim(&self, first: usize, step: &StepContext<'_>) -> Option<RequestId> {
        let newest_first = self.running[first..].iter().rev().copied();
        victim::choose(step.controls.victim, newest_first, |&id| self.view(id).running())
    }

    /// Takes a running request's blocks and puts it at the head of waiting. What it generated stays.
    fn preempt(&mut self, victim: RequestId, step: &StepContext<'_>, plan: &mut StepPlan) {
        self.preemptions += 1;
        if self.sequences[victim.index()].is_member {
            self.loosen(victim, step, plan);
        }
        let position = self.position(victim);
        self.running.remove(position);
        self.forget_loose(StepPlace { ticket: self.sequences[victim.index()].ticket, id: victim });
        let (how, lost_tokens) = if self.swaps(victim, step) {
            self.swap_out(victim, plan);
            (PreemptedAs::Swap, 0)
        } else {
            (PreemptedAs::Recompute, self.sequences[victim.index()].computed)
        };
        plan.preempted.push(Preempted { id: victim, how, lost_tokens });
        self.publish(victim);
        self.store_victim(victim, plan);
        self.release(victim, Stop::Preempted, step.now);
        let sequence = &mut self.sequences[victim.index()];
        sequence.phase = Phase::Waiting;
        sequence.preemptions += 1;
        sequence.is_stale = sequence.in_flight > 0;
        sequence.computed = 0;
        sequence.registered = 0;
        sequence.sampling = 0;
        sequence.in_flight = 0;
        let entry = self.entry(victim);
        self.sequences[victim.index()].seat = self.waiting.push_front(entry);
    }

    fn swaps(&mut self, victim: RequestId, step: &StepContext<'_>) -> bool {
        let computed = self.sequences[victim.index()].computed;
        let blocks = blocks_for(computed, self.config.block_size);
        blocks > 0
            && self.config.pricing.swaps(step.controls.preemption, blocks, computed)
            && self.has_host_room(blocks)
    }

    /// Copies every block with computed tokens to the host.
    fn swap_out(&mut self, victim: RequestId, plan: &mut StepPlan) {
        let sequence = &mut self.sequences[victim.index()];
        let blocks = blocks_for(sequence.computed, self.config.block_size);
        self.host.take(blocks, &mut sequence.host_blocks);
        sequence.host_tokens = sequence.computed;
        let pairs = sequence.blocks.iter().zip(&sequence.host_blocks);
        plan.copies[Route::GpuToHost].extend(pairs.map(|(&src, &dst)| BlockCopy { src, dst }));
        plan.moved[Route::GpuToHost].push((victim, blocks));
        self.on_host += 1;
    }
}
