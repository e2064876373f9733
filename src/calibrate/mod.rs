//! Fits the cost model to what was measured: to a run that a server recorded ([`served`]), to what clients saw of many
//! ([`summaries`]), or to the timings of a device ([`device`]); or takes kernels as a database has them ([`perf_db`]).
//!
//! All go the same way, and end in an [`Account`] that one command writes down: a profile, a picture, a text. What of it a
//! machine with a GPU needs by itself (which steps are timed, how timings are kept and gone on with, the fit, its errors)
//! is [`kvtide_envs::calibrate`]: the small program for such machines links no more than that. Here is what only the
//! tool has: runs as servers record them, pictures, the day.

mod constants;
pub mod device;
mod nelder_mead;
pub mod perf_db;
pub mod served;
pub mod summaries;

use std::path::Path;

use kvtide_envs::deploy::HardwareProfile;
use serde::Serialize;

use crate::plot::Figure;

pub use constants::{FitScope, FittedConstants, PARAMETERS, Parameter, Part};

/// What there is to tell of a calibration, whatever it was fitted to.
pub trait Account {
    /// The type of its JSON line.
    const KIND: &'static str;
    /// What that line has.
    type Data: Serialize;

    /// It in numbers: a line for each of what it was fitted to.
    fn data(&self) -> &[Self::Data];

    /// It as text for people: constants or what was timed, and errors, those on what was held out first.
    fn text(&self) -> String;

    /// Measured beside fitted, where there is something to draw.
    fn picture(&self) -> Option<Figure>;

    /// Where not to trust it.
    fn warnings(&self) -> &[String];

    /// The fitted hardware as the profile in the file `path`.
    fn profile(&self, path: &Path) -> HardwareProfile;

    /// The model it was fitted with, under our name.
    fn model(&self) -> &str;
}
