//! A hardware profile from a device's own timings.

use crate::cost::{Deployment, FitError, Fitted, MeasureError, Measured, Schedule, Timed, fit, measure};
use crate::sched::EngineConfig;

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// Something could not be timed.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// What was timed gives no constants.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// Interrupted; what was timed is lost.
    #[error("interrupted")]
    Interrupted,
}

/// Times `timer`, which has the model of `deployment` on it, at about `budget` points of what `engine` allows, each
/// `repeats` times, and fits the deployment's hardware to it. `watch` is told how many points are done, of how many.
///
/// # Errors
/// The device failed, or what it took cannot be explained.
pub fn calibrate(
    timer: &mut dyn Timed,
    deployment: &Deployment,
    engine: &EngineConfig,
    (budget, repeats): (u32, u32),
    watch: &mut dyn FnMut(usize, usize),
) -> Result<(Measured, Fitted), CalibrationError> {
    let schedule = Schedule::new(engine, budget, repeats);
    let all = schedule.len();
    let measured = measure(&schedule, timer, &mut |done| watch(done, all))?;
    let fitted = fit(&measured, deployment)?;
    Ok((measured, fitted))
}
