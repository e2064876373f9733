//! Schedulers: which requests prefill, decode, wait, swap or start again in each step.
//!
//! A scheduler is told [`Controls`](kvtide_runtime::Controls), the resolved action, and fills a [`StepPlan`]. It knows
//! blocks, queues and targets, and decides by the rules a node decides by (`kvtide-rules`); it does not know what a step costs (`cost`) or how long an answer will be, which only
//! [`complete`](V0::complete) looks at, as the sampler of a real engine does.

mod cohort;
mod config;
mod keys;
mod plan;
mod request;
mod scheduler;
mod settings;
pub mod v0;
pub mod v1;

pub use config::{ConfigError, DeadEnds, EngineConfig, EngineKind};
pub use keys::describe as describe_settings;
pub(crate) use keys::of_hardware;
pub use kvtide_rules::{Pricing, Slo, SloError};
pub use plan::{
    Admittance, BlockCopy, Outcome, Preempted, PreemptedAs, Prefill, Refusal, Scheduled, Source, StepPlan, Test,
};
pub use request::{Phase, RequestId, RequestState, RequestView, Stage};
pub use scheduler::Scheduler;
pub use settings::{Setting, SettingError};
pub use v0::V0;
pub use v1::V1;

/// The waiting queue of either scheduler, and what it keeps of a request.
type WaitingQueue = kvtide_rules::AdmissionQueue<RequestId>;
type Entry = kvtide_rules::Entry<RequestId>;
