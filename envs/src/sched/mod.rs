//! Schedulers: which requests prefill, decode, wait, swap or start again in each step.
//!
//! A scheduler is told [`Controls`](kvtide_runtime::Controls), the resolved action, and fills a [`StepPlan`]. It knows
//! blocks, queues and targets, and decides by the rules a node decides by (`kvtide-rules`); it does not know what a step costs (`cost`) or how long an answer will be, which only
//! [`complete`](V0::complete) looks at, as the sampler of a real engine does.

mod cohort;
mod plan;
mod prompt_limit;
mod request;
mod retain;
mod scheduler;
pub mod v0;
pub mod v1;

pub use kvtide_rules::{Pricing, Slo, SloError};
pub use plan::{
    AllocStatus, BlockCopy, Fetched, Outcome, Preempted, PreemptedAs, Prefill, PrefillSource, Refusal, Scheduled,
    StepPlan, Test,
};
pub use prompt_limit::{PromptLimit, PromptLimitError, PromptPressure};
pub use request::{Phase, RequestId, RequestState, RequestView, Stage};
pub use retain::{Retain, RetentionReport};
pub use scheduler::Scheduler;
pub use v0::V0;
pub use v1::{ReleaseSample, V1};

/// The waiting queue of either scheduler, and what it keeps of a request.
type WaitingQueue = kvtide_rules::AdmissionQueue<RequestId>;
type Entry = kvtide_rules::Entry<RequestId>;
