//! A simulated serving node: scheduler, clock and accounts over a list of requests.

use std::sync::Arc;

use kvtide_runtime::Controls;

use crate::cost::CostModel;
use crate::metrics::{Collector, Summary, Unreconciled};
use crate::sched::v0::EngineError;
use crate::sched::{ConfigError, EngineConfig, Outcome, Slo, StepPlan, V0};
use crate::seed::RunHash;
use crate::time::Micros;
use crate::trace::Request;

/// What a call to [`Node::step`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A step was computed.
    Stepped,
    /// Every request has arrived and is done.
    Drained,
    /// Requests are left that the scheduler will never serve: a dead end of the faithful setting.
    Stalled,
}

/// A scheduler with its clock, workload and accounts.
#[derive(Debug, Clone)]
pub struct Node {
    scheduler: V0,
    cost: CostModel,
    requests: Arc<[Request]>,
    slo: Slo,
    next_arrival: usize,
    now: Micros,
    collector: Collector,
    plan: StepPlan,
    outcome: Outcome,
    hash: RunHash,
    refused: bool,
}

impl Node {
    /// An idle node at time zero that will be sent `requests`, which are in arrival order.
    ///
    /// `slo` holds for every request that does not name a preset class of its own.
    ///
    /// # Errors
    /// A setting the scheduler cannot work with.
    pub fn new(
        engine: EngineConfig,
        cost: CostModel,
        requests: Arc<[Request]>,
        slo: Slo,
        collector: Collector,
    ) -> Result<Node, ConfigError> {
        Ok(Node {
            scheduler: V0::new(engine)?,
            cost,
            requests,
            slo,
            next_arrival: 0,
            now: Micros::ZERO,
            collector,
            plan: StepPlan::default(),
            outcome: Outcome::default(),
            hash: RunHash::default(),
            refused: false,
        })
    }

    /// Computes one scheduler step under `controls`, waiting for the next arrival first if there is nothing to do.
    ///
    /// # Errors
    /// The engine died, which only a faithful one does.
    pub fn step(&mut self, controls: &Controls) -> Result<Progress, EngineError> {
        loop {
            self.deliver();
            if !self.scheduler.is_empty() {
                self.scheduler.schedule(self.now, controls, &mut self.plan)?;
                if !self.plan.is_idle() {
                    break;
                }
            }
            match self.requests.get(self.next_arrival) {
                Some(next) => self.now = next.arrival,
                None if self.scheduler.is_empty() => return Ok(Progress::Drained),
                None => return Ok(Progress::Stalled),
            }
        }
        let duration = self.cost.step_time(&self.plan);
        let gpu = self.scheduler.gpu();
        let used = gpu.num_blocks() - gpu.num_free();
        self.now += duration;
        self.scheduler.complete(&self.plan, self.now, &mut self.outcome);
        self.collector.stepped(&self.plan, duration, used);
        for &id in &self.outcome.tokens {
            self.collector.token(id, self.now);
        }
        for &id in &self.outcome.finished {
            self.collector.finished(id);
        }
        self.collector.expire(self.now);
        self.absorb_step();
        Ok(Progress::Stepped)
    }

    /// Steps until a decision is due: after `interval` steps, or as soon as an admission, a swap-in or a running
    /// request's growth is refused that was not in the step before.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn advance(&mut self, controls: &Controls, interval: u32) -> Result<Progress, EngineError> {
        for _ in 0..interval.max(1) {
            let progress = self.step(controls)?;
            let refused = !self.plan.admissions_refused.is_empty()
                || !self.plan.swap_ins_refused.is_empty()
                || !self.plan.preempted.is_empty();
            let first = refused && !self.refused;
            self.refused = refused;
            if first || progress != Progress::Stepped {
                return Ok(progress);
            }
        }
        Ok(Progress::Stepped)
    }

    /// Submits everything that has arrived by now.
    fn deliver(&mut self) {
        while let Some(request) = self.requests.get(self.next_arrival).filter(|request| request.arrival <= self.now) {
            let slo = request.slo_class.as_deref().and_then(Slo::class).unwrap_or(self.slo);
            let (prompt, output) = (request.prompt_tokens, request.output_tokens);
            let (id, phase) = self.scheduler.submit(request.arrival, prompt, output, slo);
            self.collector.arrived(id, request.arrival, prompt, slo, phase);
            self.next_arrival += 1;
        }
    }

    fn absorb_step(&mut self) {
        self.hash.absorb(self.now.0);
        self.hash.absorb((self.plan.prefills.len() as u64) << 32 | self.plan.decodes.len() as u64);
        for prefill in &self.plan.prefills {
            self.hash.absorb(u64::from(prefill.id.0) << 32 | u64::from(prefill.tokens));
        }
        for victim in &self.plan.preempted {
            self.hash.absorb(u64::from(victim.id.0) << 32 | u64::from(victim.lost_tokens));
        }
        for &(id, blocks) in &self.plan.swapped_in {
            self.hash.absorb(u64::from(id.0) << 32 | u64::from(blocks));
        }
        for id in self.plan.rejected.iter().chain(&self.outcome.tokens).chain(&self.outcome.finished) {
            self.hash.absorb(u64::from(id.0));
        }
    }

    /// Everything it will be sent, arrived or not.
    pub(super) fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The scheduler's state.
    pub fn scheduler(&self) -> &V0 {
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

    /// Targets of requests that name no class.
    pub fn slo(&self) -> Slo {
        self.slo
    }

    /// Requests that have arrived.
    pub fn arrived(&self) -> usize {
        self.next_arrival
    }

    /// The last step.
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
        Ok(Summary::of(&self.collector, self.now, self.scheduler.gpu().num_blocks(), self.hash.value()))
    }
}
