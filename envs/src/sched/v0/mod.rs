//! vLLM's V0 scheduler (0.6), one sequence per request: three queues, a watermark on admission, swap or recompute.
//!
//! One step without chunked prefill: if nothing is swapped, admit prompts (`admission.rs`); if any was admitted, that is
//! the step. Otherwise let running decode (`running.rs`), preempting (`preemption.rs`) while blocks are missing; if
//! nobody was preempted, bring swapped requests back (`swap_in.rs`). With chunked prefill: running, swap-in and
//! admission share one token budget, in that order.
//!
//! A request that decodes does the same thing in every step until it needs a block or ends. Such requests form the
//! *cohort* (`cohort.rs`), which is advanced as a whole: a step touches only those members to which something happens,
//! and while no block is free the next in turn, who is refused then. Everybody else who runs is *loose* and looked at in
//! every step: prompts that are not finished, and decodes before their first turn.
//!
//! Under [`DeadEnds::Faithful`] every decision, queue order and physical block is vLLM 0.6.6's. The repairs of
//! [`DeadEnds::Safe`] are marked where they are made.

mod admission;
mod cohort;
mod preemption;
mod running;
mod swap_in;
mod validate;

use std::collections::VecDeque;

use kvtide_runtime::{Admission, Controls};

use super::cohort::{Cohort, StepPlace};
use super::{Entry, Outcome, Phase, RequestId, RequestState, Slo, Stage, StepPlan, WaitingQueue};
use crate::deploy::{ConfigError, DeadEnds, EngineConfig};
use crate::kv::{BlockId, BlockPool};
use crate::tier::{Tier, Tiers};
use crate::time::Micros;

/// What stops the engine for good under [`DeadEnds::Faithful`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// vLLM's "Aborted due to the lack of CPU swap space".
    #[error("request {} cannot be swapped out: the host pool has no room (vLLM's V0 engine dies here)", victim.0)]
    HostPoolFull {
        /// Who was to be swapped out.
        victim: RequestId,
    },
}

/// The scheduler and everything it owns: queues, requests, the pool of each tier.
#[derive(Debug, Clone)]
pub struct V0 {
    config: EngineConfig,
    pools: Tiers<BlockPool>,
    waiting: WaitingQueue,
    /// In the order of tickets.
    running: Vec<RequestId>,
    swapped: VecDeque<RequestId>,
    /// Of members of the cohort, as they were when they joined.
    requests: Vec<RequestState>,
    cohort: Cohort<RequestId>,
    /// Running requests outside the cohort.
    loose: Vec<RequestId>,
    /// Steps of the cohort that were planned; the number of the next one.
    planned: u32,
    /// Steps of the cohort whose tokens are counted.
    completed: u32,
    /// When the one counted last ended.
    clock: Micros,
    next_ticket: u32,
    preemptions: u64,
    scratch: Scratch,
}

/// Buffers of one step, kept so that a step allocates nothing.
#[derive(Debug, Clone, Default)]
struct Scratch {
    /// Running requests to be looked at, in running order.
    turns: Vec<StepPlace>,
    /// Requests swapped in, in that order.
    swapped_in: Vec<RequestId>,
    /// Recompute victims, in the order preempted.
    recomputed: Vec<RequestId>,
    /// Swap victims, in the order preempted.
    swapped_out: Vec<RequestId>,
    /// Requests dropped from swapped; reported after those dropped from waiting.
    rejected_swapped: Vec<RequestId>,
}

/// The step in progress.
struct StepContext<'a> {
    controls: &'a Controls,
    now: Micros,
    /// `W`: blocks admission must leave free, truncated toward zero as vLLM does.
    watermark_blocks: u32,
    /// Tokens scheduled so far.
    tokens: u32,
    /// Batch slots taken so far.
    slots: u32,
    /// The budget does not reach for all who run.
    is_short: bool,
    /// Running requests not reached before the budget ran out.
    left_over: usize,
}

impl V0 {
    /// An empty scheduler.
    ///
    /// # Errors
    /// A setting out of range, or one that [`DeadEnds::Safe`] cannot keep its promise under.
    pub fn new(config: EngineConfig) -> Result<V0, ConfigError> {
        config.validate()?;
        Ok(V0 {
            pools: Tiers::from_fn(|tier| BlockPool::new(config.num_blocks(tier))),
            cohort: Cohort::new(config.block_size),
            config,
            waiting: WaitingQueue::default(),
            running: Vec::new(),
            swapped: VecDeque::new(),
            requests: Vec::new(),
            loose: Vec::new(),
            planned: 0,
            completed: 0,
            clock: Micros::ZERO,
            next_ticket: 0,
            preemptions: 0,
            scratch: Scratch::default(),
        })
    }

