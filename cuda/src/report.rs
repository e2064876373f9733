//! Everything found out about a device in one call, as a text and as data.

use std::fmt::Write;

use kvtide_envs::calibrate::{self, Fitted};
use serde::{Deserialize, Serialize};

use crate::compare::{self, DeviceComparison};
use crate::schedules::ScheduleReport;
use crate::{KernelCheck, Speed};

/// One part of a report, or why it is missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Section<T> {
    /// It was done.
    Done(T),
    /// It was not, and why.
    Skipped(String),
    /// It was tried, and failed.
    Failed(String),
    /// Nobody asked for it.
    Unasked,
}

/// A device, as far as it was looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Which device; `None` where there is none.
    pub device: Option<String>,
    /// The CUDA version of its driver.
    pub driver: Option<String>,
    /// Day of the report.
    pub date: String,
    /// What the program was built from.
    pub commit: String,
    /// Random schedules in host memory.
    pub host_schedules: Section<ScheduleReport>,
    /// Kernels against their references.
    pub kernels: Section<Vec<KernelCheck>>,
    /// Random schedules on the device.
    pub device_schedules: Section<ScheduleReport>,
    /// Speeds beside ceilings.
    pub speeds: Section<Vec<Speed>>,
    /// The fitted hardware, and its errors on points held out.
    pub fitted: Section<Fitted>,
    /// Traffic on the device and in the fitted model.
    pub comparisons: Section<Vec<DeviceComparison>>,
}

/// What calibration aims at on points held out: median and 95th percentile of the relative error.
const CALIBRATION_TARGETS: (f64, f64) = (0.03, 0.08);

impl DeviceReport {
    /// Whether anything that was tried failed: a check, not a speed or an accuracy, which only miss their targets.
    pub fn has_failed(&self) -> bool {
        let kernels = match &self.kernels {
            Section::Done(checks) => checks.iter().any(|check| check.failure.is_some()),
            section => section.is_failed(),
        };
        kernels
            || self.host_schedules.is_failed()
            || self.device_schedules.is_failed()
            || self.speeds.is_failed()
            || self.fitted.is_failed()
            || self.comparisons.is_failed()
    }

    /// Targets missed, a line each.
    pub fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        if let Section::Done(speeds) = &self.speeds {
            for speed in speeds.iter().filter(|speed| speed.is_reached() == Some(false)) {
                let share = speed.share().unwrap_or_default();
                missed.push(format!("{}: {:.1} % of its ceiling", speed.name, share * 100.0));
            }
        }
        if let Section::Done(Fitted { held_out, .. }) = &self.fitted
            && (held_out.median > CALIBRATION_TARGETS.0 || held_out.p95 > CALIBRATION_TARGETS.1)
        {
            let (median, p95) = (held_out.median * 100.0, held_out.p95 * 100.0);
            missed.push(format!("calibration: median {median:.2} %, p95 {p95:.2} % on points held out"));
        }
        if let Section::Done(comparisons) = &self.comparisons {
            for comparison in comparisons {
                for row in comparison.agreement.iter().filter(|row| !row.holds()) {
                    missed.push(format!("{}, {}: {:+.2} %", comparison.name, row.name, row.error() * 100.0));
                }
            }
        }
        missed
    }
}

impl<T> Section<T> {
    fn is_failed(&self) -> bool {
        matches!(self, Section::Failed(_))
    }

    /// The part as text, under its heading.
    fn render(&self, text: &mut String, heading: &str, body: impl FnOnce(&T) -> String) {
        if matches!(self, Section::Unasked) {
            return;
        }
        let _ = write!(text, "\n## {heading}\n\n");
        let _ = match self {
            Section::Unasked => Ok(()),
            Section::Done(done) => write!(text, "```\n{}\n```\n", body(done).trim_end()),
            Section::Skipped(why) => writeln!(text, "skipped: {why}"),
            Section::Failed(how) => writeln!(text, "FAILED: {how}"),
        };
    }
}

/// The report in Markdown.
pub fn render(report: &DeviceReport) -> String {
    let device = report.device.as_deref().unwrap_or("no device");
    let driver = report.driver.as_deref().map_or_else(String::new, |driver| format!(", driver {driver}"));
    let mut text = format!("# {device}\n\n{}{driver}, commit {}\n", report.date, report.commit);
    let missed = report.missed();
    if !missed.is_empty() {
        let _ = writeln!(text, "\nTargets missed:\n");
        for line in missed {
            let _ = writeln!(text, "- {line}");
        }
    }
    report.host_schedules.render(&mut text, "Random schedules in host memory", schedules);
    report.kernels.render(&mut text, "Kernels against their references", |checks| kernels(checks));
    report.device_schedules.render(&mut text, "Random schedules on the device", schedules);
    report.speeds.render(&mut text, "Speeds", |speeds| lines(speeds.iter().map(speed_line)));
    report.fitted.render(&mut text, "Calibration, errors on points held out", calibrate::render);
    report.comparisons.render(&mut text, "Traffic on the device and in the fitted model", |all| {
        all.iter().map(compare::render).collect()
    });
    text
}

fn schedules(report: &ScheduleReport) -> String {
    let ScheduleReport { schedules, swapped, written_tokens, blocks_checked, round_trips_checked, compared, backend } =
        report;
    format!(
        "{schedules} schedules on {backend}, {swapped} of them swapped: {written_tokens} tokens written, {blocks_checked} \
         blocks checked, {round_trips_checked} of them back from the host: all hold what was written; {compared} compared \
         with host memory"
    )
}

fn kernels(checks: &[KernelCheck]) -> String {
    let line = |check: &KernelCheck| match &check.failure {
        None => format!("{:<28} ok, {} seeds", check.name, check.seeds),
        Some((seed, how)) => format!("{:<28} FAILED at seed {seed}: {how}", check.name),
    };
    lines(checks.iter().map(line))
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.collect::<Vec<_>>().join("\n")
}

/// A speed for people.
pub fn speed_line(speed: &Speed) -> String {
    let gb = |bytes_per_s: f64| bytes_per_s * 1e-9;
    let [low, high] = speed.spread;
    let mut line =
        format!("{:<78} {:>8.1} GB/s ({:.1} to {:.1})", speed.name, gb(speed.bytes_per_s), gb(low), gb(high));
    if let (Some(ceiling), Some(share)) = (&speed.ceiling, speed.share()) {
        let _ = write!(line, "  {:>5.1} % of {}", share * 100.0, ceiling.name);
        if let Some(target) = ceiling.target {
            let word = if share >= target { "reached" } else { "MISSED" };
            let _ = write!(line, ", target {:.0} %: {word}", target * 100.0);
        }
    }
    line
}
