//! vLLM's V0 scheduler (0.6), one sequence per request: three queues, a watermark on admission, swap or recompute.
//!
//! One step without chunked prefill: if nothing is swapped, admit prompts (`admission.rs`); if any was admitted, that is
//! the step. Otherwise let running decode (`running.rs`), preempting (`preemption.rs`) while blocks are missing; if
//! nobody was preempted, bring swapped requests back (`swap_in.rs`). With chunked prefill: running, swap-in and
//! admission share one token budget, in that order.
//!
//! Under [`DeadEnds::Faithful`] every decision, queue order and physical block is vLLM 0.6.6's. The repairs of
//! [`DeadEnds::Safe`] are marked where they are made.

mod admission;
mod preemption;
mod running;
mod swap_in;
mod validate;

use std::collections::VecDeque;

use kvtide_runtime::Controls;

use super::waiting::{Entry, WaitingQueue};
use super::{ConfigError, DeadEnds, EngineConfig, Outcome, Phase, RequestId, RequestState, Slo, Stage, StepPlan};
use crate::kv::{BlockPool, blocks_for};
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

/// The scheduler and everything it owns: queues, requests, both pools.
#[derive(Debug, Clone)]
pub struct V0 {
    config: EngineConfig,
    gpu: BlockPool,
    cpu: BlockPool,
    waiting: WaitingQueue,
    running: Vec<RequestId>,
    swapped: VecDeque<RequestId>,
    requests: Vec<RequestState>,
    preemptions: u64,
    scratch: Scratch,
}

/// Buffers of one step, kept so that a step allocates nothing.
#[derive(Debug, Clone, Default)]
struct Scratch {
    /// Running requests that decode this step.
    decodes: Vec<RequestId>,
    /// Running requests whose prefill goes on this step.
    continued: Vec<RequestId>,
    /// Running requests not reached before the budget ran out.
    left_over: Vec<RequestId>,
    swapped_in_decodes: Vec<RequestId>,
    swapped_in_prefills: Vec<RequestId>,
    /// Recompute victims, in the order preempted.
    recomputed: Vec<RequestId>,
    /// Swap victims, in the order preempted.
    swapped_out: Vec<RequestId>,
    admitted: Vec<RequestId>,
    /// Requests dropped from swapped; reported after those dropped from waiting.
    rejected_swapped: Vec<RequestId>,
}

/// The step in progress.
struct Step<'a> {
    controls: &'a Controls,
    now: Micros,
    /// `W`: blocks admission must leave free, truncated toward zero as vLLM does.
    watermark_blocks: u32,
    /// Tokens scheduled so far.
    tokens: u32,
    /// Batch slots taken so far.
    slots: u32,
}

