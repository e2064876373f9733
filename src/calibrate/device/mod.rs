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

    fn data(&self) -> &Fitted {
        &self.fitted
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
    let now = std::time::SystemTime::now();
    let days = now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    // Days to a date of the Gregorian calendar, counted from March so that leap days come last.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
