//! How long a step takes: from a [`StepPlan`](crate::sched::StepPlan) to microseconds.

mod deployment;
mod hardware;
mod model;
mod profile;
mod roofline;

pub use deployment::{Deployment, DeploymentError};
pub use hardware::Hardware;
pub use model::Model;
pub use profile::{Profile, ProfileError, Provenance};
pub use roofline::CostModel;
