//! Waiting → running: the only place, with swap-in, where the watermark is tested.

use kvtide_rules::Seat;

use super::super::{AllocStatus, Entry, Phase, Prefill, PrefillSource, Refusal, RequestId, StepPlan, Test};
use super::{StepContext, V0};
use crate::kv::blocks_for;
use crate::tier::Tier;

impl V0 {
    /// Admits waiting requests until one is refused or the budget is spent.
    ///
    /// Blocks for the whole sequence are tested and taken, also where only a first chunk is computed; the block of the
    /// next token is not.
    pub(super) fn admit(&mut self, step: &mut StepContext<'_>, plan: &mut StepPlan) {
        let chunked = self.config.enable_chunked_prefill;
        let budget = self.config.max_num_batched_tokens;
        let pool = self.pools[Tier::Gpu].num_blocks();
        while let Some((seat, head)) = self.next_waiting(step) {
            let left = budget - step.tokens;
            let tokens = if chunked { head.tokens.min(left) } else { head.tokens };
            // vLLM compares the chunk, not the prompt, so in chunked mode a prompt above max_model_len can pass.
            let limit = if chunked { self.config.max_model_len } else { self.config.max_model_len.min(budget) };
            if tokens > limit {
                self.reject_waiting(seat, head.id, plan);
                continue;
            }
            let need = blocks_for(head.tokens, self.config.block_size);
            let free = self.pools[Tier::Gpu].num_free();
            let reserve = self.reserve(step);
            let refusal = |status| Refusal { id: head.id, test: Test::Prompt, need, reserve, free, status };
            // Repair: the watermark alone never makes a request impossible.
            let never_reserve = if self.is_safe() { 0 } else { i64::from(step.watermark_blocks) };
            if i64::from(pool) - i64::from(need) < never_reserve {
                plan.admissions_refused.push(refusal(AllocStatus::Never));
                self.reject_waiting(seat, head.id, plan);
                continue;
            }
            if u64::from(free) < u64::from(need) + u64::from(reserve) {
                plan.admissions_refused.push(refusal(AllocStatus::Later));
                break;
            }
            if tokens == 0 || tokens > left || step.slots >= self.config.max_num_seqs {
                break;
            }
            self.waiting.admit(seat, step.now);
            let request = &mut self.requests[head.id.index()];
            self.pools[Tier::Gpu].take(need, &mut request.blocks);
            request.slots = request.len();
            request.phase = Phase::Running;
            let samples = tokens == head.tokens;
            plan.prefills.push(Prefill { id: head.id, tokens, context: 0, source: PrefillSource::Waiting, samples });
            self.loose.push(head.id);
            self.enqueue(head.id);
            step.tokens += tokens;
            step.slots += 1;
        }
    }

    fn next_waiting(&mut self, step: &StepContext<'_>) -> Option<(Seat, Entry)> {
        self.waiting.next(step.controls.admission, step.now, self.config.patience())
    }

    fn reject_waiting(&mut self, seat: Seat, id: RequestId, plan: &mut StepPlan) {
        self.waiting.remove(seat);
        self.requests[id.index()].phase = Phase::Rejected;
        plan.rejected.push(id);
    }
}
