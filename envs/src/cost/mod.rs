//! How long a step takes: from a [`StepPlan`](crate::sched::StepPlan) to microseconds.

mod deployment;
mod errors;
mod fit;
mod hardware;
mod kernel_cost;
mod kernels;
mod least_squares;
mod load;
mod model;
mod points;
mod profile;
mod roofline;
mod schedule;

pub use deployment::{Deployment, DeploymentError};
pub use errors::{Errors, Kind, KindErrors, Miss, render};
pub use fit::{FitError, Fitted, fit};
pub use hardware::Hardware;
pub use kernels::Kernels;
pub use load::{Chunk, StepLoad};
pub use model::Model;
pub use points::{
    DeviceAbout, Direction, MeasureError, Measured, Overlap, OverlapPoint, Point, Role, StepShape, Timed, Timing,
    TransferPoint, measure,
};
pub use profile::{DeviceTimings, Profile, ProfileError, Provenance, ServedRun};
pub use roofline::CostModel;
pub use schedule::Schedule;