    /// Appends a request to waiting, or refuses it under [`DeadEnds::Safe`] because it can never fit
    /// ([`Phase::Rejected`]).
    ///
    /// Ids are handed out in order, refused ones included.
    pub fn submit(&mut self, arrival: Micros, prompt_tokens: u32, output_tokens: u32, slo: Slo) -> (RequestId, Phase) {
        let id = RequestId(self.requests.len() as u32);
        let mut request = RequestState::new(arrival, prompt_tokens, output_tokens, slo);
        // Repair: vLLM's front end refuses such a prompt; its scheduler would drop it, or let it block the queue.
        if self.is_safe() && prompt_tokens > self.config.max_model_len {
            request.phase = Phase::Rejected;
        }
        let phase = request.phase;
        self.requests.push(request);
        if phase == Phase::Waiting {
            let entry = self.entry(id);
            self.waiting.push_back(entry);
        }
        (id, phase)
    }

    /// Plans one step and moves requests between queues and pools accordingly.
    ///
    /// # Errors
    /// [`EngineError`] under [`DeadEnds::Faithful`]; `plan` then holds what was done before.
    pub fn schedule(&mut self, now: Micros, controls: &Controls, plan: &mut StepPlan) -> Result<(), EngineError> {
        plan.clear();
        // All that is to be obeyed: a head that is added stops here until something obeys it.
        let Controls { watermark, victim: _, preemption: _, admission: _, budget: _, eviction: _ } = *controls;
        let watermark_blocks = (watermark * f64::from(self.config.num_gpu_blocks)) as u32;
        let mut step =
            StepContext { controls, now, watermark_blocks, tokens: 0, slots: 0, is_short: false, left_over: 0 };
        if self.config.enable_chunked_prefill {
            self.advance(&mut step, plan)?;
            self.admit(&mut step, plan);
            // The scheduled order vLLM reports.
            plan.prefills.sort_by_key(|prefill| prefill.source as u8);
        } else {
            step.slots = self.running.len() as u32;
            if self.swapped.is_empty() {
                self.admit(&mut step, plan);
            }
            if plan.prefills.is_empty() {
                self.advance(&mut step, plan)?;
            }
        }
        self.requeue_victims();
        plan.rejected.append(&mut self.scratch.rejected_swapped);
        Ok(())
    }

    /// Running requests have their turn, then, unless one was preempted, swapped ones.
    fn advance(&mut self, step: &mut StepContext<'_>, plan: &mut StepPlan) -> Result<(), EngineError> {
        self.run(step, plan)?;
        if plan.preempted.is_empty() {
            self.swap_in(step, plan);
        }
        plan.cohort = self.cohort.len();
        plan.decode_context = self.cohort.context(self.planned);
        self.planned = self.planned.wrapping_add(u32::from(plan.cohort > 0));
        self.requeue(step);
        Ok(())
    }

    /// Running after its turn. Without chunks survivors keep their order and those swapped in join the tail. With chunks
    /// it is those left over, those swapped in, decodes, continued prompts: which it is already, if the budget reached
    /// for all and nobody came.
    fn requeue(&mut self, step: &StepContext<'_>) {
        let mut came = std::mem::take(&mut self.scratch.swapped_in);
        if !self.config.enable_chunked_prefill {
            for &id in &came {
                self.enqueue(id);
            }
        } else if step.is_short || !came.is_empty() {
            let is_prompt = |id: &RequestId| self.requests[id.index()].stage == Stage::Prefill;
            self.running.rotate_right(step.left_over);
            self.running[step.left_over..].sort_by_key(is_prompt);
            came.sort_by_key(is_prompt);
            self.running.splice(step.left_over..step.left_over, came.iter().copied());
            self.next_ticket = 0;
            for id in &self.running {
                self.requests[id.index()].ticket = self.next_ticket;
                self.next_ticket += 1;
            }
        }
        came.clear();
        self.scratch.swapped_in = came;
    }

    /// Appends a request to running.
    fn enqueue(&mut self, id: RequestId) {
        self.requests[id.index()].ticket = self.next_ticket;
        self.next_ticket += 1;
        self.running.push(id);
    }

    /// Recompute victims go to the front of waiting one by one, so that the last is the head; swap victims to the tail
    /// of swapped in victim order.
    fn requeue_victims(&mut self) {
        for index in 0..self.scratch.recomputed.len() {
            let entry = self.entry(self.scratch.recomputed[index]);
            self.waiting.push_front(entry);
        }
        self.scratch.recomputed.clear();
        self.swapped.extend(self.scratch.swapped_out.drain(..));
    }

