//! Waiting → running: the only place where the watermark is tested.

use super::super::{AllocStatus, BlockCopy, Entry, Phase, PrefillSource, Refusal, RequestId, StepPlan, Test};
use super::{StepContext, StepPlace, V1};
use crate::kv::{BlockId, blocks_for};
use crate::tier::Route;

/// The prefix-cache lookup of the request admission looked at last, which is looked at again in every step in which it
/// has to wait.
#[derive(Debug, Clone, Default)]
pub(super) struct HeadLookup {
    /// Who, and how many tokens it had; `None` before the first.
    of: Option<(RequestId, u32)>,
    hits: Vec<BlockId>,
    /// How many of them nobody uses: they count as free and are paid for like new ones.
    idle: u32,
}

/// What admitting a request would take.
struct Offer {
    /// Tokens that need not be computed.
    present: u32,
    /// Tokens of the first chunk.
    tokens: u32,
}

impl V1 {
    /// Admits waiting requests until one is refused or the budget is spent.
    ///
    /// Only the first chunk's blocks are taken; that the whole prompt fits is tested, not reserved.
    pub(super) fn admit(&mut self, step: &mut StepContext<'_>, plan: &mut StepPlan) {
        let has_tokens = |v1: &V1, step: &StepContext<'_>| v1.budget_left(step).min(step.prompt_tokens_left) > 0;
        while has_tokens(self, step) && self.running.len() < self.config.max_num_seqs as usize {
            let next = self.waiting.next(step.controls.admission, step.now, self.config.patience());
            let Some((seat, head)) = next else { break };
            if !self.could_fit(head, step, plan) {
                break;
            }
            self.look_up(head);
            let Some(offer) = self.offer(head, step) else { break };
            if !self.passes(head, &offer, step, plan) {
                break;
            }
            self.waiting.admit(seat, step.now);
            self.enter_running(head.id, &offer, step, plan);
        }
    }

    /// Whether a request can pass the test of its whole prompt, as far as that is known without a lookup. If nobody
    /// shares its tokens, every hit is idle and saves nothing here, so that the test does not depend on it; and a
    /// request that waits for blocks fails it in every step.
    fn could_fit(&self, head: Entry, step: &StepContext<'_>, plan: &mut StepPlan) -> bool {
        let is_unshared = self.sequences[head.id.index()].is_unshared;
        if !is_unshared || !self.config.scheduler_reserve_full_isl || self.pool.lookup_is_use() {
            return true;
        }
        // vLLM looks at the budget before it looks at blocks.
        if !self.config.enable_chunked_prefill {
            return true;
        }
        self.fits(head, Test::Prompt, head.tokens, (0, 0), step, plan)
    }

    /// Finds the leading blocks of `head` that are cached. The last token is never taken from the cache, because from it
    /// the next one is sampled.
    fn look_up(&mut self, head: Entry) {
        let HeadLookup { of, hits, idle } = &mut self.head;
        let sequence = &mut self.sequences[head.id.index()];
        let Some(content) = &sequence.content else { return };
        // What has no key was never computed.
        let most = ((head.tokens - 1) / self.config.block_size).min(sequence.keyless_from);
        content.extend_keys(&mut sequence.keys, most, self.config.block_size);
        if *of != Some((head.id, head.tokens)) || !self.pool.watch_is_valid() {
            *of = Some((head.id, head.tokens));
            hits.clear();
        }
        let found = hits.len();
        if found < most as usize {
            self.pool.lookup(sequence.keys[found..most as usize].iter().copied(), hits);
        }
        if hits.len() > found || found == 0 {
            self.pool.watch(hits);
            *idle = self.pool.idle_among(hits);
        }
        let cached = hits.len();
        self.look_up_on_host(head, cached);
    }

    /// What the request would be given; `None` if that is not a whole prompt where it has to be.
    fn offer(&self, head: Entry, step: &StepContext<'_>) -> Option<Offer> {
        let hit = (self.head.hits.len() as u32 + self.host_lookup.fetch) * self.config.block_size;
        let present = hit.max(self.sequences[head.id.index()].host_tokens);
        let rest = (head.tokens - present).min(step.longest_chunk);
        let left = self.budget_left(step).min(step.prompt_tokens_left);
        if rest > left && !self.config.enable_chunked_prefill {
            return None;
        }
        Some(Offer { present, tokens: rest.min(left) })
    }

