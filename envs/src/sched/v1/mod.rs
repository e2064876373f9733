//! vLLM's V1 scheduler (0.33), one sequence per request: two queues, one token budget, a prefix cache.
//!
//! One step: running requests first, each given the tokens it lacks and the blocks they need (`running.rs`), the newest
//! preempted while blocks are missing (`preemption.rs`); then, unless somebody was preempted, waiting requests while they
//! pass the watermark (`admission.rs`). A policy may give the step fewer tokens than the engine allows (`budget.rs`). Tokens are counted when their step has been computed (`complete.rs`). Of all prompts
//! together a step may have fewer tokens than its budget has (`pressure.rs`), which is not vLLM's own.
//!
//! A request that decodes does the same thing in every step until it needs a block, fills one or ends. Such requests form
//! the *cohort* (`cohort.rs`), which is advanced as a whole: a step touches only those members to which something
//! happens. Everybody else who runs is *loose* and looked at in every step: prompts that are not finished, and, with
//! asynchronous scheduling, requests whose last token is on its way.
//!
//! With [`async_scheduling`](EngineConfig::async_scheduling) step `s` is planned before the tokens of step `s - 1` are
//! known: the driver calls [`schedule`](V1::schedule) for `s`, then [`complete`](V1::complete) for `s - 1`.
//!
//! Under [`DeadEnds::Faithful`] every decision, queue order and physical block is vLLM's.
//! [`DeadEnds::Safe`] differs in one thing: a prompt that can never fit is refused on arrival.
//! A host tier ([`num_cpu_blocks`](EngineConfig::num_cpu_blocks) above 0) is ours: a victim's blocks may be copied there
//! and brought back at its next admission. It may be a cache as well, as vLLM's is (`host_cache.rs`).

mod admission;
mod budget;
mod cohort;
mod complete;
mod host_cache;
mod intent;
mod preemption;
mod pressure;
mod redraw;
mod releases;
mod retention;
mod running;
mod sequence;
mod validate;

use std::cell::Cell;
use std::sync::Arc;

use kvtide_runtime::{Admission, Controls, action};

use self::admission::HeadLookup;
use self::host_cache::{HostCacheBooks, HostLookup};
use self::intent::IntentDesk;
pub use self::releases::ReleaseSample;
use self::retention::ReleaseDesk;
use self::sequence::Sequence;
use super::cohort::{Cohort, StepPlace};
use super::{Entry, Phase, PromptLimit, RequestId, RequestView, Scheduled, Slo, StepPlan, WaitingQueue};
use crate::deploy::{ConfigError, DeadEnds, EngineConfig};
use crate::kv::{BlockId, Content, HostPool, PrefixPool};
use crate::tier::Tier;
use crate::time::Micros;

/// The scheduler and everything it owns: queues, requests, the pool of each tier.
#[derive(Debug, Clone)]
pub struct V1 {
    config: EngineConfig,
    pool: PrefixPool,
    host: HostPool,
    host_books: Box<HostCacheBooks>,
    host_lookup: HostLookup,
    waiting: WaitingQueue,
    /// In the order admitted, which is the order of tickets.
    running: Vec<RequestId>,
    sequences: Vec<Sequence>,
    cohort: Cohort<StepPlace>,
    /// Running requests outside the cohort, in running order.
    loose: Vec<StepPlace>,
    /// Requests that left the cohort in the step planned last with a token on its way.
    departed: Vec<RequestId>,
    /// Waiting requests whose blocks are on the host.
    on_host: u32,
    /// Of prompts, beside the budget.
    prompt_limit: PromptLimit,
    /// Steps planned; the number of the next one.
    planned: u32,
    /// Steps whose tokens are known.
    completed: u32,
    /// When the step counted last ended.
    clock: Micros,
    next_ticket: u32,
    preemptions: u64,
    head: HeadLookup,
    /// Where the pool has classes for what is given back.
    desk: Option<Box<ReleaseDesk>>,
    /// Where the pool or the host's cache goes by what requests declare of their blocks.
    intents: Option<Box<IntentDesk>>,
    /// Turns of one step, kept so that a step allocates nothing.
    turns: Vec<StepPlace>,
}

/// The step in progress.
struct StepContext<'a> {
    controls: &'a Controls,
    now: Micros,
    /// Its number.
    number: u32,
    /// Tokens of all requests together, known once it is known to whom something happens.
    budget: u32,
    /// Members of the cohort that will be found in this step to have all they ask for; counted where a policy sets the budget.
    leaving: Cell<u32>,
    /// Longest chunk of a prompt.
    longest_chunk: u32,
    /// Tokens given to loose and admitted requests so far. Each member of the cohort takes one more.
    loose_tokens: u32,
    /// Tokens that prompts may still be given, beside the budget.
    prompt_tokens_left: u32,
}

