//! What is deployed: a model on hardware, and the settings of the engine that serves it.
//!
//! [`Model`] and [`Hardware`] are what memory and arithmetic depend on, with [`KernelTimes`] where the hardware's were measured;
//! a [`HardwareProfile`] is a hardware's file. A [`Deployment`] is one on the other, and says what fits, what an engine would start
//! with ([`EngineConfig`]) and what preemptions are worth ([`Deployment::pricing`]). A [`Setting`] overrides either.
//!
//! A model is one of those known by name, or read from a Hugging Face `config.json`; both go through the widths of one architecture.
//!
//! Nothing here plans or prices a step: schedulers and the cost model both stand on this room.

mod architecture;
mod cards;
mod catalog;
mod config;
mod config_json;
mod config_refused;
mod deployment;
mod drawn;
mod hardware;
mod hardware_file;
mod host;
mod kernels;
mod keys;
mod line;
mod listing;
mod measured;

mod model;
mod name;
mod profile;
mod quantization;
mod rates;
mod settings;
mod spread;
mod structure;
mod tabled;
mod tables;

pub use config::{ConfigError, DeadEnds, EngineConfig, EngineKind};
pub use config_json::ModelFileError;
pub use deployment::{Deployment, DeploymentError};
pub use hardware::Hardware;
pub use host::{ClientTimes, HostTimes};
pub use kernels::KernelTimes;
pub(crate) use kernels::between;
pub use keys::describe as describe_settings;
pub use listing::{CardRow, ModelRow, card_rows, describe as describe_deployments, model_rows};
pub use model::Model;
pub(crate) use model::UNQUANTISED_BYTES;
pub use name::{DeploymentName, hardware_of, without_clock};
pub use profile::{DeviceTimings, FittedTo, HardwareProfile, ProfileError, ServedRun, ServedSummaries};
pub(crate) use rates::Rates;
pub use settings::{Setting, SettingError};
pub use spread::{ClockFactors, ClockKind, ClockSpread};
pub use structure::{Experts, Latent, Precision, Structure, Widths, Window};
pub(crate) use tabled::{BeforeChunks, GroupedTimes, LatentTimes, TabledTimes};
pub use tables::{
    AttentionShape, Curve, DecodeTable, ExpertShape, ExpertTable, KernelScales, KernelShapes, KernelTables,
    KvPrecision, LatentShape, LatentTable, PrefillTable, Product, ProductRow, ProductTable, ReduceTable, TableSource,
};
