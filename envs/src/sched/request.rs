//! The state of one request inside a scheduler.

use kvtide_rules::Answer;
use kvtide_runtime::RunningRequest;
use serde::{Deserialize, Serialize};

use super::Slo;
use crate::kv::BlockId;
use crate::time::Micros;

/// Dense index of a request within its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u32);

impl RequestId {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whether a request still computes known tokens or generates new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Tokens are known that have no KV yet.
    Prefill,
    /// One token a step.
    Decode,
}

/// Where a request is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// In the waiting queue: new, or preempted for recomputation.
    Waiting,
    /// In the running queue, with blocks on the GPU.
    Running,
    /// In the swapped queue, with blocks on the host.
    Swapped,
    /// Done: all its tokens were generated.
    Finished,
    /// Dropped for ever: it can never fit.
    Rejected,
}

/// What anybody but the scheduler itself sees of a request, under any engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestView {
    /// When it arrived.
    pub arrival: Micros,
    /// Its targets.
    pub slo: Slo,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Generated tokens so far.
    pub generated: u32,
    /// Tokens whose keys and values exist, or are being written.
    pub computed: u32,
    /// Blocks it holds, in whichever tier.
    pub held_blocks: u32,
    /// Which queue it is in.
    pub phase: Phase,
    /// When its first token appeared.
    pub first_token: Option<Micros>,
    /// How often it was preempted.
    pub preemptions: u32,
}

impl RequestView {
    /// Prompt plus generated tokens.
    pub fn len(&self) -> u32 {
        self.prompt_tokens + self.generated
    }

    /// A request always has at least its prompt.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// By when its next token is on time.
    pub fn next_deadline(&self) -> Micros {
        self.slo.deadline(self.arrival, self.generated)
    }

    /// As a policy counts it.
    pub fn running(&self) -> RunningRequest {
        RunningRequest {
            tokens: self.len(),
            computed_tokens: self.computed,
            generated_tokens: self.generated,
            held_blocks: self.held_blocks,
            deadline_us: self.next_deadline().0,
        }
    }
}

/// The state of one request under V0.
///
/// `len()` is vLLM's sequence length: prompt plus generated tokens. A decoding request has exactly one token without a
/// slot, the one sampled last; a request within a chunked prefill has none.
#[derive(Debug, Clone)]
pub struct RequestState {
    /// When it arrived.
    pub arrival: Micros,
    /// Its targets.
    pub slo: Slo,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// After how many generated tokens it finishes. Only the sampler knows; no decision may look.
    pub(super) output_tokens: u32,
    /// Generated tokens so far.
    pub generated: u32,
    /// Tokens whose keys and values exist.
    pub computed: u32,
    /// Tokens that have a slot in the block table.
    pub slots: u32,
    /// Prefill or decode.
    pub stage: Stage,
    /// The cohort's step in which it became a member, before which it was as described here; `None` outside.
    pub(super) joined: Option<u32>,
    /// Of a member: the cohort's step in which something happens to it.
    pub(super) next_event: u32,
    /// Of a running request: its place in running.
    pub(super) ticket: u32,
    /// Which queue it is in.
    pub phase: Phase,
    /// Its blocks, on the GPU while running, on the host while swapped.
    pub blocks: Vec<BlockId>,
    /// When its first token appeared.
    pub first_token: Option<Micros>,
    /// When its latest token appeared.
    pub last_token: Option<Micros>,
    /// How often it was preempted.
    pub preemptions: u32,
}

impl RequestState {
    /// A request that has just arrived.
    pub fn new(arrival: Micros, prompt_tokens: u32, output_tokens: u32, slo: Slo) -> RequestState {
        RequestState {
            arrival,
            slo,
            prompt_tokens,
            output_tokens,
            generated: 0,
            computed: 0,
            slots: 0,
            stage: Stage::Prefill,
            joined: None,
            next_event: 0,
            ticket: 0,
            phase: Phase::Waiting,
            blocks: Vec::new(),
            first_token: None,
            last_token: None,
            preemptions: 0,
        }
    }

    /// Prompt plus generated tokens.
    pub fn len(&self) -> u32 {
        self.prompt_tokens + self.generated
    }

    /// A request always has at least its prompt.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// By when its next token is on time.
    pub fn next_deadline(&self) -> Micros {
        self.slo.deadline(self.arrival, self.generated)
    }

    /// Time left to the next token's deadline, microseconds; negative once it is missed.
    pub fn slack(&self, now: Micros) -> i64 {
        self.next_deadline().0 as i64 - now.0 as i64
    }

    /// How far its answer is.
    pub(super) fn answer(&self) -> Answer {
        Answer::of(self.slo, self.arrival, self.first_token, self.last_token)
    }

    /// What others see of it.
    pub fn view(&self) -> RequestView {
        RequestView {
            arrival: self.arrival,
            slo: self.slo,
            prompt_tokens: self.prompt_tokens,
            generated: self.generated,
            computed: self.computed,
            held_blocks: self.blocks.len() as u32,
            phase: self.phase,
            first_token: self.first_token,
            preemptions: self.preemptions,
        }
    }

    /// Decodes `steps` tokens, the last of which appeared at `clock`.
    pub(super) fn decode(&mut self, steps: u32, clock: Micros) {
        self.generated += steps;
        self.computed += steps;
        self.slots += steps;
        if steps > 0 {
            self.last_token = Some(clock);
        }
    }

    /// Forgets everything computed: back to the start of its (longer) prompt.
    pub(super) fn reset(&mut self) {
        self.computed = 0;
        self.slots = 0;
        self.stage = Stage::Prefill;
    }
}
