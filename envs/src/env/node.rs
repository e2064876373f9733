//! A simulated serving node: scheduler, clock and accounts over a list of requests.

mod fork;

use std::sync::Arc;

use kvtide_rules::Cadence;
use kvtide_runtime::{Controls, Host, Observer};

pub(crate) use self::fork::{Coming, Future};
use super::observe::observe;
use crate::cost::CostModel;
use crate::deploy::{ConfigError, EngineConfig, EngineKind};
use crate::kv::{Content, shared_prefixes};
use crate::memory::{Memory, MemoryError, MemoryReport};
use crate::metrics::{Collector, Summary, Unreconciled};
use crate::sched::v0::EngineError;
use crate::sched::{Outcome, Phase, PromptLimit, PromptLimitError, RequestId, Retain, Scheduler, Slo, StepPlan, V1};
use crate::seed::{self, RunHash};
use crate::tier::{Route, Tier};
use crate::time::Micros;
use crate::trace::Request;

/// What a call to [`Node::step`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeStatus {
    /// A step was computed.
    Stepped,
    /// Every request has arrived and is done.
    Drained,
    /// Requests are left that the scheduler will never serve: a dead end of the faithful setting, where nothing is planned
    /// any more or the same is planned for ever.
    Stalled,
}

/// Why a node cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The engine died, which only a faithful one does.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Its memory failed, or does not hold what was written to it.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// What a node is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeConfig {
    /// Scheduler settings.
    pub engine: EngineConfig,
    /// Prices of steps.
    pub cost: CostModel,
    /// Targets of requests that name no preset class of their own.
    pub slo: Slo,
    /// A closed loop of so many clients, each of which sends the next request when its last one is done; arrival times
    /// are then ignored. `None` for an open loop: requests come when they come.
    pub clients: Option<u32>,
    /// The engine a policy would run in: what it lets a policy decide and see.
    pub host: Host,
}

impl NodeConfig {
    /// The node at a load: in a closed loop the load multiplies its clients, and the traffic is that of load 1.
    #[must_use]
    pub fn at_load(self, load: f64) -> NodeConfig {
        let clients = self.clients.map(|clients| ((f64::from(clients) * load).round() as u32).max(1));
        NodeConfig { clients, ..self }
    }
}

/// A scheduler with its clock, workload and accounts.
#[derive(Debug)]
pub struct Node {
    scheduler: Scheduler,
    cost: CostModel,
    /// What its blocks are made of; `None` if they are only numbers.
    memory: Option<Memory>,
    requests: Arc<[Request]>,
    /// Of each request, up to which of its hash ids others have the same; empty without a prefix cache.
    shared_prefixes: Arc<[u32]>,
    slo: Slo,
    clients: Option<u32>,
    host: Host,
    next_arrival: usize,
    now: Micros,
    collector: Collector,
    /// The step planned last.
    plan: StepPlan,
    /// The step planned before it.
    previous: StepPlan,
    /// The step planned last while it is being computed; asynchronous scheduling only.
    in_flight: Option<InFlight>,
    outcome: Outcome,
    hash: RunHash,
    cadence: Cadence,
    /// Whoever chooses classes of given-back blocks sees the node as it was when a decision was last due.
    observer: Observer,
    /// Steps since a token appeared.
    barren_steps: u32,
}

/// A step that is being computed.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    starts: Micros,
    /// What the cost model says.
    modelled: Micros,
    used_blocks: u32,
}

/// Steps without a token after which an engine is taken to be caught in a loop. A prompt of a million tokens in chunks of
/// one takes a quarter of that.
const MAX_BARREN_STEPS: u32 = 1 << 22;

impl Node {
    /// An idle node at time zero that will be sent `requests`, which are in arrival order.
    ///
    /// # Errors
    /// A setting the scheduler cannot work with.
    pub fn new(config: &NodeConfig, requests: Arc<[Request]>, collector: Collector) -> Result<Node, ConfigError> {
        let has_cache = config.engine.engine == EngineKind::V1 && config.engine.enable_prefix_caching;
        let shared_prefixes = if has_cache { shared_prefixes(&requests).into() } else { Arc::default() };
        Ok(Node {
            shared_prefixes,
            scheduler: Scheduler::new(config.engine.clone())?,
            cost: config.cost.clone().under(&config.engine),
            memory: None,
            requests,
            slo: config.slo,
            clients: config.clients,
            host: config.host,
            next_arrival: 0,
            now: Micros::ZERO,
            collector,
            plan: StepPlan::default(),
            previous: StepPlan::default(),
            in_flight: None,
            outcome: Outcome::default(),
            hash: RunHash::default(),
            cadence: Cadence::default(),
            observer: Observer::new(),
            barren_steps: 0,
        })
    }

