//! `kvtide calibrate --measured FOLDER` of summaries: clocks fitted to, and judged on, what clients saw of many runs.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use super::super::stop;
use super::{CalibrateArgs, name};
use crate::calibrate::FitScope;
use crate::calibrate::served::CalibrateError;
use crate::calibrate::summaries::{
    CardAccount, CardRuns, FitLoads, MeasuredSummaries, Selection, SelectionError, SummaryAccount, judge_card,
};
use crate::say;

/// How much of a clock `--fit` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ScopeName {
    None,
    Host,
    All,
}

impl ScopeName {
    pub(super) fn scope(self) -> FitScope {
        match self {
            ScopeName::None => FitScope::None,
            ScopeName::Host => FitScope::Host,
            ScopeName::All => FitScope::All,
        }
    }
}

/// Which loads `--fit-loads` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LoadsName {
    All,
    Half,
    OtherHalf,
}

#[derive(Debug, Args)]
pub(super) struct SummaryArgs {
    /// Of measured summaries: fit to every load, to every second load of each model, or to the others; errors are told of those
    /// that were not fitted.
    #[arg(long, value_name = "LOADS", default_value = "all")]
    fit_loads: LoadsName,
    /// Of measured summaries: only runs with these values. Keys: gpu, model, budget, policy, peak, seed, prompt, output; a key
    /// given again is another value that will do. Repeatable.
    #[arg(long, value_name = "KEY=VALUE,…")]
    only: Vec<String>,
}

impl SummaryArgs {
    /// Refuses what holds for summaries alone.
    pub(super) fn check_unused(&self) -> anyhow::Result<()> {
        ensure!(self.only.is_empty(), "--only picks runs of measured summaries (a folder with runs.jsonl)");
        ensure!(
            self.fit_loads == LoadsName::All,
            "--fit-loads picks loads of measured summaries (a folder with runs.jsonl); --fit-fraction is for a run"
        );
        Ok(())
    }

    fn loads(&self) -> FitLoads {
        match self.fit_loads {
            LoadsName::All => FitLoads::All,
            LoadsName::Half => FitLoads::Half,
            LoadsName::OtherHalf => FitLoads::OtherHalf,
        }
    }
}

/// Settings of the engine that a row has.
const OF_EACH_RUN: [&str; 2] = ["max_num_batched_tokens", "max_num_seqs"];

impl CalibrateArgs {
    /// Whether what was measured are summaries.
    pub(super) fn has_summaries(&self) -> bool {
        self.measured.iter().any(|path| MeasuredSummaries::is_at(path))
    }

    /// Judges clocks on summaries; `None` if interrupted.
    pub(super) fn summaries(&self) -> anyhow::Result<Option<SummaryAccount>> {
        let [path] = self.measured.as_slice() else {
            anyhow::bail!("{} --measured, one of them measured summaries: they are judged alone", self.measured.len());
        };
        ensure!(self.load.is_empty(), "--load: no prompt of measured summaries shares anything with another");
        ensure!(
            self.fit_fraction.is_none(),
            "--fit-fraction is for a recorded run; of summaries --fit-loads picks loads"
        );
        let scope = self.fit.scope();
        let loads = self.summaries.loads();
        ensure!(scope != FitScope::None || loads == FitLoads::All, "--fit-loads with --fit none: nothing is fitted");
        let (summaries, warnings) = self.read_summaries(path)?;
        let settings = self.settings()?;
        if let Some(setting) = settings.iter().find(|setting| OF_EACH_RUN.contains(&setting.key())) {
            anyhow::bail!("--set {setting}: each run of measured summaries says its own (--only picks runs)");
        }
        let cards = CardRuns::of(&summaries, self.env.as_deref(), &settings)?;
        ensure!(
            self.profile.is_none() || cards.len() == 1,
            "--profile is of one accelerator, and the runs are of {}: pick one (--only gpu={})",
            cards.len(),
            cards[0].gpu
        );
        let bar = ProgressBar::with_draw_target(None, say::bars());
        let style = ProgressStyle::with_template("{msg} {pos} simulations  {elapsed}");
        bar.set_style(style.expect("a constant template is valid"));
        let stopped = stop::on_interrupt();
        let watch = || {
            bar.inc(1);
            if stopped.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let judge = |card: &CardRuns| {
            bar.set_message(card.gpu.clone());
            judge_card(card, &summaries.name, scope, loads, &watch)
        };
        let judged: Result<Vec<CardAccount>, CalibrateError> = cards.iter().map(judge).collect();
        bar.finish_and_clear();
        match judged {
            Err(CalibrateError::Interrupted) => Ok(None),
            judged => Ok(Some(SummaryAccount::new(judged?, warnings, self.summary_command()))),
        }
    }

    /// The runs that are meant, and what is to be said of the file.
    fn read_summaries(&self, path: &Path) -> anyhow::Result<(MeasuredSummaries, Vec<String>)> {
        let mut summaries = MeasuredSummaries::read(path)?;
        let parts = self.summaries.only.iter().map(|text| text.parse());
        let parts: Vec<Selection> = parts.collect::<Result<_, SelectionError>>().context("--only")?;
        let selection = Selection::of_all(&parts);
        summaries.runs.retain(|run| selection.takes(run));
        ensure!(
            !summaries.runs.is_empty(),
            "{}: --only {} leaves no run",
            summaries.file,
            self.summaries.only.join(",")
        );
        let mut warnings = Vec::new();
        if !summaries.failed.is_empty() {
            let lines: Vec<String> = summaries.failed.iter().map(ToString::to_string).collect();
            warnings.push(format!(
                "{}: runs with failed requests are passed over (lines {})",
                summaries.file,
                lines.join(", ")
            ));
        }
        Ok((summaries, warnings))
    }

    /// The command that does the same again, without what it only writes.
    fn summary_command(&self) -> String {
        let mut command = format!("kvtide calibrate --measured {}", name(&self.measured[0]));
        let value = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        let _ = write!(command, " --fit {}", value(&|| self.fit.to_possible_value()));
        let _ = write!(command, " --fit-loads {}", value(&|| self.summaries.fit_loads.to_possible_value()));
        for only in &self.summaries.only {
            let _ = write!(command, " --only {only}");
        }
        if let Some(env) = &self.env {
            let _ = write!(command, " --env {env}");
        }
        for setting in &self.set {
            let _ = write!(command, " --set {setting}");
        }
        command
    }
}
