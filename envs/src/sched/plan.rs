//! What one step does.

use super::request::RequestId;
use crate::kv::BlockId;
use crate::tier::{Route, Routes};

/// Where a prefill came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefillSource {
    /// Admitted from waiting this step.
    Waiting,
    /// Continued from running (chunked prefill).
    Continued,
    /// Swapped in this step while still in prefill (chunked prefill).
    Swapped,
}

/// One prompt, or a chunk of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefill {
    /// The request whose prompt it is.
    pub id: RequestId,
    /// Tokens computed this step.
    pub tokens: u32,
    /// Tokens computed before.
    pub context: u32,
    /// Where it came from.
    pub source: PrefillSource,
    /// Whether the prompt ends here, so that a token is sampled.
    pub samples: bool,
}

/// How a victim was preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreemptedAs {
    /// Copied to the host tier.
    Swap,
    /// Dropped, to be computed again.
    Recompute,
}

/// One victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preempted {
    /// The victim.
    pub id: RequestId,
    /// What happened to its blocks.
    pub how: PreemptedAs,
    /// Tokens whose keys and values are lost and must be computed again; 0 if they were copied to another tier.
    pub lost_tokens: u32,
}

/// vLLM's `AllocStatus`, as far as it refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocStatus {
    /// Not now.
    Later,
    /// Not in this pool.
    Never,
}

/// What blocks were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// A running request's next tokens.
    Growth,
    /// A whole prompt (or sequence) at admission or swap-in.
    Prompt,
    /// The first chunk of a prompt at admission.
    Chunk,
}

/// A test for blocks that was not passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The request that asked.
    pub id: RequestId,
    /// What for.
    pub test: Test,
    /// Blocks asked for.
    pub need: u32,
    /// Blocks that had to be left free beyond those.
    pub reserve: u32,
    /// Blocks free at that moment.
    pub free: u32,
    /// The answer.
    pub status: AllocStatus,
}

/// One block copied from the pool of one tier to that of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// From, in the source pool.
    pub src: BlockId,
    /// To, in the destination pool.
    pub dst: BlockId,
}

/// Blocks brought from the host's cache for a request that is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetched {
    /// The request.
    pub id: RequestId,
    /// How many.
    pub blocks: u32,
    /// Tokens in them, which need not be computed.
    pub tokens: u32,
}

/// A request scheduled in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduled {
    /// The request that computes.
    pub id: RequestId,
    /// Tokens computed.
    pub tokens: u32,
    /// Tokens computed before.
    pub context: u32,
}

/// What one step does. Buffers are kept from step to step.
///
/// Requests that decode are the *cohort*: of them a plan only says who joins and who leaves, so that a step costs nothing
/// for those it does not touch. All of it decodes, one token each, or, in a V0 step of prompts, nobody.
#[derive(Debug, Clone, Default)]
pub struct StepPlan {
    /// Prompts computed, in scheduled order.
    pub prefills: Vec<Prefill>,
    /// Requests decoding one token each: the members of the cohort, those that join included; 0 if it pauses.
    pub cohort: u32,
    /// Members of the cohort from this step on, which they are part of, in scheduled order.
    pub joined: Vec<RequestId>,
    /// Members until the step before this one.
    pub left: Vec<RequestId>,
    /// Whose last token is sampled in this step, in scheduled order. Under V0 only members of the cohort.
    pub finishing: Vec<RequestId>,
    /// Sum over all decodes of the tokens each attends to.
    pub decode_context: u64,
    /// Victims, in the order preempted.
    pub preempted: Vec<Preempted>,
    /// Per route the requests whose blocks move along it, and how many of them, in order.
    pub moved: Routes<Vec<(RequestId, u32)>>,
    /// Per route the copies, within a request in block order.
    pub copies: Routes<Vec<BlockCopy>>,
    /// Requests admitted with blocks brought from the host's cache; they are among those that `moved` names.
    pub fetched: Vec<Fetched>,
    /// Blocks among the copies to the host that are stored in its cache and no swapped request's.
    pub stored: u32,
    /// Requests dropped for ever: from waiting first, then from swapped.
    pub rejected: Vec<RequestId>,
    /// Admission tests not passed.
    pub admissions_refused: Vec<Refusal>,
    /// Swap-in tests not passed.
    pub swap_ins_refused: Vec<Refusal>,
    /// Tests of running requests not passed, one entry a victim; V1 only.
    pub growth_refused: Vec<Refusal>,
}

impl StepPlan {
    /// Empties the plan, keeping its buffers.
    pub fn clear(&mut self) {
        self.prefills.clear();
        self.cohort = 0;
        self.joined.clear();
        self.left.clear();
        self.finishing.clear();
        self.decode_context = 0;
        self.preempted.clear();
        self.moved.iter_mut().for_each(Vec::clear);
        self.copies.iter_mut().for_each(Vec::clear);
        self.fetched.clear();
        self.stored = 0;
        self.rejected.clear();
        self.admissions_refused.clear();
        self.swap_ins_refused.clear();
        self.growth_refused.clear();
    }

    /// Tokens computed in this step.
    pub fn batched_tokens(&self) -> u32 {
        self.prefills.iter().map(|prefill| prefill.tokens).sum::<u32>() + self.cohort
    }

    /// Whether nothing is computed, copied or dropped.
    pub fn is_idle(&self) -> bool {
        self.prefills.is_empty()
            && self.cohort == 0
            && self.preempted.is_empty()
            && self.moved[Route::HostToGpu].is_empty()
            && self.rejected.is_empty()
    }
}

/// What came of a step once it was computed.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Requests that got a token, in scheduled order; of the cohort only those that joined with this step.
    pub tokens: Vec<RequestId>,
    /// Requests that finished, in scheduled order.
    pub finished: Vec<RequestId>,
}