impl V1 {
    /// An empty scheduler.
    ///
    /// # Errors
    /// A setting out of range, or one that [`DeadEnds::Safe`] cannot keep its promise under.
    pub fn new(config: EngineConfig) -> Result<V1, ConfigError> {
        config.validate()?;
        let order = (!config.host_cache.is_off()).then_some(config.host_cache_order);
        let mut v1 = V1 {
            pool: PrefixPool::of_blocks(
                config.num_gpu_blocks,
                config.block_size,
                config.enable_prefix_caching,
                config.eviction,
            ),
            host: HostPool::new(config.num_cpu_blocks, config.block_size, order),
            host_books: Box::default(),
            host_lookup: HostLookup::default(),
            waiting: WaitingQueue::default(),
            running: Vec::new(),
            sequences: Vec::new(),
            cohort: Cohort::new(config.block_size),
            loose: Vec::new(),
            departed: Vec::new(),
            on_host: 0,
            prompt_limit: PromptLimit::Budget,
            planned: 0,
            completed: 0,
            clock: Micros::ZERO,
            next_ticket: 0,
            preemptions: 0,
            head: HeadLookup::default(),
            desk: config.has_eviction_classes().then(|| Box::new(ReleaseDesk::new(config.num_gpu_blocks))),
            intents: IntentDesk::new(&config),
            turns: Vec::new(),
            config,
        };
        v1.open_host_cache();
        Ok(v1)
    }

    /// Appends a request that shares its prompt with nobody; see [`submit_with`](Self::submit_with).
    pub fn submit(&mut self, arrival: Micros, prompt_tokens: u32, output_tokens: u32, slo: Slo) -> (RequestId, Phase) {
        self.submit_with(arrival, prompt_tokens, output_tokens, slo, None)
    }

    /// Appends a request to waiting, or refuses it under [`DeadEnds::Safe`] because it can never fit
    /// ([`Phase::Rejected`]). `content` says what its tokens are, for the prefix cache.
    ///
    /// Ids are handed out in order, refused ones included.
    pub fn submit_with(
        &mut self,
        arrival: Micros,
        prompt_tokens: u32,
        output_tokens: u32,
        slo: Slo,
        content: Option<Content>,
    ) -> (RequestId, Phase) {
        let id = RequestId(self.sequences.len() as u32);
        let limit = prompt_tokens.saturating_add(output_tokens).min(self.config.max_model_len);
        let mut sequence = Sequence::new(arrival, prompt_tokens, limit, slo);
        if self.config.enable_prefix_caching {
            sequence.keyless_from = content.as_ref().map_or(0, |content| content.unshared_from(self.config.block_size));
            if !self.config.host_cache.is_off() {
                // What is stored is stored under a key, whoever may ask for it.
                sequence.keyless_from = u32::MAX;
            }
            sequence.is_unshared = sequence.keyless_from == 0;
            sequence.content = Some(content.unwrap_or_else(|| Content::new(0, u64::from(id.0), Arc::default())));
        }
        // vLLM's front end refuses what is longer than any sequence. A prompt of just that length would block the queue for
        // ever in its scheduler.
        let is_too_long = prompt_tokens > self.config.max_model_len;
        let is_stuck = self.config.dead_ends == DeadEnds::Safe && prompt_tokens == self.config.max_model_len;
        if is_too_long || is_stuck {
            sequence.phase = Phase::Rejected;
        }
        let phase = sequence.phase;
        self.sequences.push(sequence);
        if phase == Phase::Waiting {
            let entry = self.entry(id);
            self.sequences[id.index()].seat = self.waiting.push_back(entry);
        }
        (id, phase)
    }

    /// Plans one step and moves requests between queues and pools accordingly.
    pub fn schedule(&mut self, now: Micros, controls: &Controls, plan: &mut StepPlan) {
        plan.clear();
        self.store_produced(plan);
        // All that is to be obeyed: a head that is added stops here until something obeys it.
        let Controls { watermark: _, victim: _, preemption: _, admission: _, budget: _, eviction } = controls;
        if self.desk.is_some() {
            self.pool.set_by_use(*eviction == action::Eviction::Lfu);
        }
        let alone = self.running.len() + self.waiting.len() == 1;
        let longest_chunk = match self.config.long_prefill_token_threshold {
            0 => u32::MAX,
            _ if alone => u32::MAX,
            threshold => threshold,
        };
        let mut step = StepContext {
            controls,
            now,
            number: self.planned,
            budget: 0,
            leaving: Cell::new(0),
            longest_chunk,
            loose_tokens: 0,
            prompt_tokens_left: self.prompt_tokens_of_step(),
        };
        self.run(&mut step, plan);
        if plan.preempted.is_empty() {
            self.admit(&mut step, plan);
        }
        plan.cohort = self.cohort.len();
        plan.decode_context = self.cohort.context(step.number);
        self.carry_over(plan);
        // A plan of nothing is no step, and its completion is not asked for.
        self.planned += u32::from(!plan.is_idle());
    }

