//! Fits the cost model to a device's own timings. How they are taken, kept and fitted is [`kvtide_envs::calibrate`].

use std::path::Path;

use kvtide_envs::calibrate::{FitError, Fitted, Measured, fit, render};
use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind, HardwareProfile, Setting, SettingError};

use super::Account;
use crate::plot::Figure;

/// Host blocks, if the engine is given none: V1 has no host tier of its own, and copies are timed all the same.
const HOST_BLOCKS: u32 = 1024;

/// The engine whose steps are timed: what vLLM would start on `deployment`, with `settings` and a host tier.
///
/// # Errors
/// A setting is out of range.
pub fn engine(deployment: &Deployment, settings: &[Setting]) -> Result<EngineConfig, SettingError> {
    let engine = deployment.engine(EngineKind::V1).with(settings)?;
    Ok(EngineConfig { num_cpu_blocks: engine.num_cpu_blocks.max(HOST_BLOCKS), ..engine })
}

/// A fit to a device's timings, and the day it was made.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceAccount {
    fitted: Fitted,
    model: String,
    date: String,
}

impl DeviceAccount {
    /// Fits the hardware of `deployment` to `measured`.
    ///
    /// # Errors
    /// The timings are of another model, or too few.
    pub fn of(measured: &Measured, deployment: &Deployment) -> Result<DeviceAccount, FitError> {
        let fitted = fit(measured, deployment)?;
        Ok(DeviceAccount { fitted, model: deployment.model.name.clone(), date: today() })
    }
}

impl Account for DeviceAccount {
    const KIND: &'static str = "device_calibration";
    type Data = Fitted;

    fn data(&self) -> &[Fitted] {
        std::slice::from_ref(&self.fitted)
    }

    fn text(&self) -> String {
        render(&self.fitted)
    }

    fn picture(&self) -> Option<Figure> {
        None
    }

    fn warnings(&self) -> &[String] {
        &[]
    }

    fn profile(&self, path: &Path) -> HardwareProfile {
        self.fitted.profile(path, &self.date)
    }

    fn model(&self) -> &str {
        &self.model
    }
}

/// The day of now, UTC: `2026-11-22`.
#[expect(
    clippy::disallowed_methods,
    reason = "the day of a measurement is a fact about the world, and only written down"
)]
fn today() -> String {
    jiff::Timestamp::now().strftime("%F").to_string()
}
