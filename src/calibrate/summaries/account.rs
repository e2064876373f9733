//! What there is to tell of clocks judged on summaries.

use std::path::Path;

use kvtide_envs::deploy::{FittedTo, HardwareProfile, ServedSummaries};

use super::report::{CardAccount, ClockReport};
use super::{picture, text};
use crate::calibrate::Account;
use crate::plot::Figure;

/// The clocks of a file's cards, and the command that would judge them again.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryAccount {
    cards: Vec<CardAccount>,
    reports: Vec<ClockReport>,
    warnings: Vec<String>,
    command: String,
}

impl SummaryAccount {
    /// Of at least one card, judged by `command`; `warnings` are of the file itself.
    ///
    /// # Panics
    /// Without cards.
    pub fn new(cards: Vec<CardAccount>, mut warnings: Vec<String>, command: String) -> SummaryAccount {
        assert!(!cards.is_empty(), "a file of runs has one at least");
        let reports: Vec<ClockReport> = cards.iter().map(|card| card.report.clone()).collect();
        warnings.extend(reports.iter().flat_map(|report| report.warnings.clone()));
        SummaryAccount { cards, reports, warnings, command }
    }
}

impl Account for SummaryAccount {
    const KIND: &'static str = "clock_report";
    type Data = ClockReport;

    fn data(&self) -> &[ClockReport] {
        &self.reports
    }

    fn text(&self) -> String {
        self.reports.iter().map(text::render).collect::<Vec<String>>().join("\n")
    }

    fn picture(&self) -> Option<Figure> {
        Figure::joined(self.reports.iter().map(picture::picture))
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// That of its first card: whoever writes one sees to it that there is no other.
    fn profile(&self, path: &Path) -> HardwareProfile {
        let CardAccount { report, hardware, .. } = &self.cards[0];
        let errors = report.models.iter().filter_map(|model| model.judged.as_ref().or(model.fitted.as_ref()));
        let fitted = FittedTo::Summaries(ServedSummaries {
            command: self.command.clone(),
            version: format!("kvtide {}", env!("CARGO_PKG_VERSION")),
            data: report.data.clone(),
            gpu: report.gpu.clone(),
            hardware: report.hardware.clone(),
            models: report.models.iter().map(|model| model.model.clone()).collect(),
            runs: report.fitted_runs as u64,
            median_e2e_error: errors.map(|part| part.e2e_mean.median).fold(0.0, f64::max),
        });
        HardwareProfile::fitted(path, hardware.clone(), fitted)
    }

    fn model(&self) -> &str {
        &self.cards[0].model
    }
}