    /// What the waiting queue keeps of a request.
    fn entry(&self, id: RequestId) -> Entry {
        let sequence = &self.sequences[id.index()];
        Entry::new(id, sequence.slo, sequence.arrival, sequence.answer(), sequence.tokens, &self.config.pricing)
    }

    /// Tokens the step has left. Members of the cohort that had their turn and those that will have it count alike.
    fn budget_left(&self, step: &StepContext<'_>) -> u32 {
        step.budget.saturating_sub(step.loose_tokens + self.cohort.len() - step.leaving.get())
    }

    /// Position in running.
    fn position(&self, id: RequestId) -> usize {
        let ticket = self.sequences[id.index()].ticket;
        self.running.partition_point(|other| self.sequences[other.index()].ticket < ticket)
    }

    /// Every request scheduled in the step just planned, in scheduled order: running order, then admissions. Linear in
    /// the batch; a step itself is not.
    pub fn scheduled(&self, plan: &StepPlan) -> Vec<Scheduled> {
        let step = self.planned.wrapping_sub(u32::from(!plan.is_idle()));
        let find = |&id: &RequestId| {
            let sequence = &self.sequences[id.index()];
            if sequence.is_member {
                return Some(Scheduled { id, tokens: 1, context: sequence.computed_at(step) });
            }
            let prefill = plan.prefills.iter().find(|prefill| prefill.id == id)?;
            Some(Scheduled { id, tokens: prefill.tokens, context: prefill.context })
        };
        self.running.iter().filter_map(find).collect()
    }

    /// The settings.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The GPU pool.
    pub fn pool(&self) -> &PrefixPool {
        &self.pool
    }

    /// The host pool.
    pub fn host(&self) -> &HostPool {
        &self.host
    }

    /// Free blocks of a tier; those that only the prefix cache holds are free.
    pub fn num_free(&self, tier: Tier) -> u32 {
        match tier {
            Tier::Gpu => self.pool.num_free(),
            Tier::Host => self.host.num_free(),
        }
    }

    /// One request.
    ///
    /// # Panics
    /// If `id` was not handed out by this scheduler.
    pub fn view(&self, id: RequestId) -> RequestView {
        let sequence = &self.sequences[id.index()];
        let (tokens, computed) = if sequence.is_member {
            (sequence.known_after(self.completed), sequence.computed_at(self.planned))
        } else {
            (sequence.tokens, sequence.computed)
        };
        RequestView {
            arrival: sequence.arrival,
            slo: sequence.slo,
            prompt_tokens: sequence.prompt_tokens,
            generated: tokens - sequence.prompt_tokens,
            computed,
            held_blocks: (sequence.blocks.len() + sequence.host_blocks.len()) as u32,
            phase: sequence.phase,
            first_token: sequence.first_token,
            preemptions: sequence.preemptions,
        }
    }

    /// Requests submitted.
    pub fn num_requests(&self) -> usize {
        self.sequences.len()
    }

    /// GPU blocks of a request, in order.
    ///
    /// # Panics
    /// If `id` was not handed out by this scheduler.
    pub fn table(&self, id: RequestId) -> &[BlockId] {
        self.table_in(Tier::Gpu, id)
    }

    /// Blocks of a request in a tier, in order.
    ///
    /// # Panics
    /// If `id` was not handed out by this scheduler.
    pub fn table_in(&self, tier: Tier, id: RequestId) -> &[BlockId] {
        self.sequences[id.index()].blocks_in(tier)
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

    /// Waiting requests whose blocks are on the host.
    pub fn num_on_host(&self) -> usize {
        self.on_host as usize
    }

    /// Whether no request is waiting or running.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Heap bytes held for requests; see [`Scheduler::request_bytes`](super::Scheduler::request_bytes).
    pub fn request_bytes(&self) -> usize {
        let of = |sequence: &Sequence| {
            size_of::<Sequence>()
                + size_of::<BlockId>() * sequence.tables().map(Vec::capacity).sum::<usize>()
                + size_of::<u64>() * sequence.keys.capacity()
        };
        let queues = size_of::<RequestId>() * self.running.len() + size_of::<Entry>() * self.waiting.len();
        self.sequences.iter().map(of).sum::<usize>() + queues + self.cohort.bytes()
    }

    /// Preemptions since the start.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }
}
