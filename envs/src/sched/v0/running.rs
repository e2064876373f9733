//! Running requests decode, or go on with their prompt; blocks are found for them by preempting others.

use kvtide_runtime::Victim;

use super::super::{DeadEnds, Prefill, RequestId, Source, Stage, StepPlan};
use super::{EngineError, Step, V0};
use crate::kv::blocks_for;

impl V0 {
    /// Serves running from its head. Victims are taken from those behind the request being served; one already served
    /// in this step is never a victim, and a request is its own victim only when nobody is left.
    ///
    /// Leaves `self.running` as it was; the survivors are in the scratch lists.
    pub(super) fn run(&mut self, step: &mut Step<'_>, plan: &mut StepPlan) -> Result<(), EngineError> {
        let mut queue = std::mem::take(&mut self.running);
        let result = self.serve(&mut queue, step, plan);
        self.running = queue;
        result
    }

    fn serve(
        &mut self,
        queue: &mut Vec<RequestId>,
        step: &mut Step<'_>,
        plan: &mut StepPlan,
    ) -> Result<(), EngineError> {
        let chunked = self.config.enable_chunked_prefill;
        let block_size = self.config.block_size;
        let mut head = 0;
        while head < queue.len() {
            let id = queue[head];
            let request = &self.requests[id.index()];
            let rest = if request.stage == Stage::Decode { 1 } else { request.len() - request.computed };
            let tokens = if chunked { rest.min(self.config.max_num_batched_tokens - step.tokens) } else { rest };
            if tokens == 0 {
                break;
            }
            if !self.make_room(queue, head, step, plan)? {
                // It was its own victim, so it was the last.
                queue.truncate(head);
                break;
            }
            let request = &mut self.requests[id.index()];
            if request.stage == Stage::Decode {
                V0::grow(&mut self.gpu, block_size, request);
                plan.decodes.push(id);
                plan.decode_context += u64::from(request.len());
                self.scratch.decodes.push(id);
            } else {
                let context = request.computed;
                let samples = tokens == rest;
                plan.prefills.push(Prefill { id, tokens, context, source: Source::Continued, samples });
                self.scratch.continued.push(id);
            }
            step.tokens += tokens;
            if chunked {
                step.slots += 1;
            }
            head += 1;
        }
        self.scratch.left_over.extend_from_slice(&queue[head..]);
        Ok(())
    }

    /// Preempts until the request at `head` of `queue` finds the blocks it touches; false if it had to go itself.
    ///
    /// A decode touches one block whether or not it needs a new one, so it is refused as soon as nothing is free.
    fn make_room(
        &mut self,
        queue: &mut Vec<RequestId>,
        head: usize,
        step: &Step<'_>,
        plan: &mut StepPlan,
    ) -> Result<bool, EngineError> {
        loop {
            let request = &self.requests[queue[head].index()];
            if self.touched(request) <= self.gpu.num_free() {
                return Ok(true);
            }
            if head + 1 < queue.len() {
                let position = self.choose_victim(&queue[head + 1..], step) + head + 1;
                let victim = queue.remove(position);
                self.preempt(victim, step, plan)?;
                continue;
            }
            // Repair: whoever runs alone is asked for what it needs. vLLM would preempt it for each token.
            let alone = head == 0 && self.config.dead_ends == DeadEnds::Safe;
            let missing = blocks_for(request.len(), self.config.block_size) - request.blocks.len() as u32;
            if alone && missing <= self.gpu.num_free() {
                return Ok(true);
            }
            self.preempt(queue[head], step, plan)?;
            return Ok(false);
        }
    }

    /// Position of the victim among `candidates`, which are in queue order and not empty. The newest of equals.
    fn choose_victim(&self, candidates: &[RequestId], step: &Step<'_>) -> usize {
        let newest = candidates.len() - 1;
        let request = |position: usize| &self.requests[candidates[position].index()];
        // Reversed, so that the first extreme found is the newest.
        let positions = (0..candidates.len()).rev();
        let chosen = match step.controls.victim {
            Victim::Newest => Some(newest),
            Victim::FewestBlocks => positions.min_by_key(|&at| request(at).blocks.len()),
            Victim::MostBlocks => positions.min_by_key(|&at| std::cmp::Reverse(request(at).blocks.len())),
            Victim::LeastProgress => positions.min_by_key(|&at| request(at).generated),
            Victim::MostSlack => positions.min_by_key(|&at| std::cmp::Reverse(request(at).next_deadline())),
        };
        chosen.unwrap_or(newest)
    }
}
