//! What there is to tell of a calibration to served runs.

use std::path::Path;

use kvtide_envs::deploy::{FittedTo, HardwareProfile, ServedRun};

use super::{Calibration, CalibrationReport, MeasuredRun, picture, text};
use crate::calibrate::Account;
use crate::plot::Figure;

/// A calibration, the runs it was fitted to, and the command that would do so again.
#[derive(Debug, Clone, PartialEq)]
pub struct RunAccount {
    runs: Vec<MeasuredRun>,
    calibrations: Vec<Calibration>,
    reports: Vec<CalibrationReport>,
    warnings: Vec<String>,
    command: String,
}

impl RunAccount {
    /// Of one fit to `runs`, made by `command`; of each run its calibration.
    pub fn new(runs: Vec<MeasuredRun>, calibrations: Vec<Calibration>, command: String) -> RunAccount {
        let reports: Vec<CalibrationReport> =
            calibrations.iter().zip(&runs).map(|(calibration, run)| calibration.report(run)).collect();
        let is_alone = reports.len() == 1;
        let named = |report: &CalibrationReport, warning: &String| {
            if is_alone { warning.clone() } else { format!("{}: {warning}", report.run) }
        };
        let of_each = reports.iter().flat_map(|report| report.warnings.iter().map(|warning| named(report, warning)));
        RunAccount { warnings: of_each.collect(), runs, calibrations, reports, command }
    }
}

impl Account for RunAccount {
    const KIND: &'static str = "calibration";
    type Data = CalibrationReport;

    fn data(&self) -> &[CalibrationReport] {
        &self.reports
    }

    fn text(&self) -> String {
        self.reports.iter().map(text::render).collect::<Vec<String>>().join("\n")
    }

    fn picture(&self) -> Option<Figure> {
        Figure::joined(self.calibrations.iter().zip(&self.reports).map(|(run, report)| picture(run, report)))
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn profile(&self, path: &Path) -> HardwareProfile {
        let each = self.calibrations.iter().zip(&self.runs);
        let each: Vec<ServedRun> = each.map(|(calibration, run)| calibration.provenance(run, &self.command)).collect();
        HardwareProfile::fitted(path, self.calibrations[0].hardware(), FittedTo::Run(joined(&each)))
    }

    fn model(&self) -> &str {
        &self.calibrations[0].setup.deployment.model.name
    }
}

/// Where a fit to several runs comes from: their names beside each other, their counts together, their ranges at their widest.
fn joined(each: &[ServedRun]) -> ServedRun {
    let names = |of: fn(&ServedRun) -> &String| {
        let mut names: Vec<&str> = Vec::new();
        for name in each.iter().map(|run| of(run).as_str()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    };
    let most = |of: fn(&ServedRun) -> f64| each.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
    let least = |of: fn(&ServedRun) -> f64| each.iter().map(of).fold(f64::INFINITY, f64::min);
    ServedRun {
        data: names(|run| &run.data),
        recorded: names(|run| &run.recorded),
        engine: names(|run| &run.engine),
        env: names(|run| &run.env),
        fit_until_s: most(|run| run.fit_until_s),
        requests: each.iter().map(|run| run.requests).sum(),
        running: [least(|run| run.running[0]), most(|run| run.running[1])],
        kv_usage: [least(|run| run.kv_usage[0]), most(|run| run.kv_usage[1])],
        cold_start_s: most(|run| run.cold_start_s),
        ..each[0].clone()
    }
}