    /// The same node with its blocks in `memory`, before its first step. Where memory measures how long a step takes, that
    /// is the accelerator's part of the node's time, and the cost model's overheads are the host's; otherwise all of it is
    /// the cost model's, and nothing the node does is changed.
    #[must_use]
    pub fn with_memory(mut self, memory: Option<Memory>) -> Node {
        debug_assert_eq!(self.next_arrival, 0, "memory that comes later knows nothing of the blocks");
        self.memory = memory;
        self
    }

    /// Plans one scheduler step under `controls` and computes it, or, with asynchronous scheduling, the one before;
    /// waits for the next arrival first if there is nothing to do.
    ///
    /// # Errors
    /// The engine died, which only a faithful one does, or its memory failed.
    pub fn step(&mut self, controls: &Controls) -> Result<NodeStatus, NodeError> {
        std::mem::swap(&mut self.plan, &mut self.previous);
        loop {
            self.deliver();
            self.plan.clear();
            if !self.scheduler.is_empty() {
                self.scheduler.schedule(self.now, controls, &mut self.plan)?;
            }
            if !self.plan.is_idle() || self.in_flight.is_some() {
                break;
            }
            match self.requests.get(self.next_arrival) {
                Some(next) if self.clients.is_none() => self.now = next.arrival,
                _ if self.scheduler.is_empty() => return Ok(NodeStatus::Drained),
                _ => return Ok(NodeStatus::Stalled),
            }
        }
        if let Some(memory) = self.memory.as_mut().filter(|_| !self.plan.is_idle()) {
            memory.submit(&self.scheduler, &self.plan)?;
        }
        if self.scheduler.is_async() {
            self.compute_previous()?;
        } else {
            self.compute()?;
        }
        let is_barren = self.barren_steps >= MAX_BARREN_STEPS;
        Ok(if is_barren { NodeStatus::Stalled } else { NodeStatus::Stepped })
    }

    /// Computes the planned step.
    fn compute(&mut self) -> Result<(), NodeError> {
        let measured = self.measured()?;
        let duration = measured
            .map_or_else(|| self.cost.step_time(&self.plan), |device| device + self.cost.host_time(&self.plan, device));
        let used_blocks = self.used_blocks();
        self.now += duration;
        let plan = std::mem::take(&mut self.plan);
        let accounted = self.account(&plan, duration, used_blocks);
        self.plan = plan;
        accounted
    }

    /// Waits for the step sent off first; its time on the device, if that is measured.
    fn measured(&mut self) -> Result<Option<Micros>, MemoryError> {
        self.memory.as_mut().map_or(Ok(None), Memory::wait)
    }

    /// Sends the planned step off, to be computed once the one before is, and waits for that one.
    fn compute_previous(&mut self) -> Result<(), NodeError> {
        let previous = self.in_flight.take();
        let planned = (!self.plan.is_idle()).then(|| (self.cost.step_time(&self.plan), self.used_blocks()));
        let mut ended = None;
        if let Some(InFlight { starts, modelled, used_blocks }) = previous {
            let measured = self.measured()?;
            let duration = measured.map_or(modelled, |device| device + self.cost.host_time(&self.previous, device));
            ended = Some((starts + duration, duration, used_blocks));
        }
        if let Some((modelled, used_blocks)) = planned {
            let starts = ended.map_or(self.now, |(ends, ..)| ends.max(self.now));
            self.in_flight = Some(InFlight { starts, modelled, used_blocks });
        }
        let Some((ends, duration, used_blocks)) = ended else { return Ok(()) };
        self.now = self.now.max(ends);
        let plan = std::mem::take(&mut self.previous);
        let accounted = self.account(&plan, duration, used_blocks);
        self.previous = plan;
        accounted
    }

