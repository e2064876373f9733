//! How long a step takes: from a [`StepPlan`](crate::sched::StepPlan) to microseconds.

mod deployment;
mod hardware;
mod kernel_cost;
mod kernels;
mod load;
mod model;
mod profile;
mod roofline;

pub use deployment::{Deployment, DeploymentError};
pub use hardware::Hardware;
pub use kernels::Kernels;
pub use load::{Chunk, StepLoad};
pub use model::Model;
pub use profile::{Profile, ProfileError, Provenance};
pub use roofline::CostModel;
