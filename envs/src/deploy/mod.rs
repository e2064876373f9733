//! What is deployed: a model on hardware, and the settings of the engine that serves it.
//!
//! [`Model`] and [`Hardware`] are what memory and arithmetic depend on, with [`KernelTimes`] where the hardware's were measured;
//! a [`HardwareProfile`] is a hardware's file. A [`Deployment`] is one on the other, and says what fits, what an engine would start
//! with ([`EngineConfig`]) and what preemptions are worth ([`Deployment::pricing`]). A [`Setting`] overrides either.
//!
//! Nothing here plans or prices a step: schedulers and the cost model both stand on this room.

mod config;
mod deployment;
mod hardware;
mod kernels;
mod keys;
mod model;
mod profile;
mod rates;
mod settings;

pub use config::{ConfigError, DeadEnds, EngineConfig, EngineKind};
pub use deployment::{Deployment, DeploymentError, DeploymentName};
pub use hardware::Hardware;
pub use kernels::KernelTimes;
pub(crate) use kernels::between;
pub use keys::describe as describe_settings;
pub use model::Model;
pub use profile::{DeviceTimings, FittedTo, HardwareProfile, ProfileError, ServedRun};
pub(crate) use rates::Rates;
pub use settings::{Setting, SettingError};