impl V0 {
    /// An empty scheduler.
    ///
    /// # Errors
    /// A setting out of range, or one that [`DeadEnds::Safe`] cannot keep its promise under.
    pub fn new(config: EngineConfig) -> Result<V0, ConfigError> {
        config.validate()?;
        Ok(V0 {
            gpu: BlockPool::new(config.num_gpu_blocks),
            cpu: BlockPool::new(config.num_cpu_blocks),
            config,
            waiting: WaitingQueue::default(),
            running: Vec::new(),
            swapped: VecDeque::new(),
            requests: Vec::new(),
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
        let watermark_blocks = (controls.watermark * f64::from(self.config.num_gpu_blocks)) as u32;
        let mut step = Step { controls, now, watermark_blocks, tokens: 0, slots: 0 };
        if self.config.enable_chunked_prefill {
            self.run(&mut step, plan)?;
            if plan.preempted.is_empty() {
                self.swap_in(&mut step, plan);
            }
            self.admit(&mut step, plan);
            self.requeue_chunked(plan);
        } else {
            step.slots = self.running.len() as u32;
            if self.swapped.is_empty() {
                self.admit(&mut step, plan);
            }
            if plan.prefills.is_empty() {
                self.run(&mut step, plan)?;
                if plan.preempted.is_empty() {
                    self.swap_in(&mut step, plan);
                }
            }
            self.requeue_default(plan);
        }
        self.requeue_victims();
        plan.rejected.append(&mut self.scratch.rejected_swapped);
        Ok(())
    }

    /// Queues after a step of whole prompts: survivors keep their order, swapped-in and admitted requests join the tail.
    fn requeue_default(&mut self, plan: &mut StepPlan) {
        plan.decodes.extend(&self.scratch.swapped_in_decodes);
        let scratch = &mut self.scratch;
        self.running.append(&mut scratch.swapped_in_decodes);
        self.running.append(&mut scratch.admitted);
        scratch.decodes.clear();
    }

    /// Queues after a step of chunks, and the scheduled order vLLM reports them in.
    fn requeue_chunked(&mut self, plan: &mut StepPlan) {
        plan.prefills.sort_by_key(|prefill| prefill.source as u8);
        plan.decodes.extend(&self.scratch.swapped_in_decodes);
        let scratch = &mut self.scratch;
        self.running.clear();
        self.running.append(&mut scratch.left_over);
        self.running.append(&mut scratch.swapped_in_decodes);
        self.running.append(&mut scratch.swapped_in_prefills);
        self.running.append(&mut scratch.decodes);
        self.running.append(&mut scratch.continued);
        self.running.append(&mut scratch.admitted);
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
            let request = &mut self.requests[prefill.id.index()];
            request.computed += prefill.tokens;
            if request.computed == request.len() {
                request.stage = Stage::Decode;
                self.append_token(prefill.id, now, outcome);
            }
        }
        for &id in &plan.decodes {
            self.requests[id.index()].computed += 1;
            self.append_token(id, now, outcome);
        }
        if !outcome.finished.is_empty() {
            self.running.retain(|id| self.requests[id.index()].phase == Phase::Running);
        }
    }

    fn append_token(&mut self, id: RequestId, now: Micros, outcome: &mut Outcome) {
        let request = &mut self.requests[id.index()];
        request.generated += 1;
        request.first_token.get_or_insert(now);
        request.last_token = Some(now);
        outcome.tokens.push(id);
        if request.len() > self.config.max_model_len || request.generated == request.output_tokens {
            request.phase = Phase::Finished;
            self.gpu.give_back(&mut request.blocks);
            outcome.finished.push(id);
        }
    }

    /// What the waiting queue keeps of a request.
    fn entry(&self, id: RequestId) -> Entry {
        let request = &self.requests[id.index()];
        let tokens = request.len();
        // On time means that the first token can still come in time, so the prefill it needs is taken off.
        let late_at = Micros(request.late_at().0.saturating_sub(self.config.pricing.prefill(tokens).0));
        Entry { id, tokens, arrival: request.arrival, late_at }
    }

    fn is_safe(&self) -> bool {
        self.config.dead_ends == DeadEnds::Safe
    }

    /// The watermark a test must leave free. Repair: 0 while nothing runs, so that it cannot stall.
    ///
    /// Running requests are counted at this point of the step, with those admitted or swapped in before.
    fn reserve(&self, step: &Step<'_>) -> u32 {
        let scratch = &self.scratch;
        let idle = self.running.is_empty()
            && scratch.admitted.is_empty()
            && scratch.swapped_in_decodes.is_empty()
            && scratch.swapped_in_prefills.is_empty();
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

    /// Gives `request` the blocks its known tokens need beyond those it holds, and a slot to each token.
    fn grow(gpu: &mut BlockPool, block_size: u32, request: &mut RequestState) {
        let missing = blocks_for(request.len(), block_size) - request.blocks.len() as u32;
        if missing > 0 {
            gpu.take(missing, &mut request.blocks);
        }
        request.slots = request.len();
    }

    /// The settings.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The GPU pool.
    pub fn gpu(&self) -> &BlockPool {
        &self.gpu
    }

    /// The host pool.
    pub fn cpu(&self) -> &BlockPool {
        &self.cpu
    }

    /// One request.
    ///
    /// # Panics
    /// If `id` was not handed out by this scheduler.
    pub fn request(&self, id: RequestId) -> &RequestState {
        &self.requests[id.index()]
    }

    /// Every request submitted, in id order.
    pub fn requests(&self) -> &[RequestState] {
        &self.requests
    }

    /// Waiting requests, head first.
    pub fn waiting(&self) -> impl Iterator<Item = RequestId> {
        self.waiting.ids()
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
        let of = |request: &RequestState| {
            size_of::<RequestState>() + size_of::<crate::kv::BlockId>() * request.blocks.capacity()
        };
        let queues = size_of::<RequestId>() * (self.running.len() + self.swapped.len())
            + size_of::<Entry>() * self.waiting.len();
        self.requests.iter().map(of).sum::<usize>() + queues
    }

    /// Preemptions since the start, including one that raised.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }
}
