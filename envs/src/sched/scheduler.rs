//! One scheduler, whichever engine's rules it follows.

use kvtide_rules::windows;
use kvtide_runtime::{Admission, Controls, Snapshot};

use super::v0::EngineError;
use super::{
    Outcome, Phase, PromptLimit, PromptLimitError, RequestId, RequestView, Retain, Scheduled, Slo, StepPlan, V0, V1,
};
use crate::deploy::{ConfigError, EngineConfig, EngineKind};
use crate::kv::{BlockId, Content};
use crate::tier::{Tier, Tiers};
use crate::time::Micros;

/// A scheduler of either engine. What both can do is here; what only one has is asked of it directly.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a node has one, and V1, the larger, is the one nearly all have")]
pub enum Scheduler {
    /// vLLM 0.6.
    V0(V0),
    /// vLLM today.
    V1(V1),
}

/// Delegates to whichever scheduler there is.
macro_rules! either {
    ($self:ident, $scheduler:ident => $body:expr) => {
        match $self {
            Scheduler::V0($scheduler) => $body,
            Scheduler::V1($scheduler) => $body,
        }
    };
}

impl Scheduler {
    /// An empty scheduler of the engine `config` names.
    ///
    /// # Errors
    /// A setting it cannot work with.
    pub fn new(config: EngineConfig) -> Result<Scheduler, ConfigError> {
        Ok(match config.engine {
            EngineKind::V0 => Scheduler::V0(V0::new(config)?),
            EngineKind::V1 => Scheduler::V1(V1::new(config)?),
        })
    }

    /// Queues a request, or refuses it ([`Phase::Rejected`]). Ids are handed out in order. `content` says which tokens
    /// its prompt shares with others; V0 has no prefix cache to ask.
    pub fn submit(
        &mut self,
        arrival: Micros,
        prompt_tokens: u32,
        output_tokens: u32,
        slo: Slo,
        content: Option<Content>,
    ) -> (RequestId, Phase) {
        match self {
            Scheduler::V0(v0) => v0.submit(arrival, prompt_tokens, output_tokens, slo),
            Scheduler::V1(v1) => v1.submit_with(arrival, prompt_tokens, output_tokens, slo, content),
        }
    }

    /// Lets the answers of open requests that `answer` names come to other lengths; nothing under V0. See [`V1::redraw`].
    pub(crate) fn redraw(&mut self, ending: &[RequestId], answer: impl FnMut(RequestId) -> Option<u32>) {
        if let Scheduler::V1(v1) = self {
            v1.redraw(ending, answer);
        }
    }

    /// Lets `retain` choose the classes of given-back blocks from now on; nothing where the pool has none.
    pub fn set_retain(&mut self, retain: Retain) {
        if let Scheduler::V1(v1) = self {
            v1.set_retain(retain);
        }
    }

    /// Limits the prompt tokens of every step from now on.
    ///
    /// # Errors
    /// It has no steps of prompts beside decodes.
    pub fn limit_prompts(&mut self, limit: PromptLimit) -> Result<(), PromptLimitError> {
        match self {
            Scheduler::V0(v0) => limit.check(v0.config()),
            Scheduler::V1(v1) => v1.limit_prompts(limit),
        }
    }

    /// Plans one step.
    ///
    /// # Errors
    /// [`EngineError`] under [`DeadEnds::Faithful`](crate::deploy::DeadEnds::Faithful), V0 only.
    pub fn schedule(&mut self, now: Micros, controls: &Controls, plan: &mut StepPlan) -> Result<(), EngineError> {
        match self {
            Scheduler::V0(v0) => v0.schedule(now, controls, plan),
            Scheduler::V1(v1) => {
                v1.schedule(now, controls, plan);
                Ok(())
            }
        }
    }

    /// The planned step was computed and ended at `now`.
    pub fn complete(&mut self, plan: &StepPlan, now: Micros, outcome: &mut Outcome) {
        either!(self, scheduler => scheduler.complete(plan, now, outcome));
    }

    /// Whether a step is planned before the tokens of the one before it are known.
    pub fn is_async(&self) -> bool {
        let config = self.config();
        config.engine == EngineKind::V1 && config.async_scheduling
    }

    /// The settings.
    pub fn config(&self) -> &EngineConfig {
        either!(self, scheduler => scheduler.config())
    }

    /// What it does when nobody tells it otherwise.
    pub fn default_controls(&self) -> Controls {
        self.config().default_controls()
    }

    /// Blocks of a tier that can hold tokens.
    pub fn num_blocks(&self, tier: Tier) -> u32 {
        match tier {
            Tier::Gpu => self.config().num_usable_blocks(),
            Tier::Host => self.config().num_cpu_blocks,
        }
    }

    /// Free blocks of a tier; those that only the prefix cache holds are free.
    pub fn free_blocks(&self, tier: Tier) -> u32 {
        match self {
            Scheduler::V0(v0) => v0.pool(tier).num_free(),
            Scheduler::V1(v1) => v1.num_free(tier),
        }
    }

