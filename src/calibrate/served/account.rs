//! What there is to tell of a calibration to a served run.

use std::path::Path;

use kvtide_envs::deploy::HardwareProfile;

use super::{Calibration, CalibrationReport, MeasuredRun, picture, text};
use crate::calibrate::Account;
use crate::plot::Figure;

/// A calibration, the run it was fitted to, and the command that would do so again.
#[derive(Debug, Clone, PartialEq)]
pub struct RunAccount {
    run: MeasuredRun,
    calibration: Calibration,
    report: CalibrationReport,
    command: String,
}

impl RunAccount {
    /// Of `calibration` to `run`, made by `command`.
    pub fn new(run: MeasuredRun, calibration: Calibration, command: String) -> RunAccount {
        let report = calibration.report(&run);
        RunAccount { run, calibration, report, command }
    }
}

impl Account for RunAccount {
    const KIND: &'static str = "calibration";
    type Data = CalibrationReport;

    fn data(&self) -> &CalibrationReport {
        &self.report
    }

    fn text(&self) -> String {
        text::render(&self.report)
    }

    fn picture(&self) -> Option<Figure> {
        Some(picture(&self.calibration, &self.report))
    }

    fn warnings(&self) -> &[String] {
        &self.report.warnings
    }

    fn profile(&self, path: &Path) -> HardwareProfile {
        self.calibration.profile(&self.run, path, &self.command)
    }

    fn model(&self) -> &str {
        &self.calibration.setup.deployment.model.name
    }
}
