//! V0's part of the cohort: who joins, what happens to members, who leaves.
//!
//! A decode becomes a member with the first token it is given and stays one until it is preempted or done. Its fields
//! are then those of before it joined; how many tokens came since is the number of the cohort's steps. The cohort pauses
//! while prompts are admitted without chunks.

use super::super::{Prefill, RequestId, RequestState, RequestView, Scheduled, Stage, StepPlan};
use super::V0;
use crate::kv::blocks_for;
use crate::tier::{Route, Tier};

impl V0 {
    /// Gives a decode the block its token needs, if it needs one: the caller has tested that one is free.
    pub(super) fn decode(&mut self, id: RequestId, plan: &mut StepPlan) {
        let block_size = self.config.block_size;
        let limit = self.limit(id);
        let request = &mut self.requests[id.index()];
        let joined = *request.joined.get_or_insert_with(|| {
            self.cohort.enter(request.computed.wrapping_sub(self.planned));
            plan.joined.push(id);
            self.planned
        });
        let length = request.len() + self.planned.wrapping_sub(joined);
        let missing = blocks_for(length, block_size) - request.blocks.len() as u32;
        if missing > 0 {
            self.pools[Tier::Gpu].take(missing, &mut request.blocks);
        }
        let left = limit - length;
        if left == 1 {
            plan.finishing.push(id);
            return;
        }
        let full = request.blocks.len() as u32 * block_size + 1 - length;
        request.next_event = self.planned.wrapping_add(full.min(left - 1));
        self.cohort.expect(request.next_event, id);
    }

    /// Takes a member out of the cohort, before a step or after it. False if it is none.
    pub(super) fn settle(&mut self, id: RequestId) -> bool {
        let request = &mut self.requests[id.index()];
        let Some(joined) = request.joined.take() else { return false };
        self.cohort.leave(request.computed.wrapping_sub(joined));
        request.decode(self.completed.wrapping_sub(joined), self.clock);
        true
    }

    /// Takes every member out, for a step whose budget does not reach for all.
    pub(super) fn dissolve(&mut self, plan: &mut StepPlan) {
        for index in 0..self.running.len() {
            let id = self.running[index];
            if self.settle(id) {
                plan.left.push(id);
                self.loose.push(id);
            }
        }
    }

    /// Whether every running request gets all it asks for, but the last, which gets something, and prompts are behind the
    /// decodes, so that running keeps its order. Only a prompt swapped in in part, which vLLM cannot have, comes before
    /// them; then everybody is looked at.
    pub(super) fn budget_reaches(&self) -> bool {
        let (mut asked, mut prompts) = (u64::from(self.cohort.len()), 0);
        for id in &self.loose {
            let request = &self.requests[id.index()];
            let is_prompt = request.stage == Stage::Prefill;
            let is_cut = self.running.last() == Some(id);
            asked += if is_prompt && !is_cut { u64::from(request.len() - request.computed) } else { 1 };
            prompts += usize::from(is_prompt);
        }
        let tail = &self.running[self.running.len() - prompts..];
        asked <= u64::from(self.config.max_num_batched_tokens)
            && tail.iter().all(|id| self.requests[id.index()].stage == Stage::Prefill)
    }

    /// Length, the sampled token included, at which a request is finished. Only the sampler knows; no decision may look.
    pub(super) fn limit(&self, id: RequestId) -> u32 {
        let request = &self.requests[id.index()];
        request.prompt_tokens.saturating_add(request.output_tokens).min(self.config.max_model_len.saturating_add(1))
    }

    /// Tokens generated since a request joined the cohort.
    fn since_joined(&self, request: &RequestState) -> u32 {
        request.joined.map_or(0, |joined| self.completed.wrapping_sub(joined))
    }

    /// Blocks its known tokens need beyond those it holds.
    pub(super) fn missing(&self, id: RequestId) -> u32 {
        let request = &self.requests[id.index()];
        let length = request.len() + self.since_joined(request);
        blocks_for(length, self.config.block_size) - request.blocks.len() as u32
    }

    /// One request, as it is now.
    ///
    /// # Panics
    /// If `id` was not handed out by this scheduler.
    pub fn request(&self, id: RequestId) -> RequestState {
        let mut request = self.requests[id.index()].clone();
        if request.joined.is_some() {
            request.decode(self.since_joined(&request), self.clock);
            // A planned token has its slot already.
            request.slots += self.planned.wrapping_sub(self.completed);
        }
        request
    }

    /// What others see of a request.
    ///
    /// # Panics
    /// If `id` was not handed out by this scheduler.
    pub fn view(&self, id: RequestId) -> RequestView {
        let request = &self.requests[id.index()];
        let since = self.since_joined(request);
        let view = request.view();
        RequestView { generated: view.generated + since, computed: view.computed + since, ..view }
    }

    /// Every request scheduled in the step just planned, in scheduled order: prefills, then decodes in running order, but
    /// those that were swapped in last. Linear in the batch; a step itself is not.
    pub fn scheduled(&self, plan: &StepPlan) -> Vec<Scheduled> {
        let prefill = |&Prefill { id, tokens, context, .. }: &Prefill| Scheduled { id, tokens, context };
        let mut scheduled: Vec<Scheduled> = plan.prefills.iter().map(prefill).collect();
        if plan.cohort > 0 {
            let member = |&id: &RequestId| {
                let request = &self.requests[id.index()];
                let context = request.computed + self.since_joined(request);
                request.joined.map(|_| Scheduled { id, tokens: 1, context })
            };
            scheduled.extend(self.running.iter().filter_map(member));
            let came = |scheduled: &Scheduled| plan.moved[Route::HostToGpu].iter().any(|swap| swap.0 == scheduled.id);
            scheduled[plan.prefills.len()..].sort_by_key(came);
        }
        scheduled
    }
}