    /// The step `plan` ended now.
    fn account(&mut self, plan: &StepPlan, duration: Micros, used_blocks: u32) -> Result<(), NodeError> {
        if let Some(memory) = &mut self.memory {
            memory.finishing(&self.scheduler, &plan.finishing)?;
        }
        self.scheduler.complete(plan, self.now, &mut self.outcome);
        self.collector.stepped(plan, duration, used_blocks);
        self.collector.left(&plan.left);
        // V0's pauses while prompts are computed.
        if plan.cohort > 0 {
            self.collector.advance(self.now);
        }
        for &id in &self.outcome.tokens {
            self.collector.token(id, self.now);
        }
        self.collector.joined(&plan.joined);
        for &id in &self.outcome.finished {
            self.collector.finished(id);
        }
        self.collector.expire(self.now);
        self.absorb_step(plan);
        let is_barren = plan.cohort == 0 && self.outcome.tokens.is_empty();
        self.barren_steps = if is_barren { self.barren_steps + 1 } else { 0 };
        Ok(())
    }

    fn used_blocks(&self) -> u32 {
        self.scheduler.num_blocks(Tier::Gpu) - self.scheduler.free_blocks(Tier::Gpu)
    }

    /// Steps until a decision is due: after `interval` steps, or as soon as an admission, a swap-in or a running
    /// request's growth is refused that was not in the step before.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn advance(&mut self, controls: &Controls, interval: u32) -> Result<NodeStatus, NodeError> {
        self.advance_showing(controls, interval, |_| {})
    }

    /// As [`advance`](Self::advance), showing the node after each step.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn advance_showing(
        &mut self,
        controls: &Controls,
        interval: u32,
        mut each: impl FnMut(&Node),
    ) -> Result<NodeStatus, NodeError> {
        self.cadence.decided();
        self.observe_for_classes();
        loop {
            let progress = self.step(controls)?;
            each(self);
            let refused = !self.plan.admissions_refused.is_empty()
                || !self.plan.swap_ins_refused.is_empty()
                || !self.plan.preempted.is_empty();
            self.cadence.stepped(refused);
            if self.cadence.is_due(interval) || progress != NodeStatus::Stepped {
                return Ok(progress);
            }
        }
    }

    fn observe_for_classes(&mut self) {
        if self.scheduler.with_classes().is_some_and(V1::wants_observation) {
            let mut observer = std::mem::take(&mut self.observer);
            let observation = observe(self, &mut observer);
            self.observer = observer;
            if let Some(v1) = self.scheduler.with_classes_mut() {
                v1.observed(observation, self.now);
            }
        }
    }

    /// Lets `retain` choose the classes of given-back blocks from now on; nothing where the pool has none.
    pub fn set_retain(&mut self, retain: Retain) {
        self.scheduler.set_retain(retain);
    }

    /// Notes from now on what becomes of each release somebody looks at; nothing where the pool has no classes.
    pub fn collect_releases(&mut self) {
        if let Some(v1) = self.scheduler.with_classes_mut() {
            v1.collect_releases();
        }
    }

    /// Submits everything that has arrived by now; in a closed loop, one request for each client that waits for none.
    fn deliver(&mut self) {
        while let Some(request) = self.requests.get(self.next_arrival) {
            let arrival = match self.clients {
                None if request.arrival > self.now => break,
                None => request.arrival,
                Some(clients) if self.scheduler.num_open() >= clients as usize => break,
                Some(_) => self.now,
            };
            let slo = request.slo_class.as_deref().and_then(Slo::class).unwrap_or(self.slo);
            let (prompt, output) = (request.prompt_tokens, request.output_tokens);
            let shared = self.shared_prefixes.get(self.next_arrival).copied();
            let text = (shared.is_some() || self.memory.is_some())
                .then(|| Content::of(request, self.next_arrival as u64, self.scheduler.config().prefix_sharing));
            let content = shared.and_then(|shared| Some(text.clone()?.shared_up_to(shared)));
            let (id, phase) = self.scheduler.submit(arrival, prompt, output, slo, content);
            if let Some(v1) = self.scheduler.with_kinds_mut() {
                let kind = request.tenant.as_deref().or(request.slo_class.as_deref());
                v1.set_kind(id, kind.map_or(0, |kind| seed::derive(0, kind, 0)));
            }
            if let (Some(memory), Some(text), Phase::Waiting) = (&mut self.memory, text, phase) {
                memory.arrived(id, text);
            }
            let group = self.collector.group(request.slo_class.as_deref(), request.tenant.as_deref());
            self.collector.arrived(id, arrival, prompt, slo, phase, group);
            self.next_arrival += 1;
        }
    }

    fn absorb_step(&mut self, plan: &StepPlan) {
        self.hash.absorb(self.now.0);
        self.hash.absorb((plan.prefills.len() as u64) << 32 | u64::from(plan.cohort));
        for prefill in &plan.prefills {
            self.hash.absorb(u64::from(prefill.id.0) << 32 | u64::from(prefill.tokens));
        }
        for victim in &plan.preempted {
            self.hash.absorb(u64::from(victim.id.0) << 32 | u64::from(victim.lost_tokens));
        }
        for &(id, blocks) in &plan.moved[Route::HostToGpu] {
            self.hash.absorb(u64::from(id.0) << 32 | u64::from(blocks));
        }
        for id in plan.rejected.iter().chain(&self.outcome.tokens).chain(&self.outcome.finished) {
            self.hash.absorb(u64::from(id.0));
        }
    }

    /// Limits the prompt tokens of every step planned from now on.
    ///
    /// # Errors
    /// The engine cannot.
    pub fn limit_prompts(&mut self, limit: PromptLimit) -> Result<(), PromptLimitError> {
        self.scheduler.limit_prompts(limit)
    }

    /// Prices steps planned from now on by `cost`: a machine may be slower at first.
    pub fn set_cost(&mut self, cost: CostModel) {
        self.cost = cost.under(self.scheduler.config());
    }

    /// Everything it will be sent, arrived or not.
    pub(crate) fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// How long a request's answer will be. Whoever decides by this knows the future: it is for references that say so.
    pub(crate) fn output_tokens(&self, id: RequestId) -> u32 {
        let request = &self.requests[id.index()];
        request.output_tokens.min(self.scheduler.config().max_model_len.saturating_sub(request.prompt_tokens) + 1)
    }

    /// The scheduler's state.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The accounts.
    pub fn collector(&self) -> &Collector {
        &self.collector
    }

    /// The clock.
    pub fn now(&self) -> Micros {
        self.now
    }

    /// How many clients send the next request when their last is done; `None` for an open loop.
    pub fn clients(&self) -> Option<u32> {
        self.clients
    }

    /// Targets of requests that name no class.
    pub fn slo(&self) -> Slo {
        self.slo
    }

    /// The engine its policy is made for.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Requests that have arrived.
    pub fn arrived(&self) -> usize {
        self.next_arrival
    }

    /// The step planned last.
    pub fn plan(&self) -> &StepPlan {
        &self.plan
    }

    /// Hash of every step so far.
    pub fn hash(&self) -> u64 {
        self.hash.value()
    }

    /// The numbers so far.
    ///
    /// # Errors
    /// An account does not add up.
    pub fn summary(&self) -> Result<Summary, Unreconciled> {
        self.collector.reconcile(&self.scheduler)?;
        let summary = Summary::of(&self.collector, self.now, self.scheduler.num_blocks(Tier::Gpu), self.hash.value());
        let is_plain = self.scheduler.config().host_cache.is_off();
        let summary = if is_plain { summary } else { summary.with_host_cache(&self.collector) };
        let retention = self.scheduler.with_classes().and_then(V1::retention_report);
        Ok(Summary { memory: self.memory_report(), retention, ..summary })
    }

    /// What memory did so far; `None` if blocks are only numbers.
    pub fn memory_report(&self) -> Option<MemoryReport> {
        self.memory.as_ref().map(Memory::report)
    }

    /// Gives memory back: the node takes no further step.
    pub(super) fn release_memory(&mut self) {
        self.memory = None;
    }

    /// Looks at every block that a request holds now, if blocks are more than numbers.
    ///
    /// # Errors
    /// One does not hold what was written to it, or memory failed.
    pub fn verify_memory(&mut self) -> Result<(), MemoryError> {
        self.memory.as_mut().map_or(Ok(()), |memory| memory.verify(&self.scheduler))
    }
}
