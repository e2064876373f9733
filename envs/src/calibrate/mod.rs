//! From a device's timings to the numbers a step is priced by: measure, keep, go on, fit, report.
//!
//! [`MeasurementPlan`] says what has to be timed, [`TimedDevice`] is a device that can be, [`measure`] times it,
//! [`TimingsFile`] does so with a file that has what was timed so far; [`fit()`] finds the constants of
//! [`cost`](crate::cost) from the points that are not held out, and tells the errors on those that are; [`render`] writes
//! them down. Whoever has a device stands on this: nothing here needs one.

mod errors;
mod fit;
mod fit_steps;
mod kept;
mod least_squares;
mod measure;
mod points;
mod schedule;

pub use errors::{KindErrors, Miss, PointKind, RelativeErrors, render};
pub use fit::{FitError, Fitted, fit};
pub use kept::{KeptError, TimingsFile};
pub use measure::{DeviceAbout, MeasureError, Measured, TimedDevice, measure};
pub use points::{Direction, Overlap, OverlapPoint, Role, StepPoint, StepShape, Timing, TransferPoint};
pub use schedule::MeasurementPlan;