    /// Tests for blocks: of the whole prompt, then of the first chunk.
    fn passes(&self, head: Entry, offer: &Offer, step: &StepContext<'_>, plan: &mut StepPlan) -> bool {
        let hits = (self.head.hits.len() as u32, self.head.idle);
        (!self.config.scheduler_reserve_full_isl || self.fits(head, Test::Prompt, head.tokens, hits, step, plan))
            && self.fits(head, Test::Chunk, offer.present + offer.tokens, hits, step, plan)
    }

    /// Whether blocks for `tokens` tokens, less `hits` (all, idle) of them, can be taken and the watermark left free,
    /// which is 0 if nothing runs. Cached blocks that nobody uses count as free and are paid for like new ones.
    fn fits(
        &self,
        head: Entry,
        test: Test,
        tokens: u32,
        hits: (u32, u32),
        step: &StepContext<'_>,
        plan: &mut StepPlan,
    ) -> bool {
        let reserve = match step.controls.watermark * f64::from(self.config.num_gpu_blocks) {
            _ if self.running.is_empty() => 0,
            watermark => watermark as u32,
        };
        let free = self.pool.num_free();
        let need = blocks_for(tokens.min(self.config.max_model_len), self.config.block_size) - hits.0 + hits.1;
        if u64::from(need) + u64::from(reserve) <= u64::from(free) {
            return true;
        }
        let status = AllocStatus::Later;
        plan.admissions_refused.push(Refusal { id: head.id, test, need, reserve, free, status });
        false
    }

    fn enter_running(&mut self, id: RequestId, offer: &Offer, step: &mut StepContext<'_>, plan: &mut StepPlan) {
        let hits = std::mem::take(&mut self.head.hits);
        let num_hits = hits.len() as u32;
        let free = self.pool.num_free();
        self.pool.touch(&hits);
        self.hold_fetched();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let sequence = &mut self.sequences[id.index()];
        // A prompt's blocks come chunk by chunk; the table is not to be moved for each.
        sequence.blocks.reserve(blocks_for(sequence.tokens, self.config.block_size) as usize);
        sequence.blocks.extend_from_slice(&hits);
        sequence.registered = hits.len() as u32;
        let end = (offer.present + offer.tokens).min(self.config.max_model_len);
        let need = blocks_for(end, self.config.block_size) - hits.len() as u32;
        self.pool.take(need, &mut sequence.blocks);
        sequence.phase = Phase::Running;
        sequence.ticket = ticket;
        sequence.computed = offer.present;
        let known = sequence.tokens;
        self.write_back(plan);
        self.fetch(id, hits.len(), plan);
        self.head.hits = hits;
        self.head.hits.clear();
        self.head.of = None;
        self.note_admitted(id, num_hits, free, step.now);
        self.bring_back(id, plan);
        self.running.push(id);
        self.loose.push(StepPlace { ticket, id });
        self.register(id, known.min(offer.present + offer.tokens));
        self.compute(id, offer.tokens, PrefillSource::Waiting, step, plan);
    }

    /// Copies what the cache did not hold from the host, and gives the host blocks back.
    fn bring_back(&mut self, id: RequestId, plan: &mut StepPlan) {
        let sequence = &mut self.sequences[id.index()];
        if sequence.host_blocks.is_empty() {
            return;
        }
        let cached = sequence.registered as usize;
        let before = plan.copies[Route::HostToGpu].len();
        let pairs = sequence.host_blocks.iter().zip(&sequence.blocks).skip(cached);
        plan.copies[Route::HostToGpu].extend(pairs.map(|(&src, &dst)| BlockCopy { src, dst }));
        plan.moved[Route::HostToGpu].push((id, (plan.copies[Route::HostToGpu].len() - before) as u32));
        sequence.host_tokens = 0;
        self.on_host -= 1;
        self.give_back_swapped(id);
    }
}