    /// Free GPU blocks that hold a cache entry.
    pub fn evictable_blocks(&self) -> u32 {
        match self {
            Scheduler::V0(_) => 0,
            Scheduler::V1(v1) => v1.pool().num_idle_cached(),
        }
    }

    /// The scheduler whose pool has classes for what is given back.
    pub fn with_classes(&self) -> Option<&V1> {
        match self {
            Scheduler::V1(v1) if v1.has_classes() => Some(v1),
            _ => None,
        }
    }

    /// The same, to be told what classes are chosen by.
    pub fn with_classes_mut(&mut self) -> Option<&mut V1> {
        match self {
            Scheduler::V1(v1) if v1.has_classes() => Some(v1),
            _ => None,
        }
    }

    /// The scheduler that asks of which kind requests are, to be told.
    pub fn with_kinds_mut(&mut self) -> Option<&mut V1> {
        match self {
            Scheduler::V1(v1) if v1.asks_kinds() => Some(v1),
            _ => None,
        }
    }

    /// One request, of those handed out by this scheduler.
    pub fn view(&self, id: RequestId) -> RequestView {
        either!(self, scheduler => scheduler.view(id))
    }

    /// Every request scheduled in the step just planned, in scheduled order. Linear in the batch; a step itself is not.
    pub fn scheduled(&self, plan: &StepPlan) -> Vec<Scheduled> {
        either!(self, scheduler => scheduler.scheduled(plan))
    }

    /// GPU blocks of a request, in order; none while it is not running.
    pub fn table(&self, id: RequestId) -> &[BlockId] {
        self.table_in(Tier::Gpu, id)
    }

    /// Blocks of a request in a tier, in order; none in one that it was not moved to.
    pub fn table_in(&self, tier: Tier, id: RequestId) -> &[BlockId] {
        match self {
            Scheduler::V0(v0) => match (tier, v0.view(id).phase) {
                (Tier::Gpu, Phase::Running) | (Tier::Host, Phase::Swapped) => v0.table(id),
                (Tier::Gpu | Tier::Host, _) => &[],
            },
            Scheduler::V1(v1) => v1.table_in(tier, id),
        }
    }

    /// Requests submitted.
    pub fn num_requests(&self) -> usize {
        either!(self, scheduler => scheduler.num_requests())
    }

    /// Waiting requests, head first.
    pub fn waiting(&self) -> Box<dyn DoubleEndedIterator<Item = RequestId> + '_> {
        match self {
            Scheduler::V0(v0) => Box::new(v0.waiting()),
            Scheduler::V1(v1) => Box::new(v1.waiting()),
        }
    }

    /// Waiting requests in the order in which they are admitted under `order`. Sorts all of them where it is not the queue's.
    pub fn waiting_in(&self, order: Admission, now: Micros) -> Vec<RequestId> {
        either!(self, scheduler => scheduler.waiting_in(order, now))
    }

    /// Counts what a policy sees of the waiting queue into `shot`, whose `now_us` and `block_size` must be set.
    pub fn look_at_waiting(&self, shot: &mut Snapshot) {
        let queue = either!(self, scheduler => scheduler.waiting_queue());
        windows::look_at_waiting(queue, &self.config().pricing, shot);
    }

    /// Number of waiting requests.
    pub fn num_waiting(&self) -> usize {
        either!(self, scheduler => scheduler.num_waiting())
    }

    /// Running requests, head first.
    pub fn running(&self) -> &[RequestId] {
        either!(self, scheduler => scheduler.running())
    }

    /// Requests whose blocks are on the host: V0's swapped queue, or those of V1's waiting that were moved there.
    pub fn num_on_host(&self) -> usize {
        match self {
            Scheduler::V0(v0) => v0.swapped().len(),
            Scheduler::V1(v1) => v1.num_on_host(),
        }
    }

    /// Requests that are neither finished nor rejected.
    pub fn num_open(&self) -> usize {
        match self {
            Scheduler::V0(v0) => v0.num_waiting() + v0.running().len() + v0.swapped().len(),
            Scheduler::V1(v1) => v1.num_waiting() + v1.running().len(),
        }
    }

    /// Whether nothing is left to do.
    pub fn is_empty(&self) -> bool {
        self.num_open() == 0
    }

    /// Distinct blocks that requests hold in each tier, counted anew. Linear in the requests.
    pub fn held_blocks(&self) -> Tiers<u64> {
        either!(self, scheduler => scheduler.held_blocks())
    }

    /// Heap bytes held for requests: their states, tables, keys and queues, but not the pools. Linear in the requests.
    pub fn request_bytes(&self) -> usize {
        either!(self, scheduler => scheduler.request_bytes())
    }

    /// Recounts everything that is counted twice.
    ///
    /// # Errors
    /// What does not add up.
    pub fn validate(&self) -> Result<(), String> {
        either!(self, scheduler => scheduler.validate())
    }
}