    /// The step was computed and ended at `now`: counts tokens, appends the sampled ones, frees what finished.
    pub fn complete(&mut self, plan: &StepPlan, now: Micros, outcome: &mut Outcome) {
        outcome.tokens.clear();
        outcome.finished.clear();
        for prefill in &plan.prefills {
            let limit = self.limit(prefill.id);
            let request = &mut self.requests[prefill.id.index()];
            request.computed += prefill.tokens;
            if request.computed == request.len() {
                request.stage = Stage::Decode;
                request.generated += 1;
                request.first_token.get_or_insert(now);
                request.last_token = Some(now);
                let is_last = request.len() >= limit;
                outcome.tokens.push(prefill.id);
                if is_last {
                    self.finish(prefill.id, outcome);
                }
            }
        }
        if plan.cohort > 0 {
            self.completed = self.completed.wrapping_add(1);
            self.clock = now;
        }
        outcome.tokens.extend(&plan.joined);
        for &id in &plan.finishing {
            self.finish(id, outcome);
        }
    }

    fn finish(&mut self, id: RequestId, outcome: &mut Outcome) {
        if !self.settle(id) {
            self.loose.retain(|&other| other != id);
        }
        self.running.remove(self.position(id));
        let request = &mut self.requests[id.index()];
        request.phase = Phase::Finished;
        self.pools[Tier::Gpu].give_back(&mut request.blocks);
        outcome.finished.push(id);
    }

    /// Position in running.
    fn position(&self, id: RequestId) -> usize {
        let ticket = self.requests[id.index()].ticket;
        self.running.partition_point(|other| self.requests[other.index()].ticket < ticket)
    }

    /// What the waiting queue keeps of a request.
    fn entry(&self, id: RequestId) -> Entry {
        let request = &self.requests[id.index()];
        Entry::new(id, request.slo, request.arrival, request.answer(), request.len(), &self.config.pricing)
    }

    fn is_safe(&self) -> bool {
        self.config.dead_ends == DeadEnds::Safe
    }

    /// The watermark a test must leave free. Repair: 0 while nothing runs, so that it cannot stall.
    ///
    /// Running requests are counted at this point of the step, with those admitted or swapped in before.
    fn reserve(&self, step: &StepContext<'_>) -> u32 {
        let idle = self.running.is_empty() && self.scratch.swapped_in.is_empty();
        if self.is_safe() && idle { 0 } else { step.watermark_blocks }
    }

    /// vLLM's `full_blocks + touched`: blocks a swapped or to-be-swapped request asks for.
    fn swap_need(&self, request: &RequestState) -> u32 {
        request.slots / self.config.block_size + self.touched(request)
    }

    /// Blocks the next tokens touch, as vLLM counts them: 1 for a decode, needed or not.
    fn touched(&self, request: &RequestState) -> u32 {
        let unseen = request.len() - request.slots;
        let room = self.config.block_size - request.slots % self.config.block_size;
        match unseen.checked_sub(room) {
            Some(over) => 1 + over.div_ceil(self.config.block_size),
            // Nothing to append and the last block exactly full: nothing is touched.
            None if room == self.config.block_size && unseen == 0 => 0,
            None => 1,
        }
    }

    /// The settings.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The pool of a tier.
    pub fn pool(&self, tier: Tier) -> &BlockPool {
        &self.pools[tier]
    }

    /// Requests submitted.
    pub fn num_requests(&self) -> usize {
        self.requests.len()
    }

    /// Blocks of a request, in order: on the GPU while it runs, on the host while it is swapped.
    ///
    /// # Panics
    /// If `id` was not handed out by this scheduler.
    pub fn table(&self, id: RequestId) -> &[BlockId] {
        &self.requests[id.index()].blocks
    }

    /// Waiting requests, head first.
    pub fn waiting(&self) -> impl DoubleEndedIterator<Item = RequestId> {
        self.waiting.iter().map(|entry| entry.id)
    }

    /// The waiting queue itself.
    pub(super) fn waiting_queue(&self) -> &WaitingQueue {
        &self.waiting
    }

    /// Waiting requests in the order in which they are admitted under `order`.
    pub fn waiting_in(&self, order: Admission, now: Micros) -> Vec<RequestId> {
        let entries = self.waiting.in_order(order, now, self.config.patience());
        entries.into_iter().map(|entry| entry.id).collect()
    }

    /// Number of waiting requests.
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Running requests, head first.
    pub fn running(&self) -> &[RequestId] {
        &self.running
    }

    /// Swapped requests, head first.
    pub fn swapped(&self) -> impl ExactSizeIterator<Item = RequestId> {
        self.swapped.iter().copied()
    }

    /// Whether no request is waiting, running or swapped.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.swapped.is_empty()
    }

    /// Heap bytes held for requests; see [`Scheduler::request_bytes`](super::Scheduler::request_bytes).
    pub fn request_bytes(&self) -> usize {
        let of = |request: &RequestState| size_of::<RequestState>() + size_of::<BlockId>() * request.blocks.capacity();
        let queues = size_of::<RequestId>() * (self.running.len() + self.swapped.len())
            + size_of::<Entry>() * self.waiting.len();
        self.requests.iter().map(of).sum::<usize>() + queues + self.cohort.bytes()
    }

    /// Preemptions since the start, including one that raised.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }
}
