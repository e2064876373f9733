//! Schedulers: which requests prefill, decode, wait, swap or start again in each step.
//!
//! A scheduler is told [`Controls`](kvtide_runtime::Controls), the resolved action, and fills a [`StepPlan`]. It knows
//! blocks, queues and targets; it does not know what a step costs (`cost`) or how long an answer will be, which only
//! [`complete`](V0::complete) looks at, as the sampler of a real engine does.

mod config;
mod plan;
mod request;
mod settings;
mod slo;
pub mod v0;
mod waiting;

pub use config::{ConfigError, DeadEnds, EngineConfig, Pricing};
pub use plan::{Admittance, BlockCopy, Outcome, Preempted, PreemptedAs, Prefill, Refusal, Source, StepPlan};
pub use request::{Phase, RequestId, RequestState, Stage};
pub use settings::{Setting, SettingError};
pub use slo::{Slo, SloError};
pub use v0::V0;
